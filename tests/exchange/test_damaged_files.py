"""Files with random damage: an import refuses them or counts bad records, and its data can be shown and exported."""

import random
import re

import pytest

from rl_insight.errors import InsightError
from rl_insight.exchange.exporting.exporter import export_run
from rl_insight.store import queries

ODD = (
    b"null", b"-1", b"0", b"1e20", b"-1e300", b"1e999", b"99999999999999999999999", b"NaN", b"true", b"{}", b"[[]]",
    b'""', b'"x"', b'"\\ud800"', b'"\x00"', b"\xff", b"\n",
)  # fmt: skip
VALUE = re.compile(rb'(?<=[:\[,]) ?(?:-?[0-9][0-9.e+-]*|"[^"\\]*"|null|true|\{[^{}]*\})')


def damaged(data, rng):
    """Return the data with a byte changed, a part removed, something added, a value replaced, or truncated."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(data) or 1)
        values = list(VALUE.finditer(data))
        match rng.randrange(6):
            case 0:
                data[at : at + 1] = rng.randbytes(1)
            case 1:
                del data[at : at + rng.randrange(1, 30)]
            case 2:
                data[at:at] = rng.choice(ODD)
            case 3:
                del data[at:]
            case _ if values:
                begin, end = rng.choice(values).span()
                data[begin:end] = rng.choice(ODD)
    return bytes(data)


@pytest.fixture
def files(tmp_path, samples, recorded):
    """One file of each format."""
    directory = tmp_path / "whole"
    directory.mkdir()
    for file_format, name in (("chrome", "c.json"), ("otlp", "o.json"), ("jsonl", "n.jsonl"), ("rli", "f.rli")):
        export_run(recorded, file_format, directory / name)
    stages = ("generate.start", "judge", "generate.end", "reward.error")
    traces = [
        {"trace_id": f"t:{number}", "stage": stage, "timestamp_s": samples.begin_s + number, "elapsed_s": 0.5}
        for number in range(3)
        for stage in stages
    ]
    event = {"name": "step", "cat": "compute", "ph": "X", "pid": 0, "tid": 1, "ts": 1.5, "dur": 2, "args": {"a": "é"}}
    (directory / "x.jsonl").write_bytes(samples.lines(traces))
    (directory / "trace-r0.jsonl").write_bytes(samples.lines([event] * 4))
    rich = {"reward": 0.5, "counters": {"a": 1}, "rollout_stats": {"é": [1, None]}, "step": 3}
    (directory / "sessions-r0.jsonl").write_bytes(samples.lines(samples.session(n) | rich for n in range(4)))
    return directory


@pytest.mark.parametrize("rounds", [5, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", ["c.json", "o.json", "n.jsonl", "f.rli", "x.jsonl", "trace-r0.jsonl", "sessions-r0.jsonl"]
)
def test_damage_costs_no_more_than_what_it_hit(name, rounds, files, tmp_path, import_path, runs):
    whole = (files / name).read_bytes()
    rng = random.Random(name)
    came_in = 0
    for number in range(rounds):
        file = tmp_path / f"damaged{number}" / name
        file.parent.mkdir()
        file.write_bytes(damaged(whole, rng))
        try:
            summary = import_path(file, run_id=f"r{number}")
        except InsightError:
            continue
        if not summary.new_batches:
            continue
        came_in += 1
        with runs.open(f"r{number}") as store:
            with store.reader() as cursor:
                queries.sessions(cursor)
                queries.hotspots(cursor)
            for file_format in ("chrome", "otlp", "jsonl", "csv"):
                export_run(store, file_format, file.parent / file_format)
    assert came_in


@pytest.mark.parametrize(
    ("name", "value", "odd"),
    [
        ("trace-r0.jsonl", b'"dur": 2', b'"dur": 1e30'),
        ("trace-r0.jsonl", b'"ts": 1.5', b'"ts": 99999999999999999999999'),
        ("sessions-r0.jsonl", b'"wait_return_ts": 17', b'"wait_return_ts": 10017'),
        ("sessions-r0.jsonl", b'"submit_ts": 17', b'"submit_ts": -17'),
    ],
)
def test_times_far_out_are_kept_within_what_can_be_stored(name, value, odd, files, tmp_path, import_path, runs):
    whole = (files / name).read_bytes()
    assert value in whole
    (files / name).write_bytes(whole.replace(value, odd, 1))
    summary = import_path(files / name, run_id="r")
    assert (summary.records, summary.bad) == (4, 0)
    with runs.open("r") as store:
        for file_format in ("chrome", "otlp", "jsonl", "csv"):
            assert export_run(store, file_format, tmp_path / file_format) > 0
