"""Calls to AReaL's tracer that its own trainer rarely makes: misuse, intervals, methods of the tracers, contexts."""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
import time

import perf_tracers

which, folder = sys.argv[1:]
tracer = perf_tracers.load(which)
answers = {}


def attempt(function, *args, **kwargs):
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return type(error).__name__


def written(role):
    """Return the lines of each file so far."""
    found = {}
    for place, _, names in os.walk(folder):
        for name in names:
            if f"/{role}" in place:
                with open(os.path.join(place, name)) as stream:
                    found[name] = len(stream.readlines())
    return dict(sorted(found.items()))


def is_written(role, name):
    """Return whether a file appears; ours is written in the background."""
    deadline = time.monotonic() + 30
    while name not in written(role) and time.monotonic() < deadline:
        time.sleep(0.01)
    return name in written(role)


def config(**fields):
    return perf_tracers.PerfTracerConfig(fileroot=folder, **{"enabled": True, **fields})


# -- off: everything passes
answers["off"] = [
    attempt(tracer.get_tracer), tracer.get_session_tracer(), tracer.GLOBAL_TRACER, tracer.is_configured(),
    tracer.register_session(1), tracer.save(step=0), tracer.save(force=True), tracer.reset(),
    tracer.instant("x"), tracer.trace_session_event("mark_finalized", task_id=1, status="accepted"),
]  # fmt: skip
with tracer.trace_scope("x", enable_profiler=True), tracer.trace_session_phase("generate", start_payload={"a": 1}):
    pass
tracer.set_task_id(4)
tracer.set_session_id(9)
answers["variables"] = [tracer.get_task_id(), tracer.get_session_id()]
inner = contextvars.copy_context()
inner.run(tracer.set_task_id, 5)
answers["variables"] += [tracer.get_task_id(), inner.run(tracer.get_task_id)]


@tracer.session_context()
def current():
    return tracer.get_session_id()


answers["unregistered"] = current()
tracer.set_task_id(None)
tracer.set_session_id(None)
answers["cleared"] = [tracer.get_task_id(), tracer.get_session_id(), current()]

# -- wrong use, names
answers["wrong"] = [attempt(tracer.configure, config(), rank=-1), tracer.is_configured()]
zero = perf_tracers.SessionTracerConfig(enabled=True, flush_threshold=0)
made = tracer.configure(config(save_interval=0, session_tracer=zero), rank=0, role="a")
answers["again"] = attempt(tracer.configure, config(), rank=0)
answers["enums"] = [
    [member.name for member in tracer.PerfTraceCategory], tracer.Category is tracer.PerfTraceCategory,
    [member.value for member in tracer.SessionTraceEvent],
]  # fmt: skip

# -- an interval and a threshold of 0 mean 1
answers["no_task"] = current()
with made.trace_scope("of.tracer", category="instrumentation", args={"a": 1}):
    made.instant("of.tracer.instant", category="", args=None)
tracer.save(step=0)
answers["step_0"] = is_written("a", "traces-r0.jsonl")
made.set_enabled(False)
with tracer.trace_scope("unseen"):
    tracer.instant("unseen.instant")
made.set_enabled(True)
answers["enabled"] = made.enabled

sessions = tracer.get_session_tracer()
answers["same"] = sessions is made.session_tracer
tracer.register_task(7)
first, second = tracer.register_session(7), tracer.register_session(7)
answers["ids"] = [len(sessions.get_session_ids(7)), len(sessions.get_session_ids(8)), second - first]
sessions.record_event(first, tracer.SessionTraceEvent.REWARD_START)
sessions.record_event(first, tracer.SessionTraceEvent.REWARD_END)
sessions.record_event(first, tracer.SessionTraceEvent.FINALIZED, status="accepted")
sessions.increment_counter(second, "turns")
sessions.increment_counter(second, "turns", 4)
sessions.increment_counter(second, "none", 0)
answers["unknown"] = [sessions.record_event(10**12, "finalized"), sessions.increment_counter(10**12, "x")]


async def phases():
    tracer.set_session_id(second)
    async with tracer.atrace_session_phase("toolcall", end_payload={"code": 0}):
        await asyncio.sleep(0.001)
    try:
        with tracer.trace_session_phase("generate"):
            raise ValueError("no")
    except ValueError:
        pass


asyncio.run(phases())
tracer.trace_session_event("mark_finalized", session_id=second, status="dropped")
sessions.flush(force=True)
answers["sessions"] = written("a")["sessions-r0.jsonl"]
tracer.save(force=True)
tracer.reset()
answers["reset"] = [tracer.is_configured(), attempt(tracer.get_tracer)]

# -- every third step
tracer.configure(config(save_interval=3, session_tracer=None), rank=2, role="b")
answers["no_sessions"] = [tracer.get_session_tracer(), tracer.register_task(1), tracer.register_session(1)]
seen = []
for step in range(4):
    with tracer.trace_scope(f"step.{step}"):
        pass
    tracer.save(step=step)
    seen.append(is_written("b", "traces-r2.jsonl") if step == 2 else "traces-r2.jsonl" in written("b"))
answers["every_third"] = seen
tracer.save()
tracer.reset()

# -- without a role, and sessions without a trace
tracer.configure(config(enabled=False), rank=0)
tracer.register_task(3)
session = tracer.register_session(3)
with tracer.trace_scope("unseen"):
    pass
tracer.trace_session_event("mark_finalized", task_id=3, status="failed", reason="because")
tracer.save(force=True)
tracer.reset()
perf_tracers.say(**answers)
