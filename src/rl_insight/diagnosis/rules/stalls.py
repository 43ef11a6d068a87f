"""Stalled runs: nothing finishes, or one rank keeps all others waiting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rl_insight.diagnosis.model import PATIENT_KINDS, RunModel
from rl_insight.diagnosis.names import state_kind
from rl_insight.diagnosis.robust import median, quantile
from rl_insight.diagnosis.rows import SECOND, ProcessRow, SpanRow
from rl_insight.diagnosis.rule import NUMBERED_STEPS, Input, Parameter, TickRule
from rl_insight.diagnosis.signals import Signal, culprit_of, fact, where
from rl_insight.diagnosis.stacks import is_paused
from rl_insight.diagnosis.steps import WARM_UP_STEPS
from rl_insight.schema.names import PHASE_SEGMENT, Severity
from rl_insight.store.queries.findings import STALLED_RUN
from rl_insight.store.queries.overdue import (
    FEW_STEPS_FACTOR,
    FIRST_STEP_S,
    HUNG_STEP,
    LEAST_STEPS,
    STUCK_WORK,
    SUSPECT_STEP,
)
from rl_insight.words import counted, seconds_text


class StuckWork:
    """Open spans that are stuck in the same work, oldest first."""

    def __init__(self, model: RunModel, rows: list[SpanRow]) -> None:
        self._rows = rows
        self.oldest = oldest = rows[0]
        self.process = model.process_of_lane(oldest.lane_id)
        self.at = where(self.process)
        self.what = oldest.name if oldest.tool is None else f"{oldest.name} {oldest.tool}"
        self.age_s = model.age_s(oldest.start_ns)
        usual_s = model.usual_s(self.process.role, oldest.name, 0.5)
        self.usually = "" if usual_s is None else f" (usually {seconds_text(usual_s)})"
        self.task_id = next((one.task_id for one in model.open_sessions if one.session_id == oldest.session_id), None)

    def signal(self, title: str, explanation: str, severity: Severity, **more: Any) -> Signal:
        """Return the finding about it; `more` is added to the culprit."""
        oldest = self.oldest
        return Signal(
            culprit_of(self.process, phase=oldest.name, tool=oldest.tool, session_id=oldest.session_id, **more),
            title,
            explanation,
            severity,
            anchor=f"span {oldest.span_id:x}",
            start_ns=oldest.start_ns,
            lanes=[row.lane_id for row in self._rows],
            sessions=[row.session_id for row in self._rows if row.session_id is not None],
            evidence=[
                fact(f"age of {self.what}", self.age_s, "s", self.usually.strip(" ()")),
                fact("stuck", len(self._rows)),
            ],
        )


class StalledRun(TickRule):
    """The run has stalled silently: no step finishes and no counter moves."""

    name = STALLED_RUN
    threshold = (
        "Info: nothing has finished for max({early_s} s, {early_factor} × the longest usual gap), or the leading role "
        "has been in one state for max({stuck_s} s, {stuck_factor} × p99). Warning: in addition, a process is gone or "
        "has been in one state far longer than usual; or no step has finished for max({suspect_s} s, {suspect_factor} "
        "× p99 of recent steps) and nothing else finishes either. Critical: no step for max({hang_s} s, {hang_factor} "
        "× median). In a run without steps: a state has been open for max({early_s} s, {stuck_factor} × p99) and "
        "nothing finishes. The first step, validation and checkpoints get {patience} times as long, and a run that "
        "has not finished any step gets {first_s} s."
    )
    remedy = "Start with the stacks of the named process; restart it, or restart the run from its last checkpoint."
    parameters = (
        Parameter("early_s", 15, "Minimum suspicious time without any activity, in seconds"),
        Parameter("early_factor", 2, "Suspicious multiple of the longest usual time without any activity"),
        Parameter(
            "stuck_s", STUCK_WORK.shortest_s, "Minimum suspicious time in one state of the leading role, in seconds"
        ),
        Parameter("stuck_factor", STUCK_WORK.factor, "Multiple of the 99th percentile of a state of the leading role"),
        Parameter("suspect_s", SUSPECT_STEP.shortest_s, "Minimum suspicious silence, in seconds"),
        Parameter("suspect_factor", SUSPECT_STEP.factor, "Suspicious multiple of the 99th percentile of step times"),
        Parameter("hang_s", HUNG_STEP.shortest_s, "Minimum silence that counts as a hang, in seconds"),
        Parameter("hang_factor", HUNG_STEP.factor, "Multiple of the median step time that counts as a hang"),
        Parameter("first_s", FIRST_STEP_S, "Minimum hang before any step has finished, in seconds"),
        Parameter("patience", FEW_STEPS_FACTOR, "Factor for the first step, validation and checkpoints"),
        Parameter("paused_s", 600, "Maximum pause with nothing open that is only info, unless stacks rule out a pause"),
    )
    requires = Input(
        lambda model: model.steps.current is not None or model.usual,
        "steps or states",
        NUMBERED_STEPS.how,
    )
    rank = 30
    asks_stacks = True
    explains = frozenset({
        "stuck_session", "rollout_bound", "trainer_bound", "step_regression", "telemetry_gap", "gpu_idle_in_rollout",
        "unattributed_time", "sync_overhead",
    })  # fmt: skip

    def _look(self, model: RunModel) -> list[Signal]:
        began = model.steps.current_start_ns
        if began is None:
            return self._without_steps(model)
        if model.lead_has_ended():
            return []  # the run has ended, or will be resumed
        waited_s = model.age_s(began)
        started_ns = max((process.started_ns for process in model.workers()), default=0)
        idle_s = model.age_s(max(model.last_activity_ns, started_ns))
        known = [step.seconds for step in model.steps.closed[-50:] if not step.is_warm_up]
        is_first = len(known) < LEAST_STEPS
        if is_first:
            known = [step.seconds for step in model.steps.closed]
        usual_s = median(known) if known else 0.0
        slow_s = quantile(known, 0.99) if known else 0.0
        is_resuming = model.last_activity_ns < started_ns  # it loads a checkpoint, and compiles again
        patience = self["patience"] if is_first or is_resuming or self._is_patient(model) else 1.0
        suspect_s = patience * max(self["suspect_s"], self["suspect_factor"] * slow_s)
        hang_s = patience * max(self["hang_s"], self["hang_factor"] * usual_s) if known else self["first_s"]
        is_hang = waited_s > hang_s and (idle_s > self["suspect_s"] or waited_s > 2 * hang_s)
        is_suspect = is_hang or (waited_s > suspect_s and idle_s > suspect_s and not is_first)
        early_s = patience * max(self["early_s"], self["early_factor"] * model.usual_gap_s())
        is_idle = min(idle_s, waited_s) >= early_s
        if not is_suspect and (is_first or not (is_idle or self._lead_is_stuck(model, patience))):
            return []
        gone_by = began + int(max(2 * usual_s, self["suspect_s"]) * SECOND)
        signal = self._name(model, waited_s, gone_by, is_hang=is_hang)
        if signal is not None and not is_suspect and not self._is_sure(model, idle_s):
            signal.severity = "info"
        if signal is None:
            return []
        signal.anchor = f"after step {model.steps.current} number {model.steps.total}"
        signal.key = ("run",)
        signal.start_ns = began
        signal.evidence += [
            fact("time since the last step began", waited_s, "s", f"median step {seconds_text(usual_s)}"),
            fact("time since anything finished", idle_s, "s"),
        ]
        return [signal]

    def _without_steps(self, model: RunModel) -> list[Signal]:
        """Return the stall of a run without steps: nothing finishes, and some work has been open far too long."""
        idle_s = model.age_s(model.last_activity_ns)
        suspects = self._overdue(model, self["early_s"], self["stuck_factor"])
        if not suspects or idle_s < max(self["early_s"], self["early_factor"] * model.usual_gap_s()):
            return []
        severity: Severity = "critical" if idle_s > self["hang_s"] else "warning"
        signal = self._name_work(model, suspects, f"Nothing has finished for {seconds_text(idle_s)}", severity)
        signal.key = ("run",)
        return [signal]

    @staticmethod
    def _overdue(model: RunModel, shortest_s: float, factor: float, patience: float = 1.0) -> list[SpanRow]:
        """Return the open work whose usual duration is known and that has been open for longer than its limit."""
        return [
            row
            for row in open_work(model)
            if model.usual_s(model.role_of_lane(row.lane_id), row.name) is not None
            and model.age_s(row.start_ns) > patience * model.limit_s(row, shortest_s, factor)
        ]

    def _is_sure(self, model: RunModel, idle_s: float) -> bool:
        """Return whether there is more evidence than silence: a process is gone, or work is long overdue."""
        if model.silent_workers():
            return idle_s > self["suspect_s"]
        return bool(self._overdue(model, self["stuck_s"], self["suspect_factor"]))

    def _lead_is_stuck(self, model: RunModel, patience: float) -> bool:
        """Return whether the leading role has been in one state for too long, whatever the other roles are doing."""
        overdue = self._overdue(model, self["stuck_s"], self["stuck_factor"], patience)
        return any(row.is_state and model.role_of_lane(row.lane_id) == model.lead for row in overdue)

    @staticmethod
    def _is_patient(model: RunModel) -> bool:
        return any(
            state_kind(row.name) in PATIENT_KINDS
            for row in model.open_spans
            if model.role_of_lane(row.lane_id) == model.lead
        )

    def _name(self, model: RunModel, waited_s: float, gone_by_ns: int, *, is_hang: bool) -> Signal | None:
        """Name the culprit: a process that is gone, else open work that is not a wait, else the oldest wait."""
        title = f"No step has finished for {seconds_text(waited_s)}"
        severity: Severity = "critical" if is_hang else "warning"
        remaining = model.remaining()
        if not remaining:
            return None  # every process ended cleanly: the run has ended, or will be resumed
        # A process that fell silent long after the stall began is a victim: the stalled run was killed.
        silent = [process for process in model.silent_workers() if process.last_seen_ns <= gone_by_ns]
        if silent and len(silent) == remaining:
            who = f"all {len(silent)} processes" if len(silent) > 1 else where(silent[0])
            text = f"{title}: {who} went silent without a clean exit"
            return Signal({"role": model.lead or ""}, text, "No process is sending heartbeats: the job was killed, "
                          "its machines are down, or they cannot reach this server.", severity)  # fmt: skip
        if silent:
            first = min(silent, key=lambda process: process.last_seen_ns)
            text = f"{title}: {where(first)} has been silent for {seconds_text(model.silent_s(first))}"
            return Signal(culprit_of(first), text, "The process stopped sending heartbeats without a clean exit: it "
                          "crashed or its machine is down, and the others are waiting for it.", severity,
                          lanes=model.lanes_of(first.number))  # fmt: skip
        suspects = open_work(model)
        if suspects:
            return self._name_work(model, suspects, title, severity)
        if model.open_spans:
            oldest = min(model.open_spans, key=lambda row: row.start_ns)
            process = model.process_of_lane(oldest.lane_id)
            text = f"{title}: {where(process)} is waiting in {oldest.name}"
            return Signal(culprit_of(process, phase=oldest.name), text, "All open work is waiting, so whatever it is "
                          "waiting for is not instrumented.", severity, lanes=[oldest.lane_id])  # fmt: skip
        return self._nothing_runs(model, title, waited_s)

    def _nothing_runs(self, model: RunModel, title: str, waited_s: float) -> Signal:
        """Return a stall without open work: a debugger or prompt is open, or the code is not instrumented."""
        paused = is_paused(model, model.steps.current_start_ns or 0) if model.has_span_steps else False
        severity: Severity = "info" if paused is not False and waited_s < self["paused_s"] else "warning"
        reasons = {
            None: "a debugger may be open, or the script may be waiting for input.",
            True: "a debugger is open, or the script is waiting for input.",
            False: "see their stacks.",
        }
        why = f"All processes are alive, but none is recording any work: {reasons[paused]}"
        return Signal({"role": model.lead or ""}, f"{title}, and nothing is running", why, severity)

    @staticmethod
    def _name_work(model: RunModel, suspects: list[SpanRow], title: str, severity: Severity) -> Signal:
        same = [row for row in suspects if row.name == suspects[0].name]
        stuck = StuckWork(model, same)
        others = f" (and {counted(len(same) - 1, 'other')})" if len(same) > 1 else ""
        return stuck.signal(
            f"{title}: {stuck.at}{others} stuck in {stuck.what} for {seconds_text(stuck.age_s)}",
            f"Of all open work that is not a wait, {stuck.what} on {stuck.at} has been running longest{stuck.usually}.",
            severity,
            task_id=stuck.task_id,
        )


def open_work(model: RunModel) -> list[SpanRow]:
    """Return open work that is not a wait and takes longer than usual, oldest first."""
    found = []
    for row in model.open_spans:
        if state_kind(row.name) == "wait" or (row.depth == 0 and not row.is_state and row.segment != PHASE_SEGMENT):
            continue
        process = model.process_of_lane(row.lane_id)
        if model.state_of(process) == "ended":
            continue
        usual_s = model.usual_s(process.role, row.name)
        if usual_s is None or model.age_s(row.start_ns) > max(10.0, 2 * usual_s):
            found.append(row)
    # A driver that has called other roles is in the same kind of state as they are: it is waiting for them.
    called = {state_kind(row.name) for row in found if model.role_of_lane(row.lane_id) != model.lead}

    def order(row: SpanRow) -> tuple[bool, int]:
        return model.role_of_lane(row.lane_id) == model.lead and state_kind(row.name) in called, row.start_ns

    return sorted(found, key=order)


class CollectiveHang(TickRule):
    """A collective hangs: all ranks of a role but one have been in the same state for too long."""

    threshold = (
        "At least {ranks} ranks of a role, and all but {missing} of them, have been in one state for max({shortest_s} "
        "s, {factor} × p99), or {patience} times as long in the first steps; critical after {critical_s} s."
    )
    needs = "states of at least three ranks of a role"
    remedy = "Check the stack and the flight-recorder dump of the missing rank; the NCCL timeout fires much later."
    parameters = (
        Parameter("ranks", 3, "Minimum number of ranks that must be waiting"),
        Parameter("missing", 1, "Maximum number of ranks that may be missing"),
        Parameter("shortest_s", STUCK_WORK.shortest_s, "Minimum wait, in seconds"),
        Parameter("factor", STUCK_WORK.factor, "Multiple of the 99th percentile of the state"),
        Parameter("critical_s", STUCK_WORK.worse_s, "Wait that is critical, in seconds"),
        Parameter("patience", 6, "Factor for the first steps"),
    )
    rank = 25
    asks_stacks = True
    explains = frozenset({"stalled_run", "straggler", "step_regression", "rollout_bound", "trainer_bound"})

    def missing(self, model: RunModel) -> str | None:
        """Return that no role has enough ranks."""
        has_ranks = model.largest_role() >= self["ranks"]
        return None if has_ranks else f"no role with at least {self['ranks']:.0f} processes"

    def _look(self, model: RunModel) -> Iterator[Signal]:
        waiting: dict[tuple[str, str], dict[int, SpanRow]] = {}
        for row in model.open_spans:
            if row.is_state and state_kind(row.name) != "wait":
                process = model.process_of_lane(row.lane_id)
                waiting.setdefault((process.role, row.name), {}).setdefault(process.number, row)
        for (role, name), rows in waiting.items():
            if len(rows) < self["ranks"]:
                continue
            alive = [one for one in model.workers() if one.role == role and model.state_of(one) != "ended"]
            absent = [process for process in alive if process.number not in rows]
            if not 1 <= len(absent) <= self["missing"]:
                continue
            first = next(iter(rows.values()))
            step = first.step if first.step is not None else model.steps.current
            if any(model.roles.has_left(process.number, role, step, name) for process in absent):
                continue  # it was faster than the others
            youngest_s = min(model.age_s(row.start_ns) for row in rows.values())
            limit_s = model.limit_s(first, self["shortest_s"], self["factor"])
            if model.steps.total < WARM_UP_STEPS:
                limit_s *= self["patience"]  # one rank may compile or load for all
            if youngest_s > limit_s:
                yield self._signal(model, absent[0], name, list(rows.values()), youngest_s)

    def _signal(self, model: RunModel, absent: ProcessRow, name: str, rows: list[SpanRow], age_s: float) -> Signal:
        inside = [row for row in model.open_spans if model.process_of_lane(row.lane_id) is absent]
        doing = f"; it is in {inside[-1].name}" if inside else ""
        return Signal(
            culprit_of(absent, phase=inside[-1].name if inside else None),
            f"{where(absent)} has kept {counted(len(rows), 'rank')} waiting in {name} for {seconds_text(age_s)}{doing}",
            f"Every other rank of the role has entered {name}; this one has not.",
            "critical" if age_s > self["critical_s"] else "warning",
            key=(absent.process_id, name),
            anchor=f"{name} after step {model.steps.current}",
            start_ns=min(row.start_ns for row in rows),
            lanes=[*model.lanes_of(absent.number)[:2], *(row.lane_id for row in rows[:4])],
            evidence=[fact("ranks waiting", len(rows)), fact("shortest wait", age_s, "s")],
        )
