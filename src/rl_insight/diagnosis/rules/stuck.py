"""Work that is open for far longer than it ever was: rewards, weight syncs, sessions."""

from __future__ import annotations

from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.names import state_kind
from rl_insight.diagnosis.robust import quantile
from rl_insight.diagnosis.rows import SessionRow, SpanRow
from rl_insight.diagnosis.rule import NO_SESSIONS, MomentRule, Parameter, Signal, culprit_of, fact, where
from rl_insight.diagnosis.words import counted, seconds_text


class _StuckWork(MomentRule):
    """An open span of one kind that is much older than usual, and holds up the run."""

    kind: str
    what: str
    asks_stacks = True

    def _lacks(self, model: RunModel) -> str | None:
        seen = {state_kind(name) for _, name in model.usual} | {state_kind(row.name) for row in model.open_spans}
        if self.kind in seen:
            return None
        return f"no {self.what} states or phases: wrap it in rl_insight.trace_state or rl_insight.phase"

    def look(self, model: RunModel) -> list[Signal]:
        """Return the oldest such work that is stuck."""
        stuck = []
        for row in model.open_spans:
            if state_kind(row.name) != self.kind or (row.segment == "duration" and row.depth == 0):
                continue
            process = model.process_of_lane(row.lane_id)
            is_old = model.age_s(row.start_ns) > model.limit_s(row, self["shortest_s"], self["factor"])
            if is_old and model.state_of(process) == "live" and self.holds_up(model, row):
                stuck.append(row)
        if not stuck:
            return []
        return [self._signal(model, sorted(stuck, key=lambda row: row.start_ns))]

    def holds_up(self, model: RunModel, row: SpanRow) -> bool:
        """Return whether the run waits for it: work of the leading role, or of a session that the step waits for."""
        if row.segment != "phase":
            return True
        steps = [step.seconds for step in model.steps.closed[-50:] if not step.is_warm_up]
        began = model.steps.current_start_ns
        if not steps or began is None:
            return False
        return model.age_s(began) > max(self["shortest_s"], 2 * quantile(steps, 0.99))

    def _signal(self, model: RunModel, stuck: list[SpanRow]) -> Signal:
        oldest = stuck[0]
        process = model.process_of_lane(oldest.lane_id)
        usual_s = model.usual_s(process.role, oldest.name, 0.5)
        age_s = model.age_s(oldest.start_ns)
        usually = "" if usual_s is None else f", which usually takes {seconds_text(usual_s)}"
        others = f" and {counted(len(stuck) - 1, 'other')}" if len(stuck) > 1 else ""
        return Signal(
            culprit_of(process, phase=oldest.name, session_id=oldest.session_id, tool=oldest.tool),
            f"{where(process)}{others} {'have' if others else 'has'} been in {oldest.name} for {seconds_text(age_s)}"
            f"{usually}",
            f"{oldest.name} is open for much longer than it ever took, and the run waits for it.",
            "critical" if age_s > self["critical_s"] else "warning",
            key=(process.process_id, oldest.name),
            anchor=f"span {oldest.span_id:x}",
            start_ns=oldest.start_ns,
            lanes=[row.lane_id for row in stuck],
            sessions=[row.session_id for row in stuck if row.session_id is not None],
            evidence=[fact(f"age of {oldest.name}", age_s, "s", usually.strip(", ")), fact("stuck", len(stuck))],
        )


class BlockedReward(_StuckWork):
    """The reward function blocks: it is open for far longer than ever, and the run waits for it."""

    name = "blocked_reward"
    threshold = (
        "A reward state or phase is open for max({shortest_s} s, {factor} × p99) and the step waits for it; critical "
        "after {critical_s} s."
    )
    needs = "reward states or phases"
    remedy = "Give each sample a timeout, score in a pool of processes, and cap the length of what is scored."
    parameters = (
        Parameter("shortest_s", 12, "Shortest age, in seconds"),
        Parameter("factor", 5, "Multiple of the 99th percentile of the reward's duration"),
        Parameter("critical_s", 60, "Age from which it is critical, in seconds"),
    )
    rank = 22
    explains = frozenset(
        {"stalled_run", "stuck_session", "slow_reward", "rollout_bound", "step_regression", "collective_hang"}
    )
    kind = "reward"
    what = "reward"


