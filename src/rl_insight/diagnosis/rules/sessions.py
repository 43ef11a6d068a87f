"""Sessions of a step: a few that hold it up, work that is thrown away, and weights that are never updated."""

from __future__ import annotations

from math import log

from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.robust import Interval, overlap_s, quantile
from rl_insight.diagnosis.rows import SessionRow
from rl_insight.diagnosis.rule import SESSIONS, Confirmation, Parameter, StepRule
from rl_insight.diagnosis.signals import Signal, fact, saving
from rl_insight.diagnosis.steps import ObservedStep
from rl_insight.words import ratio_text, seconds_text, share_text

_LEAST = 16
_WASTED = frozenset({"dropped", "cancelled"})


def _waits(model: RunModel, step: ObservedStep) -> list[Interval]:
    """Return when the leading role waited in a step."""
    for process in model.workers():
        if process.role == model.lead and process.number in model.activity:
            return model.activity.waiting(process.number, step.start_ns, step.end_ns)
    return []


class LongTail(StepRule):
    """A few long sessions hold up the step."""

    threshold = (
        "The longest session takes {ratio} times the median and is {gap} times as far above the p95 as the p95 is "
        "above the median (on a log scale); the leading role waits for {share:.0%} of the step while fewer than 10% of "
        "the sessions are running; in 3 of 5 steps."
    )
    remedy = "Use partial rollouts, oversample and abort, cap the length, or balance by length."
    parameters = (
        Parameter("ratio", 4, "Longest session relative to the median"),
        Parameter("gap", 1.5, "Distance from p95 to the longest relative to that from median to p95, on a log scale"),
        Parameter("share", 0.2, "Share of the step that the leading role waits for the tail"),
    )
    requires = SESSIONS
    rank = 65
    explains = frozenset({"rollout_bound", "step_regression"})

    def _look(self, model: RunModel, step: ObservedStep) -> list[Signal] | None:
        sessions = [one for one in model.sessions_between(step.start_ns, step.end_ns) if one.seconds > 0]
        if len(sessions) < _LEAST:
            return None
        seconds = [session.seconds for session in sessions]
        middle, high, longest = quantile(seconds, 0.5), quantile(seconds, 0.95), max(seconds)
        gap = (log(longest) - log(high)) / max(log(high) - log(middle), 0.05)
        if longest < self["ratio"] * middle or gap < self["gap"]:
            return []
        tail_start = sorted(session.end_ns for session in sessions)[int(0.9 * len(sessions))]
        tail_s = overlap_s(_waits(model, step), [(tail_start, step.end_ns)])
        if tail_s / step.seconds < self["share"]:
            return []
        return [self._signal(sessions, middle, tail_s, step.seconds)]

    @staticmethod
    def _signal(sessions: list[SessionRow], middle: float, tail_s: float, step_s: float) -> Signal:
        slowest = sorted(sessions, key=lambda session: -session.seconds)[:8]
        first = slowest[0]
        phases = {
            "generation": first.generate_s or 0.0,
            "tools": first.toolcall_s or 0.0,
            "reward": first.reward_s or 0.0,
        }
        cause = max(phases, key=phases.__getitem__)
        if cause == "generation" and first.tokens:
            rates = [one.seconds / one.tokens for one in sessions if one.tokens]
            if rates and first.seconds / first.tokens < 1.5 * quantile(rates, 0.5):
                cause = "length"
        culprit = {"session_id": first.session_id, "task_id": first.task_id, "process_id": first.process_id}
        return Signal(
            {name: value for name, value in culprit.items() if value is not None},
            f"The slowest sessions take {ratio_text(first.seconds / middle)} the median and hold up "
            f"{share_text(tail_s / step_s)} of the step, because of {cause}",
            f"Session {first.session_id} took {seconds_text(first.seconds)}, the median session "
            f"{seconds_text(middle)}.",
            "info" if cause == "length" else "warning",
            key=("tail",),
            impact=saving(tail_s, step_s),
            sessions=[session.session_id for session in slowest],
            evidence=[
                fact("longest session", first.seconds, "s", f"median {seconds_text(middle)}"),
                fact("tail", tail_s, "s"),
            ],
        )


class WastedSamples(StepRule):
    """Finished work is thrown away."""

    threshold = (
        "At least {share:.0%} of the sessions that ended in the last 5 steps were dropped or canceled; in 3 of 5 steps."
    )
    remedy = "Pace sampling instead of discarding samples, and hold samples back instead of canceling them."
    parameters = (Parameter("share", 0.1, "Share of dropped and canceled sessions"),)
    requires = SESSIONS
    rank = 66

    def _look(self, model: RunModel, step: ObservedStep) -> list[Signal] | None:
        closed = model.steps.closed[-5:]
        sessions = model.sessions_between(closed[0].start_ns, step.end_ns)
        if len(sessions) < _LEAST:
            return None
        wasted = [session for session in sessions if session.status in _WASTED]
        kept = [session.seconds for session in sessions if session.status == "accepted"]
        share = len(wasted) / len(sessions)
        if share < self["share"]:
            return []
        biased = ""
        if kept and wasted and quantile([one.seconds for one in wasted], 0.5) >= 2 * quantile(kept, 0.5):
            biased = " They take at least twice as long as accepted sessions, so training is biased against long tasks."
        return [
            Signal(
                {"phase": "session"},
                f"{share_text(share)} of sessions are thrown away",
                f"{len(wasted)} of {len(sessions)} sessions were dropped or canceled.{biased}",
                "warning",
                sessions=[session.session_id for session in wasted[-8:]],
                evidence=[fact("wasted", share, "", f"limit {share_text(self['share'])}")],
            )
        ]


class StaleEngineWeights(StepRule):
    """The engine does not pick up new weights: syncs happen, but sessions keep the old model version."""

    threshold = "The newest model version of finished sessions has not advanced over {syncs} steps with a weight sync."
    needs = "sessions with numeric model versions, and weight-sync states"
    remedy = "Check that the engine applies the update: its sleep level, weight names, and the version it reports."
    parameters = (
        Parameter("syncs", 5, "Steps with a weight sync"),
        Parameter("advanced", 3, "How often the version must have advanced before"),
    )
    confirmation = Confirmation(1, 1)
    rank = 24
    explains = frozenset({"stale_samples", "engine_mismatch", "mismatch_growth", "importance_weights"})

    def _begin(self) -> None:
        self._newest = -1
        self._advanced = 0
        self._syncs = 0

    def missing(self, model: RunModel) -> str | None:
        """Return that sessions have no numeric versions."""
        if self._newest < 0:
            return "no numeric model versions: pass model_version to rl_insight.session"
        return super().missing(model)

    def _look(self, model: RunModel, step: ObservedStep) -> list[Signal] | None:
        finished = model.sessions_between(step.start_ns, step.end_ns)
        versions = [int(text) for one in finished if (text := one.model_version or "").isdecimal()]
        if not versions:
            return None
        if max(versions) > self._newest:
            self._advanced += 1
            self._newest, self._syncs = max(versions), 0
            return []
        self._syncs += "sync" in step.kind
        if self._advanced < self["advanced"] or self._syncs < self["syncs"]:
            return []
        return [
            Signal(
                {"phase": "sync"},
                f"The engine still generates with version {self._newest} after {self._syncs} weight syncs",
                "Sessions that finish now use the same weights as before those syncs.",
                "critical",
                key=("engine",),
                anchor=f"version {self._newest}",
                evidence=[fact("syncs since the version advanced", self._syncs), fact("version", self._newest)],
            )
        ]
