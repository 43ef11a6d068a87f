"""Applies the rules to a run: confirms signals, keeps findings open while they last, and ranks causes over symptoms."""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.rows import SECOND
from rl_insight.diagnosis.rule import Rule
from rl_insight.diagnosis.signals import Observation, Signal
from rl_insight.diagnosis.stacks import stack_evidence
from rl_insight.store.queries.findings import Coverage, Finding

logger = logging.getLogger(__name__)

_SLACK_NS = 120 * SECOND
"""A symptom may be confirmed before its cause: it is explained if it began at most this long before the cause."""
_SLACK_STEPS = 10
_SAME_STEPS = 20
_SAME_NS = 300 * SECOND
_MAX_CASES = 2_000
_IMPORTED = "@imported"


@dataclass(slots=True)
class Case:
    """The recent observations of one fault of a rule."""

    rule: Rule
    identity: tuple[str, ...]
    seen: deque[tuple[bool, Observation]]
    signal: Signal
    family: str
    finding: Finding | None = None
    first: Observation | None = None
    """Where it began, while it is seen often enough."""
    count: int = 0
    """Observations since then."""

    @property
    def hits(self) -> int:
        """The number of recent observations that show it."""
        return sum(was_bad for was_bad, _ in self.seen)

    def is_confirmed(self, observation: Observation) -> bool:
        """Return whether it was seen often enough and for long enough."""
        asked = self.rule.confirmation
        if self.hits < asked.needed:
            self.first = None
            return False
        if self.first is None:
            self.first, self.count = next(one for was_bad, one in self.seen if was_bad), asked.needed - 1
        self.count += 1
        began_ns = self.first.start_ns or self.first.time_ns
        return observation.time_ns - began_ns >= asked.lasting_s * SECOND or self.count >= asked.enough


