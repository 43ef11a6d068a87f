"""The cost of a session with three phases in the calling thread."""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.harness import Figure, Loop, Options, measure_calls, say
from benchmarks.producer import recording
from rl_insight.monitor import Monitor

NAME = "sessions"

_PHASES = ("execution", "generate", "reward")
_ROOT = Path(__file__).parents[1]
_AREAL = _ROOT / ".originals" / "areal"


def run(options: Options) -> Iterator[Figure]:
    """Measure the caller's side of sessions."""
    say("sessions: a session with three phases")
    rounds = 20 if options.quick else 300
    paired: dict[str, float] = {}
    with recording({"backend": "none"}) as monitor, tempfile.TemporaryDirectory() as folder:
        contenders = {"ours": _sessions(monitor), "marks": _marked_sessions(monitor)}
        costs = measure_calls(contenders, rounds=rounds, between=monitor.flush)
        if _AREAL.exists():
            pair = {"ours": _plain_sessions(monitor), "AReaL": areal_sessions(_original_areal(folder))}
            # The median round has no file write, which AReaL's caller pays for after every 256 sessions.
            paired = measure_calls(pair, rounds=rounds, between=monitor.flush)
        else:
            say("sessions: AReaL's tracer is not measured: run `make originals`")
        losses = monitor.get_status()["losses"]
        if losses:
            raise RuntimeError(f"events were lost, so the figures are meaningless: {losses}")
    off = measure_calls({"off": _sessions(Monitor())}, rounds=rounds)
    yield Figure("session with 3 phases", costs["ours"] / 1000, "µs", budget=12.0)
    if paired:
        yield Figure("session with 3 phases, AReaL's tracer", paired["AReaL"] / 1000, "µs")
        yield Figure("session with 3 phases, ours to AReaL's", paired["ours"] / paired["AReaL"], "×", budget=0.5)
    yield Figure("session with 3 phases, 2 marks, a counter", costs["marks"] / 1000, "µs")
    yield Figure("session with 3 phases, disabled", off["off"] / 1000, "µs")


def _sessions(monitor: Monitor) -> Loop:
    session, phase = monitor.session, monitor.phase
    outer, inner, last = _PHASES

    def loop(calls: int) -> None:
        for _ in range(calls):
            with session(task_id="gsm8k-17", step=7) as one:
                with phase(outer), phase(inner, tokens=512):
                    pass
                with phase(last):
                    pass
                one.finalize("accepted", reward=1.0)

    return loop


def _plain_sessions(monitor: Monitor) -> Loop:
    """A session with only the data that AReaL records."""
    session, phase = monitor.session, monitor.phase

    def loop(calls: int) -> None:
        for task in range(calls):
            with session(task_id=task) as one:
                with phase("generate"), phase("toolcall"):
                    pass
                with phase("reward"):
                    pass
                one.finalize("accepted")

    return loop


def _marked_sessions(monitor: Monitor) -> Loop:
    session, phase = monitor.session, monitor.phase
    outer, inner, last = _PHASES

    def loop(calls: int) -> None:
        for _ in range(calls):
            with session(task_id="gsm8k-17", step=7) as one:
                one.mark("enqueued")
                with phase(outer), phase(inner, tokens=512):
                    one.count("turns")
                with phase(last):
                    pass
                one.finalize("accepted", reward=1.0)
            one.mark("consumed")

    return loop


def _original_areal(folder: str) -> Any:
    """AReaL 1.0.4's own tracer."""
    sys.path[:0] = [str(_AREAL), str(_ROOT / "tests" / "compat" / "programs")]
    programs: Any = importlib.import_module("perf_tracers")
    tracer: Any = programs.load("original")
    config = programs.PerfTracerConfig(fileroot=folder, session_tracer=programs.SessionTracerConfig(enabled=True))
    tracer.configure(config, rank=0)
    return tracer


def areal_sessions(tracer: Any) -> Loop:
    """The same session through AReaL's tracer, or a replacement for it, as its workflow executor drives it."""
    tasks: Callable[[], int] = count().__next__
    phase = tracer.trace_session_phase

    @tracer.session_context()  # type: ignore[untyped-decorator]
    def sample() -> None:
        with phase("generate"), phase("toolcall"):
            pass
        with phase("reward"):
            pass

    def loop(calls: int) -> None:
        for _ in range(calls):
            task = tasks()
            tracer.register_task(task)
            tracer.set_task_id(task)
            sample()
            tracer.trace_session_event("mark_finalized", task_id=task, status="accepted")

    return loop
