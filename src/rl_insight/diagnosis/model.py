"""A run as of a point in time, as rules see it. Each `Tick` adds what happened since the previous one."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

import numpy as np

from rl_insight.diagnosis.activity import ActivityBook, Call, CallBook, PaceBook, calls_in
from rl_insight.diagnosis.counted import CountedSteps
from rl_insight.diagnosis.feed import Feed, Tick
from rl_insight.diagnosis.hardware import HardwareBook
from rl_insight.diagnosis.leaders import GenerationBook, Leaders
from rl_insight.diagnosis.names import state_kind
from rl_insight.diagnosis.robust import Column, Durations, quantile
from rl_insight.diagnosis.role_steps import RoleBook
from rl_insight.diagnosis.rows import (
    SECOND,
    EventRow,
    LossRow,
    MarkRow,
    ProcessRow,
    SampleRow,
    SessionRow,
    SpanRow,
    ended_between,
)
from rl_insight.diagnosis.span_table import NO_STEP, PHASE, SpanTable
from rl_insight.diagnosis.steps import WARM_UP_STEPS, ObservedStep, StepBook
from rl_insight.diagnosis.tracks import Metrics
from rl_insight.intake import Liveness, liveness, silence_ns
from rl_insight.metrics import GAUGE
from rl_insight.metrics.canonical import canonical_name
from rl_insight.schema.stacks import STACKS_EVENT, read_told
from rl_insight.store.queries.intervals import by_group
from rl_insight.store.queries.overdue import LEAST_SEEN, limit_s
from rl_insight.store.queries.step_definition import LEADS, leadership

_ENGINE_PREFIX = "engine_"
_KEPT_SESSIONS = 20_000
_KEPT_GAPS = 200
_SHORT_GAP_S = 5.0
_PATIENCE = 6.0
"""How much longer work may take if its usual duration is unknown."""
PATIENT_KINDS = frozenset({"checkpoint", "validation"})
"""Kinds of states during which nothing else may finish for a long time."""


class RunModel:
    """The run up to `as_of_ns`; read-only for rules."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.as_of_ns = 0
        self.processes = feed.processes
        self.lanes = feed.lanes
        self.steps = StepBook(feed.names)
        self.new_steps: list[ObservedStep] = []
        self.lead: str | None = None
        """The role whose steps are the run's steps."""
        self.has_span_steps = False
        self.roles = RoleBook(feed)
        self.metrics = Metrics()
        self._generations = GenerationBook(feed)
        self._counted = CountedSteps(feed, self.metrics, self.roles, self._generations)
        self._holds_spans = True
        """Whether spans without a step wait for a step counter."""
        self.hardware = HardwareBook()
        self.usual: dict[tuple[str, str], Durations] = {}
        """Durations of states and phases, by role and name."""
        self.pace = PaceBook()
        self.activity = ActivityBook()
        self.call_book = CallBook(feed)
        self.sessions: deque[SessionRow] = deque(maxlen=_KEPT_SESSIONS)
        self.sessions_seen = 0
        self.open_spans: list[SpanRow] = []
        self.open_sessions: list[SessionRow] = []
        self.events: deque[EventRow] = deque(maxlen=1_000)
        self.last_error: dict[int, EventRow] = {}
        self.stacks: dict[int, EventRow] = {}
        self.losses: list[LossRow] = []
        self.last_activity_ns = 0
        """When training code last finished anything."""
        self._gaps: deque[float] = deque(maxlen=_KEPT_GAPS)
        self.first_ns = 0
        self.listening_since_ns = 0
        """When the server began to listen: silence before that is due to the server."""
        self._workers: list[ProcessRow] = []
        self._unheard: list[ProcessRow] = []
        """Workers that have ended, or have not reported recently."""
        self._states: dict[int, Liveness] = {}
        self._leaders = Leaders(feed)
        self._waits: list[bool] = []
        """By name number: whether it is a wait."""
        self._is_warm = False
        """Whether enough steps have finished for durations to be typical."""
        self.memo: dict[object, Any] = {}
        """Results of this tick that several rules share."""

    # -- applying a tick

    def apply(self, tick: Tick) -> None:
        """Advance to a tick."""
        self.as_of_ns = tick.as_of_ns
        self.first_ns = self.first_ns or tick.as_of_ns
        self.open_spans, self.open_sessions = tick.open_spans, tick.open_sessions
        self.losses = tick.losses
        # A stored run also has processes that had not started yet.
        self._workers = [
            process
            for process in self.processes.values()
            if not process.is_target and process.started_ns + process.clock_offset_ns <= tick.as_of_ns
        ]
        # Nearly all are live, and calling `state_of` for each of ten thousand takes ten times as long.
        patience = {beat: silence_ns(beat) for beat in {process.heartbeat_s for process in self._workers}}
        self._states = {
            process.number: "live"
            for process in self._workers
            if not process.ended and self.as_of_ns - process.last_seen_ns <= patience[process.heartbeat_s]
        }
        self._unheard = [process for process in self._workers if process.number not in self._states]
        self.memo.clear()
        if self.steps.closed:
            self.activity.forget(self.steps.closed[-1].start_ns)  # rules have evaluated the steps before
        self._note_gap(tick)
        self._generations.begin(self.as_of_ns)
        if tick.spans is not None:
            self._choose_lead(tick.spans)
        self._holds_spans = not self.has_span_steps and (self._counted.is_used or not self.steps.total)
        self._is_warm = self.steps.total >= WARM_UP_STEPS
        if tick.spans is not None and tick.spans.size:
            self._apply_spans(tick.spans)
            self.last_activity_ns = max(self.last_activity_ns, int(tick.spans.end_ns[-1]))
        for row in tick.open_spans:
            if self.role_of_lane(row.lane_id) == self.lead and row.step is not None:
                generation = self._generations.of_process(self.lanes[row.lane_id][0], row.start_ns, row.start_ns)
                self.steps.note_open(row.start_ns, row.step, generation)
        for session in tick.sessions:
            self.sessions.append(session)
            self.last_activity_ns = max(self.last_activity_ns, session.end_ns)
        self.sessions_seen += len(tick.sessions)
        for event in tick.events:
            if event.name == "error":
                self.last_error[event.process] = event
            elif event.name == STACKS_EVENT:
                self.stacks[self._subject(event)] = event
            else:
                self.events.append(event)
        self.steps.note_restart(self._generations.restarted_ns)
        self.new_steps = self._close_steps(tick.marks, self._apply_samples(tick.samples))
        self.roles.settle(self.as_of_ns)

    def _subject(self, event: EventRow) -> int:
        """Return the process whose stacks an event contains: the sender, or one that could not respond itself."""
        process_id = read_told(event.text).process_id
        if process_id is None:
            return event.process
        return next((one.number for one in self.processes.values() if one.process_id == process_id), event.process)

    def _note_gap(self, tick: Tick) -> None:
        """Record how long nothing had finished before something did."""
        ends = [tick.sessions[0].end_ns] if tick.sessions else []
        first = None if tick.spans is None or not tick.spans.size else tick.spans
        ends += [] if first is None else [int(first.end_ns[0])]
        ends += [tick.marks[0].time_ns] if tick.marks else []
        is_warming_up = self.steps.current is not None and self.steps.total < WARM_UP_STEPS
        if not ends or not self.last_activity_ns or is_warming_up:
            return
        ended_ns = min(ends)
        gap_s = (ended_ns - self.last_activity_ns) / SECOND
        if gap_s <= _SHORT_GAP_S:
            return
        # Validation, checkpoints and a resume may take longer, so they say nothing about other gaps.
        is_special = (
            first is not None
            and int(first.end_ns[0]) == ended_ns
            and state_kind(self._feed.names[first.name_id[0]]) in PATIENT_KINDS
        )
        is_resume = any(self.last_activity_ns < one.started_ns + one.clock_offset_ns for one in self._workers)
        if not is_special and not is_resume:
            self._gaps.append(gap_s)

    def _choose_lead(self, spans: SpanTable) -> None:
        is_sure = self.lead is not None and self.has_span_steps and leadership(self.lead) == LEADS
        if is_sure and sum(leadership(role) == LEADS for role in self._feed.roles) == 1:
            return
        is_counted = (spans.step != NO_STEP) & (spans.is_state | (spans.depth == 0)) & (spans.segment != PHASE)
        self._leaders.add(spans.take(is_counted))
        best = self._leaders.best
        if best is None or (self._counted.is_used and leadership(best) < LEADS):
            return
        is_equal = self.lead is not None and leadership(best) == leadership(self.lead) and best != self.lead
        # Later, an equal role would cost the history of steps.
        is_better = is_equal and self.has_span_steps and self.steps.total < WARM_UP_STEPS
        if self.lead is None or leadership(best) > leadership(self.lead) or is_better:
            if self.lead is not None and self.lead != best:
                self.steps = StepBook(self._feed.names)
            self.lead, self.has_span_steps = best, True
            self._feed.marks_define_steps = False

    def _apply_spans(self, spans: SpanTable) -> None:
        owners, roles = self._feed.owners(spans)
        self._note_durations(spans, roles)
        is_phase = spans.segment == PHASE
        is_interval = is_phase | spans.is_state
        self._waits += [state_kind(name) == "wait" for name in self._feed.names[len(self._waits) :]]
        waits = np.array(self._waits, np.bool_)[spans.name_id]
        self.activity.note(spans.take(is_interval), owners[is_interval], waits[is_interval])
        self.call_book.add(spans.take(is_phase), owners[is_phase])
        self._note_in_steps(spans.take(~is_phase), roles[~is_phase])

    def _note_durations(self, spans: SpanTable, roles: Column) -> None:
        self.pace.begin(self.as_of_ns)
        is_interval = spans.is_state | (spans.segment == PHASE)
        is_usual = np.full(spans.size, self._is_warm or not self.has_span_steps) | (spans.step == NO_STEP)
        for key, places in by_group(roles * len(self._feed.names) + spans.name_id):
            role, name = divmod(key, len(self._feed.names))
            work = (self._feed.roles[role], self._feed.names[name])
            durations = self.usual.setdefault(work, Durations())
            usual = places[is_usual[places]]
            if usual.size:
                self.pace.note(work, spans.seconds[usual[is_interval[usual]]])
                durations.add(spans.seconds[usual])

    def _note_in_steps(self, spans: SpanTable, roles: Column) -> None:
        if self._holds_spans:
            is_held = spans.step == NO_STEP
            self._counted.hold(spans.take(is_held))
            spans, roles = spans.take(~is_held), roles[~is_held]
        stepless = np.flatnonzero(spans.step == NO_STEP)
        places = np.flatnonzero(roles == self._feed.roles.index(self.lead)) if self.lead is not None else roles[:0]
        led = spans.take(places)
        # A state without a step belongs to the running one.
        running = self.steps.note(led, self._generations.of_spans(led), np.searchsorted(places, stepless, side="right"))
        steps = spans.step.copy()
        steps[stepless] = running
        is_noted = spans.is_state & (steps != NO_STEP)
        self.roles.add(spans.take(is_noted), steps[is_noted])

    def _apply_samples(self, samples: list[SampleRow]) -> list[ObservedStep]:
        """Add samples; returns the steps that a step counter ended."""
        for sample in samples:
            series = self._feed.series[sample.series_id]
            if "source" in series.labels and self.hardware.add(series, sample):
                continue
            canonical = canonical_name(series.name)
            if canonical is not None and canonical.startswith(_ENGINE_PREFIX):
                self.hardware.add_engine(series, sample, canonical)
            elif canonical == "target_up":
                self.hardware.add_target(series, sample)
            elif sample.step is None:
                self._counted.add_sample(sample, series.process)
            elif series.kind == GAUGE.name:
                self.metrics.add(series.name, sample.step, sample.time_ns, sample.value, series.process)
        counted = self._advance_counted()
        if not self.has_span_steps and self._counted.lead is not None:
            self.lead = self._counted.lead
        return counted

    def _advance_counted(self) -> list[ObservedStep]:
        """Return the steps that a step counter ended; it takes precedence over spans of roles that rarely lead."""
        is_sure = self.has_span_steps and self.lead is not None and leadership(self.lead) == LEADS
        steps = StepBook(self._feed.names) if self.has_span_steps else self.steps
        counted = self._counted.advance(self.as_of_ns, None if is_sure else steps, self.open_spans)
        if counted and self.has_span_steps:
            self.steps, self.has_span_steps = steps, False
        return counted

    def _close_steps(self, marks: list[MarkRow], counted: list[ObservedStep]) -> list[ObservedStep]:
        for mark in marks:
            self.last_activity_ns = max(self.last_activity_ns, mark.last_ns)
        if self.has_span_steps:
            return self.steps.close(self.as_of_ns, has_ended=self._has_last_step())
        return counted + [step for mark in marks if (step := self._note_mark(mark)) is not None]

    def _note_mark(self, mark: MarkRow) -> ObservedStep | None:
        """Add a mark; returns the step that it ends."""
        process = self.processes[mark.process]
        if mark.step is not None and (self.lead is None or leadership(process.role) > leadership(self.lead)):
            self.lead = process.role
        if mark.step is None or process.role != self.lead:
            return None
        generation = self._generations.of_process(process.number, mark.time_ns, mark.last_ns)
        return self.steps.mark(mark.step, mark.time_ns, generation)

    # -- queries

    def process_of_lane(self, lane_id: int) -> ProcessRow:
        """Return the process of a lane."""
        return self.processes[self.lanes[lane_id][0]]

    def role_of_lane(self, lane_id: int) -> str:
        """Return the role of the process of a lane."""
        return self.process_of_lane(lane_id).role

    def state_of(self, process: ProcessRow) -> Liveness:
        """Return the state of a process as of now; an imported one is live up to its last record."""
        if (known := self._states.get(process.number)) is not None:
            return known
        state = liveness(
            final=process.ended and (not process.is_live or process.last_seen_ns <= self.as_of_ns + SECOND),
            last_seen_ns=max(process.last_seen_ns, self.listening_since_ns) if process.is_live else self.as_of_ns,
            heartbeat_s=process.heartbeat_s,
            now_ns=self.as_of_ns,
        )
        if state == "silent" and self._feed.is_replaced(process, self.as_of_ns):
            state = "ended"  # its replacement shows what is wrong now
        self._states[process.number] = state
        return state

    def silent_s(self, process: ProcessRow) -> float:
        """Return how long a process has been silent."""
        heard_ns = max(process.last_seen_ns, self.listening_since_ns)
        return max(0, self.as_of_ns - heard_ns) / SECOND if process.is_live else 0.0

    def workers(self) -> list[ProcessRow]:
        """Return the processes of the run, without scrape targets."""
        return self._workers

    def silent_workers(self) -> list[ProcessRow]:
        """Return the workers that fell silent without a clean exit."""
        return [process for process in self._unheard if self.state_of(process) == "silent"]

    def remaining(self) -> int:
        """Return how many workers have not ended."""
        return len(self._workers) - sum(self.state_of(process) == "ended" for process in self._unheard)

    def largest_role(self) -> int:
        """Return the number of processes of the largest role."""
        return max(Counter(process.role for process in self._workers).values(), default=0)

    def has_ended(self) -> bool:
        """Return whether every process exited cleanly."""
        return bool(self._workers) and not self.remaining()

    def lead_has_ended(self) -> bool:
        """Return whether every process of the leading role exited cleanly: training has ended."""
        lead = [one for one in self._workers if one.role == self.lead]
        return bool(lead) and all(self.state_of(one) == "ended" for one in lead)

    def _has_last_step(self) -> bool:
        """Return whether the step that began last is complete: training has ended, for imports after all records."""
        is_read = self.as_of_ns >= self._feed.newest_ns or any(
            one.is_live for one in self._workers if one.role == self.lead
        )
        return is_read and self.lead_has_ended()

    def lead_has_stopped(self) -> bool:
        """Return whether every process of the leading role has exited or fallen silent."""
        return self.lead is not None and not any(
            one.role == self.lead and self.state_of(one) == "live" for one in self._workers
        )

    def usual_s(self, role: str, name: str, share: float = 0.99) -> float | None:
        """Return a percentile of the duration of a state or phase; None if it was seen fewer than three times."""
        durations = self.usual.get((role, name))
        return durations.quantile(share) if durations is not None and durations.count >= LEAST_SEEN else None

    def usual_gap_s(self) -> float:
        """Return the longest usual time in which nothing finishes: the 99th percentile of the longer gaps."""
        return quantile(self._gaps, 0.99) if self._gaps else _SHORT_GAP_S

    def limit_s(self, row: SpanRow, shortest_s: float, factor: float) -> float:
        """Return the age from which an open span is suspicious; longer if its usual duration is unknown."""
        usual_s = self.usual_s(self.role_of_lane(row.lane_id), row.name)
        return _PATIENCE * shortest_s if usual_s is None else limit_s(usual_s, shortest_s, factor)

    def age_s(self, start_ns: int) -> float:
        """Return the seconds since a time."""
        return max(0, self.as_of_ns - start_ns) / SECOND

    def hosts_of(self, processes: Column) -> Column:
        """Return the number of the host of each process."""
        return self._feed.hosts_of(processes)

    def lanes_of(self, process: int) -> list[int]:
        """Return the lanes of a process, its default lane first."""
        found = [(lane is not None, lane_id) for lane_id, (owner, lane) in self.lanes.items() if owner == process]
        return [lane_id for _, lane_id in sorted(found)][:8]

    def sessions_between(self, start_ns: int, end_ns: int) -> list[SessionRow]:
        """Return the sessions that ended in a window."""
        return ended_between(self.sessions, start_ns, end_ns)

    def calls_between(self, key: tuple[str, str], start_ns: int, end_ns: int) -> list[Call]:
        """Return the phases of one name and tool that ended in a window; only the latest if there are too many."""
        return calls_in(self.call_book.by_tool.get(key, deque()), start_ns, end_ns)
