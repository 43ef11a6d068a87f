"""Tools and rewards as sessions call them: slow, or failing."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from rl_insight.diagnosis.activity import Call
from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.names import state_kind
from rl_insight.diagnosis.robust import chance_of, median, quantile
from rl_insight.diagnosis.rule import Parameter, Severity, Signal, StepRule, fact
from rl_insight.diagnosis.steps import Step
from rl_insight.diagnosis.words import ratio_text, seconds_text, share_text

_WINDOW = 5
_BASELINE_CALLS = 600
_LEAST_BASELINE = 20
_LEAST_CALLS = 10
_ENOUGH_CALLS = 30
_GOOD_STEPS = 100
_USUAL_ERRORS = 0.01
"""Share of calls that fail where all is well."""


def recent_calls(model: RunModel, key: tuple[str, str], step: Step, enough: int | None = None) -> list[Call]:
    """Return the calls that ended in the last steps up to one; not more of them than are enough to judge."""
    closed = model.steps.closed
    last = next(place for place in range(len(closed) - 1, -1, -1) if closed[place] is step)
    calls = model.calls_between(key, closed[max(0, last - _WINDOW + 1)].start_ns, step.end_ns)
    return calls if enough is None else calls[-max(enough, sum(call.end_ns > step.start_ns for call in calls)) :]


def _keys(model: RunModel, kind: str) -> list[tuple[str, str]]:
    """Return the phases of a kind; one that names its tool is a tool call, whatever it is called."""
    return sorted(key for key in model.call_book.by_tool if ("tool" if key[1] else state_kind(key[0])) == kind)


@dataclass(slots=True)
class _History:
    """How long the calls of a tool took while it was well."""

    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_BASELINE_CALLS))
    held: deque[list[float]] = field(default_factory=deque)
    """Steps that are not yet known to be good: a slow step must not become its own baseline."""


class SlowTool(StepRule):
    """A tool has become slow."""

    name = "slow_tool"
    threshold = (
        "The p95 or the median of a tool's calls in the step, or of the last 30 calls, is {factor} times that before, "
        "the p95 is above {floor_s} s, and the median has risen by {median_factor} times too, beyond a slowdown of all "
        "work; 3 of 5."
    )
    needs = 'tool phases of sessions (`rl_insight.phase("toolcall", tool=...)`)'
    remedy = "Scale the tool's server, cache its answers, and set a timeout below the rollout's."
    parameters = (
        Parameter("factor", 3, "p95 compared with the baseline"),
        Parameter("median_factor", 1.5, "Median compared with the baseline"),
        Parameter("floor_s", 1.0, "Smallest p95, in seconds"),
    )
    rank = 46
    explains = frozenset({"step_regression", "rollout_bound", "long_tail", "gpu_idle_in_rollout"})
    kind = "tool"

    def _begin(self) -> None:
        self._histories: dict[tuple[str, str], _History] = {}

    def _lacks(self, model: RunModel) -> str | None:
        return None if _keys(model, self.kind) else f"no {self.kind} phases: record each call with rl_insight.phase"

    def look(self, model: RunModel, step: Step) -> list[Signal] | None:
        """Compare each tool with its own past."""
        signals = []
        for key in _keys(model, self.kind):
            signal = self._compare(model, key, step)
            if signal is not None:
                signals.append(signal)
        return signals

    def _compare(self, model: RunModel, key: tuple[str, str], step: Step) -> Signal | None:
        history = self._histories.setdefault(key, _History())
        new = [call.seconds for call in model.calls_between(key, step.start_ns, step.end_ns)]
        recent = [call.seconds for call in recent_calls(model, key, step, _ENOUGH_CALLS)]
        if len(history.seconds) >= _LEAST_BASELINE and len(recent) >= _LEAST_CALLS:
            slow_s, before_s = quantile(recent, 0.95), quantile(history.seconds, 0.95)
            middle, before = median(recent), median(history.seconds)
            # A busy machine slows everything: the tool must be slower than that.
            slowdown = model.pace.slowdown(step.start_ns, step.end_ns, key[0])
            is_tail_slow = slow_s > self["factor"] * before_s * slowdown
            # Where a few calls were always slow, the p95 says little: then the median tells.
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
        self, model: RunModel, key: tuple[str, str], step: Step, compared: tuple[str, float, float], ratio: float
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
            f"{len(calls)} calls in the last {_WINDOW} steps, compared with the calls before.",
            key=key,
            seconds_per_step=saved_s,
            share_of_step=saved_s / max(step.seconds, 1e-9),
            sessions=[call.session_id for call in sorted(calls, key=lambda one: -one.seconds)[:8] if call.session_id],
            evidence=[
                fact(f"{what} of {name}", slow_s, "s", f"{seconds_text(before_s)} before"),
                fact("calls", len(calls)),
            ],
        )


class ToolErrors(StepRule):
    """Calls of a tool or sandbox fail."""

    name = "tool_errors"
    threshold = (
        "More than {share} of a tool's calls in the last 5 steps failed, at least {least} of them, and more than a "
        "tool with its usual errors has with a chance of {chance}; 3 of 5. Critical above {critical}."
    )
    needs = "tool phases of sessions with their outcome"
    remedy = "Retry only infrastructure errors, and repair the environment that the error names."
    parameters = (
        Parameter("share", 0.05, "Share of failed calls"),
        Parameter("least", 5, "Fewest failed calls"),
        Parameter("critical", 0.5, "Share of failed calls that is critical"),
        Parameter("chance", 1e-5, "Chance of so many failures in a healthy tool"),
    )
    rank = 44
    kind = "tool"
    noun = "calls"

    def _begin(self) -> None:
        self._before: dict[tuple[str, str], deque[tuple[int, int]]] = {}
        """By tool: the calls of the last good steps, and how many of them failed."""

    def _lacks(self, model: RunModel) -> str | None:
        return None if _keys(model, self.kind) else f"no {self.kind} phases: record each call with rl_insight.phase"

    def look(self, model: RunModel, step: Step) -> list[Signal] | None:
        """Return the tools whose calls fail."""
        return list(self._failing(model, step))

    def _failing(self, model: RunModel, step: Step) -> Iterator[Signal]:
        for key in _keys(model, self.kind):
            calls = recent_calls(model, key, step)
            failed = [call for call in calls if call.failed]
            if not self._are_many(key, calls, failed, step):
                continue
            share = len(failed) / len(calls)
            kinds = Counter(call.error or "error" for call in failed)
            error, count = kinds.most_common(1)[0]
            hosts = {model.processes[call.process].host for call in failed}
            severity: Severity = "critical" if share > self["critical"] else "warning"
            name = key[1] or key[0]
            culprit = {"phase": key[0]} | ({"tool": key[1]} if key[1] else {})
            if len(hosts) == 1 and len({one.host for one in model.workers()}) > 1:
                culprit["host"] = hosts.pop()
            yield Signal(
                culprit,
                f"{share_text(share)} of the {self.noun} of {name} fail, mostly with {error}",
                f"{len(failed)} of {len(calls)} in the last {_WINDOW} steps; {count} of them with {error}.",
                severity,
                key=key,
                sessions=[call.session_id for call in failed[-8:] if call.session_id],
                evidence=[fact("failed", share, "", f"limit {share_text(self['share'])}"), fact("calls", len(calls))],
            )

    def _are_many(self, key: tuple[str, str], calls: list[Call], failed: list[Call], step: Step) -> bool:
        """Return whether more calls failed than one in a hundred, or than usually, by more than chance."""
        before = self._before.setdefault(key, deque(maxlen=_GOOD_STEPS))
        usual = max(_USUAL_ERRORS, sum(bad for _, bad in before) / max(1, sum(made for made, _ in before)))
        if len(failed) >= self["least"] and len(failed) > self["share"] * len(calls):
            return chance_of(len(failed), usual * len(calls)) < self["chance"]
        new = [call for call in calls if call.end_ns > step.start_ns]
        before.append((len(new), sum(call.failed for call in new)))
        return False


class SlowReward(StepRule):
    """The reward is the bottleneck."""

    name = "slow_reward"
    threshold = (
        "Reward states of the leading role take {share} of the step, 3 of 5; or scoring has become {factor} times "
        "slower."
    )
    needs = "reward states, reward phases of sessions, or a metric such as timing_s/reward"
    remedy = "Score in parallel and asynchronously, cache, and batch the requests to a judge."
    parameters = (
        Parameter("share", 0.2, "Share of the step"),
        Parameter("factor", 3, "p95 of scoring compared with the baseline"),
        Parameter("median_factor", 1.5, "Median of scoring compared with the baseline"),
        Parameter("floor_s", 1.0, "Smallest p95 of scoring, in seconds"),
    )
    rank = 46
    explains = frozenset({"step_regression", "rollout_bound", "long_tail"})

    def _begin(self) -> None:
        self._phases = _RewardPhases(self._values)

    def _lacks(self, model: RunModel) -> str | None:
        has_states = any(state_kind(name) == "reward" for _, name in model.usual)
        if has_states or model.metrics.track("reward_time"):
            return None
        return "no reward states, phases or metric timing_s/reward"

    def look(self, model: RunModel, step: Step) -> list[Signal] | None:
        """Look at states and metrics first, then at the phases of sessions."""
        seconds = step.seconds_of("reward")
        name = max(
            (name for name in step.phases if state_kind(name) == "reward"), key=step.phases.__getitem__, default=""
        )
        if not seconds:
            told = {track.name: track.at(step.number) or 0.0 for track in model.metrics.all("reward_time")}
            name = max(told, key=told.__getitem__, default="")
            seconds = told.get(name, 0.0)
        share = seconds / max(step.seconds, 1e-9)
        if share > self["share"] and seconds > 0.2:
            return [
                Signal(
                    {"phase": name},
                    f"The reward takes {share_text(share)} of each step: {seconds_text(seconds)} of "
                    f"{seconds_text(step.seconds)}",
                    "Nothing is generated or trained while the leading role scores.",
                    "warning",
                    key=("share", name),
                    seconds_per_step=seconds,
                    share_of_step=share,
                    metrics=[name],
                    evidence=[fact("reward", seconds, "s", f"step {seconds_text(step.seconds)}")],
                )
            ]
        return self._phases.look(model, step)


class _RewardPhases(SlowTool):
    """The comparison of tools, for reward phases."""

    kind = "reward"
