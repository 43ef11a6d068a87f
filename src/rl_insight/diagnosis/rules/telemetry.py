"""The telemetry itself: what was lost, and who fell silent."""

from __future__ import annotations

from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.rows import SECOND
from rl_insight.diagnosis.rule import MomentRule, Parameter, Severity, Signal, culprit_of, fact, where
from rl_insight.diagnosis.words import counted, seconds_text
from rl_insight.intake import has_cadence


class TelemetryGap(MomentRule):
    """Telemetry is missing: records were lost, a process fell silent, or a clock is far off."""

    name = "telemetry_gap"
    threshold = "Anything lost; a process without heartbeats for three intervals; a clock that is off by {clock_s} s."
    needs = "nothing"
    remedy = "Raise the buffers, record less, or look at why the process cannot reach the server."
    parameters = (Parameter("clock_s", 5.0, "Largest clock offset, in seconds"),)
    rank = 90

    def look(self, model: RunModel) -> list[Signal]:
        """Return what is missing, one signal for each process and reason."""
        return [*self._lost(model), *self._silent(model), *self._clocks(model)]

    @staticmethod
    def _lost(model: RunModel) -> list[Signal]:
        return [
            Signal(
                culprit_of(process := model.processes[loss.process]),
                f"{where(process)} lost {counted(loss.lost, _singular(loss.kind))} ({loss.reason.replace('_', ' ')})",
                "What is missing is in no view and in no figure of this run.",
                "info",
                key=(process.process_id, loss.kind, loss.reason),
                anchor="lost",
                evidence=[fact("lost", loss.lost, loss.kind)],
            )
            for loss in model.losses[:20]
        ]

    @staticmethod
    def _silent(model: RunModel) -> list[Signal]:
        # One that never promised a heartbeat says no goodbye either: it may just have ended.
        silent = [process for process in model.silent_workers() if not has_cadence(process.heartbeat_s)]
        if not silent:
            return []
        # Helpers are often killed once training is over.
        severity: Severity = "info" if model.lead_has_ended() else "warning"
        if len(silent) > 3:
            hosts = {process.host for process in silent}
            at = f" on {hosts.pop()}" if len(hosts) == 1 else ""
            return [Signal({"role": silent[0].role}, f"{counted(len(silent), 'process')}{at} fell silent",
                           "They send no heartbeats and said no goodbye.", severity, key=("silent",), anchor="silent",
                           start_ns=min(process.last_seen_ns for process in silent))]  # fmt: skip
        return [
            Signal(
                culprit_of(process),
                f"{where(process)} has been silent for {seconds_text(model.silent_s(process))}",
                "It sends no heartbeats and said no goodbye: it crashed, or cannot reach the server.",
                severity,
                key=(process.process_id, "silent"),
                anchor="silent",
                start_ns=process.last_seen_ns,
                evidence=[fact("silent", model.silent_s(process), "s", f"heartbeat every {process.heartbeat_s:g} s")],
            )
            for process in silent
        ]

    def _clocks(self, model: RunModel) -> list[Signal]:
        largest_ns = self["clock_s"] * SECOND
        return [
            Signal(
                culprit_of(process),
                f"The clock of {where(process)} is off by {seconds_text(abs(process.clock_offset_ns) / SECOND)}",
                "Its records are aligned, but short intervals between machines cannot be trusted.",
                "info",
                key=(process.process_id, "clock"),
                anchor="clock",
                evidence=[fact("offset", process.clock_offset_ns / SECOND, "s")],
            )
            for process in model.workers()
            if abs(process.clock_offset_ns) > largest_ns
        ][:5]


def _singular(kind: str) -> str:
    return kind.removesuffix("s")
