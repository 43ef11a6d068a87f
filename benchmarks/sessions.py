"""What a session with three phases costs the thread that runs it."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.harness import Figure, Loop, Options, measure_calls, say
from benchmarks.producer import recording
from rl_insight.monitor import Monitor

NAME = "sessions"

_PHASES = ("execution", "generate", "reward")


def run(options: Options) -> Iterator[Figure]:
    """Measure the caller's side of sessions."""
    say("sessions: a session with three phases")
    rounds = 20 if options.quick else 300
    with recording({"backend": "none"}) as monitor:
        costs = measure_calls(
            {"ours": _sessions(monitor), "marks": _marked_sessions(monitor)},
            rounds=rounds,
            between=monitor.flush,
        )
        losses = monitor.get_status()["losses"]
        if losses:
            raise RuntimeError(f"events were lost, the figures are worth nothing: {losses}")
    off = measure_calls({"off": _sessions(Monitor())}, rounds=rounds)
    yield Figure("session with 3 phases", costs["ours"] / 1000, "µs", budget=12.0)
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
