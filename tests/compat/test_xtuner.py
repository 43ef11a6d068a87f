"""XTuner's trace: the producer trace of samples, the OpenTelemetry trace of spans, and both through one import."""

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
from enum import Enum
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import BaseModel, ValidationError

import rl_insight as insight
from rl_insight.compat import xtuner
from rl_insight.compat.xtuner import TraceConfig, rollout_api, runtime

FIELDS = [
    "trace_id",
    "stage",
    "timestamp_s",
    "status",
    "task_name",
    "uid",
    "session_uid",
    "train_step",
    "model_step",
    "producer_future_step",
    "produce_batch_id",
    "worker_rank",
    "elapsed_s",
    "error_msg",
]


class Status(Enum):
    INIT = "init"
    COMPLETED = "completed"


def sample(uid=17, **fields):
    known = {"task_name": "gsm8k", "session_uid": 2, "status": Status.INIT, "extra_fields": {}}
    return SimpleNamespace(uid=uid, **{**known, **fields})


@pytest.fixture(autouse=True)
def _close():
    yield
    xtuner.close_trace()
    runtime._runtime = None


@pytest.fixture
def traced(insight_capture, tmp_path):
    """Trace samples into a capture and a folder; returns a reader of the events written so far."""
    xtuner.configure_trace(TraceConfig(enabled=True, output_dir=tmp_path, viewer_enabled=False))

    def events():
        assert xtuner.flush_trace()
        return read(tmp_path)

    return events


@pytest.fixture
def spans(insight_capture, tmp_path):
    """Trace spans into a capture and a folder; returns a reader of the OTLP spans written so far."""
    found = xtuner.configure_trace(TraceConfig(enabled=True, output_dir=tmp_path, service_name="rollout"))

    def written():
        xtuner.flush_trace()
        lines = found.trace_jsonl_path.read_text().splitlines()
        resources = [resource for line in lines for resource in json.loads(line)["resourceSpans"]]
        for resource in resources:
            about = {pair["key"]: pair["value"]["stringValue"] for pair in resource["resource"]["attributes"]}
            assert about == {"service.name": "rollout", "run.id": found.run_id}
        return [span for resource in resources for scope in resource["scopeSpans"] for span in scope["spans"]]

    return written


