"""Inference engines: dead, stuck, out of cache, or with a queue that grows."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from rl_insight.diagnosis.hardware import Device
from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.names import is_rollout, state_kind
from rl_insight.diagnosis.robust import median, spearman
from rl_insight.diagnosis.rows import SECOND, ProcessRow
from rl_insight.diagnosis.rule import MomentRule, Parameter, Severity, Signal, culprit_of, fact, where
from rl_insight.diagnosis.words import ratio_text, seconds_text, share_text

_NO_ENGINES = "no engine metrics: register the address of vLLM or SGLang with `rl-insight server targets`"


def _waiting_s(model: RunModel, process: ProcessRow | None) -> float:
    """Return for how long another role has been waiting, by its open waits and generation."""
    ages = [0.0]
    for row in model.open_spans:
        owner = model.process_of_lane(row.lane_id)
        waits = state_kind(row.name) == "wait" or (owner.role == model.lead and state_kind(row.name) == "generate")
        if waits and owner is not process and (process is None or owner.role != process.role):
            ages.append(model.age_s(row.start_ns))
    return max(ages)


class DeadEngine(MomentRule):
    """An engine or rollout process is dead, and the trainer waits for it."""

    name = "dead_engine"
    threshold = (
        "A scrape target is down for {down_s} s, or a rollout process is silent for three heartbeats. Critical when "
        "another role has been waiting for at least {waiting_s} s."
    )
    needs = "heartbeats of rollout processes, or engines as scrape targets"
    remedy = "Restart the replica; look for an out-of-memory kill at wake-up, and fail instead of polling forever."
    parameters = (
        Parameter("down_s", 10, "How long a target must be down, in seconds"),
        Parameter("waiting_s", 10, "How long another role must have waited, in seconds"),
    )
    rank = 10
    asks_stacks = True
    explains = frozenset({
        "stalled_run", "stuck_session", "rollout_bound", "step_regression", "stuck_engine", "telemetry_gap",
        "replica_imbalance", "collective_hang", "blocked_reward", "gpu_idle_in_rollout", "straggler", "long_tail",
    })  # fmt: skip

    def _lacks(self, model: RunModel) -> str | None:
        if model.hardware.engines or any(is_rollout(process.role) for process in model.workers()):
            return None
        return _NO_ENGINES

    def look(self, model: RunModel) -> list[Signal]:
        """Return the replicas that are gone."""
        found = [signal for engine in model.hardware.engines.values() if (signal := self._target(model, engine))]
        silent, remaining = model.silent_workers(), model.remaining()
        dead = [process for process in silent if is_rollout(process.role) and process.role != model.lead]
        if 2 * len(silent) > remaining > 2:
            # The run itself is gone, or the network: only what fell silent well before the others is an engine's fault.
            usual_ns = median([process.last_seen_ns for process in silent])
            dead = [one for one in dead if usual_ns - one.last_seen_ns > 6 * one.heartbeat_s * SECOND]
        return found + [self._process(model, process) for process in dead]

    def _target(self, model: RunModel, engine: Device) -> Signal | None:
        states = engine.history("target_up")
        if not states or states[-1][1] > 0 or not any(value > 0 for _, value in states):
            return None
        since = next((moment for moment, value in reversed(states) if value > 0), states[0][0])
        down = [moment for moment, value in states if value <= 0 and moment > since]
        if len(down) < 2 or model.age_s(since) < self["down_s"]:
            return None
        waiting_s = _waiting_s(model, None)
        severity: Severity = "critical" if waiting_s >= self["waiting_s"] else "warning"
        return Signal(
            {"engine": engine.host},
            f"Engine {engine.host} has not answered for {seconds_text(model.age_s(since))}",
            f"It answered before and does not any more; another role has been waiting for {seconds_text(waiting_s)}.",
            severity,
            anchor=f"down after {sum(1 for _, value in states if value > 0)} readings",
            start_ns=since,
            evidence=[fact("down", model.age_s(since), "s"), fact("longest wait", waiting_s, "s")],
        )

    def _process(self, model: RunModel, process: ProcessRow) -> Signal:
        waiting_s = _waiting_s(model, process)
        error = model.last_error.get(process.number)
        said = f" Its last error: {error.text[:200]}" if error else ""
        severity: Severity = "critical" if waiting_s >= self["waiting_s"] else "warning"
        return Signal(
            culprit_of(process),
            f"{where(process)} is dead: silent for {seconds_text(model.silent_s(process))}",
            f"It sends no heartbeats and said no goodbye; another role has been waiting for "
            f"{seconds_text(waiting_s)}.{said}",
            severity,
            key=(process.process_id,),
            anchor="silent",
            start_ns=process.last_seen_ns,
            lanes=model.lanes_of(process.number),
            evidence=[
                fact("silent", model.silent_s(process), "s", f"heartbeat every {process.heartbeat_s:g} s"),
                fact("longest wait", waiting_s, "s"),
            ],
        )


class _EngineRule(MomentRule):
    """Looks at the readings of each engine in the last window."""

    reading: ClassVar[str]
    """What an engine must report."""
    window: ClassVar[str] = "window_s"
    """The parameter with the length of the window."""

    def _lacks(self, model: RunModel) -> str | None:
        engines = model.hardware.engines.values()
        return None if any(self.reading in engine.quantities for engine in engines) else _NO_ENGINES

    def look(self, model: RunModel) -> list[Signal]:
        """Return what is wrong with the engines."""
        since = model.as_of_ns - int(self[self.window] * SECOND)
        found = [self.judge(model, engine, since) for engine in model.hardware.engines.values()]
        return [signal for signal in found if signal is not None]

    @abstractmethod
    def judge(self, model: RunModel, engine: Device, since: int) -> Signal | None:
        """Return what is wrong with an engine."""


class StuckEngine(_EngineRule):
    """An engine is alive but stuck: requests run and no token comes."""

    name = "stuck_engine"
    threshold = "Requests running for {still_s} s while no token was generated; or asleep while requests wait."
    needs = "vLLM or SGLang metrics: running requests and generated tokens"
    remedy = "Look at the stack of the engine's core process; check pause and resume around the weight update."
    parameters = (Parameter("still_s", 30, "How long no token may come, in seconds"),)
    rank = 15
    explains = frozenset({
        "stalled_run", "stuck_session", "rollout_bound", "step_regression", "engine_queue", "gpu_idle_in_rollout",
        "replica_imbalance", "collective_hang", "straggler",
    })  # fmt: skip

    reading, window = "running", "still_s"

    def judge(self, model: RunModel, engine: Device, since: int) -> Signal | None:
        """Return an engine that stands still."""
        running = engine.between("running", since, model.as_of_ns)
        waiting = engine.between("waiting", since, model.as_of_ns)
        grown = engine.growth("tokens", since, model.as_of_ns)
        history = engine.history("running")
        if not history or history[0][0] > since or len(running) < 2 or engine.latest("target_up") == 0:
            return None
        asleep = engine.latest("awake") == 0
        if asleep and waiting and min(waiting) > 0:
            title = f"Engine {engine.host} is asleep while {waiting[-1]:.0f} requests wait"
        elif min(running) > 0 and grown == 0 and not asleep:
            title = f"Engine {engine.host} generates nothing: {running[-1]:.0f} requests run and no token comes"
        else:
            return None
        return Signal(
            {"engine": engine.host},
            title,
            f"Over the last {seconds_text(self['still_s'])} its token counter did not move; a decode step takes less "
            "than a second.",
            "critical",
            anchor=f"after step {model.steps.current}",
            start_ns=since,
            evidence=[fact("running requests", running[-1]), fact("tokens generated", grown or 0.0)],
        )


class CacheThrash(_EngineRule):
    """The KV cache thrashes: requests are preempted because it is full."""

    name = "kv_cache_thrash"
    threshold = "At least {per_minute} preemptions per minute for {window_s} s with the cache at {usage} or more."
    needs = "vLLM or SGLang metrics: preemptions and cache usage"
    remedy = "Lower the number of concurrent sequences, give the cache more memory, or shorten responses."
    parameters = (
        Parameter("per_minute", 5, "Preemptions per minute"),
        Parameter("usage", 0.95, "Share of the cache in use"),
        Parameter("window_s", 60, "Window, in seconds"),
    )
    explains = frozenset({"gpu_idle_in_rollout", "engine_queue"})

    reading = "preemptions"

    def judge(self, model: RunModel, engine: Device, since: int) -> Signal | None:
        """Return an engine that thrashes."""
        preempted = engine.growth("preemptions", since, model.as_of_ns)
        usage = engine.between("cache_usage", since, model.as_of_ns)
        if preempted is None or not usage:
            return None
        full = sum(usage) / len(usage)
        full = full / 100 if full > 1.5 else full
        rate = preempted * 60 / self["window_s"]
        if rate < self["per_minute"] or full < self["usage"]:
            return None
        return Signal(
            {"engine": engine.host},
            f"Engine {engine.host} preempts {rate:.0f} requests per minute: its KV cache is {share_text(full)} full",
            "Preempted requests are computed again, which multiplies the time of the longest ones.",
            anchor=f"after step {model.steps.current}",
            evidence=[fact("preemptions", rate, "per minute"), fact("cache usage", full)],
        )


class EngineQueue(_EngineRule):
    """The queue of an engine grows."""

    name = "engine_queue"
    threshold = (
        "More requests waiting than running, by a factor of {factor}, in every reading for {window_s} s; a warning "
        "where it grows all the time (rank correlation {trend}), information otherwise: the queue of a batch that was "
        "sent at once shrinks."
    )
    needs = "vLLM or SGLang metrics: running and waiting requests"
    remedy = "Add replicas, or limit the requests in flight."
    parameters = (
        Parameter("factor", 1.5, "Waiting requests per running one"),
        Parameter("window_s", 60, "Window, in seconds"),
        Parameter("trend", 0.8, "Rank correlation of a growing queue with time"),
    )
    rank = 60

    reading = "waiting"

    def judge(self, model: RunModel, engine: Device, since: int) -> Signal | None:
        """Return an engine with a long queue."""
        waiting = engine.between("waiting", since, model.as_of_ns)
        running = engine.between("running", since, model.as_of_ns)
        history = engine.history("waiting")
        if len(waiting) < 3 or len(waiting) != len(running) or history[0][0] > since:
            return None
        if any(more <= self["factor"] * max(less, 1.0) for more, less in zip(waiting, running, strict=True)):
            return None
        grows = spearman(waiting) >= self["trend"]
        return Signal(
            {"engine": engine.host},
            f"Engine {engine.host} has {ratio_text(sum(waiting) / max(1.0, sum(running)))} as many requests waiting as "
            f"running{', and more with every reading' if grows else ''}",
            "The queue was longer than the batch in every reading of the window.",
            "warning" if grows else "info",
            anchor=f"after step {model.steps.current}",
            evidence=[fact("waiting", waiting[-1]), fact("running", running[-1])],
        )
