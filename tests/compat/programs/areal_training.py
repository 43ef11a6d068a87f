"""A training run with AReaL's tracer, as AReaL's own trainer, executor and workflows use it."""

from __future__ import annotations

import asyncio
import sys
import threading

import perf_tracers

which, folder = sys.argv[1:]
tracer = perf_tracers.load(which)
Category = tracer.Category
answers = {}

config = perf_tracers.PerfTracerConfig(fileroot=folder, enabled=True, profile_steps=[1])
answers["off"] = [tracer.is_configured(), tracer.get_session_tracer(), tracer.register_task(5)]
made = tracer.configure(config, rank=1, role="actor")
answers["configured"] = [tracer.is_configured(), type(made).__name__, made is tracer.get_tracer(), made.enabled]
answers["global"] = tracer.GLOBAL_TRACER is made


@tracer.trace_perf("trainer.update", category=Category.COMPUTE)
def update(fail=False):
    if fail:
        raise ArithmeticError("no")
    return "updated"


@tracer.trace_perf("trainer.publish", category="communication")
async def publish():
    return "published"


for step in range(2):
    with tracer.trace_scope("train.rollout", category=Category.COMPUTE, args={"global_step": step}):
        with tracer.trace_scope("inner", category="My Kind", enable_profiler=True, args={"rank": "mine"}):
            pass
        with (
            tracer.trace_scope("again", enable_profiler=True, profiler_args={"record_shapes": True}),
            tracer.trace_scope("nested", enable_profiler=True),
        ):
            pass
    tracer.instant("weights.received", category=" IO ", args={"version": step})
    answers["update"] = update()
    answers["publish"] = asyncio.run(publish())
    tracer.save(step=step)

try:
    update(fail=True)
except ArithmeticError as error:
    answers["raised"] = str(error)


async def later():
    async with tracer.atrace_scope("async.scope", category=Category.SYNC):
        await asyncio.sleep(0)


asyncio.run(later())
thread = threading.Thread(target=lambda: tracer.instant("from.thread"), name="loader")
thread.start()
thread.join()

# -- sessions, as the executor and the workflows of AReaL use them


@tracer.trace_session("reward")
async def reward():
    await asyncio.sleep(0.002)
    return 1.0


@tracer.session_context()
async def sample(index):
    async with tracer.atrace_session_phase("generate"):
        await asyncio.sleep(0.002)
    if index == 1:
        raise ValueError("no answer")
    tracer.trace_session_event("increment_counter", session_id=tracer.get_session_id(), name="turns", value=2)
    tracer.trace_session_event("increment_counter", session_id=tracer.get_session_id(), name="turns")
    await reward()
    return tracer.get_session_id()


async def task(task_id, outcome):
    tracer.set_task_id(task_id)
    try:
        await asyncio.gather(*(sample(outcome.get("index", 0)) for _ in range(2)))
    except ValueError:
        outcome = {"status": "failed", "reason": "workflow_exception"}
    outcome.pop("index", None)
    if outcome:
        tracer.trace_session_event("mark_finalized", task_id=task_id, **outcome)
    return len(tracer.get_session_tracer().get_session_ids(task_id))


async def rollout():
    outcomes = [
        {"status": "accepted"},
        {"status": "rejected", "reason": "returned_none"},
        {"status": "rejected", "reason": None},
        {"index": 1},
        {},
    ]
    answers["registered"] = [tracer.register_task(100 + number) for number in range(len(outcomes))]
    return await asyncio.gather(*(task(100 + number, outcome) for number, outcome in enumerate(outcomes)))


answers["sessions"] = asyncio.run(rollout())
session_id = tracer.register_session(999)
answers["id"] = type(session_id).__name__
tracer.trace_session_event("mark_toolcall_end", session_id=session_id)
tracer.trace_session_event("mark_generate_start", session_id=session_id)
tracer.trace_session_event("mark_finalized", session_id=session_id, status="rejected", reason="first")
tracer.trace_session_event("mark_finalized", session_id=session_id, status="accepted", reason="second")
tracer.trace_session_event("mark_finalized", session_id=10**15, status="accepted")
tracer.trace_session_event("mark_finalized")
tracer.get_session_tracer().increment_counter(session_id, "tools", 3)
tracer.save(force=True)
tracer.trace_session_event("mark_finalized", session_id=session_id, status="failed")
tracer.save(force=True)
answers["profiles"] = [
    {"record_shapes": options["record_shapes"], "with_stack": options["with_stack"], "of": list(options["activities"])}
    for options in perf_tracers.made
]
tracer.reset()
answers["after"] = [tracer.is_configured(), tracer.GLOBAL_TRACER]
perf_tracers.say(**answers)