@dataclass(slots=True)
class Engine:
    """The rules of one run and their findings."""

    rules: list[Rule]
    run_findings: dict[str, Finding] = field(default_factory=dict)
    opened_ns: dict[str, int] = field(default_factory=dict)
    """When each finding was first reported, by id."""
    _cases: dict[tuple[str, tuple[str, ...]], Case] = field(default_factory=dict)
    _resolved: dict[tuple[str, tuple[str, ...]], Finding] = field(default_factory=dict)
    """The last finding of each resolved fault: if the fault returns soon, it is the same finding."""
    _failed: set[str] = field(default_factory=set)
    _model: RunModel = field(init=False)

    def evaluate(self, model: RunModel) -> None:
        """Evaluate all rules as of the model's time."""
        self._model = model
        for rule in self.rules:
            try:
                for observation in rule.evaluate(model):
                    self._take(rule, observation)
            except Exception:
                # A bug in one rule must not silence the others, nor fill the log every five seconds.
                if rule.name not in self._failed:
                    self._failed.add(rule.name)
                    logger.exception("the rule %s failed and is skipped", rule.name)
        self._explain(model.as_of_ns)

    def coverage(self, model: RunModel) -> list[Coverage]:
        """Return the rules that lack their inputs."""
        found = [(rule.name, rule.missing(model)) for rule in self.rules]
        return [Coverage(name, missing) for name, missing in found if missing is not None]

    def open_findings(self) -> list[Finding]:
        """Return the open findings."""
        return [finding for finding in self.run_findings.values() if finding.status == "open"]

    def _take(self, rule: Rule, observation: Observation) -> None:
        signals = {signal.identity: signal for signal in observation.signals}
        for identity, signal in signals.items():
            key = (rule.name, identity)
            if key not in self._cases and len(self._cases) < _MAX_CASES:
                self._cases[key] = Case(
                    rule, identity, deque(maxlen=rule.confirmation.window), signal, observation.family
                )
        for key, case in [(key, case) for key, case in self._cases.items() if case.rule is rule]:
            if case.family != observation.family:
                continue
            found = signals.get(case.identity)
            case.seen.append((found is not None, observation))
            if found is not None:
                case.signal = found
            self._judge(case, observation, is_bad=found is not None)
            if not case.hits and case.finding is None:
                del self._cases[key]

    def _judge(self, case: Case, observation: Observation, *, is_bad: bool) -> None:
        if case.finding is None:
            if case.is_confirmed(observation):
                self._renew(case, self._opened(case, observation), observation)
        elif case.hits < case.rule.confirmation.kept:
            finding = msgspec.structs.replace(case.finding, status="resolved", updated_ns=observation.time_ns)
            case.finding = None
            self._resolved[case.rule.name, case.identity] = self.run_findings[finding.finding_id] = finding
        elif is_bad:
            self._renew(case, case.finding, observation)

    def _opened(self, case: Case, observation: Observation) -> Finding:
        first, case.first = case.first or observation, None
        signal = case.signal
        before = self._resolved.get((case.rule.name, case.identity))
        if before is not None and _continues(before, first):
            return self.run_findings[before.finding_id]
        return Finding(
            finding_id=finding_id(case.rule.name, case.identity, signal.anchor or f"step {first.step}"),
            rule=case.rule.name,
            severity=signal.severity,
            title=signal.title,
            start_ns=signal.start_ns if signal.start_ns is not None else first.start_ns or first.time_ns,
            end_ns=observation.time_ns,
            first_step=first.step,
        )

    def _renew(self, case: Case, known: Finding, observation: Observation) -> None:
        signal, evidence = case.signal, case.signal.evidence
        if case.rule.asks_stacks:
            evidence = evidence + stack_evidence(self._model, signal.culprit, known.start_ns)
        case.finding = self.run_findings[known.finding_id] = msgspec.structs.replace(
            known,
            severity=signal.severity,
            status="open",
            title=signal.title,
            explanation=signal.explanation,
            remedy=case.rule.remedy,
            culprit=signal.culprit,
            impact=signal.impact,
            last_step=observation.step,
            end_ns=max(known.end_ns, observation.time_ns),
            lanes=signal.lanes[:16],
            sessions=signal.sessions[:16],
            metrics=signal.metrics[:16],
            evidence=evidence,
            updated_ns=observation.time_ns,
        )
        self.opened_ns.setdefault(known.finding_id, self._model.as_of_ns)

    def _explain(self, as_of_ns: int) -> None:
        """List the redundant findings under their cause."""
        open_cases = [case for case in self._cases.values() if case.finding is not None]
        for cause in open_cases:
            if not cause.rule.explains or cause.finding is None:
                continue
            redundant = [
                symptom.finding.finding_id
                for symptom in open_cases
                if symptom.finding is not None and _explains(cause, symptom)
            ]
            listed = sorted({*cause.finding.explains, *redundant})
            if listed != cause.finding.explains:
                cause.finding = msgspec.structs.replace(cause.finding, explains=listed, updated_ns=as_of_ns)
                self.run_findings[cause.finding.finding_id] = cause.finding


def _continues(before: Finding, first: Observation) -> bool:
    """Return whether a recurring fault is still the same one."""
    if before.last_step is not None and first.step is not None:
        return abs(first.step - before.last_step) <= _SAME_STEPS
    return first.time_ns - before.end_ns <= _SAME_NS


def _explains(cause: Case, symptom: Case) -> bool:
    if cause is symptom or symptom.rule.name not in cause.rule.explains or cause.rule.rank >= symptom.rule.rank:
        return False
    assert cause.finding is not None and symptom.finding is not None  # noqa: S101, PT018  # both are open
    if cause.finding.severity == "info" != symptom.finding.severity:
        return False  # a fault that is not worth a warning does not cause one
    one, other = cause.finding, symptom.finding
    hosts = {host for host in (one.culprit.get("host"), other.culprit.get("host")) if host}
    if cause.rule.is_local and len(hosts) > 1:
        return False
    if other.start_ns >= one.start_ns - _SLACK_NS:
        return True
    if one.first_step is None or other.first_step is None:
        return False
    return other.first_step >= one.first_step - _SLACK_STEPS


def finding_id(rule: str, identity: Iterable[str], anchor: str) -> str:
    """Return the id of a fault: the same for the same rule, culprit and start, live and offline."""
    # The ids of imported processes are marked; the fault is the same.
    text = "\0".join((rule, *identity, anchor)).replace(_IMPORTED, "")
    return f"{rule}-{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"
