"""One small training through every adapter: `adapters.py on|off FOLDER`, with or without a server that responds."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import perf_tracers
import stubs

state, folder = sys.argv[1:]
is_on = state == "on"


def attempt(function):
    """Return the result of a call, or the error that it raises."""
    try:
        return function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def work(value):
    if value < 0:
        raise ArithmeticError(f"{value} is negative")
    return value * 2


async def async_work(value):
    await asyncio.sleep(0)
    return work(value)


def results(traced, traced_async):
    """Call decorated functions as a training job does: they return and raise as without a decorator."""
    answers = [attempt(lambda value=value: traced(value)) for value in (3, -1)]
    return answers + [attempt(lambda value=value: asyncio.run(traced_async(value))) for value in (3, -1)]


def plain():
    return results(work, async_work)


def rl_insight():
    import rl_insight as insight

    if is_on:
        insight.init("math", "grpo")
    found = results(insight.trace_op("work", stage="a")(work), insight.trace_op()(async_work))
    with insight.trace_state("rollout", state_lane_id="rank_0"):
        insight.metric_gauge("reward", 0.5)
    session = insight.agent_loop_session(experiment_name="grpo", sample=1, session=0)
    session.finish(trajectories=[SimpleNamespace(reward_score=1.0)], status="success")
    insight.trace_span(name="turn", start_time_ns=1, end_time_ns=2, attributes=session.identity)
    insight.update_prometheus_config(["127.0.0.1:9"], "vllm", [None])
    return found


def verl():
    for name in ("verl", "verl.utils"):
        stubs.package(name)
    if is_on:
        os.environ["VERL_RL_INSIGHT_ENABLE"] = "1"
    logger = stubs.load("verl.utils.tracking").RLInsightLogger
    logger.register_rollout_metrics(["127.0.0.1:9"], "vllm", [{"replica": 0}])
    made = logger("math", "grpo", {"trainer": {"rl_insight": {}}}) if is_on else None

    def traced(value):
        with logger.trace_state("update", state_lane_id="rank_0"):
            return work(value)

    async def traced_async(value):
        with logger.trace_state("generate", state_lane_id="replica_0"):
            return await async_work(value)

    found = results(traced, traced_async)
    if made is not None:
        made.log({"critic/score/mean": 0.5, "text": "left out"}, 1)
        made.finish()
    return found


def areal():
    from rl_insight.compat import areal as tracer

    if is_on:
        config = perf_tracers.PerfTracerConfig(fileroot=f"{folder}/areal", enabled=True)
        tracer.configure(config, rank=0, role="actor")
    tracer.register_task(1)
    tracer.set_task_id(1)
    session = tracer.session_context()
    found = results(tracer.trace_perf("work")(work), session(tracer.trace_session("reward")(async_work)))
    with tracer.trace_scope("step", args={"global_step": 1}):
        tracer.instant("mark")
    tracer.trace_session_event("mark_finalized", task_id=1, status="accepted")
    tracer.save(step=0)
    tracer.save(force=True)
    tracer.reset()
    return found


@dataclass
class Sample:
    uid: int = 17
    task_name: str = "math"
    session_uid: int = 1
    status: str = "completed"
    extra_fields: dict = field(default_factory=dict)


def xtuner_first():
    from rl_insight.compat import xtuner

    options = {"max_events": 100, "viewer_enabled": False}
    if is_on:
        options |= {"enabled": True, "output_dir": f"{folder}/xtuner"}
    xtuner.configure_trace(xtuner.TraceConfig(**options))

    async def several():
        async with xtuner.trace_span(Sample(), "agent_loop.generate_group"):
            await xtuner.trace_event(Sample(), "mark")

    asyncio.run(several())
    options = {"env": {"A": "1"}}
    assert xtuner.merge_trace_runtime_env(options) is options
    traced = xtuner.trace_function("work", target=Sample())
    found = results(traced(work), traced(async_work))
    xtuner.flush_trace()
    xtuner.close_trace()
    return found


def xtuner_otel():
    from rl_insight.compat import xtuner

    options = {"service_name": "rollout"}
    if is_on:
        options |= {"enabled": True, "output_dir": f"{folder}/otel"}
    xtuner.configure_trace(xtuner.TraceConfig(**options))
    found = results(xtuner.trace_function(attributes={"a": 1})(work), xtuner.trace_function()(async_work))
    with xtuner.trace_span("step", {"n": 1}):
        xtuner.trace_event("mark")
        xtuner.set_trace_attributes({"b": 2})
        xtuner.inject_trace_context({})
    xtuner.close_trace()
    return found


def skyrl():
    from rl_insight.compat.skyrl import RayGpuMonitor

    monitor = RayGpuMonitor(collection_interval=0.1)
    if is_on:
        monitor.start()
    payload = {"loss": 0.5}
    payload.update(monitor.flush())
    monitor.stop()
    assert payload == {"loss": 0.5}, payload  # there is no Ray here
    return plain()


def nemo_rl():
    """NeMo-RL's names: its own `start` refuses to run without Ray, and its trainer only creates one with Ray."""
    from rl_insight.compat.skyrl import RayGpuMonitor

    monitor = RayGpuMonitor(collection_interval=0.1, keys="nemo-rl")
    refused = attempt(monitor.start) if is_on else "ValueError: off"
    assert refused.startswith("ValueError: "), refused
    assert monitor.flush() == {}
    with stubs.restored("ray"):
        stubs.module("ray", nodes=list, is_initialized=lambda: True)
        if is_on:
            monitor.start()  # a cluster without nodes to read: warns
        assert monitor.flush() == {}
    monitor.stop()
    monitor.stop()
    return plain()


perf_tracers.stub_torch()
adapters = [plain, rl_insight, areal, xtuner_first, xtuner_otel, skyrl, nemo_rl]
adapters += [verl] if find_spec("verl") is not None else []
answers = {adapter.__name__: attempt(adapter) for adapter in adapters}
files = sorted({path.relative_to(folder).parts[0] for path in Path(folder).rglob("*.jsonl") if path.stat().st_size})
print(json.dumps({"answers": answers, "files": files}))
