import json
import time

import pytest

from rl_insight.schema import BatchBuilder, Process
from rl_insight.store import RunDirectory
from tests.reader.conftest import (  # noqa: F401
    _no_settings_of_the_user,
    crowd_files,
    crowd_served,
    files,
    place,
    served,
    server_url,
)

SECOND = 1_000_000_000
BEGIN_NS = 1_760_000_000 * SECOND


@pytest.fixture
def write_run(tmp_path):
    """Write a run of one process: samples as metric, value, second and labels; spans as rank, step, start and end."""

    def write(samples=(), spans=()):
        runs = RunDirectory(tmp_path / "small", min_free_bytes=0)
        with runs.open("small-1", create=True) as store:
            for rank in sorted({rank for rank, *_ in spans} | {0}):
                builder = BatchBuilder()
                for metric, value, at, labels in samples if rank == 0 else ():
                    series = builder.add_series(metric, "gauge", "", json.dumps(labels))
                    step = next((step for _, step, start, end in spans if start <= at < end), None)
                    builder.add_sample(series, time_ns=BEGIN_NS + at * SECOND, value=value, step=step)
                for number, (_, step, start, end) in enumerate((span for span in spans if span[0] == rank), 1):
                    builder.add_span(
                        span_id=number, trace=(rank + 1, number), name="update", segment="state_interval", step=step,
                        start_ns=BEGIN_NS + start * SECOND, duration_ns=(end - start) * SECOND,
                    )  # fmt: skip
                process = Process(process_id=f"p{rank}", run_id="small-1", host="h", pid=1, role="trainer", rank=rank)
                store.commit([builder.build(process, sequence=1, sent_ns=time.time_ns(), final=True)])
        runs.close()
        return tmp_path / "small"

    return write
