"""Runs that stop: nothing finishes any more, or one rank keeps all others waiting."""

from __future__ import annotations

from collections.abc import Iterator

from rl_insight.diagnosis.model import PATIENT_KINDS, RunModel
from rl_insight.diagnosis.names import state_kind
from rl_insight.diagnosis.robust import median, quantile
from rl_insight.diagnosis.rows import SECOND, ProcessRow, SpanRow
from rl_insight.diagnosis.rule import MomentRule, Parameter, Severity, Signal, culprit_of, fact, where
from rl_insight.diagnosis.stacks import is_paused
from rl_insight.diagnosis.steps import WARM_UP_STEPS
from rl_insight.diagnosis.words import counted, seconds_text
from rl_insight.store.queries.findings import STALLED_RUN


class StalledRun(MomentRule):
    """The run stalls silently: no step finishes and no counter moves."""

    name = STALLED_RUN
    threshold = (
        "Nothing has finished for max({early_s} s, {early_factor} × the longest usual gap), or the leading role is in "
        "a state for max({stuck_s} s, {stuck_factor} × p99): a warning where a process is gone or in something for far "
        "longer than usual, information otherwise. No step for max({suspect_s} s, "
        "{suspect_factor} × p99 of the last steps) while nothing else finishes: a warning. Critical after "
        "max({hang_s} s, {hang_factor} × median). Without steps, a state that is open for max({early_s} s, "
        "{stuck_factor} × p99) while nothing finishes. The first step, validation and checkpoints get {patience} times "
        "as long, and a run that has not finished a step yet {first_s} s."
    )
    needs = "steps, open spans, heartbeats"
    remedy = "Look at the stacks of the named process first; restart it, or the run from its last checkpoint."
    parameters = (
        Parameter("early_s", 15, "Shortest time without any activity that is suspicious, in seconds"),
        Parameter("early_factor", 2, "Multiple of the longest usual time without any activity that is suspicious"),
        Parameter("stuck_s", 12, "Shortest time in a state of the leading role that is suspicious, in seconds"),
        Parameter("stuck_factor", 5, "Multiple of the 99th percentile of a state of the leading role"),
        Parameter("suspect_s", 30, "Shortest silence that is suspicious, in seconds"),
        Parameter("suspect_factor", 3, "Multiple of the 99th percentile of step times that is suspicious"),
        Parameter("hang_s", 120, "Shortest silence that is a hang, in seconds"),
        Parameter("hang_factor", 10, "Multiple of the median step time that is a hang"),
        Parameter("first_s", 3600, "Shortest silence that is a hang before any step has finished, in seconds"),
        Parameter("patience", 6, "Factor for the first step, validation and checkpoints"),
        Parameter(
            "paused_s",
            600,
            "How long a run in which nothing is open may pause before it is a warning, unless its stacks show no pause",
        ),
    )
    rank = 30
    asks_stacks = True
    explains = frozenset({
        "stuck_session", "rollout_bound", "trainer_bound", "step_regression", "telemetry_gap", "gpu_idle_in_rollout",
        "unattributed_time", "sync_overhead",
    })  # fmt: skip

    def _lacks(self, model: RunModel) -> str | None:
        if model.steps.current is not None or model.usual:
            return None
        return "no steps and no states: call rl_insight.set_step(step), or log training/global_step"

    def look(self, model: RunModel) -> list[Signal]:
        """Return the stall, if there is one."""
        began = model.steps.current_start_ns
        if began is None:
            return self._without_steps(model)
        if model.lead_has_ended():
            return []  # the run is over, or will be resumed
        waited_s = model.age_s(began)
        started_ns = max((process.started_ns for process in model.workers()), default=0)
        idle_s = model.age_s(max(model.last_activity_ns, started_ns))
        known = [step.seconds for step in model.steps.closed[-50:] if not step.is_warm_up]
        is_first = len(known) < 3
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
        """Return a stall of a run that has no steps: nothing finishes, and something runs for far longer than ever."""
        idle_s = model.age_s(model.last_activity_ns)
        suspects = [
            row
            for row in open_work(model)
            if model.usual_s(model.role_of_lane(row.lane_id), row.name) is not None
            and model.age_s(row.start_ns) > model.limit_s(row, self["early_s"], self["stuck_factor"])
        ]
        if not suspects or idle_s < max(self["early_s"], self["early_factor"] * model.usual_gap_s()):
            return []
        severity: Severity = "critical" if idle_s > self["hang_s"] else "warning"
        signal = self._name_work(model, suspects, f"Nothing has finished for {seconds_text(idle_s)}", severity)
        signal.anchor, signal.key, signal.start_ns = f"span {suspects[0].span_id:x}", ("run",), suspects[0].start_ns
        return [signal]

    def _is_sure(self, model: RunModel, idle_s: float) -> bool:
        """Return whether there is more than silence: a process is gone, or one is in something for far too long."""
        if model.silent_workers():
            return idle_s > self["suspect_s"]
        return any(
            model.usual_s(model.role_of_lane(row.lane_id), row.name) is not None
            and model.age_s(row.start_ns) > model.limit_s(row, self["stuck_s"], self["suspect_factor"])
            for row in open_work(model)
        )

    def _lead_is_stuck(self, model: RunModel, patience: float) -> bool:
        """Return whether the leading role works on one thing for too long, whatever the other roles do meanwhile."""
        return any(
            model.usual_s(model.lead or "", row.name) is not None
            and model.age_s(row.start_ns) > patience * model.limit_s(row, self["stuck_s"], self["stuck_factor"])
            for row in open_work(model)
            if row.is_state and model.role_of_lane(row.lane_id) == model.lead
        )

    @staticmethod
    def _is_patient(model: RunModel) -> bool:
        return any(
            state_kind(row.name) in PATIENT_KINDS
            for row in model.open_spans
            if model.role_of_lane(row.lane_id) == model.lead
        )

    def _name(self, model: RunModel, waited_s: float, gone_by_ns: int, *, is_hang: bool) -> Signal | None:
        """Name the culprit: what is gone, then what is open and not a wait, then who waits for whom."""
        title = f"No step has finished for {seconds_text(waited_s)}"
        severity: Severity = "critical" if is_hang else "warning"
        remaining = model.remaining()
        if not remaining:
            return None  # all said goodbye: the run is over, or will be resumed
        # A process that fell silent long after the stall began is a victim: the stalled run was killed.
        gone = model.silent_workers()
        silent = [process for process in gone if process.last_seen_ns <= gone_by_ns]
        if silent and len(silent) == remaining:
            who = f"all {len(silent)} processes" if len(silent) > 1 else where(silent[0])
            text = f"{title}: {who} fell silent without saying goodbye"
            return Signal({"role": model.lead or ""}, text, "No heartbeat arrives from any process: the job was "
                          "killed, its machines are gone, or the network to this server is.", severity)  # fmt: skip
        if silent:
            first = min(silent, key=lambda process: process.last_seen_ns)
            text = f"{title}: {where(first)} has been silent for {seconds_text(model.silent_s(first))}"
            return Signal(culprit_of(first), text, "The process said no goodbye and sends no heartbeats: it crashed "
                          "or its machine is gone, and the others wait for it.", severity,
                          lanes=model.lanes_of(first.number))  # fmt: skip
        suspects = open_work(model)
        if suspects:
            return self._name_work(model, suspects, title, severity)
        if model.open_spans:
            oldest = min(model.open_spans, key=lambda row: row.start_ns)
            process = model.process_of_lane(oldest.lane_id)
            return Signal(culprit_of(process, phase=oldest.name), f"{title}: {where(process)} waits in {oldest.name}",
                          "Everything that is open is a wait, so the work that all wait for is not recorded.", severity,
                          lanes=[oldest.lane_id])  # fmt: skip
        return self._nothing_runs(model, title, waited_s)

    def _nothing_runs(self, model: RunModel, title: str, waited_s: float) -> Signal:
        """Return a stall in which no work is open: by a debugger or a prompt, or in code that records nothing."""
        began = model.steps.current_start_ns or 0
        paused = is_paused(model, began) if model.has_span_steps else False
        severity: Severity = "info" if paused is not False and waited_s < self["paused_s"] else "warning"
        why = "a debugger may be open, or the script waits for input."
        if paused is not None:
            why = (
                "a debugger is open, or the script waits for input." if paused else "see the stacks for where they are."
            )
        return Signal({"role": model.lead or ""}, f"{title}, and nothing is running",
                      f"All processes are alive, but none of them records any work: {why}", severity)  # fmt: skip

    @staticmethod
    def _name_work(model: RunModel, suspects: list[SpanRow], title: str, severity: Severity) -> Signal:
        oldest = suspects[0]
        same = [row for row in suspects if row.name == oldest.name]
        process = model.process_of_lane(oldest.lane_id)
        usual_s = model.usual_s(process.role, oldest.name, 0.5)
        age_s = model.age_s(oldest.start_ns)
        what = oldest.name if oldest.tool is None else f"{oldest.name} {oldest.tool}"
        usually = f", which usually takes {seconds_text(usual_s)}" if usual_s is not None else ""
        others = f" and {len(same) - 1} more" if len(same) > 1 else ""
        tasks = {row.session_id: row.task_id for row in model.open_sessions}
        sessions = [row.session_id for row in same if row.session_id is not None]
        culprit = culprit_of(process, phase=oldest.name, tool=oldest.tool, session_id=oldest.session_id,
                             task_id=tasks.get(oldest.session_id or ""))  # fmt: skip
        return Signal(
            culprit,
            f"{title}: {where(process)}{others} stuck in {what} for {seconds_text(age_s)}",
            f"Of everything that is open and not a wait, {what} on {where(process)} is the oldest{usually}.",
            severity,
            lanes=[row.lane_id for row in same],
            sessions=sessions,
            evidence=[fact(f"age of {what}", age_s, "s", usually.strip(", ")), fact("stuck", len(same))],
        )


