"""Faults of telemetry itself (losses, silent processes, clocks that are off), and alerts that training code raises."""

from __future__ import annotations

from collections.abc import Iterator

from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.rows import SECOND, EventRow, ProcessRow
from rl_insight.diagnosis.rule import AT_ONCE, Parameter, Rule, TickRule
from rl_insight.diagnosis.signals import Observation, Signal, culprit_of, fact, where
from rl_insight.intake import has_cadence
from rl_insight.schema.names import SEVERITIES, Severity
from rl_insight.schema.records import read_object
from rl_insight.words import counted, seconds_text


class TelemetryGap(TickRule):
    """Telemetry is missing: records were lost, a process fell silent, or a clock is far off."""

    threshold = "Any loss; a process that has missed three heartbeats; a clock that is off by {clock_s} s."
    remedy = "Raise the buffer sizes, record less, or find out why the process cannot reach the server."
    parameters = (Parameter("clock_s", 5.0, "Maximum clock offset, in seconds"),)
    rank = 90

    def _look(self, model: RunModel) -> list[Signal]:
        return [*self._lost(model), *self._silent(model), *self._clocks(model)]

    @staticmethod
    def _lost(model: RunModel) -> Iterator[Signal]:
        for loss in model.losses[:20]:
            process = model.processes[loss.process]
            lost, reason = counted(loss.lost, loss.kind.removesuffix("s")), loss.reason.replace("_", " ")
            why = "The lost records are missing from every view and figure of this run."
            signal = _about(process, "lost", f"{where(process)} lost {lost} ({reason})", why)
            signal.key = (process.process_id, loss.kind, loss.reason)
            signal.evidence = [fact("lost", loss.lost, loss.kind)]
            yield signal

    @staticmethod
    def _silent(model: RunModel) -> Iterator[Signal]:
        # A process without a heartbeat has no clean exit either: it may just have ended.
        silent = [process for process in model.silent_workers() if not has_cadence(process.heartbeat_s)]
        # Helper processes are often killed when training has ended.
        severity: Severity = "info" if model.lead_has_ended() else "warning"
        if len(silent) > 3:
            hosts = {process.host for process in silent}
            at = f" on {hosts.pop()}" if len(hosts) == 1 else ""
            title = f"{counted(len(silent), 'process')}{at} went silent"
            why = "They stopped sending heartbeats without a clean exit."
            start_ns = min(process.last_seen_ns for process in silent)
            culprit = {"role": silent[0].role}
            yield Signal(culprit, title, why, severity, key=("silent",), anchor="silent", start_ns=start_ns)
            return
        for process in silent:
            title = f"{where(process)} has been silent for {seconds_text(model.silent_s(process))}"
            why = "It stopped sending heartbeats without a clean exit: it crashed, or cannot reach the server."
            signal = _about(process, "silent", title, why, severity)
            signal.start_ns = process.last_seen_ns
            every = f"heartbeat every {process.heartbeat_s:g} s"
            signal.evidence = [fact("silent", model.silent_s(process), "s", every)]
            yield signal

    def _clocks(self, model: RunModel) -> Iterator[Signal]:
        largest_ns = self["clock_s"] * SECOND
        for process in [one for one in model.workers() if abs(one.clock_offset_ns) > largest_ns][:5]:
            offset_s = process.clock_offset_ns / SECOND
            title = f"The clock of {where(process)} is off by {seconds_text(abs(offset_s))}"
            why = "Its records are aligned, but do not trust short intervals between machines."
            signal = _about(process, "clock", title, why)
            signal.evidence = [fact("offset", offset_s, "s")]
            yield signal


def _about(process: ProcessRow, what: str, title: str, why: str, severity: Severity = "info") -> Signal:
    return Signal(culprit_of(process), title, why, severity, key=(process.process_id, what), anchor=what)


class UserAlert(Rule):
    """Training code raised an alert."""

    name = "alert"
    threshold = "Every call to `rl_insight.alert(title, text, level)`."
    remedy = "See the text of the alert."
    confirmation = AT_ONCE
    rank = 2

    def _begin(self) -> None:
        self._until_ns = 0

    def evaluate(self, model: RunModel) -> Iterator[Observation]:
        """Report new alerts."""
        new = [event for event in model.events if event.name == "alert" and event.time_ns > self._until_ns]
        for event in new:
            self._until_ns = max(self._until_ns, event.time_ns)
            yield Observation(event.time_ns, event.step, [self._signal(model, event)], family=str(event.time_ns))

    @staticmethod
    def _signal(model: RunModel, event: EventRow) -> Signal:
        alert = read_object(event.text)
        title, level = str(alert.get("title") or "Alert"), str(alert.get("level") or "warning")
        severity: Severity = next((one for one in SEVERITIES if one == level), "warning")
        process = model.processes[event.process]
        return Signal(
            culprit_of(process), title, str(alert.get("text") or ""), severity, key=(title,), anchor=str(event.time_ns)
        )
