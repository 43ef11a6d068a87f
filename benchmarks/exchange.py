"""The speed of imports, and the duration of a report."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from pathlib import Path

from benchmarks.harness import Figure, Options, say
from benchmarks.make_store import make_store
from rl_insight.exchange.errors import ExchangeError
from rl_insight.exchange.exporting.exporter import export_run
from rl_insight.exchange.importing.destinations import Destination, ImportReceipt, StoreDestination
from rl_insight.exchange.importing.importer import Importer
from rl_insight.exchange.report import build_document, render
from rl_insight.exchange.report.page import Bundle, load_bundle
from rl_insight.schema import Batch
from rl_insight.store import RunDirectory, RunStore

NAME = "exchange"

_BEGIN_S = 1_767_225_600.0
_REPEATS = 8
"""The best of these counts, so that other work on the machine does not affect the figure."""


class _Nowhere(Destination):
    """Discards batches, which leaves the cost of reading."""

    def send(self, batches: Sequence[Batch]) -> ImportReceipt:
        """Count the batches."""
        return ImportReceipt(new=len(batches))


def run(options: Options) -> Iterator[Figure]:
    """Measure import and report."""
    sessions = 125_000 if options.quick else 250_000
    spans = 20_000 if options.quick else 100_000
    with tempfile.TemporaryDirectory() as work:
        directory = Path(work)
        say(f"exchange: {sessions:,} AReaL session records")
        file = directory / "sessions-r0.jsonl"
        # In a separate process, whose memory is as fresh as that of `rl-insight import`.
        writer = get_context("spawn").Process(target=_write_sessions, args=(file, sessions))
        writer.start()
        writer.join()
        rate = max(_store_rate(file, directory / f"data{number}") for number in range(_REPEATS))
        yield Figure("AReaL sessions, from file to committed", rate, "/s", 50_000, at_least=True)
        rate = max(_read_rate(file, directory / f"nowhere{number}") for number in range(_REPEATS))
        yield Figure("AReaL sessions, parsing only", rate, "/s")
        say(f"exchange: a report of {spans:,} spans")
        make_store(directory / "spans.duckdb", spans)
        bundle = _bundle()
        with RunStore(directory / "spans.duckdb", create=True) as store:
            began = time.perf_counter()
            (directory / "report.html").write_bytes(render(build_document(store), bundle))
            yield Figure(f"report of {spans:,} spans", time.perf_counter() - began, "s", budget=10.0)
            yield Figure("report size", (directory / "report.html").stat().st_size / 1e6, "MB")
            began = time.perf_counter()
            written = export_run(store, "chrome", directory / "trace.json")
            yield Figure("Chrome trace written", written / (time.perf_counter() - began), "/s")


def _bundle() -> Bundle:
    """Return the report page; if it was not built, only the data is measured."""
    try:
        return load_bundle()
    except ExchangeError as error:
        say(f"exchange: only the data is measured: {error}")
        return Bundle("", "")


_SPANS_OF_SESSION = 4
"""The session span and its phases."""


def _write_sessions(path: Path, count: int) -> None:
    """Write records as AReaL's tracer does: about 600 bytes each."""
    rng = random.Random(7)
    with path.open("wb") as stream:
        for number in range(count):
            at = _BEGIN_S + number * 0.01
            generated = at + 0.3 + rng.lognormvariate(1.5, 0.6)
            record = {
                "task_id": number // 8,
                "session_id": number,
                "rank": 0,
                "status": "accepted" if rng.random() < 0.9 else "rejected",
                "submit_ts": at,
                "enqueue_ts": at + 0.001,
                "wait_return_ts": generated + 1.0,
                "rollout_stats": {"accepted": 8, "enqueued": 192, "rejected": 0, "running": 56},
                "queue_wait_s": 0.001,
                "runner_wait_s": 0.199,
                "execution_s": generated + 0.5 - at - 0.2,
                "post_wait_s": 0.5,
                "total_s": generated + 1.0 - at,
                "generate_s": generated - at - 0.3,
                "reward_calc_s": 0.3,
                "phases": {
                    "execution": [{"start_ts": at + 0.2, "end_ts": generated + 0.5}],
                    "generate": [{"start_ts": at + 0.3, "end_ts": generated}],
                    "reward": [{"start_ts": generated + 0.1, "end_ts": generated + 0.4}],
                },
            }
            stream.write(json.dumps(record).encode() + b"\n")


def _read_rate(file: Path, directory: Path) -> float:
    return _import_rate(Importer(_Nowhere(), data_dir=directory, run_id="r"), file)


def _store_rate(file: Path, directory: Path) -> float:
    runs = RunDirectory(directory, threads=1)  # as `rl-insight import` does
    rate = _import_rate(Importer(StoreDestination(runs), data_dir=directory, run_id="r"), file)
    with runs.open("r") as store, store.reader() as cursor:
        ((sessions, spans),) = cursor.execute(
            "SELECT (SELECT count(*) FROM sessions), (SELECT count(*) FROM spans)"
        ).fetchall()
    runs.close()
    shutil.rmtree(directory)
    if spans != sessions * _SPANS_OF_SESSION:
        raise RuntimeError(f"{sessions} sessions and {spans} spans are stored, so the figure is meaningless.")
    return rate


def _import_rate(importer: Importer, file: Path) -> float:
    """Return the records imported per second of CPU time, regardless of the number of threads."""
    began = time.process_time()
    importer.add(file)
    took = time.process_time() - began
    summary = importer.summary()
    if summary.bad or summary.partial:
        raise RuntimeError(f"records were not read, so the figure is meaningless: {summary.problems}")
    return summary.records / took
