"""Tool and reward calls of sessions: slow, or failing."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from rl_insight.diagnosis.activity import Call
from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.names import state_kind
from rl_insight.diagnosis.robust import chance_of, median, quantile
from rl_insight.diagnosis.rule import Parameter, StepRule
from rl_insight.diagnosis.rules.shares import StepShare
from rl_insight.diagnosis.signals import Signal, fact, saving
from rl_insight.diagnosis.steps import ObservedStep
from rl_insight.words import ratio_text, seconds_text, share_text

_WINDOW = 5
_BASELINE_CALLS = 600
_LEAST_BASELINE = 20
_LEAST_CALLS = 10
_ENOUGH_CALLS = 30
_GOOD_STEPS = 100
_USUAL_ERRORS = 0.01
"""Share of calls that fail in a healthy run."""


def recent_calls(model: RunModel, key: tuple[str, str], step: ObservedStep, enough: int | None = None) -> list[Call]:
    """Return the calls that ended in the last steps up to one; with `enough`, that many, or all of the step if more."""
    closed = model.steps.closed
    last = next(place for place in range(len(closed) - 1, -1, -1) if closed[place] is step)
    calls = model.calls_between(key, closed[max(0, last - _WINDOW + 1)].start_ns, step.end_ns)
    return calls if enough is None else calls[-max(enough, sum(call.end_ns > step.start_ns for call in calls)) :]


def _keys(model: RunModel, kind: str) -> list[tuple[str, str]]:
    """Return the phases of a kind; one that names a tool is a tool call, whatever the phase is called."""
    return sorted(key for key in model.call_book.by_tool if ("tool" if key[1] else state_kind(key[0])) == kind)


class _CallRule(StepRule):
    """Looks at the calls of each tool, or of each reward."""

    kind: ClassVar[str] = "tool"

    @classmethod
    def inputs(cls) -> str:
        """Return the phases that it needs."""
        return f'{cls.kind} phases of sessions (`rl_insight.phase("toolcall", tool=...)`)'

    def missing(self, model: RunModel) -> str | None:
        """Return that there are no such calls."""
        return super().missing(model) if _keys(model, self.kind) else f"no {self.inputs()}"


@dataclass(slots=True)
class _CallHistory:
    """How long the calls of a tool took while it was healthy."""

    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_BASELINE_CALLS))
    held: deque[list[float]] = field(default_factory=deque)
    """Steps not yet known to be good: a slow step must not become its own baseline."""


class SlowTool(_CallRule):
    """A tool has become slow."""

    threshold = (
        "The p95 or the median of a tool's calls in the step, or of its last 30 calls, is {factor} times what it was, "
        "the p95 is above {floor_s} s, and the median is at least {median_factor} times what it was, beyond any "
        "slowdown of all work; in 3 of 5 steps."
    )
    remedy = "Scale the tool's server, cache its responses, and set a timeout shorter than the rollout's."
    parameters = (
        Parameter("factor", 3, "p95 relative to the baseline"),
        Parameter("median_factor", 1.5, "Median relative to the baseline"),
        Parameter("floor_s", 1.0, "Minimum p95, in seconds"),
    )
    rank = 46
    explains = frozenset({"step_regression", "rollout_bound", "long_tail", "gpu_idle_in_rollout"})

    def _begin(self) -> None:
        self._histories: dict[tuple[str, str], _CallHistory] = {}

    def _look(self, model: RunModel, step: ObservedStep) -> list[Signal] | None:
        found = [self._compare(model, key, step) for key in _keys(model, self.kind)]
        return [signal for signal in found if signal is not None]

    def _compare(self, model: RunModel, key: tuple[str, str], step: ObservedStep) -> Signal | None:
        history = self._histories.setdefault(key, _CallHistory())
        new = [call.seconds for call in model.calls_between(key, step.start_ns, step.end_ns)]
        recent = [call.seconds for call in recent_calls(model, key, step, _ENOUGH_CALLS)]
        if len(history.seconds) >= _LEAST_BASELINE and len(recent) >= _LEAST_CALLS:
            slow_s, before_s = quantile(recent, 0.95), quantile(history.seconds, 0.95)
            middle, before = median(recent), median(history.seconds)
            # A busy machine slows everything: the tool must have slowed more than that.
            slowdown = model.pace.slowdown(step.start_ns, step.end_ns, key[0])
            is_tail_slow = slow_s > self["factor"] * before_s * slowdown
            # If a few calls were always slow, the p95 says little: the median decides.
            is_slow = is_tail_slow or middle > self["factor"] * before * slowdown
            if is_slow and slow_s > self["floor_s"] and middle > self["median_factor"] * before * slowdown:
                history.held.clear()
                compared = ("p95", slow_s, before_s) if is_tail_slow else ("median", middle, before)
                return self._signal(model, key, step, compared, middle / max(before, 1e-9))
        history.held.append(new)
        if len(history.held) > _WINDOW:
            history.seconds.extend(history.held.popleft())
        return None

    def _signal(
        self,
        model: RunModel,
        key: tuple[str, str],
        step: ObservedStep,
        compared: tuple[str, float, float],
        ratio: float,
    ) -> Signal:
        name = key[1] or key[0]
        what, slow_s, before_s = compared
        calls = recent_calls(model, key, step)
        excess_s = sum(call.seconds for call in calls) * (1 - 1 / ratio)
        lanes = max(1, len({(call.process, call.session_id) for call in calls}) // _WINDOW)
        saved_s = min(excess_s / _WINDOW / lanes, step.seconds_of("wait", "generate") or step.seconds)
        return Signal(
            {"phase": key[0], "tool": key[1]} if key[1] else {"phase": key[0]},
            f"{name} takes {ratio_text(ratio)} as long as before: {what} {seconds_text(slow_s)} instead of "
            f"{seconds_text(before_s)}",
            f"Based on {len(calls)} calls in the last {_WINDOW} steps, compared with the calls before them.",
            key=key,
            impact=saving(saved_s, step.seconds),
            sessions=[call.session_id for call in sorted(calls, key=lambda one: -one.seconds)[:8] if call.session_id],
            evidence=[
                fact(f"{what} of {name}", slow_s, "s", f"{seconds_text(before_s)} before"),
                fact("calls", len(calls)),
            ],
        )


class ToolErrors(_CallRule):
    """Calls to a tool or sandbox are failing."""

    threshold = (
        "More than {share:.0%} of a tool's calls in the last 5 steps failed, at least {least} of them, which its usual "
        "error rate explains with a probability below {chance}; in 3 of 5 steps. Critical above {critical:.0%}."
    )
    remedy = "Retry only infrastructure errors, and fix the environment that the error names."
    parameters = (
        Parameter("share", 0.05, "Share of failed calls"),
        Parameter("least", 5, "Minimum number of failed calls"),
        Parameter("critical", 0.5, "Share of failed calls that is critical"),
        Parameter("chance", 1e-5, "Probability of this many failures in a healthy tool"),
    )
    rank = 44
    noun: ClassVar[str] = "calls to {}"

    def _begin(self) -> None:
        self._before: dict[tuple[str, str], deque[tuple[int, int]]] = {}
        """By tool: the number of calls in each of the last good steps, and how many of them failed."""

    def _look(self, model: RunModel, step: ObservedStep) -> list[Signal] | None:
        return list(self._failing(model, step))

    def _failing(self, model: RunModel, step: ObservedStep) -> Iterator[Signal]:
        for key in _keys(model, self.kind):
            calls = recent_calls(model, key, step)
            failed = [call for call in calls if call.failed]
            if not self._are_many(key, calls, failed, step):
                continue
            share = len(failed) / len(calls)
            kinds = Counter(call.error or "error" for call in failed)
            error, count = kinds.most_common(1)[0]
            hosts = {model.processes[call.process].host for call in failed}
            name = key[1] or key[0]
            culprit = {"phase": key[0]} | ({"tool": key[1]} if key[1] else {})
            if len(hosts) == 1 and len({one.host for one in model.workers()}) > 1:
                culprit["host"] = hosts.pop()
            yield Signal(
                culprit,
                f"{share_text(share)} of {self.noun.format(name)} are failing, mostly with {error}",
                f"{len(failed)} of {len(calls)} failed in the last {_WINDOW} steps, {count} of them with {error}.",
                "critical" if share > self["critical"] else "warning",
                key=key,
                sessions=[call.session_id for call in failed[-8:] if call.session_id],
                evidence=[fact("failed", share, "", f"limit {share_text(self['share'])}"), fact("calls", len(calls))],
            )

    def _are_many(self, key: tuple[str, str], calls: list[Call], failed: list[Call], step: ObservedStep) -> bool:
        """Return whether more calls failed than one in a hundred or than usual, beyond chance."""
        before = self._before.setdefault(key, deque(maxlen=_GOOD_STEPS))
        usual = max(_USUAL_ERRORS, sum(bad for _, bad in before) / max(1, sum(made for made, _ in before)))
        if len(failed) >= self["least"] and len(failed) > self["share"] * len(calls):
            return chance_of(len(failed), usual * len(calls)) < self["chance"]
        new = [call for call in calls if call.end_ns > step.start_ns]
        before.append((len(new), sum(call.failed for call in new)))
        return False


class SlowReward(StepShare):
    """The reward is the bottleneck."""

    threshold = (
        "Reward states of the leading role take {share:.0%} of the step, in 3 of 5 steps; or scoring takes {factor} "
        "times as long as before."
    )
    remedy = "Score in parallel and asynchronously, cache scores, and batch the requests to a judge."
    parameters = (
        Parameter("share", 0.2, "Share of the step"),
        Parameter("factor", 3, "p95 of scoring relative to the baseline"),
        Parameter("median_factor", 1.5, "Median of scoring relative to the baseline"),
        Parameter("floor_s", 1.0, "Minimum p95 of scoring, in seconds"),
    )
    rank = 46
    explains = frozenset({"step_regression", "rollout_bound", "long_tail"})
    kind, metric, what = "reward", "reward_time", "reward"

    def _begin(self) -> None:
        self._phases = _SlowScoring(self._values)

    def _reported(self, model: RunModel, step: ObservedStep) -> tuple[float, str]:
        seconds = {track.name: track.at(step.number) or 0.0 for track in model.metrics.all(self.metric)}
        name = max(seconds, key=seconds.__getitem__, default="")
        return seconds.get(name, 0.0), name

    def _look(self, model: RunModel, step: ObservedStep) -> list[Signal] | None:
        seconds, name = self._seconds_of(model, step)
        if seconds <= max(self["share"] * step.seconds, 0.2):
            return self._phases._look(model, step)
        signal = self._signal(step, seconds, name)
        signal.key, signal.explanation = (
            ("share", name),
            f"Nothing is generated or trained while the leading role scores.{step.measured_on(name)}",
        )
        return [signal]


class _SlowScoring(SlowTool):
    kind = "reward"