def read(folder: Path) -> list[dict]:
    paths = sorted(folder.glob("producer_trace_*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def stages(events: list[dict]) -> list[tuple]:
    return [(event["stage"], event["uid"], event["status"]) for event in events]


class TestConfig:
    def test_the_defaults_are_xtuners(self):
        config = TraceConfig()
        assert (config.max_events, config.max_events_per_trace) == (100_000, 256)
        assert (config.viewer_enabled, config.viewer_host, config.viewer_port) == (True, "127.0.0.1", 0)
        assert (config.viewer_refresh_interval_s, config.viewer_scope) == (1.0, "latest-produce-batch")
        assert (config.service_name, config.enable_rollout_trace) == ("xtuner-rollout", False)
        assert (config.xtuner_viewer_enabled, config.xtuner_viewer_port) == (False, 18080)

    @pytest.mark.parametrize(
        "bad",
        [
            {"max_events": 0},
            {"max_events": "many"},
            {"viewer_port": 70_000},
            {"viewer_refresh_interval_s": 0},
            {"viewer_scope": "everything"},
            {"veiwer_port": 1},
        ],
        ids=str,
    )
    def test_bad_values_and_unknown_keys_are_refused(self, bad):
        with pytest.raises(ValueError, match=next(iter(bad))):
            xtuner.configure_trace({"enabled": False, **bad})
        with pytest.raises(ValidationError):
            TraceConfig(**bad)

    def test_it_is_a_field_of_a_trainers_model_and_can_be_copied(self):
        class Trainer(BaseModel):
            trace: TraceConfig = TraceConfig()

        config = Trainer.model_validate({"trace": {"enabled": True}}).trace
        assert config.model_copy(update={"output_dir": "x"}).output_dir == "x"

    def test_its_keys_tell_the_spellings_apart(self):
        def kinds(**keys):
            config = TraceConfig(enabled=True, **keys)
            return config.has_producer_trace, config.has_otel_trace

        assert kinds(max_events=9) == kinds(viewer_enabled=False) == (True, False)
        assert kinds(service_name="a") == kinds(enable_rollout_trace=True) == (False, True)
        assert kinds(output_dir="x") == (True, True)

    def test_what_is_not_a_configuration_is_refused(self):
        with pytest.raises(TypeError, match="TraceConfig"):
            xtuner.configure_trace([1])


class TestSamples:
    """The producer trace."""

    def test_a_line_has_all_fields_and_null_for_what_is_unknown(self, traced, insight_capture):
        extra = {"_trace_train_step": 5, "_trace_producer_future_step": 6}
        target = sample(extra_fields=extra, model_step=4)

        async def main():
            async with xtuner.trace_span(target, "generate", worker_rank=3):
                target.status = Status.COMPLETED

        asyncio.run(main())
        start, end = traced()
        assert list(start) == list(end) == FIELDS
        batch = "train_step=5/model_step=4/producer_future_step=6"
        common = {"trace_id": "gsm8k:17", "task_name": "gsm8k", "uid": 17, "session_uid": 2, "worker_rank": 3}
        common |= {"train_step": 5, "model_step": 4, "producer_future_step": 6, "produce_batch_id": batch}
        assert {key: start[key] for key in common} == {key: end[key] for key in common} == common
        assert (start["stage"], start["status"], start["elapsed_s"]) == ("generate.start", "init", None)
        assert (end["stage"], end["status"], end["error_msg"]) == ("generate.end", "completed", None)
        assert end["elapsed_s"] >= 0
        assert abs(start["timestamp_s"] - time.time()) < 60

    def test_files_are_named_so_that_xtuners_tools_find_them(self, traced, tmp_path):
        asyncio.run(xtuner_event(sample(), "seen"))
        traced()
        (path,) = tmp_path.glob("producer_trace_*.jsonl")
        assert re.fullmatch(rf"producer_trace_{os.getpid()}_\d{{4}}[-\w]*_000000\.jsonl", path.name)

    def test_a_list_writes_one_line_per_sample(self, traced, insight_capture):
        group = [sample(1), sample(2), "no sample"]
        with xtuner.trace_span(group, "judge"):
            pass
        assert stages(traced()) == [(f"judge.{moment}", uid, "init") for moment in ("start", "end") for uid in (1, 2)]
        phases = [(span.name, span.session_id) for span in insight_capture.spans]
        assert phases == [("judge", "gsm8k:1"), ("judge", "gsm8k:2")]

    @pytest.mark.parametrize("error", [ValueError("no " * 300), asyncio.CancelledError()], ids=["error", "cancelled"])
    def test_an_exception_becomes_an_error_and_passes(self, traced, error):
        async def main():
            async with xtuner.trace_span(sample(), "judge"):
                raise error

        with pytest.raises(type(error)):
            asyncio.run(main())
        _, end = traced()
        assert (end["stage"], end["status"]) == ("judge.error", "init")
        assert end["error_msg"].startswith(f"{type(error).__name__}: ")
        assert len(end["error_msg"]) <= 500

    def test_an_event_returns_what_was_recorded(self, traced):
        async def main():
            one = await xtuner.trace_event(sample(), "expired", status="filtered")
            several = await xtuner.trace_event([sample(1), sample(2)], "seen")
            return one, several, await xtuner.trace_event(None, "seen")

        one, several, none = asyncio.run(main())
        assert (one.stage, one.status, one.trace_id, none) == ("expired", "filtered", "gsm8k:17", None)
        assert xtuner.TraceEvent.from_dict(one.to_dict()) == one
        assert [event.uid for event in several] == [1, 2]
        assert len(traced()) == 3

    def test_the_calls_fields_name_a_sample_that_is_not_there(self, traced):
        with xtuner.trace_span(None, "sample", task_name="gsm8k", uid="x", train_step=3):
            pass
        with xtuner.trace_span(None, "nothing"):
            pass
        assert [(event["trace_id"], event["train_step"]) for event in traced()] == [("gsm8k:x", 3)] * 2

    def test_mappings_are_samples_too_and_nothing_is_left_in_them(self, traced):
        targets = (sample(), {"uid": 1, "task_name": "t", "extra_fields": {"_trace_train_step": 2}})
        before = pickle.dumps(copy.deepcopy(targets))

        async def main():
            for target in targets:
                async with xtuner.trace_span(target, "generate"):
                    await xtuner.trace_event(target, "inside")

        asyncio.run(main())
        assert len(traced()) == 6
        assert pickle.dumps(targets) == before

    def test_the_recorder_records_one_and_many(self, traced):
        tracer = xtuner.get_tracer()
        assert tracer.record(sample(1), "a", worker_rank=2).worker_rank == 2
        assert [event.uid for event in tracer.record_many([sample(1), sample(2)], "b")] == [1, 2]

        async def marks():
            return await tracer.mark(sample(3), "c"), await tracer.mark_many([sample(4)], "d")

        one, many = asyncio.run(marks())
        assert (one.uid, many[0].uid) == (3, 4)
        assert [event["stage"] for event in traced()] == ["a", "b", "b", "c", "d"]

    def test_ids_of_traces_and_batches(self):
        assert xtuner.build_trace_id(None, 3) == "unknown:3"
        assert xtuner.build_produce_batch_id(1, None, 2) == "train_step=1/model_step=none/producer_future_step=2"
        assert xtuner.build_produce_batch_id(None, None, None) is None
        assert xtuner.build_trace_event({"task_name": "t"}, "x") is None
        assert xtuner.TRACE_EXTRA_TRAIN_STEP == "_trace_train_step"
        assert (xtuner.TRACE_JSONL_BASENAME, xtuner.TRACE_VIEWER_SCOPE_ALL) == ("producer_trace", "all")

    def test_the_limits_bound_memory_and_never_the_file(self, insight_capture, tmp_path, monkeypatch):
        config = TraceConfig(
            enabled=True, output_dir=tmp_path, viewer_enabled=False, max_events=3, max_events_per_trace=1
        )
        xtuner.configure_trace(config)
        for _ in range(2):
            with xtuner.trace_span(sample(), "generate"):
                pass
            xtuner.flush_trace()
        assert len(read(tmp_path)) == 4
        for _ in range(5):
            xtuner.get_tracer().record(sample(), "flood")
        xtuner.flush_trace()
        assert len(read(tmp_path)) == 9
        assert insight_capture.losses == {}
        monkeypatch.setattr("rl_insight.compat.xtuner.producer.ProducerTraceFile.MAX_WAITING", 3)
        for _ in range(5):
            xtuner.get_tracer().record(sample(), "more than memory holds")
        xtuner.flush_trace()
        assert len(read(tmp_path)) == 12
        assert insight_capture.losses == {"trace_events/buffer_full": 2}

    def test_a_full_shard_is_followed_by_another(self, traced, tmp_path, monkeypatch):
        monkeypatch.setattr("rl_insight.compat.xtuner.producer._SHARD_BYTES", 400)
        for uid in range(4):
            xtuner.get_tracer().record(sample(uid), "seen")
        assert len(traced()) == 4
        assert len(list(tmp_path.glob("producer_trace_*.jsonl"))) == 2

    def test_the_core_sees_phases_of_a_session(self, traced, insight_capture):
        with xtuner.trace_span(sample(extra_fields={"_trace_train_step": 5}), "generate"):
            pass
        span = insight_capture.span("generate")
        assert (span.segment, span.session_id, span.step) == ("phase", "gsm8k:17", 5)
        assert insight.current_session() is None

    def test_work_that_hangs_is_visible_before_it_ends(self, traced, insight_capture):
        with xtuner.trace_span(sample(), "generate"):
            assert [event["stage"] for event in traced()] == ["generate.start"]


async def xtuner_event(target, name):
    return await xtuner.trace_event(target, name)


class TestDecorator:
    def test_the_first_argument_with_samples_is_the_target(self, traced):
        class Worker:
            @xtuner.trace_function("generate", worker_rank=1)
            async def generate(self, batch, size=1):
                batch[0].status = Status.COMPLETED
                return size

        assert asyncio.run(Worker().generate([sample(1), sample(2)], size=3)) == 3
        assert stages(traced()) == [
            ("generate.start", 1, "init"),
            ("generate.start", 2, "init"),
            ("generate.end", 1, "completed"),
            ("generate.end", 2, "init"),
        ]

    def test_a_parameter_called_rollout_state_comes_first(self, traced):
        @xtuner.trace_function("generate", worker_rank=1)
        def generate(other, rollout_state):
            return None

        generate(sample(1), sample(2))
        assert {event["uid"] for event in traced()} == {2}

    def test_the_returned_samples_end_the_span(self, traced):
        @xtuner.trace_function("generate", worker_rank=1)
        def generate(target):
            return [sample(8, status="completed"), sample(9, status="failed")]

        generate(sample(7))
        assert stages(traced()) == [
            ("generate.start", 7, "init"),
            ("generate.end", 8, "completed"),
            ("generate.end", 9, "failed"),
        ]

    def test_a_function_that_only_returns_samples_has_no_start(self, traced, insight_capture):
        @xtuner.trace_function("sample_group", worker_rank=1)
        def make():
            return [sample(1), sample(2)]

        make()
        events = traced()
        assert [event["stage"] for event in events] == ["sample_group.end"] * 2
        assert all(event["elapsed_s"] is not None for event in events)
        assert [span.session_id for span in insight_capture.spans] == ["gsm8k:1", "gsm8k:2"]

    def test_names_and_targets_may_be_functions_of_the_call(self, traced):
        @xtuner.trace_function(lambda box, n: f"stage_{n}", target=lambda box, n: box["inner"])
        def by_function(box, n):
            return n

        @xtuner.trace_function("a", target="chosen")
        def by_name(other, chosen=None):
            return other

        @xtuner.trace_function("b", target_getter=lambda box: box[0])
        def by_getter(box):
            return len(box)

        @xtuner.trace_function("c", target=sample(5), trace_kwargs_getter=lambda n: {"train_step": n})
        def fixed(n):
            return n

        assert by_function({"inner": sample(1)}, 7) == 7
        assert by_name("x", sample(2)) == "x"
        assert by_getter([sample(3)]) == 1
        assert fixed(8) == 8
        ends = [event for event in traced() if event["stage"].endswith("end")]
        assert [(event["stage"], event["uid"], event["train_step"]) for event in ends] == [
            ("stage_7.end", 1, None),
            ("a.end", 2, None),
            ("b.end", 3, None),
            ("c.end", 5, 8),
        ]

    def test_a_getter_that_fails_never_reaches_the_caller(self, traced, insight_capture):
        @xtuner.trace_function("a", target_getter=lambda: 1 / 0, trace_kwargs_getter=lambda: 1 / 0)
        def work():
            return "done"

        assert work() == "done"
        assert insight_capture.losses == {"labels/getter_failed": 2}
        assert traced() == []

    def test_only_a_name_is_a_span_and_events_where_there_are_samples(self, insight_capture, tmp_path):
        xtuner.configure_trace(TraceConfig(enabled=True, output_dir=tmp_path))

        @xtuner.trace_function("both")
        def both(target):
            return None

        both(sample())
        both("no sample")
        xtuner.flush_trace()
        assert [event["stage"] for event in read(tmp_path)] == ["both.start", "both.end"]
        assert sorted(span.segment for span in insight_capture.spans) == ["duration", "duration", "phase"]


class TestSpans:
    """The OpenTelemetry trace."""

    def test_spans_nest_and_carry_the_names_from_the_root_on(self, spans, insight_capture):
        @xtuner.trace_function(attributes={"kind": "inner"})
        def work():
            xtuner.trace_event("seen", {"n": 1})
            xtuner.set_trace_attributes({"late": True})

        with xtuner.trace_span("outer", {"xtuner.producer_future_step": 4}) as nothing:
            assert nothing is None
            work()
        inner, outer = sorted(spans(), key=lambda span: len(span["attributes"]), reverse=True)
        assert (outer["name"], inner["parentSpanId"]) == ("outer", outer["spanId"])
        name = f"{work.__module__}.{work.__qualname__}"
        assert (inner["name"], inner["traceId"]) == (name, outer["traceId"])
        attributes = {pair["key"]: pair["value"] for pair in inner["attributes"]}
        path = [value["stringValue"] for value in attributes["xtuner.span_name_path"]["arrayValue"]["values"]]
        assert path == ["outer", name]
        assert (attributes["late"], attributes["kind"]) == ({"boolValue": True}, {"stringValue": "inner"})
        assert [event["name"] for event in inner["events"]] == ["seen"]
        assert {span.step for span in insight_capture.spans} == {4}

    def test_an_exception_is_described_on_its_span(self, spans):
        with pytest.raises(ValueError, match="no"), xtuner.trace_span("work"):
            raise ValueError("no")
        (span,) = spans()
        attributes = {pair["key"]: pair["value"] for pair in span["attributes"]}
        assert attributes["error.type"] == {"stringValue": "ValueError"}
        assert attributes["error.message"] == {"stringValue": "no"}
        assert attributes["error"] == {"boolValue": True}
        assert (span["status"]["code"], span["events"][0]["name"]) == (2, "exception")

    def test_the_context_travels_in_a_carrier(self, spans, insight_capture):
        with xtuner.trace_span("outer"):
            carrier = xtuner.inject_trace_context({"accept": "*/*"})
        assert set(carrier) == {"accept", "traceparent", "baggage"}

        async def elsewhere():
            async with xtuner.trace_span("inner", parent_carrier=carrier):
                pass

        asyncio.run(elsewhere())
        inner, outer = (insight_capture.span(name) for name in ("inner", "outer"))
        assert (inner.parent_id, inner.trace_id) == (outer.span_id, outer.trace_id)
        assert inner.attributes["xtuner.span_name_path"] == ["outer", "inner"]

    @pytest.mark.parametrize("enabled", [True, False])
    def test_wrong_types_and_empty_names_are_refused_even_when_off(self, enabled, tmp_path, insight_capture):
        xtuner.configure_trace(TraceConfig(enabled=enabled, output_dir=tmp_path, service_name="rollout"))
        for bad in (lambda: xtuner.trace_span("", {}), lambda: xtuner.trace_span("x", {" ": 1})):
            with pytest.raises(ValueError, match="empty"):
                bad()
        for bad in (
            lambda: xtuner.trace_span("x", attributes=[1]),
            lambda: xtuner.trace_event("x", attributes={1: 2}),
            lambda: xtuner.set_trace_attributes("x"),
            lambda: xtuner.trace_function(3)(print),
        ):
            with pytest.raises(TypeError):
                bad()

    def test_values_become_what_a_span_can_carry(self, spans, insight_capture):
        given = {"big": 2**70, "mixed": [1, "a"], "whole": [1, 2], "object": object(), "none": None, "number": 1.5}
        with xtuner.trace_span("x", given):
            pass
        attributes = insight_capture.span("x").attributes
        assert {key: attributes[key] for key in given} == {
            "big": str(2**70),
            "mixed": ["1", "a"],
            "whole": [1, 2],
            "object": "<object>",
            "none": "<NoneType>",
            "number": 1.5,
        }

    def test_events_of_a_span_that_never_ends_are_bounded(self, spans, insight_capture, monkeypatch):
        monkeypatch.setattr("rl_insight.compat.xtuner.otlp_file._MAX_WAITING", 3)
        with xtuner.trace_span("endless"):
            for _ in range(5):
                xtuner.trace_event("token")
            xtuner.flush_trace()
            assert insight_capture.losses == {"trace_events/buffer_full": 2}
        xtuner.flush_trace()
        with xtuner.trace_span("next"):
            xtuner.trace_event("token")
        xtuner.flush_trace()
        assert xtuner.current_trace_runtime().trace_jsonl_path.read_text().count('"token"') == 4
        assert insight_capture.losses == {"trace_events/buffer_full": 2}

    def test_a_full_file_is_followed_by_another(self, spans, monkeypatch):
        monkeypatch.setattr("rl_insight.compat.xtuner.otlp_file._MAX_BYTES", 10)
        path = xtuner.current_trace_runtime().trace_jsonl_path
        for name in ("first", "second", "third"):
            with xtuner.trace_span(name):
                pass
            xtuner.flush_trace()
        found = {one.name: one.read_text().count("spanId") for one in path.parent.iterdir()}
        assert found == {"traces-1.jsonl": 1, "traces-2.jsonl": 1, "traces.jsonl": 1}

    @pytest.mark.parametrize(
        ("make", "segments"),
        [
            (lambda: xtuner.trace_span(sample(), "x"), ["phase"]),
            (lambda: xtuner.trace_span(target=sample(), name="x"), ["phase"]),
            (lambda: xtuner.trace_span("x"), ["duration"]),
            (lambda: xtuner.trace_span("x", None), ["duration"]),
            (lambda: xtuner.trace_span("x", {"a": 1}), ["duration"]),
            (lambda: xtuner.trace_span("x", attributes={}), ["duration"]),
            (lambda: xtuner.trace_span("x", parent_carrier=None), ["duration"]),
            (lambda: xtuner.trace_span("no sample", "x"), []),
        ],
    )
    def test_the_arguments_of_a_span_tell_the_spellings_apart(self, insight_capture, tmp_path, make, segments):
        xtuner.configure_trace(TraceConfig(enabled=True, output_dir=tmp_path))
        with make():
            pass
        assert [span.segment for span in insight_capture.spans] == segments

    def test_the_arguments_of_an_event_tell_the_spellings_apart(self, insight_capture, tmp_path):
        xtuner.configure_trace(TraceConfig(enabled=True, output_dir=tmp_path))
        assert xtuner.trace_event("of the current span") is None
        assert xtuner.trace_event("of the current span", {"n": 1}) is None
        assert asyncio.run(xtuner_event(sample(), "of a sample")).uid == 17
        assert [(event.name, event.session_id) for event in insight_capture.events] == [
            ("of the current span", None),
            ("of the current span", None),
            ("of a sample", "gsm8k:17"),
        ]

    def test_the_runtime_says_where_the_trace_goes(self, spans, tmp_path):
        found = xtuner.current_trace_runtime()
        assert (found.enabled, found.mode, found.service_name) == (True, "driver", "rollout")
        assert found.run_dir == tmp_path / found.run_id
        assert found.trace_jsonl_path == found.run_dir / "traces" / "traces.jsonl"
        with pytest.raises(AttributeError):
            found.enabled = False
        xtuner.close_trace()
        assert xtuner.current_trace_runtime() is None


class TestRollout:
    """XTuner's rollout endpoints."""

    def state(self, **fields):
        known = {"rollout_id": 7, "group_id": 3, "session_id": 1, "task_name": "math", "prompt_ids": [1, 2, 3]}
        late = {"finish_reason": None, "error_msg": None, "response_ids": None, "reward": None}
        return SimpleNamespace(
            status=Status.INIT, extra_fields={"producer_future_step": 4}, **{**known, **late, **fields}
        )

    def test_an_endpoint_is_a_span_with_what_is_known_before_and_after(self, spans, insight_capture, monkeypatch):
        monkeypatch.setenv("XTUNER_TRACE_ENABLE_ROLLOUT", "1")

        class Worker:
            @rollout_api.trace_rollout_endpoint("rollout.worker.generate")
            async def generate(self, rollout_state):
                rollout_state.response_ids = [1] * 5
                rollout_state.finish_reason = "stop"
                rollout_state.reward = {"score": 0.5, "pass": True}
                return rollout_state

        state = self.state()

        class Method:
            def remote(self, target, **_kwargs):
                self.seen = pickle.loads(pickle.dumps(target.extra_fields))
                return "sent"

        method = Method()
        with xtuner.trace_span("outer"):
            assert rollout_api.trace_rollout_remote(method, state) == "sent"
        assert state.extra_fields == {"producer_future_step": 4}
        state.extra_fields = method.seen
        asyncio.run(Worker().generate(state))
        assert "_xtuner_trace_carrier" not in state.extra_fields
        span = insight_capture.span("rollout.worker.generate")
        assert span.parent_id == insight_capture.span("outer").span_id
        assert span.step == 4
        expected = {
            "xtuner.stage": "rollout.worker.generate",
            "xtuner.status": "init",
            "xtuner.rollout_id": 7,
            "xtuner.group_id": 3,
            "xtuner.session_id": 1,
            "xtuner.task_name": "math",
            "xtuner.producer_future_step": 4,
            "prompt.tokens": 3,
            "finish_reason": "stop",
            "completion.tokens": 5,
            "reward.score": 0.5,
            "reward.pass": True,
        }
        assert {key: span.attributes.get(key) for key in expected} == expected
        assert "error.message" not in span.attributes

    def test_what_is_known_about_a_sample_before_and_after(self):
        state = self.state(finish_reason="length", response_ids=[1, 2], reward={"score": 1.0})
        before = rollout_api.rollout_state_initial_attributes(state)
        assert (before["xtuner.rollout_id"], before["prompt.tokens"], "finish_reason" in before) == (7, 3, False)
        after = rollout_api.rollout_state_final_attributes(state)
        assert (after["finish_reason"], after["completion.tokens"], after["reward.score"]) == ("length", 2, 1.0)
        assert {"reward.pass", "error.message"} & after.keys() == set()

    def test_the_carrier_of_the_caller_is_taken_out_of_the_sample(self):
        carrier = {"traceparent": "00-1-2-01"}
        state = self.state()
        assert rollout_api.extract_rollout_trace_parent_carrier(state) is None
        state.extra_fields["_xtuner_trace_carrier"] = carrier
        assert rollout_api.extract_rollout_trace_parent_carrier(state) == carrier
        assert state.extra_fields == {"producer_future_step": 4}

    def test_without_the_switch_nothing_is_traced(self, spans, insight_capture):
        @rollout_api.trace_rollout_endpoint("judger.run")
        async def judge(rollout_state):
            return "judged"

        assert not rollout_api.is_rollout_trace_enabled()
        assert asyncio.run(judge(self.state())) == "judged"
        assert insight_capture.spans == []

    def test_wrong_use(self, spans, insight_capture, monkeypatch, caplog):
        monkeypatch.setenv("XTUNER_TRACE_ENABLE_ROLLOUT", "1")
        with pytest.raises(TypeError, match="coroutine"):
            rollout_api.trace_rollout_endpoint("x")(lambda rollout_state: None)

        @rollout_api.trace_rollout_endpoint("judger.run")
        async def judge(rollout_state):
            return "judged"

        assert asyncio.run(judge([self.state()])) == "judged"
        assert "judger.run is not traced" in caplog.text
        method = SimpleNamespace(remote=lambda *_args: None)
        with pytest.raises(TypeError, match="collection"):
            rollout_api.trace_rollout_remote(method, [self.state()])
        with pytest.raises(ValueError, match="exactly one"):
            rollout_api.trace_rollout_remote(method, self.state(), self.state())


class TestWorkers:
    def test_variables_of_the_producer_trace_are_merged_in_place(self, traced, tmp_path):
        env_vars = {"A": "1"}
        options = {"num_cpus": 1, "runtime_env": {"env_vars": env_vars, "pip": ["x"]}}
        assert xtuner.merge_trace_runtime_env(options) is options
        merged = options["runtime_env"]["env_vars"]
        assert (merged["A"], options["runtime_env"]["pip"]) == ("1", ["x"])
        expected = {
            "XTUNER_TRACE_ENABLED": "1",
            "XTUNER_TRACE_OUTPUT_DIR": str(tmp_path),
            "XTUNER_TRACE_MAX_EVENTS": "100000",
            "XTUNER_TRACE_MAX_EVENTS_PER_TRACE": "256",
        }
        assert {key: merged[key] for key in expected} == expected
        assert {key: os.environ[key] for key in expected} == expected
        xtuner.close_trace()
        assert not any(key in os.environ for key in expected)
        assert xtuner.merge_trace_runtime_env({"num_cpus": 1}) == {"num_cpus": 1}

    def test_variables_of_the_otel_trace(self, spans, tmp_path):
        found = xtuner.current_trace_runtime()
        variables = xtuner.get_trace_env_vars()
        expected = {
            "XTUNER_OTEL_ENABLED": "1",
            "XTUNER_OTEL_OUTPUT_DIR": str(tmp_path),
            "XTUNER_OTEL_RUN_ID": found.run_id,
            "XTUNER_OTEL_RUN_DIR": str(found.run_dir),
            "XTUNER_OTEL_JSONL_PATH": str(found.trace_jsonl_path),
            "OTEL_SERVICE_NAME": "rollout",
        }
        assert {key: variables[key] for key in expected} == expected

    def test_a_worker_of_the_otel_trace_joins_the_run_of_its_trainer(self, tmp_path):
        """Both have a server that is down; engines with their own SDK get its address."""
        (tmp_path / "insight.yaml").write_text("recorder: {finish_timeout_s: 0.2}")
        trainer = """
import json, os, subprocess, sys
from rl_insight.compat import xtuner
config = xtuner.TraceConfig(enabled=True, service_name="rollout", enable_rollout_trace=True)
runtime = xtuner.configure_trace(config.model_copy(update={"output_dir": sys.argv[1]}))
variables = xtuner.get_trace_env_vars()
subprocess.run([sys.executable, "-c", sys.argv[2]], env={**os.environ, **variables}, check=True)
print(json.dumps({"run_id": runtime.run_id, "variables": variables}))
"""
        worker = """
from rl_insight.compat import xtuner
found = xtuner.current_trace_runtime()
assert (found.mode, found.enabled, xtuner.rollout_api.is_rollout_trace_enabled()) == ("inherited", True, True)
with xtuner.trace_span("in worker"):
    pass
"""
        environment = {"PATH": "/usr/bin", "HOME": str(tmp_path), "RL_INSIGHT_DATA_DIR": str(tmp_path / "none")}
        environment |= {"RL_INSIGHT_SERVER_URL": "http://127.0.0.1:9", "TMPDIR": str(tmp_path)}
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                trainer,
                str(tmp_path / "otel"),
                "import rl_insight.compat.xtuner.rollout_api\n" + worker,
            ],
            env={**environment, "RL_INSIGHT_CONFIG": str(tmp_path / "insight.yaml")},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        answers = json.loads(done.stdout)
        expected = {
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9/v1/traces",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_SERVICE_NAME": "rollout",
            "XTUNER_TRACE_ENABLE_ROLLOUT": "1",
        }
        assert {key: answers["variables"].get(key) for key in expected} == expected
        (path,) = (tmp_path / "otel" / answers["run_id"] / "traces").iterdir()
        text = path.read_text()
        assert f'"{answers["run_id"]}"' in text
        assert '"in worker"' in text

    def test_off_there_are_none_and_a_switch_of_launch_scripts_turns_nothing_on(self, monkeypatch):
        assert xtuner.get_trace_env_vars() == {}
        runtime._runtime = None
        monkeypatch.setenv("XTUNER_TRACE_ENABLED", "1")
        assert xtuner.current_trace_runtime() is None

    def test_a_worker_configures_itself(self, traced, tmp_path, insight_capture):
        program = """
from rl_insight.compat import xtuner
with xtuner.trace_span({"task_name": "t", "uid": "worker"}, "generate", worker_rank=3):
    pass
with xtuner.trace_span("otel"):
    pass
"""
        environment = {
            "PATH": "/usr/bin",
            "HOME": str(tmp_path),
            **{key: value for key, value in xtuner.get_trace_env_vars().items() if key.startswith("XTUNER")},
            "RL_INSIGHT_DATA_DIR": str(tmp_path / "none"),
        }
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert [(event["stage"], event["uid"], event["worker_rank"]) for event in read(tmp_path)] == [
            ("generate.start", "worker", 3),
            ("generate.end", "worker", 3),
        ]


def test_disabled_nothing_is_traced(tmp_path, insight_capture):
    xtuner.configure_trace({"enabled": False, "output_dir": str(tmp_path)})
    with xtuner.trace_span(sample(), "generate"):
        asyncio.run(xtuner_event(sample(), "x"))
    with xtuner.trace_span("generate"):
        xtuner.trace_event("x")
    assert xtuner.flush_trace()
    assert (list(tmp_path.iterdir()), insight_capture.spans) == ([], [])
    assert xtuner.inject_trace_context({"a": "b"}) == {"a": "b"}
    xtuner.configure_trace(None)
    assert xtuner.current_trace_runtime() is None


def test_the_viewer_serves_our_page_and_its_address_is_printed(tmp_path):
    """A trainer without a server: one starts next to it, receives the traces, and ends with it."""
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
