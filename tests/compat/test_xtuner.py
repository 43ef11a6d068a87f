from __future__ import annotations

import asyncio
import copy
import json
import os
import pickle
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

import rl_insight as insight
from rl_insight.compat import xtuner
from rl_insight.compat.xtuner import TraceConfig

SAMPLE = {"task_name": "gsm8k", "uid": 17, "session_uid": 2, "train_step": 5, "model_step": 4, "other": [1]}


@pytest.fixture(autouse=True)
def _close():
    yield
    xtuner.close_trace()


@pytest.fixture
def traced(insight_capture, tmp_path):
    """Trace into a capture and a folder; returns a reader of the events written so far."""
    xtuner.configure_trace(TraceConfig(enabled=True, output_dir=tmp_path, viewer_enabled=False))

    def events():
        xtuner.flush_trace()
        return read(tmp_path)

    return events


def read(folder: Path) -> list[dict]:
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


class TestConfig:
    def test_the_defaults_are_xtuners(self):
        config = TraceConfig()
        assert (config.max_events, config.max_events_per_trace) == (100_000, 256)
        assert (config.viewer_enabled, config.viewer_host, config.viewer_port) == (True, "127.0.0.1", 0)
        assert (config.viewer_refresh_interval_s, config.viewer_scope) == (1.0, "latest-produce-batch")

    @pytest.mark.parametrize(
        "bad",
        [
            {"max_events": 0},
            {"max_events": "many"},
            {"max_events_per_trace": True},
            {"viewer_port": 70_000},
            {"viewer_port": "80"},
            {"viewer_refresh_interval_s": 0},
            {"viewer_scope": "everything"},
            {"veiwer_port": 1},
        ],
        ids=str,
    )
    def test_bad_values_and_unknown_keys_are_refused(self, bad):
        with pytest.raises(ValueError):
            xtuner.configure_trace({"enabled": False, **bad})
        with pytest.raises((ValueError, TypeError)):
            TraceConfig(**bad)

    def test_an_unknown_key_names_the_nearest(self):
        with pytest.raises(ValueError, match="viewer_port"):
            xtuner.configure_trace({"veiwer_port": 1})

    def test_what_is_no_configuration_is_refused(self):
        with pytest.raises(TypeError, match="TraceConfig"):
            xtuner.configure_trace([1])


def test_a_span_becomes_a_start_and_an_end_with_every_field(traced, insight_capture):
    async def main():
        async with xtuner.trace_span({**SAMPLE, "producer_future_step": 6}, "generate"):
            insight_capture.clock.advance(1.5)

    asyncio.run(main())
    start, end = traced()
    batch = "train_step=5/model_step=4/producer_future_step=6"
    common = {"trace_id": "gsm8k:17", "task_name": "gsm8k", "uid": 17, "session_uid": 2}
    common |= {"train_step": 5, "model_step": 4, "producer_future_step": 6, "produce_batch_id": batch}
    begin = insight_capture.clock.wall_ns() / 1e9 - 1.5
    assert start == {**common, "stage": "generate.start", "timestamp_s": begin, "status": "running"}
    assert end == {
        **common,
        "stage": "generate.end",
        "timestamp_s": begin + 1.5,
        "status": "completed",
        "elapsed_s": 1.5,
    }


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (ValueError("no answer"), "failed", "ValueError: no answer"),
        (asyncio.CancelledError(), "cancelled", "CancelledError: "),
    ],
    ids=["failed", "cancelled"],
)
def test_an_exception_becomes_an_error_and_goes_on(traced, error, status, message):
    async def main():
        async with xtuner.trace_span(SAMPLE, "judge"):
            raise error

    with pytest.raises(type(error)):
        asyncio.run(main())
    _, end = traced()
    assert (end["stage"], end["status"], end["error_msg"]) == ("judge.error", status, message)


def test_work_that_hangs_is_visible_before_it_ends(traced, insight_capture):
    with xtuner.trace_span(SAMPLE, "generate"):
        insight_capture.clock.advance(60)
        assert [event["stage"] for event in traced()] == ["generate.start"]
    assert [event["stage"] for event in traced()] == ["generate.start", "generate.end"]


