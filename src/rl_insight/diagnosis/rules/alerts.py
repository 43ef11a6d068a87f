"""What training code itself says is wrong."""

from __future__ import annotations

from collections.abc import Iterator

from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.rows import EventRow
from rl_insight.diagnosis.rule import AT_ONCE, SEVERITIES, Observation, Rule, Severity, Signal, culprit_of
from rl_insight.schema.records import read_object


class UserAlert(Rule):
    """Training code raised an alert."""

    name = "alert"
    threshold = "Each call of `rl_insight.alert(title, text, level)`."
    needs = "nothing"
    remedy = "See what the training code says."
    confirmation = AT_ONCE
    rank = 2

    def _begin(self) -> None:
        self._until_ns = 0

    def evaluate(self, model: RunModel) -> Iterator[Observation]:
        """Take the alerts that are new."""
        new = [event for event in model.events if event.name == "alert" and event.time_ns > self._until_ns]
        for event in new:
            self._until_ns = max(self._until_ns, event.time_ns)
            yield Observation(event.time_ns, event.step, [self._signal(model, event)], family=str(event.time_ns))

    @staticmethod
    def _signal(model: RunModel, event: EventRow) -> Signal:
        told = read_object(event.text)
        title, level = str(told.get("title") or "Alert"), str(told.get("level") or "warning")
        severity: Severity = next((one for one in SEVERITIES if one == level), "warning")
        process = model.processes[event.process]
        return Signal(
            culprit_of(process), title, str(told.get("text") or ""), severity, key=(title,), anchor=str(event.time_ns)
        )
