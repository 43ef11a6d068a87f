"""A run as of a moment: what rules look at. Each moment adds what happened since the one before."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from rl_insight.diagnosis.activity import Activity, Call, KnownName
from rl_insight.diagnosis.counted import CountedSteps
from rl_insight.diagnosis.feed import Feed
from rl_insight.diagnosis.hardware import HardwareBook
from rl_insight.diagnosis.names import canonical_name, state_kind
from rl_insight.diagnosis.robust import Durations, Interval, quantile
from rl_insight.diagnosis.role_steps import RoleBook
from rl_insight.diagnosis.rows import (
    SECOND,
    STATE_SEGMENTS,
    EventRow,
    LossRow,
    MarkRow,
    Moment,
    ProcessRow,
    SampleRow,
    SessionRow,
    SpanRow,
)
from rl_insight.diagnosis.steps import WARM_UP_STEPS, Step, StepBook
from rl_insight.diagnosis.tracks import Metrics
from rl_insight.intake import Liveness, liveness
from rl_insight.schema.stacks import STACKS_EVENT
from rl_insight.store.queries.steps import leadership

_ENGINE_PREFIX = "engine_"
_KEPT_SESSIONS = 20_000
_SURELY = 2
"""No other role can fit better."""
_KEPT_CALLS = 2_000
_KEPT_GENERATIONS = 100
_KEPT_GAPS = 200
_SHORT_GAP_S = 5.0
_PATIENCE = 6.0
"""How much longer something may take whose usual duration is unknown."""
PATIENT_KINDS = frozenset({"checkpoint", "validation"})
"""Kinds of states in which nothing else may finish for long."""


class RunModel:
    """The run up to `as_of_ns`; rules read it and change nothing."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.as_of_ns = 0
        self.processes = feed.processes
        self.lanes = feed.lanes
        self.steps = StepBook()
        self.new_steps: list[Step] = []
        """The steps that closed in this moment."""
        self.lead: str | None = None
        """The role whose steps are the run's steps."""
        self.has_span_steps = False
        self.roles = RoleBook(feed)
        self.metrics = Metrics()
        self._counted = CountedSteps(feed, self.metrics, self.roles)
        self._holds_spans = True
        """Spans without a step wait until a counter tells theirs."""
        self.hardware = HardwareBook()
        self.usual: dict[tuple[str, str], Durations] = {}
        """How long a state or phase takes, by role and name."""
        self.activity: dict[int, Activity] = {}
        self.calls: dict[tuple[str, str], deque[Call]] = {}
        """Phases of sessions that ended, by name and tool."""
        self.generations: dict[str, dict[int, deque[Call]]] = {}
        """Those that generate, by name and process: a thousand processes must not push out each other's."""
        self.sessions: deque[SessionRow] = deque(maxlen=_KEPT_SESSIONS)
        self.sessions_seen = 0
        self.open_spans: list[SpanRow] = []
        self.open_sessions: list[SessionRow] = []
        self.events: deque[EventRow] = deque(maxlen=1_000)
        self.last_error: dict[int, EventRow] = {}
        self.stacks: dict[int, EventRow] = {}
        """The stacks that each process sent last."""
        self.losses: list[LossRow] = []
        self.last_activity_ns = 0
        """When training code last recorded the end of anything."""
        self._gaps: deque[float] = deque(maxlen=_KEPT_GAPS)
        self.first_ns = 0
        self.listening_since_ns = 0
        """When the server began to listen: silence before that is the server's."""
        self._workers: list[ProcessRow] = []
        self._states: dict[int, Liveness] = {}
        self._marked: list[Step] = []
        self._seconds_of_role: dict[str, float] = {}
        self._names: dict[int, dict[str, KnownName]] = {}
        """By lane and name."""
        self._is_warm = False
        """Enough steps are over that durations are the usual ones."""
        self._forgotten_ns = 0
        self.memo: dict[object, Any] = {}
        """What rules have computed for this moment and others need too."""

    # -- taking in a moment

    def apply(self, moment: Moment) -> None:
        """Move to a moment."""
        self.as_of_ns = moment.as_of_ns
        self.first_ns = self.first_ns or moment.as_of_ns
        self.open_spans, self.open_sessions = moment.open_spans, moment.open_sessions
        self.losses = moment.losses
        # A stored run also has the processes that had not started yet.
        self._workers = [
            process
            for process in self.processes.values()
            if not process.is_target and process.started_ns + process.clock_offset_ns <= moment.as_of_ns
        ]
        self._states = {}
        self.memo.clear()
        self._forget_activity()
        self._note_gap(moment)
        self._choose_lead(moment.spans)
        self._holds_spans = not self.has_span_steps and (self._counted.is_used or not self.steps.total)
        self._is_warm = self.steps.total >= WARM_UP_STEPS
        for row in moment.spans:
            self._apply_span(row)
        if moment.spans:
            self.last_activity_ns = max(self.last_activity_ns, moment.spans[-1].end_ns)
        for row in moment.open_spans:
            if self.role_of_lane(row.lane_id) == self.lead and row.step is not None:
                self.steps.note(row, self.process_of_lane(row.lane_id))
        for session in moment.sessions:
            self.sessions.append(session)
            self.last_activity_ns = max(self.last_activity_ns, session.end_ns)
        self.sessions_seen += len(moment.sessions)
        for event in moment.events:
            if event.name == "error":
                self.last_error[event.process] = event
            elif event.name == STACKS_EVENT:
                self.stacks[event.process] = event
            else:
                self.events.append(event)
        self._apply_samples(moment.samples)
        self.new_steps = self._close_steps(moment.marks)
        self.roles.settle(self.as_of_ns)

    def _forget_activity(self) -> None:
        """Forget what processes did before the last step that rules have looked at."""
        until_ns = self.steps.closed[-1].start_ns if self.steps.closed else 0
        if until_ns <= self._forgotten_ns:
            return
        self._forgotten_ns = until_ns
        for activity in self.activity.values():
            for kept in (activity.busy, activity.waiting):
                while kept and kept[0][1] < until_ns:
                    kept.popleft()

    def _note_gap(self, moment: Moment) -> None:
        """Remember for how long nothing had finished before something did."""
        ends = [rows[0].end_ns for rows in (moment.spans, moment.sessions) if rows]
        ends += [moment.marks[0].time_ns] if moment.marks else []
        if not ends or not self.last_activity_ns or self.steps.total < WARM_UP_STEPS:
            return
        ended_ns = min(ends)
        gap_s = (ended_ns - self.last_activity_ns) / SECOND
        if gap_s <= _SHORT_GAP_S:
            return
        # Validation, checkpoints and a resume are waited for with more patience, and say nothing about other gaps.
        first = moment.spans[0] if moment.spans else None
        is_special = first is not None and first.end_ns == ended_ns and state_kind(first.name) in PATIENT_KINDS
        is_resume = any(self.last_activity_ns < one.started_ns + one.clock_offset_ns for one in self._workers)
        if not is_special and not is_resume:
            self._gaps.append(gap_s)

    def _choose_lead(self, spans: Iterable[SpanRow]) -> None:
        if self.lead is not None and self.has_span_steps and leadership(self.lead) == _SURELY:
            return
        for row in spans:
            if row.step is not None and (row.is_state or row.depth == 0) and row.segment != "phase":
                role = self.role_of_lane(row.lane_id)
                self._seconds_of_role[role] = self._seconds_of_role.get(role, 0.0) + row.seconds
        if self._seconds_of_role:
            best = max(self._seconds_of_role, key=lambda role: (leadership(role), self._seconds_of_role[role]))
            if self.lead is None or leadership(best) > leadership(self.lead):
                if self.lead is not None and self.lead != best:
                    self.steps = StepBook()
                self.lead, self.has_span_steps = best, True

    def _apply_span(self, row: SpanRow) -> None:
        # Ten thousand spans per moment come through here: unpacked once, and everything about a name looked up once.
        end_ns, start_ns, _, lane_id, name, segment, step = row[:7]
        names = self._names.get(lane_id)
        known = None if names is None else names.get(name)
        if known is None:
            known = self._note_name(lane_id, name)
        process = known.process
        if step is None or self._is_warm or not self.has_span_steps:
            known.usual.add((end_ns - start_ns) / SECOND)
        is_state = segment in STATE_SEGMENTS
        if is_state or segment == "phase":
            if known.intervals is None:
                known.intervals = self._intervals_of(process, name)
            known.intervals.append((start_ns, end_ns))
        if segment == "phase":
            self._apply_call(row, process)
            return
        self._note_in_step(row, process, step, is_state=is_state)

    def _note_in_step(self, row: SpanRow, process: ProcessRow, step: int | None, *, is_state: bool) -> None:
        if step is None and self._holds_spans:
            self._counted.hold(row, process)
            return
        if process.role == self.lead:
            self.steps.note(row, process)
        if not is_state:
            return
        if step is None:
            step = self.steps.current  # a state without a step belongs to the one that runs
        if step is not None:
            self.roles.add(row, process, step)

    def _note_name(self, lane_id: int, name: str) -> KnownName:
        """Look up what every span of a name on a lane needs."""
        process = self.process_of_lane(lane_id)
        found = KnownName(process, self.usual.setdefault((process.role, name), Durations()))
        self._names.setdefault(lane_id, {})[name] = found
        return found

    def _intervals_of(self, process: ProcessRow, name: str) -> deque[Interval]:
        activity = self.activity.setdefault(process.number, Activity())
        return activity.waiting if state_kind(name) == "wait" else activity.busy

    def _apply_call(self, row: SpanRow, process: ProcessRow) -> None:
        key = (row.name, row.tool or "")
        calls = self.calls.get(key)
        if calls is None:
            calls = self.calls[key] = deque(maxlen=_KEPT_CALLS)
        call = Call(row.end_ns, row.seconds, row.tokens, row.failed, row.error, process.number, row.session_id)
        calls.append(call)
        if state_kind(row.name) == "generate":
            by_process = self.generations.setdefault(row.name, {})
            if process.number not in by_process:
                by_process[process.number] = deque(maxlen=_KEPT_GENERATIONS)
            by_process[process.number].append(call)

    def _apply_samples(self, samples: list[SampleRow]) -> None:
        for sample in samples:
            series = self._feed.series[sample.series_id]
            if "source" in series.labels and self.hardware.add(series, sample):
                continue
            canonical = canonical_name(series.name)
            if canonical is not None and (canonical.startswith(_ENGINE_PREFIX) or canonical == "target_up"):
                self.hardware.add_engine(series, sample, canonical)
            elif sample.step is None:
                self._counted.add_sample(sample, series.process)
            elif series.kind == "gauge":
                self._note_metric(sample, sample.step)
        self._marked += self._counted.advance(self.as_of_ns, None if self.has_span_steps else self.steps)
        if not self.has_span_steps and self._counted.lead is not None:
            self.lead = self._counted.lead

    def _note_metric(self, sample: SampleRow, step: int | None) -> None:
        series = self._feed.series[sample.series_id]
        self.metrics.add(series.name, step, sample.time_ns, sample.value, series.process)

    def _close_steps(self, marks: list[MarkRow]) -> list[Step]:
        for mark in marks:
            self.last_activity_ns = max(self.last_activity_ns, mark.last_ns)
        if self.has_span_steps:
            lead = [one for one in self.processes.values() if one.role == self.lead]
            has_ended = bool(lead) and all(self.state_of(one) == "ended" for one in lead)
            return self.steps.close(self.as_of_ns, has_ended=has_ended)
        for mark in marks:
            self._note_mark(mark)
        marked, self._marked = self._marked, []
        return marked

    def _note_mark(self, mark: MarkRow) -> None:
        if mark.step is None:
            return
        role = self.processes[mark.process].role
        if self.lead is None or leadership(role) > leadership(self.lead):
            self.lead = role
        if role == self.lead:
            step = self.steps.mark(mark.step, mark.time_ns, frozenset(), self.processes[mark.process].generation)
            if step is not None:
                self._marked.append(step)

    # -- questions

    def process_of_lane(self, lane_id: int) -> ProcessRow:
        """Return the process that a lane belongs to."""
        return self.processes[self.lanes[lane_id][0]]

    def role_of_lane(self, lane_id: int) -> str:
        """Return the role of the process that a lane belongs to."""
        return self.process_of_lane(lane_id).role

    def state_of(self, process: ProcessRow) -> Liveness:
        """Return the state of a process as of now; an imported one counts as live up to its last record."""
        state = self._states.get(process.number)
        if state is None:
            state = self._states[process.number] = self._state_of(process)
        return state

    def _state_of(self, process: ProcessRow) -> Liveness:
        state = liveness(
            final=process.ended and (not process.is_live or process.last_seen_ns <= self.as_of_ns + SECOND),
            last_seen_ns=max(process.last_seen_ns, self.listening_since_ns) if process.is_live else self.as_of_ns,
            heartbeat_s=process.heartbeat_s,
            now_ns=self.as_of_ns,
        )
        # The process that took its place says what is wrong now.
        return "ended" if state == "silent" and self._feed.is_replaced(process, self.as_of_ns) else state

    def silent_s(self, process: ProcessRow) -> float:
        """Return for how long nothing was heard of a process."""
        heard_ns = max(process.last_seen_ns, self.listening_since_ns)
        return max(0, self.as_of_ns - heard_ns) / SECOND if process.is_live else 0.0

    def workers(self) -> list[ProcessRow]:
        """Return the processes of the training itself, without scrape targets."""
        return self._workers

    def has_ended(self) -> bool:
        """Return whether every process said goodbye."""
        workers = self.workers()
        return bool(workers) and all(self.state_of(process) == "ended" for process in workers)

    def usual_s(self, role: str, name: str, share: float = 0.99) -> float | None:
        """Return how long something usually takes; None when it was seen fewer than three times."""
        durations = self.usual.get((role, name))
        return durations.quantile(share) if durations is not None and durations.count >= 3 else None

    def usual_gap_s(self) -> float:
        """Return for how long at most nothing finishes while all is well, to 1 % of the longer gaps."""
        return quantile(self._gaps, 0.99) if self._gaps else _SHORT_GAP_S

    def limit_s(self, row: SpanRow, shortest_s: float, factor: float) -> float:
        """Return from which age on an open span is suspicious; patient with one whose usual duration is unknown."""
        usual_s = self.usual_s(self.role_of_lane(row.lane_id), row.name)
        return _PATIENCE * shortest_s if usual_s is None else max(shortest_s, factor * usual_s)

    def age_s(self, start_ns: int) -> float:
        """Return how long ago a moment was."""
        return max(0, self.as_of_ns - start_ns) / SECOND

    def lanes_of(self, process: int) -> list[int]:
        """Return the lanes of a process, its own first."""
        found = [(lane is not None, lane_id) for lane_id, (owner, lane) in self.lanes.items() if owner == process]
        return [lane_id for _, lane_id in sorted(found)][:8]

    def sessions_between(self, start_ns: int, end_ns: int) -> list[SessionRow]:
        """Return the sessions that ended in a window."""
        found = []
        for session in reversed(self.sessions):
            if session.end_ns <= start_ns:
                break
            if session.end_ns <= end_ns:
                found.append(session)
        return found[::-1]

    def calls_between(self, key: tuple[str, str], start_ns: int, end_ns: int) -> list[Call]:
        """Return the phases of one name and tool that ended in a window."""
        found = []
        for call in reversed(self.calls.get(key, ())):
            if call.end_ns <= start_ns:
                break
            if call.end_ns <= end_ns:
                found.append(call)
        return found[::-1]
