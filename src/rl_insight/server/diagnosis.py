"""Diagnoses live runs, on a dedicated thread."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter

import msgspec

from rl_insight.collector.run_activity import GRACE_S
from rl_insight.diagnosis.run import LiveDiagnosis, replay
from rl_insight.diagnosis.settings import make_settings, rules_version
from rl_insight.server.alerts import Alerts
from rl_insight.server.config import DiagnosisSettings
from rl_insight.server.ingest_delay import IngestDelay
from rl_insight.server.live import LiveNotes
from rl_insight.server.stacks import StackRequests
from rl_insight.store import queries
from rl_insight.store.errors import RunNotFoundError
from rl_insight.store.queries import Coverage, Diagnosed, Finding
from rl_insight.store.queries.steps import StepWindow, step_windows
from rl_insight.store.run_store import RunStore
from rl_insight.store.runs import RunDirectory

logger = logging.getLogger(__name__)

_WATCH_S = 600.0
"""How long after its last batch a run is watched."""
_LAST_LOOKS_S = 60.0
"""In the last minute of that time, the findings are final: a later server need not evaluate the run again."""
_QUIET_S = 10.0
"""An import is diagnosed when no batch has arrived for this long."""
_REWRITE_S = 30.0
"""How often findings are written if only their numbers have changed."""
_CATCH_UP_S = 0.5
_MAX_SHARE = 0.02
"""Of a core: above this, evaluations are less frequent, which amortizes their fixed cost over more records."""
_LONGEST_PAUSE = 2
"""In intervals: stuck work is still reported within 30 s."""
_IS_LIVE = "SELECT count(*) FROM processes WHERE delay_ns IS NOT NULL"


class Watched:
    """A run that is being diagnosed."""

    def __init__(self, diagnosis: LiveDiagnosis) -> None:
        self.diagnosis = diagnosis
        self.written_s = 0.0
        """When a batch of the run was last written, by the monotonic clock."""
        self.imported_s = 0.0
        """The `written_s` up to which an import was diagnosed."""
        self.diagnosed: Diagnosed | None = None
        """The extent of the last complete evaluation, as in the store."""
        self.is_resumed = False
        """Whether the state of an earlier server was read from the store."""
        self.has_ended = False
        """Whether all processes of the run had ended when it was last evaluated."""
        self.last_step: StepWindow | None = None
        """The step that finished last, as queries show it."""
        self._steps_seen = 0
        self.kept: dict[str, tuple[Finding, float]] = {}
        """Findings as in the store, and when they were written."""
        self.announced: set[str] = set()
        """Findings announced as open and not yet as resolved, as in the store."""
        self.postponed: list[Finding] = []
        """The findings of the last evaluation, if alerts about some of them were postponed."""
        self.is_caught_up = False
        """Whether an evaluation has reached the present: earlier open findings may be resolved by then."""
        self.coverage: list[Coverage] | None = None
        """Rules without input data, as in the store."""
        self.covered_s = 0.0
        """When the coverage was last computed, by the monotonic clock."""

    def read_last_step(self, cursor: queries.Cursor) -> None:
        """Read the step that finished last, if another one may have: the query reads the steps of the entire run."""
        seen = self.diagnosis.steps_seen
        if seen == self._steps_seen and not self.diagnosis.has_stopped:
            return
        self._steps_seen = seen
        self.last_step = next((one for one in reversed(step_windows(cursor)[1]) if one.end_ns is not None), None)

    def findings(self) -> list[Finding]:
        """Return the findings of live diagnosis."""
        engine = self.diagnosis.engine
        return [] if engine is None else list(engine.run_findings.values())


class DiagnosisService:
    """Evaluates every recently written run, every few seconds."""

    def __init__(
        self,
        runs: RunDirectory,
        settings: DiagnosisSettings,
        live: LiveNotes,
        alerts: Alerts,
        stacks: StackRequests,
        ingest_delay: IngestDelay,
    ) -> None:
        self._runs = runs
        self._settings = settings
        self._rules = make_settings(settings.rules)
        self._version = rules_version(self._rules)
        self._live = live
        self._alerts = alerts
        self._stacks = stacks
        self._ingest_delay = ingest_delay
        self._watched: dict[str, Watched] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rl-insight-diagnosis", daemon=True)
        if settings.enabled:
            self._thread.start()

    def note(self, run_id: str) -> None:
        """Record that a run was written; called on the writer's thread."""
        if not self._settings.enabled:
            return
        with self._lock:
            watched = self._watched.get(run_id)
            if watched is None:
                watched = self._watched[run_id] = Watched(LiveDiagnosis(self._rules))
            watched.written_s = time.monotonic()

    def open_findings(self) -> dict[tuple[str, str, str], int]:
        """Return the number of open findings by run, rule and severity, without those explained by another one."""
        counts: Counter[tuple[str, str, str]] = Counter()
        for run_id, one in self._shown().items():
            findings = [finding for finding, _ in list(one.kept.values())]
            for finding in queries.top_findings(findings):
                if finding.status == "open":
                    counts[run_id, finding.rule, finding.severity] += 1
        return dict(counts)

    def last_steps(self) -> dict[str, StepWindow]:
        """Return the step that finished last in each watched run."""
        return {run_id: one.last_step for run_id, one in self._shown().items() if one.last_step is not None}

    def _shown(self) -> dict[str, Watched]:
        """Return the watched runs whose other metrics are still on `/metrics`."""
        now_s = time.monotonic()
        with self._lock:
            watched = dict(self._watched)
        return {run_id: one for run_id, one in watched.items() if not one.has_ended or now_s - one.written_s < GRACE_S}

    def close(self, timeout_s: float = 2.0) -> None:
        """Stop evaluating, and store the latest numbers of open findings; idempotent."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            return  # an evaluation is in progress, and writes its results itself
        with self._lock:
            watched, self._watched = self._watched, {}
        for run_id, one in watched.items():
            self._keep_last(run_id, one)

    def _keep_last(self, run_id: str, watched: Watched) -> None:
        """Store findings whose numbers have changed since they were last written."""
        found = watched.findings()
        if all(finding == watched.kept.get(finding.finding_id, (None,))[0] for finding in found):
            return
        try:
            with self._runs.open(run_id) as store:
                self._keep(run_id, watched, store, found, is_last=True)
        except RunNotFoundError:
            pass
        except Exception:
            logger.exception("cannot write the last findings of run %s", run_id)

    def _run(self) -> None:
        pause_s = self._settings.interval_s
        while not self._ingest_delay.wait(self._stop, pause_s):
            began_s = time.thread_time()
            with self._lock:
                watched = list(self._watched.items())
            is_behind = False
            for run_id, one in watched:
                try:
                    is_behind = not self._evaluate(run_id, one) or is_behind
                except RunNotFoundError:
                    self._forget(run_id)
                except Exception:
                    logger.exception("diagnosing run %s failed; it will be retried", run_id)
                if self._stop.is_set():
                    return
            pause_s = _CATCH_UP_S if is_behind else self._pause_s(time.thread_time() - began_s)

    def _pause_s(self, took_s: float) -> float:
        """Return how long to wait after evaluations that took this much CPU time."""
        interval_s = self._settings.interval_s
        return max(interval_s, min(took_s / _MAX_SHARE, _LONGEST_PAUSE * interval_s))

    def _forget(self, run_id: str, written_s: float | None = None) -> None:
        """Stop watching a run, unless it was written after `written_s`."""
        with self._lock:
            known = self._watched.get(run_id)
            if known is not None and written_s in {None, known.written_s}:
                del self._watched[run_id]

    def _evaluate(self, run_id: str, watched: Watched) -> bool:
        """Evaluate a run; return whether it is up to date."""
        written_s = watched.written_s
        age_s = time.monotonic() - written_s
        if age_s > _WATCH_S and not watched.postponed:
            self._keep_last(run_id, watched)
            self._forget(run_id)
            return True
        with self._runs.open(run_id) as store:
            with store.reader() as cursor:
                seen = self._seen(cursor, watched, age_s)
                if seen is not None and watched.diagnosed == seen:
                    if watched.diagnosis.engine is None and not watched.imported_s:  # by an earlier server
                        self._forget(run_id, written_s)
                    return True
                muted = frozenset(queries.muted_rules(cursor))
                is_done, is_over = True, False
                if self._is_live(cursor):
                    is_done = self._evaluate_live(cursor, watched)
                    is_over = is_done and age_s > (_QUIET_S if watched.has_ended else _WATCH_S - _LAST_LOOKS_S)
                    found, coverage = watched.findings(), self._coverage(watched)
                elif age_s > _QUIET_S and watched.imported_s < watched.written_s:
                    watched.imported_s = watched.written_s
                    report = replay(cursor, self._rules)
                    found, coverage, is_over = report.findings, report.coverage, True
                elif watched.postponed:
                    found, coverage, is_over = watched.postponed, None, True
                else:
                    return True
            self._keep(run_id, watched, store, found, is_last=watched.has_ended)
            if coverage is not None and coverage != watched.coverage:
                watched.coverage = coverage
                queries.COVERAGE.write(store, coverage)
            watched.is_caught_up = watched.is_caught_up or is_done
            if watched.is_caught_up:
                self._announce(run_id, watched, store, found, muted)
            if is_over and seen is not None and not watched.postponed:
                watched.diagnosed = seen
                queries.DIAGNOSED.write(store, seen)
        return is_done

    def _seen(self, cursor: queries.Cursor, watched: Watched, age_s: float) -> Diagnosed | None:
        """Return the extent of an evaluation now; None while the run is being written and nothing is final."""
        is_first, watched.is_resumed = not watched.is_resumed, True
        if is_first:
            watched.diagnosed, watched.announced = (
                queries.DIAGNOSED.read(cursor),
                set(queries.ANNOUNCED.read(cursor) or ()),
            )
        if age_s <= _QUIET_S and not (is_first and watched.diagnosed):
            return None
        return Diagnosed(self._version, queries.read_extent(cursor))

    def _evaluate_live(self, cursor: queries.Cursor, watched: Watched) -> bool:
        """Evaluate a live run, and request stacks of suspects; return whether it is up to date."""
        watched.diagnosis.listening_since_ns = self._ingest_delay.since_ns
        now_ns = time.time_ns()
        is_done = watched.diagnosis.evaluate(cursor, now_ns - self._ingest_delay.behind_ns(now_ns))
        watched.has_ended = watched.diagnosis.has_ended
        if is_done:
            watched.read_last_step(cursor)
        self._stacks.ask(watched.diagnosis.suspects())
        self._stacks.ask_neighbors(watched.diagnosis.newly_silent())
        return is_done

    @staticmethod
    def _is_live(cursor: queries.Cursor) -> bool:
        """Return whether processes of the run have sent to a server; those of an import have not."""
        ((processes,),) = cursor.execute(_IS_LIVE).fetchall()
        return bool(processes)

    @staticmethod
    def _coverage(watched: Watched) -> list[Coverage] | None:
        """Return the rules without input data, at intervals: they rarely change."""
        now_s = time.monotonic()
        if watched.diagnosis.engine is None or now_s - watched.covered_s < _REWRITE_S:
            return None
        watched.covered_s = now_s
        return watched.diagnosis.coverage()

    def _keep(
        self, run_id: str, watched: Watched, store: RunStore, found: list[Finding], *, is_last: bool = False
    ) -> None:
        """Store changed findings; if only their numbers changed, at intervals and at the end."""
        now_s = time.monotonic()
        after_s = 0.0 if is_last else _REWRITE_S
        changed = [one for one in found if _is_due(watched.kept.get(one.finding_id), one, now_s, after_s)]
        if changed:
            queries.write_findings(store, changed)
            watched.kept.update({finding.finding_id: (finding, now_s) for finding in changed})
            self._live.note_findings(run_id, len(changed))

    def _announce(
        self, run_id: str, watched: Watched, store: RunStore, found: list[Finding], muted: frozenset[str]
    ) -> None:
        """Send alerts, and store which findings have been announced."""
        before = set(watched.announced)
        is_complete = announce(self._alerts, run_id, watched.announced, found, muted)
        watched.postponed = [] if is_complete else found
        if watched.announced != before:
            queries.ANNOUNCED.write(store, sorted(watched.announced))


def announce(alerts: Alerts, run_id: str, announced: set[str], found: list[Finding], muted: frozenset[str]) -> bool:
    """Send an alert for each finding that opened or was resolved, and update `announced`.

    Returns:
        False if some alerts were not accepted: call it again later.
    """
    is_complete = True
    for finding in queries.top_findings(found):
        if finding.rule in muted:
            continue
        is_announced = finding.finding_id in announced
        if finding.status == "open" and not is_announced:
            if not alerts.are_wanted(finding):
                continue  # a finding that is not severe enough yet is sent when it becomes so
            if alerts.send(run_id, finding, "opened"):
                announced.add(finding.finding_id)
            else:
                is_complete = False
        elif finding.status == "resolved" and is_announced:
            if not alerts.are_wanted(finding) or alerts.send(run_id, finding, "resolved"):
                announced.discard(finding.finding_id)
            else:
                is_complete = False
    return is_complete


def _is_due(kept: tuple[Finding, float] | None, finding: Finding, now_s: float, after_s: float) -> bool:
    if kept is None:
        return True
    known, written_s = kept
    if (known.status, known.severity, known.explains) != (finding.status, finding.severity, finding.explains):
        return True
    if len(known.evidence) != len(finding.evidence):  # stacks have arrived
        return True
    return now_s - written_s >= after_s and msgspec.structs.replace(known, updated_ns=0) != msgspec.structs.replace(
        finding, updated_ns=0
    )