def test_an_event_is_one_line(traced):
    asyncio.run(xtuner.trace_event(SAMPLE, "expired", status="dropped"))
    (event,) = traced()
    assert (event["stage"], event["status"], event["trace_id"]) == ("expired", "dropped", "gsm8k:17")


def test_targets_may_be_objects_mappings_and_lists(traced):
    async def main():
        for target in (SAMPLE, SimpleNamespace(**SAMPLE), [SAMPLE, {}], (), None):
            await xtuner.trace_event(target, "seen")

    asyncio.run(main())
    assert [event["trace_id"] for event in traced()] == ["gsm8k:17"] * 3 + ["task:unknown"] * 2


def test_nothing_is_left_behind_in_the_users_objects(traced):
    sample, plain = SimpleNamespace(**copy.deepcopy(SAMPLE)), copy.deepcopy(SAMPLE)

    async def main():
        for target in (sample, plain):
            async with xtuner.trace_span(target, "generate"):
                await xtuner.trace_event(target, "inside")
            xtuner.inject_trace_context(train_step=1)

    before = pickle.dumps((sample, plain))
    asyncio.run(main())
    assert len(traced()) == 6
    assert pickle.dumps((sample, plain)) == before


class TestDecorator:
    def test_the_first_argument_with_an_identity_is_the_target(self, traced):
        class Worker:
            @xtuner.trace_function
            async def generate(self, batch, size=1):
                return size

        assert asyncio.run(Worker().generate([SAMPLE], size=3)) == 3
        assert [(event["stage"], event["uid"]) for event in traced()] == [("generate.start", 17), ("generate.end", 17)]

    def test_the_target_by_name_by_getter_and_as_it_is(self, traced):
        @xtuner.trace_function("a", target="sample")
        def by_name(other, sample=None):
            return other

        @xtuner.trace_function("b", target_getter=lambda box: box[0])
        def by_getter(box):
            return len(box)

        @xtuner.trace_function("c", target=SAMPLE, trace_kwargs_getter=lambda n: {"train_step": n})
        def fixed(n):
            return n

        assert (by_name({"uid": 9}, SAMPLE), by_getter([SAMPLE]), fixed(8)) == ({"uid": 9}, 1, 8)
        ends = [event for event in traced() if event["stage"].endswith("end")]
        assert [(event["trace_id"], event["train_step"]) for event in ends] == [
            ("gsm8k:17", 5),
            ("gsm8k:17", 5),
            ("gsm8k:17", 8),
        ]

    def test_a_getter_that_fails_never_reaches_the_caller(self, traced, insight_capture):
        @xtuner.trace_function("a", target_getter=lambda: 1 / 0, trace_kwargs_getter=lambda: 1 / 0)
        def work():
            return "done"

        assert work() == "done"
        assert insight_capture.losses == {"labels/getter_failed": 2}
        assert [event["trace_id"] for event in traced()] == ["task:unknown"] * 2

    def test_wrong_use_is_refused_when_decorating(self):
        with pytest.raises(ValueError, match="no parameter 'sample'"):
            xtuner.trace_function("a", target="sample")(lambda other: other)
        with pytest.raises(TypeError, match="decorates functions"):
            xtuner.trace_function("a")(3)


def test_a_task_with_too_many_events_is_cut_in_the_file_and_counted(insight_capture, tmp_path):
    config = TraceConfig(enabled=True, output_dir=tmp_path, viewer_enabled=False, max_events_per_trace=3)
    xtuner.configure_trace(config)
    for target in (SAMPLE, {**SAMPLE, "uid": 18}):
        for _ in range(2):
            with xtuner.trace_span(target, "generate"):
                pass
    xtuner.flush_trace()
    assert [event["uid"] for event in read(tmp_path)] == [17] * 3 + [18] * 3
    assert insight_capture.losses == {"trace_events/max_events_per_trace": 2}
    assert len(insight_capture.spans) == 4


def test_the_core_sees_phases_of_a_session_whose_status_follows(traced, insight_capture):
    with xtuner.trace_span(SAMPLE, "generate"):
        pass
    span = insight_capture.span("generate")
    assert (span.segment, span.session_id, span.step) == ("phase", "gsm8k:17", 5)
    assert insight.current_session() is None


