"""Diagnoses a run: a stored one from beginning to end, or one that is being recorded."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rl_insight.diagnosis.engine import Engine
from rl_insight.diagnosis.feed import Feed, LiveFeed, ReplayFeed
from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.rows import SECOND
from rl_insight.diagnosis.rules import make_rules
from rl_insight.store.queries.base import Cursor
from rl_insight.store.queries.findings import Coverage, Finding, muted_rules

TICK_NS = 5 * SECOND
"""Runs are evaluated every five seconds of recorded time, at multiples of it."""
LAG_NS = 2 * SECOND
"""How long records take to arrive; live evaluation lags by this much."""
WATCH_NS = 600 * SECOND
"""How long a run is watched after its last heartbeat or record."""
_BACKFILL_NS = 30 * SECOND
_LONGEST_NS = 90 * 86_400 * SECOND
_LAST_NS = 3600 * SECOND
"""If records are further apart than `_LONGEST_NS`, as after a clock jump, only this much is replayed.

Replaying the 56 years since 1970 would take days."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Which rules are evaluated, and with which thresholds."""

    values: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    off: frozenset[str] = frozenset()
    only: frozenset[str] | None = None
    """Names of rules whose findings are reported; the others still distinguish causes from symptoms."""


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of a run."""

    findings: list[Finding]
    coverage: list[Coverage]
    as_of_ns: int
    opened_ns: dict[str, int] = field(default_factory=dict)


class Diagnosis:
    """A run and its rules, advanced in ticks."""

    def __init__(self, feed: Feed, settings: Settings | None = None) -> None:
        chosen = settings or Settings()
        self.feed = feed
        self.model = RunModel(feed)
        self.engine = Engine(list(make_rules(chosen.values, off=chosen.off)))
        self.as_of_ns = 0

    def advance(self, first_ns: int, until_ns: int, budget_s: float | None = None) -> bool:
        """Evaluate every tick up to a time; returns False if the budget ran out first."""
        began = time.perf_counter()
        tick_ns = self.as_of_ns or first_ns // TICK_NS * TICK_NS
        while tick_ns + TICK_NS <= until_ns:
            tick_ns += TICK_NS
            self.model.apply(self.feed.tick(tick_ns))
            self.engine.evaluate(self.model)
            self.as_of_ns = tick_ns
            if budget_s is not None and time.perf_counter() - began > budget_s:
                return tick_ns + TICK_NS > until_ns
        return True


def end_of_watch(feed: ReplayFeed, now_ns: int) -> int:
    """Return the time up to which a server would have watched a stored run."""
    last = feed.newest_ns
    workers = [process for process in feed.processes.values() if not process.is_target]
    if all(process.ended for process in workers) or not any(process.is_live for process in workers):
        return last + 2 * TICK_NS
    seen = max(process.last_seen_ns for process in workers if process.is_live)
    return min(now_ns, max(last, seen) + WATCH_NS)


def replay(
    cursor: Cursor, settings: Settings | None = None, *, at_ns: int | None = None, at_step: int | None = None
) -> Report:
    """Diagnose a stored run as a server would have while it ran, up to a time or a step."""
    feed = ReplayFeed(cursor)
    diagnosis = Diagnosis(feed, settings)
    if not feed.newest_ns:
        return Report([], diagnosis.engine.coverage(diagnosis.model), 0)
    until = end_of_watch(feed, time.time_ns())
    if at_ns is not None:
        until = min(until, at_ns)
    first = feed.first_ns
    if until - first > _LONGEST_NS:
        first = until - _LAST_NS
        feed.begin_at(first)
    if at_step is None:
        diagnosis.advance(first, until + TICK_NS)
    else:
        tick_ns = first
        while tick_ns < until and not any(one.number >= at_step for one in diagnosis.model.new_steps):
            tick_ns += TICK_NS
            diagnosis.advance(first, tick_ns)
    findings = list(diagnosis.engine.run_findings.values())
    only = settings.only if settings else None
    if only is not None:
        findings = [finding for finding in findings if finding.rule in only]
    coverage = diagnosis.engine.coverage(diagnosis.model)
    return Report(findings, coverage, diagnosis.as_of_ns, diagnosis.engine.opened_ns)


def without_muted(cursor: Cursor, report: Report) -> Report:
    """Return a report without the findings of rules that are muted for the run."""
    muted = set(muted_rules(cursor))
    return replace(report, findings=[finding for finding in report.findings if finding.rule not in muted])


def sketch_coverage(cursor: Cursor) -> list[Coverage]:
    """Return the rules that lack their inputs in the last minutes of a run that was never diagnosed."""
    feed = ReplayFeed(cursor)
    diagnosis = Diagnosis(feed)
    diagnosis.model.apply(feed.last_tick())
    return diagnosis.engine.coverage(diagnosis.model)


class LiveDiagnosis:
    """A run that is being recorded."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.listening_since_ns = 0
        """When the server caught up with the senders: silence before that is due to the server."""
        self._feed = LiveFeed()
        self._diagnosis = Diagnosis(self._feed, settings)
        self._is_evaluated = False
        self._newest_ns = 0
        self._asked_about: set[tuple[str, str]] = set()
        self._missed: set[tuple[str, int]] = set()
        """Silent processes, and when each last reported."""

    @property
    def engine(self) -> Engine | None:
        """The engine; None before the first evaluation."""
        return self._diagnosis.engine if self._is_evaluated else None

    @property
    def has_ended(self) -> bool:
        """Whether every process of the run exited cleanly."""
        return self._diagnosis.model.has_ended()

    @property
    def steps_seen(self) -> int:
        """The number of steps that have finished so far."""
        return self._diagnosis.model.steps.total

    @property
    def has_stopped(self) -> bool:
        """Whether every process of the leading role has exited or fallen silent."""
        return self._diagnosis.model.lead_has_stopped()

    def is_current(self, now_ns: int) -> bool:
        """Return whether everything up to a time was evaluated."""
        return self._diagnosis.as_of_ns + TICK_NS > now_ns - LAG_NS

    def coverage(self) -> list[Coverage]:
        """Return the rules that lack their inputs."""
        return self._diagnosis.engine.coverage(self._diagnosis.model)

    def suspects(self) -> list[str]:
        """Return the processes whose stacks would explain work that has just become stuck, or critical."""
        found: list[str] = []
        model, engine = self._diagnosis.model, self._diagnosis.engine
        asking = {rule.name for rule in engine.rules if rule.asks_stacks}
        for finding in engine.open_findings():
            if finding.rule in asking and (finding.finding_id, finding.severity) not in self._asked_about:
                self._asked_about.add((finding.finding_id, finding.severity))
                found = [one.process_id for one in model.workers() if model.state_of(one) == "live"]
        return found

    def newly_silent(self) -> dict[str, str]:
        """Return the processes that fell silent since the last call, with their hosts: they may be stuck in C code."""
        silent = {(one.process_id, one.last_seen_ns): one for one in self._diagnosis.model.silent_workers()}
        new = [one for key, one in silent.items() if key not in self._missed]
        self._missed = set(silent)
        return {one.process_id: one.host for one in new if one.host}

    def evaluate(self, cursor: Cursor, now_ns: int, budget_s: float = 0.2) -> bool:
        """Read new records and evaluate what is due; returns False if there is more to do than the budget allows."""
        self._is_evaluated = True
        feed = self._feed
        self._diagnosis.model.listening_since_ns = self.listening_since_ns
        feed.poll(cursor)
        if not feed.first_ns:
            return True
        until = now_ns - LAG_NS
        is_moving, self._newest_ns = feed.newest_ns > self._newest_ns, feed.newest_ns
        if feed.has_more or (is_moving and feed.newest_ns < until - _BACKFILL_NS):
            # Old records are still arriving: missing ones must not look like a stall.
            until = min(until, feed.newest_ns)
        is_done = self._diagnosis.advance(feed.first_ns, until, budget_s)
        return is_done and not feed.has_more
