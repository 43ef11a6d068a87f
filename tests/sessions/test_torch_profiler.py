from __future__ import annotations

import gzip
import importlib.util
import json

import pytest

from rl_insight.integrations.torch_profiler import TorchProfiler, merge_chrome_trace

BASE_NS = 1_767_225_600_000_000_000
TRACE = {
    "schemaVersion": 1,
    "baseTimeNanoseconds": BASE_NS,
    "traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "python"}},
        {"ph": "M", "name": "thread_name", "pid": 7, "tid": 11, "args": {"name": "thread 11 (python)"}},
        {"ph": "M", "name": "process_labels", "pid": 7, "args": {"labels": "CPU"}},
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::mm",
            "pid": 7,
            "tid": 11,
            "ts": 1500.5,
            "dur": 250.25,
            "args": {"Shapes": [[2, 2]]},
        },
        {"ph": "X", "cat": "kernel", "name": "sgemm", "pid": 0, "tid": 7, "ts": 1600, "dur": 100},
        {"ph": "i", "name": "marker", "pid": 7, "tid": 11, "ts": 1700},
        {"ph": "X", "name": "no duration", "pid": 7, "tid": 11, "ts": 1},
        {"ph": "X", "name": "text for a time", "pid": 7, "tid": 11, "ts": "soon", "dur": 1},
        "not an event",
    ],
}


def test_a_trace_becomes_spans_on_lanes_of_the_process(insight_capture, tmp_path):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(TRACE).encode()))
    assert merge_chrome_trace(path, step=9) == 2
    multiply, kernel = (insight_capture.span(name) for name in ("aten::mm", "sgemm"))
    assert (multiply.lane, kernel.lane) == ("torch/python/thread 11 (python)", "torch/0/7")
    assert (multiply.start_ns, multiply.duration_ns) == (BASE_NS + 1_500_500, 250_250)
    assert multiply.attributes == {"Shapes": [[2, 2]], "category": "cpu_op"}
    assert {multiply.step, kernel.step} == {9}


def test_the_longest_spans_are_kept_when_there_are_too_many(insight_capture, tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(TRACE))
    assert merge_chrome_trace(path, max_spans=1) == 1
    assert [span.name for span in insight_capture.spans] == ["aten::mm"]


def test_a_bare_list_without_an_origin_ends_now(insight_capture, tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 5, "dur": 10}]))
    assert merge_chrome_trace(path) == 1
    assert insight_capture.span("a").start_ns > 1_700_000_000_000_000_000


@pytest.mark.parametrize("document", [{}, [], {"traceEvents": []}])
def test_a_trace_without_spans_is_not_an_error(insight_capture, tmp_path, document):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    assert merge_chrome_trace(path) == 0


def test_steps_that_were_not_chosen_cost_nothing(insight_capture):
    profiler = TorchProfiler([3])
    for step in (0, 1, 2):
        profiler.begin_step(step)
    profiler.close()
    assert insight_capture.spans == []


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
def test_without_torch_a_chosen_step_runs_unprofiled(insight_capture, caplog):
    profiler = TorchProfiler([0])
    profiler.begin_step(0)
    profiler.close()
    assert "step 0 is not profiled" in caplog.text


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_chosen_step_is_profiled_and_merged(insight_capture):
    import torch

    profiler = TorchProfiler([1])
    for step in range(3):
        profiler.begin_step(step)
        torch.ones(8, 8) @ torch.ones(8, 8)
    profiler.close()
    lanes = {span.lane for span in insight_capture.spans}
    assert any("mm" in span.name for span in insight_capture.spans)
    assert all(lane.startswith("torch/") for lane in lanes)
    assert {span.step for span in insight_capture.spans} == {1}