class StuckWeightSync(_StuckWork):
    """The weight sync is stuck."""

    name = "stuck_weight_sync"
    threshold = "A weight-sync state is open for max({shortest_s} s, {factor} × p99); critical after {critical_s} s."
    needs = "weight-sync states"
    remedy = "Check the members of the process group, its port, and whether an engine is still paused."
    parameters = (
        Parameter("shortest_s", 12, "Shortest age, in seconds"),
        Parameter("factor", 5, "Multiple of the 99th percentile of the sync's duration"),
        Parameter("critical_s", 60, "Age from which it is critical, in seconds"),
    )
    rank = 21
    explains = frozenset(
        {"stalled_run", "stuck_session", "slow_weight_sync", "step_regression", "rollout_bound", "collective_hang"}
    )
    kind = "sync"
    what = "weight-sync"


class StuckSession(MomentRule):
    """A session is stuck in one phase."""

    name = "stuck_session"
    threshold = (
        "A phase is open for max({shortest_s} s, {factor} × p99 of that phase in this run); a warning after "
        "{warning_s} s, information before."
    )
    needs = "sessions with phases"
    remedy = "Give each rollout a wall-clock timeout, and each tool or sandbox one that is shorter."
    parameters = (
        Parameter("shortest_s", 20, "Shortest age, in seconds"),
        Parameter("factor", 5, "Multiple of the 99th percentile of the phase's duration"),
        Parameter("warning_s", 60, "Age from which it is a warning, in seconds"),
    )
    rank = 40
    asks_stacks = True

    def _lacks(self, model: RunModel) -> str | None:
        return None if model.sessions_seen or model.open_sessions else NO_SESSIONS

    def look(self, model: RunModel) -> list[Signal]:
        """Return the stuck sessions, one signal for each phase and tool."""
        owners = {row.session_id: row for row in model.open_sessions}
        groups: dict[tuple[str, str], list[SpanRow]] = {}
        for row in model.open_spans:
            if row.segment != "phase" or row.session_id is None:
                continue
            process = model.process_of_lane(row.lane_id)
            if model.state_of(process) != "live":
                continue
            if model.age_s(row.start_ns) > model.limit_s(row, self["shortest_s"], self["factor"]):
                groups.setdefault((row.name, row.tool or ""), []).append(row)
        return [self._signal(model, sorted(rows, key=lambda row: row.start_ns), owners) for rows in groups.values()]

    def _signal(self, model: RunModel, rows: list[SpanRow], owners: dict[str, SessionRow]) -> Signal:
        oldest = rows[0]
        process = model.process_of_lane(oldest.lane_id)
        owner = owners.get(oldest.session_id or "")
        what = oldest.name if oldest.tool is None else f"{oldest.name} {oldest.tool}"
        age_s = model.age_s(oldest.start_ns)
        usual_s = model.usual_s(process.role, oldest.name, 0.5)
        usually = "" if usual_s is None else f", usually {seconds_text(usual_s)}"
        culprit = culprit_of(process, phase=oldest.name, tool=oldest.tool, session_id=oldest.session_id,
                             task_id=owner.task_id if owner else None)  # fmt: skip
        return Signal(
            culprit,
            f"{counted(len(rows), 'session')} stuck in {what}, the oldest for {seconds_text(age_s)}{usually}",
            f"Session {oldest.session_id} on {where(process)} entered {what} and has not left it.",
            "warning" if age_s > self["warning_s"] else "info",
            key=(oldest.name, oldest.tool or ""),
            anchor=f"session {oldest.session_id}",
            start_ns=oldest.start_ns,
            lanes=[row.lane_id for row in rows],
            sessions=[row.session_id for row in rows if row.session_id is not None],
            evidence=[fact("stuck sessions", len(rows)), fact("oldest", age_s, "s", usually.strip(", "))],
        )