def open_work(model: RunModel) -> list[SpanRow]:
    """Return what is open, is not a wait and runs longer than usual, innermost and the oldest first."""
    found = []
    for row in model.open_spans:
        if state_kind(row.name) == "wait" or (row.depth == 0 and not row.is_state and row.segment != "phase"):
            continue
        process = model.process_of_lane(row.lane_id)
        if model.state_of(process) == "ended":
            continue
        usual_s = model.usual_s(process.role, row.name)
        if usual_s is None or model.age_s(row.start_ns) > max(10.0, 2 * usual_s):
            found.append(row)
    # A driver that has called others is in the same kind of state as they are: it waits for them.
    called = {state_kind(row.name) for row in found if model.role_of_lane(row.lane_id) != model.lead}

    def order(row: SpanRow) -> tuple[bool, int]:
        return model.role_of_lane(row.lane_id) == model.lead and state_kind(row.name) in called, row.start_ns

    return sorted(found, key=order)


class CollectiveHang(MomentRule):
    """A collective hangs: all ranks of a role are in the same state for too long, and one is missing."""

    name = "collective_hang"
    threshold = (
        "At least {ranks} ranks of a role, all but at most {missing} of them, have been in one state for "
        "max({shortest_s} s, {factor} × p99), {patience} times as long in the first steps; critical after "
        "{critical_s} s."
    )
    needs = "states of at least three ranks of a role"
    remedy = "Look at the stack and the flight-recorder dump of the missing rank; the NCCL timeout comes much later."
    parameters = (
        Parameter("ranks", 3, "Fewest ranks that must wait"),
        Parameter("missing", 1, "Most ranks that may be missing"),
        Parameter("shortest_s", 12, "Shortest wait, in seconds"),
        Parameter("factor", 5, "Multiple of the 99th percentile of the state"),
        Parameter("critical_s", 60, "Wait from which it is critical, in seconds"),
        Parameter("patience", 6, "Factor for the first steps"),
    )
    rank = 25
    asks_stacks = True
    explains = frozenset({"stalled_run", "straggler", "step_regression", "rollout_bound", "trainer_bound"})

    def _lacks(self, model: RunModel) -> str | None:
        has_ranks = model.largest_role() >= self["ranks"]
        return None if has_ranks else f"no role with at least {self['ranks']:.0f} processes"

    def look(self, model: RunModel) -> Iterator[Signal]:
        """Return the ranks that others wait for."""
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
            f"{where(absent)} keeps {counted(len(rows), 'rank')} waiting in {name} for {seconds_text(age_s)}{doing}",
            f"Every other rank of the role entered {name}; this one did not.",
            "critical" if age_s > self["critical_s"] else "warning",
            key=(absent.process_id, name),
            anchor=f"{name} after step {model.steps.current}",
            start_ns=min(row.start_ns for row in rows),
            lanes=[*model.lanes_of(absent.number)[:2], *(row.lane_id for row in rows[:4])],
            evidence=[fact("ranks waiting", len(rows)), fact("shortest wait", age_s, "s")],
        )
