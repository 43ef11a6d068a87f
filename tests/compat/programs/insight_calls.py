"""Calls to rl_insight 0.3.0 by a trainer, verl and an agent runtime: prints the records under 0.3.0's names."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import sys
import warnings
from types import SimpleNamespace

from packaging.version import Version

which = sys.argv[1]
import rl_insight as insight  # noqa: E402
from rl_insight.agent_loop import agent_loop_lane_id, agent_loop_session  # noqa: E402

answers = {}
span_kinds = set()
"""The kinds of the exported spans, as OTLP numbers them."""
RUN = {"project": "math", "experiment_name": "grpo"}


def identity_before_init():
    session = agent_loop_session(experiment_name="grpo", sample=1, session=2)
    session.finish(trajectories=[], status="success")
    with insight.trace_state("nothing", state_lane_id="rank_0"):
        insight.metric_gauge("nothing", 1.0)
    called = []

    @insight.trace_op("unseen", extra_labels=called.append)
    def passes(value):
        return value

    answers["off_op"] = [passes(3), called]
    insight.finish()
    return session.identity


def edges():
    """Call what is easily missed: default lanes, errors, redundant labels, registrations."""
    found = {"errors": []}
    insight.metric_count("done_total", 3)
    with insight.trace_state("idle"):
        pass
    with insight.trace_state("labeled", state_lane_id="rank_2", **{"monitor.trace_segment": "mine", "n": 1.5}):
        pass

    @insight.trace_op("stages", extra_labels=lambda first: {"stage": first}, stage="static", part=2)
    def staged(_first):
        raise LookupError("no")

    @insight.trace_op("unlucky", extra_labels=lambda first: {"share": 1 / first})
    def unlucky(_first):
        return "done"

    for attempt in (lambda: staged("extra"), failing_state):
        try:
            attempt()
        except LookupError as error:
            found["errors"].append(type(error).__name__)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found["unlucky"] = unlucky(0)
    found["warned"] = [warning.category.__name__ for warning in caught]
    own = {"project": "p", "experiment_name": "e", "process_id": "77", "state_lane_id": "mine", "n": 3, "share": 0.5}
    insight.trace_span(name="given", start_time_ns=10**18, end_time_ns=10**18 + 5, attributes=own)
    for addresses, labels in ((["a:1", "b:2"], [{"replica": 0}]), ([], None)):
        try:
            insight.update_prometheus_config(addresses, "vllm", labels)
        except ValueError as error:
            found["errors"].append(type(error).__name__)
    found["is_a_version"] = str(Version(insight.__version__)) == insight.__version__
    return found


def failing_state():
    with insight.trace_state("failing", state_lane_id="rank_1"):
        raise KeyError("no")


def train():
    """Call everything once; returns the results."""
    found = {}
    session = agent_loop_session(
        project="math", experiment_name="grpo", sample=3, session=0, traj=1, uid="a17", global_steps=7, session_id="s9"
    )
    found["identity"] = session.identity
    found["kinds"] = {name: type(value).__name__ for name, value in session.identity.items()}
    found["kind"] = type(session.identity).__name__
    found["travels"] = pickle.loads(pickle.dumps(session.identity)) == session.identity
    found["whole"] = pickle.loads(pickle.dumps(session)).identity == session.identity
    found["lane"] = agent_loop_lane_id("grpo", 3, 0, 2)
    found["gauge"] = insight.metric_gauge("critic_score_mean@1", 0.5)
    found["count"] = insight.metric_count("steps", 2, "Steps done", worker=3)
    insight.metric_histogram("latency_ms", 12.0, worker="0")
    insight.metric_gauge("reward", float("nan"), step=4)

    with (
        insight.trace_state("vllm_generate", state_lane_id="replica_0", step=3),
        insight.trace_state("vllm_generate", state_lane_id="replica_0", step=9),
    ):
        pass

    calls = []

    @insight.trace_op("update", extra_labels=lambda first: calls.append(first) or {"first": first}, stage="a")
    def update(*args, **kwargs):
        return "updated"

    @insight.trace_op()
    async def publish():
        return "published"

    found["op"] = [update(5), update(key=5), asyncio.run(publish())]
    found["extra_labels"] = calls
    turn = {**session.identity, "monitor.trace_source": "gateway", "chain_id": 1, "turn": 0, "type": "chat"}
    turn |= {"content": "Bearer of news", "tool_args": '{"q": 1}', "prompt_tokens": 30, "completion_tokens": 512}
    turn |= {"state_lane_id": found["lane"], "traj": "2", "tools": ["a", "b"], "finish_reason": "stop"}
    turn |= {"reasoning": "because", "status": "success", "error": ""}
    start = session.start_ns
    insight.trace_span(name="gateway_generation", start_time_ns=start, end_time_ns=start + 10**6, attributes=turn)
    task = {**session.identity, "monitor.trace_source": "task", "task_name": "react", "reward": 1.0, "finished": True}
    task |= {"image_ref": "repo/image:1", "prompt_hash": "9f", "status": "failure", "accuracy": 0.25}
    task |= {"reward_posted": False, "error": "timeout"}
    insight.trace_span(name="agent_task", start_time_ns=start, end_time_ns=start + 10**6, attributes=task)
    trajectories = [SimpleNamespace(chain_id=1, reward_score=0.5, num_turns=4), SimpleNamespace(reward_score="bad")]
    session.finish(trajectories=trajectories, status="failure", runner_name="react", finished=True)
    agent_loop_session(experiment_name="other", sample=0, session=0).finish(trajectories=[], status="empty")
    found |= edges()
    return found


def original():
    from rl_insight.client.base import MonitorClient, register_monitor_client

    events = []

    class Keeping(MonitorClient):
        def apply_event(self, event):
            events.append(event)

    register_monitor_client("keeping", lambda _conf: Keeping())
    insight.init(**RUN, config={"server": {"backend": "keeping", "url": "http://127.0.0.1:1"}})
    answers["calls"] = train()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        insight.init(**RUN)
    answers["again"] = [warning.category.__name__ for warning in caught]
    answers["events"] = json.loads(json.dumps(events, default=str))


def ours():
    insight.init(**RUN, config={"server": {"backend": "memory"}})
    answers["calls"] = train()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        insight.init(**RUN)
    answers["again"] = [warning.category.__name__ for warning in caught]
    insight.flush()
    answers["lost"] = insight.get_status()["losses"]
    from rl_insight.monitor import default_monitor

    batches = default_monitor._pipeline.transport.batches
    answers["page"] = page(batches)
    answers["spans"] = exported_spans(batches)
    answers["span_kinds"] = sorted(span_kinds)
    answers["sessions"] = sessions(batches)


def page(batches):
    """Return the parsed Prometheus page: sample name, labels, value; and the help of each family."""
    from prometheus_client.parser import text_string_to_metric_families

    from rl_insight.collector import Collector
    from rl_insight.schema import encode

    collector = Collector()
    for batch in batches:
        collector.ingest(encode(batch))
    body, _ = collector.metrics_page("text/plain")
    families = list(text_string_to_metric_families(body.decode()))
    samples = [[sample.name, sample.labels, sample.value] for family in families for sample in family.samples]
    return {"samples": samples, "help": {family.name: family.documentation for family in families}}


def exported_spans(batches):
    """Return the spans as in OTLP: name, times, attributes, and the resource's attributes."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    from rl_insight.otlp.encode.items import SCOPE, span_items
    from rl_insight.otlp.encode.protobuf import encode_span, request_part
    from rl_insight.otlp.wire import BYTES, sized, tag
    from rl_insight.schema.names import DEFAULT_NAMESPACE

    def plain(value):
        kind = value.WhichOneof("value")
        if kind == "array_value":
            return [plain(one) for one in value.array_value.values]
        return getattr(value, kind)

    found = []
    span_kinds.clear()
    for batch in batches:
        part = request_part(batch.process, {SCOPE: map(encode_span, span_items(batch))}, DEFAULT_NAMESPACE)
        request = ExportTraceServiceRequest.FromString(tag(1, BYTES) + sized(part))
        for resource in request.resource_spans:
            about = {pair.key: plain(pair.value) for pair in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    span_kinds.add(span.kind)
                    attributes = {pair.key: plain(pair.value) for pair in span.attributes}
                    found.append([span.name, span.start_time_unix_nano, span.end_time_unix_nano, attributes, about])
    return found


def sessions(batches):
    from rl_insight.sessions.records import SessionBook

    book = SessionBook()
    for batch in batches:
        book.add(batch)
    return book.records()


answers["pid"] = str(os.getpid())
answers["off"] = identity_before_init()
{"original": original, "ours": ours}[which]()
insight.finish()
print(json.dumps(answers, default=str))