def test_steps_come_from_the_context_where_the_target_has_none(traced):
    async def main():
        headers = xtuner.inject_trace_context({"accept": "*/*"}, train_step=9, model_step=8)
        assert headers["accept"] == "*/*"
        async with xtuner.trace_span({"task_name": "t", "uid": 1, "model_step": 3}, "generate"):
            assert "rl_insight.session=t%3A1" in xtuner.inject_trace_context()["baggage"]

    asyncio.run(main())
    assert {event["produce_batch_id"] for event in traced()} == {"train_step=9/model_step=3/producer_future_step=None"}


def test_disabled_nothing_is_traced(tmp_path, insight_capture):
    xtuner.configure_trace({"enabled": False, "output_dir": str(tmp_path)})
    with xtuner.trace_span(SAMPLE, "generate"):
        asyncio.run(xtuner.trace_event(SAMPLE, "x"))
    xtuner.flush_trace()
    assert (list(tmp_path.iterdir()), insight_capture.spans) == ([], [])
    assert xtuner.get_trace_env_vars() == {}
    assert xtuner.merge_trace_runtime_env({"pip": ["x"]}) == {"pip": ["x"]}


def test_workers_trace_by_the_environment_of_their_trainer(traced, tmp_path, insight_capture):
    given = {"env_vars": {"A": "1"}, "pip": ["x"]}
    merged = xtuner.merge_trace_runtime_env(given)
    assert given == {"env_vars": {"A": "1"}, "pip": ["x"]}
    assert (merged["env_vars"]["A"], merged["pip"]) == ("1", ["x"])
    program = """
from rl_insight.compat import xtuner
with xtuner.trace_span({"task_name": "t", "uid": "worker"}, "generate"):
    pass
"""
    environment = {
        "PATH": "/usr/bin",
        "HOME": str(tmp_path),
        "RANK": "3",
        "RL_INSIGHT_DATA_DIR": str(tmp_path / "none"),
        xtuner.TRACE_VARIABLE: merged["env_vars"][xtuner.TRACE_VARIABLE],
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [(event["stage"], event["uid"], event["worker_rank"]) for event in read(tmp_path)] == [
        ("generate.start", "worker", 3),
        ("generate.end", "worker", 3),
    ]


def test_the_viewer_serves_our_page_and_its_address_is_printed(tmp_path):
    """A trainer without any server: one starts beside it, gets what is traced, and ends with it."""
    program = """
import sys
from rl_insight.compat import xtuner
xtuner.configure_trace(xtuner.TraceConfig(enabled=True, output_dir=sys.argv[1]))
with xtuner.trace_span({"task_name": "t", "uid": 1, "train_step": 2}, "generate"):
    xtuner.flush_trace()
sys.stdin.read()
"""
    environment = {**os.environ, "HOME": str(tmp_path), "RL_INSIGHT_DATA_DIR": str(tmp_path / "none")}
    trainer = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "traces")],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = trainer.stdout.readline()
        found = re.fullmatch(
            r"Producer Trace Viewer: (http://127\.0\.0\.1:\d+)/\?scope=latest-produce-batch\S*\n", line
        )
        assert found, line + trainer.stderr.read()
        with urllib.request.urlopen(f"{found[1]}/", timeout=10) as answer:
            assert "RL-Insight" in answer.read().decode()
        deadline = time.monotonic() + 30
        while not _sessions(found[1]):
            assert time.monotonic() < deadline, "the session never arrived"
            time.sleep(0.1)
        assert _sessions(found[1]) == [("t:1", "accepted")]
        trainer.stdin.close()
        assert trainer.wait(30) == 0
        assert trainer.stderr.read() == ""
        with pytest.raises(OSError):
            urllib.request.urlopen(f"{found[1]}/", timeout=10)
    finally:
        trainer.kill()
        trainer.wait()
        for stream in (trainer.stdin, trainer.stdout, trainer.stderr):
            stream.close()


def _sessions(url: str) -> list[tuple[str, str]]:
    try:
        with urllib.request.urlopen(f"{url}/api/v1/sessions", timeout=10) as answer:
            found = json.load(answer)["sessions"]
    except urllib.error.HTTPError:  # no run has arrived yet
        return []
    return [(session["session_id"], session["status"]) for session in found if session["status"] != "pending"]
