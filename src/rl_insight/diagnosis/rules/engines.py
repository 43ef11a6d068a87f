"""Inference engines: dead, stuck, out of KV cache, with a growing queue, or with a cold prefix cache."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from rl_insight.diagnosis.hardware import Device
from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.names import is_rollout, state_kind
from rl_insight.diagnosis.robust import baseline, median, spearman
from rl_insight.diagnosis.rows import SECOND, ProcessRow
from rl_insight.diagnosis.rule import PERSISTENT, DeviceRule, Parameter, StepRule, TickRule, engine_input
from rl_insight.diagnosis.signals import Signal, culprit_of, fact, where
from rl_insight.diagnosis.steps import ObservedStep
from rl_insight.schema.names import Severity
from rl_insight.words import ratio_text, seconds_text, share_text

_WINDOW = 5
_PREFIX = ("prefix_hits", "prefix_queries")


def _waiting_s(model: RunModel, process: ProcessRow | None) -> float:
    """Return how long another role has been waiting, by its open waits and generation."""
    ages = [0.0]
    for row in model.open_spans:
        owner = model.process_of_lane(row.lane_id)
        waits = state_kind(row.name) == "wait" or (owner.role == model.lead and state_kind(row.name) == "generate")
        if waits and owner is not process and (process is None or owner.role != process.role):
            ages.append(model.age_s(row.start_ns))
    return max(ages)


class DeadEngine(TickRule):
    """An engine or rollout process is dead, and the trainer is waiting for it."""

    threshold = (
        "The scrape target of an engine has been down for {down_s} s, or a rollout process has missed three "
        "heartbeats. Critical if another role has been waiting for at least {waiting_s} s."
    )
    remedy = "Restart the replica; look for an out-of-memory kill at wake-up, and fail instead of polling forever."
    parameters = (
        Parameter("down_s", 10, "How long a target must be down, in seconds"),
        Parameter("waiting_s", 10, "How long another role must have waited, in seconds"),
    )
    requires = engine_input()._replace(
        is_in=lambda model: model.hardware.engines or any(is_rollout(process.role) for process in model.workers()),
        what="rollout processes or engines",
    )
    rank = 10
    asks_stacks = True
    explains = frozenset({
        "stalled_run", "stuck_session", "rollout_bound", "step_regression", "stuck_engine", "telemetry_gap",
        "replica_imbalance", "collective_hang", "blocked_reward", "gpu_idle_in_rollout", "straggler", "long_tail",
    })  # fmt: skip

    def _look(self, model: RunModel) -> list[Signal]:
        found = [signal for engine in model.hardware.engine_targets() if (signal := self._target(model, engine))]
        silent, remaining = model.silent_workers(), model.remaining()
        dead = [process for process in silent if is_rollout(process.role) and process.role != model.lead]
        if 2 * len(silent) > remaining > 2:
            # The run itself is gone, or the network: an engine is at fault only if it fell silent well before the rest.
            usual_ns = median([process.last_seen_ns for process in silent])
            dead = [one for one in dead if usual_ns - one.last_seen_ns > 6 * one.heartbeat_s * SECOND]
        return found + [self._process(model, process) for process in dead]

    def _target(self, model: RunModel, engine: Device) -> Signal | None:
        states = engine.history("up")
        if not states or states[-1][1] > 0 or not any(value > 0 for _, value in states):
            return None
        since = next((time_ns for time_ns, value in reversed(states) if value > 0), states[0][0])
        down = [time_ns for time_ns, value in states if value <= 0 and time_ns > since]
        if len(down) < 2 or model.age_s(since) < self["down_s"]:
            return None
        down_s, waiting_s = model.age_s(since), _waiting_s(model, None)
        title = f"Engine {engine.host} has not responded for {seconds_text(down_s)}"
        signal = self._signal({"engine": engine.host}, title, "It responded before", waiting_s)
        signal.anchor, signal.start_ns = f"down after {sum(1 for _, value in states if value > 0)} readings", since
        signal.evidence.insert(0, fact("down", down_s, "s"))
        return signal

    def _process(self, model: RunModel, process: ProcessRow) -> Signal:
        silent_s, waiting_s = model.silent_s(process), _waiting_s(model, process)
        title = f"{where(process)} is dead: silent for {seconds_text(silent_s)}"
        signal = self._signal(
            culprit_of(process), title, "It stopped sending heartbeats without a clean exit", waiting_s
        )
        if error := model.last_error.get(process.number):
            signal.explanation += f" Its last error: {error.text[:200]}"
        signal.key, signal.anchor, signal.start_ns = (process.process_id,), "silent", process.last_seen_ns
        signal.lanes = model.lanes_of(process.number)
        signal.evidence.insert(0, fact("silent", silent_s, "s", f"heartbeat every {process.heartbeat_s:g} s"))
        return signal

    def _signal(self, culprit: dict[str, Any], title: str, why: str, waiting_s: float) -> Signal:
        why = f"{why}; another role has been waiting for {seconds_text(waiting_s)}."
        severity: Severity = "critical" if waiting_s >= self["waiting_s"] else "warning"
        return Signal(culprit, title, why, severity, evidence=[fact("longest wait", waiting_s, "s")])


class StuckEngine(DeviceRule):
    """An engine is alive but stuck: it has running requests and generates no tokens."""

    threshold = (
        "Requests have been running for {still_s} s without a single token; or it is asleep with requests waiting."
    )
    remedy = "Check the stack of the engine's core process, and pause and resume around the weight update."
    parameters = (Parameter("still_s", 30, "Maximum time without a token, in seconds"),)
    rank = 15
    explains = frozenset({
        "stalled_run", "stuck_session", "rollout_bound", "step_regression", "engine_queue", "gpu_idle_in_rollout",
        "replica_imbalance", "collective_hang", "straggler",
    })  # fmt: skip
    requires = engine_input({"running"})
    devices, window = "engines", "still_s"

    def _judge(self, model: RunModel, device: Device, since: int) -> Signal | None:
        running = device.between("running", since, model.as_of_ns)
        waiting = device.between("waiting", since, model.as_of_ns)
        grown = device.growth("tokens", since, model.as_of_ns)
        history = device.history("running")
        if not history or history[0][0] > since or len(running) < 2 or model.hardware.is_down(device):
            return None
        asleep = device.latest("awake") == 0
        if asleep and waiting and min(waiting) > 0:
            title = f"Engine {device.host} is asleep with {waiting[-1]:.0f} requests waiting"
        elif min(running) > 0 and grown == 0 and not asleep:
            title = f"Engine {device.host} is stuck: {running[-1]:.0f} requests are running and no tokens come out"
        else:
            return None
        return Signal(
            {"engine": device.host},
            title,
            f"Its token counter has not moved for {seconds_text(self['still_s'])}; a decode step takes less than a "
            "second.",
            "critical",
            anchor=f"after step {model.steps.current}",
            start_ns=since,
            evidence=[fact("running requests", running[-1]), fact("tokens generated", grown or 0.0)],
        )


class KvCacheThrash(DeviceRule):
    """The KV cache is thrashing: requests are preempted because it is full."""

    threshold = (
        "At least {per_minute} preemptions per minute over {window_s} s with the cache at least {usage:.0%} full."
    )
    remedy = "Lower the number of concurrent sequences, give the cache more memory, or shorten responses."
    parameters = (
        Parameter("per_minute", 5, "Preemptions per minute"),
        Parameter("usage", 0.95, "Share of the cache in use"),
        Parameter("window_s", 60, "Window, in seconds"),
    )
    explains = frozenset({"gpu_idle_in_rollout", "engine_queue"})
    requires = engine_input({"preemptions"})
    devices = "engines"

    def _judge(self, model: RunModel, device: Device, since: int) -> Signal | None:
        preempted = device.growth("preemptions", since, model.as_of_ns)
        usage = device.between("cache_usage", since, model.as_of_ns)
        if preempted is None or not usage:
            return None
        full = sum(usage) / len(usage)
        full = full / 100 if full > 1.5 else full
        rate = preempted * 60 / self["window_s"]
        if rate < self["per_minute"] or full < self["usage"]:
            return None
        return Signal(
            {"engine": device.host},
            f"Engine {device.host} preempts {rate:.0f} requests per minute: its KV cache is {share_text(full)} full",
            "Preempted requests are recomputed, which multiplies the latency of the longest ones.",
            anchor=f"after step {model.steps.current}",
            evidence=[fact("preemptions", rate, "per minute"), fact("cache usage", full)],
        )


class EngineQueue(DeviceRule):
    """An engine's queue is growing."""

    threshold = (
        "At least {factor} times as many requests waiting as running in every reading over {window_s} s: a warning if "
        "the queue keeps growing (rank correlation {trend}), otherwise info, because the queue of a batch "
        "submitted at once drains."
    )
    remedy = "Add replicas, or limit the requests in flight."
    parameters = (
        Parameter("factor", 1.5, "Waiting requests per running request"),
        Parameter("window_s", 60, "Window, in seconds"),
        Parameter("trend", 0.8, "Rank correlation of a growing queue with time"),
    )
    rank = 60
    requires = engine_input({"waiting"})
    devices = "engines"

    def _judge(self, model: RunModel, device: Device, since: int) -> Signal | None:
        waiting = device.between("waiting", since, model.as_of_ns)
        running = device.between("running", since, model.as_of_ns)
        history = device.history("waiting")
        if len(waiting) < 3 or len(waiting) != len(running) or history[0][0] > since:
            return None
        if any(more <= self["factor"] * max(less, 1.0) for more, less in zip(waiting, running, strict=True)):
            return None
        grows = spearman(waiting) >= self["trend"]
        return Signal(
            {"engine": device.host},
            f"Engine {device.host} has {ratio_text(sum(waiting) / max(1.0, sum(running)))} as many requests waiting as "
            f"running{', and the queue keeps growing' if grows else ''}",
            "The queue was longer than the batch in every reading of the window.",
            "warning" if grows else "info",
            anchor=f"after step {model.steps.current}",
            evidence=[fact("waiting", waiting[-1]), fact("running", running[-1])],
        )


