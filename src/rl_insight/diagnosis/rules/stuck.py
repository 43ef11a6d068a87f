"""Work that has been open far longer than ever before: rewards, weight syncs, sessions."""

from __future__ import annotations

from typing import ClassVar

from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.names import state_kind
from rl_insight.diagnosis.robust import quantile
from rl_insight.diagnosis.rows import SpanRow
from rl_insight.diagnosis.rule import SESSIONS, Parameter, TickRule
from rl_insight.diagnosis.rules.stalls import StuckWork
from rl_insight.diagnosis.signals import Signal
from rl_insight.schema.names import DURATION_SEGMENT, PHASE_SEGMENT
from rl_insight.store.queries.overdue import STUCK_PHASE, STUCK_WORK
from rl_insight.words import counted, seconds_text


class _StuckKind(TickRule):
    """An open span of one kind that is much older than usual and holds up the run."""

    kind: ClassVar[str]
    what: ClassVar[str]
    asks_stacks = True
    parameters = (
        Parameter("shortest_s", STUCK_WORK.shortest_s, "Minimum age, in seconds"),
        Parameter("factor", STUCK_WORK.factor, "Multiple of the 99th percentile of its duration"),
        Parameter("critical_s", STUCK_WORK.worse_s, "Age that is critical, in seconds"),
    )

    @classmethod
    def inputs(cls) -> str:
        """Return the states that it needs."""
        return f"{cls.what} states or phases"

    def missing(self, model: RunModel) -> str | None:
        """Return that there is no work of this kind."""
        seen = {state_kind(name) for _, name in model.usual} | {state_kind(row.name) for row in model.open_spans}
        if self.kind in seen:
            return None
        return f"no {self.inputs()}: wrap it in rl_insight.trace_state or rl_insight.phase"

    def _look(self, model: RunModel) -> list[Signal]:
        rows = [
            row
            for row in model.open_spans
            if state_kind(row.name) == self.kind
            and not (row.segment == DURATION_SEGMENT and row.depth == 0)
            and model.age_s(row.start_ns) > model.limit_s(row, self["shortest_s"], self["factor"])
            and model.state_of(model.process_of_lane(row.lane_id)) == "live"
            and self._holds_up(model, row)
        ]
        return [self._signal(model, sorted(rows, key=lambda row: row.start_ns))] if rows else []

    def _holds_up(self, model: RunModel, row: SpanRow) -> bool:
        """Return whether the run waits for it: a state, or a phase of a session while the step is overdue."""
        if row.segment != PHASE_SEGMENT:
            return True
        steps = [step.seconds for step in model.steps.closed[-50:] if not step.is_warm_up]
        began = model.steps.current_start_ns
        if not steps or began is None:
            return False
        return model.age_s(began) > max(self["shortest_s"], 2 * quantile(steps, 0.99))

    def _signal(self, model: RunModel, rows: list[SpanRow]) -> Signal:
        stuck = StuckWork(model, rows)
        name = stuck.oldest.name
        others = f" and {counted(len(rows) - 1, 'other')} have" if len(rows) > 1 else " has"
        signal = stuck.signal(
            f"{stuck.at}{others} been in {name} for {seconds_text(stuck.age_s)}{stuck.usually}",
            f"{name} has been open far longer than it has ever taken, and the run is waiting for it.",
            "critical" if stuck.age_s > self["critical_s"] else "warning",
        )
        signal.key = (stuck.process.process_id, name)
        return signal


class BlockedReward(_StuckKind):
    """The reward function is blocked: it has been open far longer than ever before, and the run is waiting for it."""

    threshold = (
        "A reward state or phase has been open for max({shortest_s} s, {factor} × p99) and holds up the step; critical "
        "after {critical_s} s."
    )
    remedy = "Give each sample a timeout, score in a process pool, and cap the length of scored responses."
    rank = 22
    explains = frozenset(
        {"stalled_run", "stuck_session", "slow_reward", "rollout_bound", "step_regression", "collective_hang"}
    )
    kind, what = "reward", "reward"


class StuckWeightSync(_StuckKind):
    """The weight sync is stuck."""

    threshold = (
        "A weight-sync state has been open for max({shortest_s} s, {factor} × p99); critical after {critical_s} s."
    )
    remedy = "Check the members and the port of the process group, and whether an engine is still paused."
    rank = 21
    explains = frozenset(
        {"stalled_run", "stuck_session", "slow_weight_sync", "step_regression", "rollout_bound", "collective_hang"}
    )
    kind, what = "sync", "weight-sync"


class StuckSession(TickRule):
    """A session is stuck in one phase."""

    threshold = (
        "A phase has been open for max({shortest_s} s, {factor} × its p99): info; a warning after {warning_s} s."
    )
    remedy = "Give each rollout a wall-clock timeout, and each tool or sandbox a shorter one."
    parameters = (
        Parameter("shortest_s", STUCK_PHASE.shortest_s, "Minimum age, in seconds"),
        Parameter("factor", STUCK_PHASE.factor, "Multiple of the 99th percentile of the phase's duration"),
        Parameter("warning_s", STUCK_PHASE.worse_s, "Age that is a warning, in seconds"),
    )
    requires = SESSIONS._replace(is_in=lambda model: model.sessions_seen or model.open_sessions)
    rank = 40
    asks_stacks = True

    def _look(self, model: RunModel) -> list[Signal]:
        groups: dict[tuple[str, ...], list[SpanRow]] = {}
        for row in model.open_spans:
            if row.segment != PHASE_SEGMENT or row.session_id is None:
                continue
            is_old = model.age_s(row.start_ns) > model.limit_s(row, self["shortest_s"], self["factor"])
            if is_old and model.state_of(model.process_of_lane(row.lane_id)) == "live":
                groups.setdefault((row.name, row.tool or ""), []).append(row)
        return [self._signal(model, key, rows) for key, rows in groups.items()]

    def _signal(self, model: RunModel, key: tuple[str, ...], rows: list[SpanRow]) -> Signal:
        stuck = StuckWork(model, sorted(rows, key=lambda row: row.start_ns))
        signal = stuck.signal(
            f"{counted(len(rows), 'session')} stuck in {stuck.what}{', the oldest' if len(rows) > 1 else ''} for "
            f"{seconds_text(stuck.age_s)}{stuck.usually}",
            f"Session {stuck.oldest.session_id} on {stuck.at} entered {stuck.what} and has not left it.",
            "warning" if stuck.age_s > self["warning_s"] else "info",
            task_id=stuck.task_id,
        )
        signal.key, signal.anchor = key, f"session {stuck.oldest.session_id}"
        return signal