class ColdPrefixCache(StepRule):
    """An engine's prefix cache is useless."""

    threshold = (
        "Over the last 5 steps the hit rate is below half of what it was: a warning; or below {share:.0%} of (n - 1) / "
        "n with n samples per prompt: info. In 4 of 5 steps."
    )
    remedy = "Route all samples of a prompt to one replica; salt the cache with the version instead of resetting it."
    parameters = (
        Parameter("share", 0.5, "Hit rate relative to the expected one"),
        Parameter("least", 0.2, "Minimum previous hit rate for a drop to count"),
    )
    requires = engine_input({"hit_rate"}, {*_PREFIX})
    confirmation = PERSISTENT
    rank = 61

    def _begin(self) -> None:
        self._before: dict[str, deque[float]] = {}

    def _look(self, model: RunModel, step: ObservedStep) -> list[Signal] | None:
        start_ns = model.steps.closed[-_WINDOW:][0].start_ns
        rates = {
            instance: rate
            for instance, engine in model.hardware.engines.items()
            if (rate := _hit_rate(engine, start_ns, step.end_ns)) is not None
        }
        if not rates:
            return None
        expected = _expected_rate(model, start_ns, step.end_ns)
        return [signal for instance, rate in rates.items() if (signal := self._judge(instance, rate, expected))]

    def _judge(self, instance: str, rate: float, expected: float | None) -> Signal | None:
        before = self._before.setdefault(instance, deque(maxlen=30))
        usual = baseline(before)
        if usual is not None and usual >= self["least"] and rate < 0.5 * usual:
            return _cold(instance, rate, f"{share_text(usual)} before", "warning")
        before.append(rate)
        if expected is not None and rate < self["share"] * expected:
            return _cold(instance, rate, f"{share_text(expected)} expected with this many samples per prompt", "info")
        return None


def _cold(instance: str, rate: float, compared_with: str, severity: Severity) -> Signal:
    return Signal(
        {"engine": instance},
        f"The prefix cache of engine {instance} hits only {share_text(rate)} of prompt tokens ({compared_with})",
        "Prompts that another sample of their group has already computed are computed again.",
        severity,
        evidence=[fact("hit rate", rate, "", compared_with)],
    )


def _hit_rate(engine: Device, start_ns: int, end_ns: int) -> float | None:
    rates = engine.between("hit_rate", start_ns, end_ns)
    if rates:
        return median(rates) / (100 if median(rates) > 1.0 else 1)
    hits, queries = (engine.growth(name, start_ns, end_ns) for name in _PREFIX)
    return hits / queries if hits is not None and queries else None


def _expected_rate(model: RunModel, start_ns: int, end_ns: int) -> float | None:
    """Return the hit rate to expect from the size of groups; None if sessions have no tasks."""
    tasks = Counter(one.task_id for one in model.sessions_between(start_ns, end_ns) if one.task_id)
    samples = median(tasks.values()) if tasks else 0
    return (samples - 1) / samples if samples >= 2 else None
