"""RL-Insight as an additional logger of a trainer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

from rl_insight.monitor import default_monitor
from rl_insight.producer import Producer
from rl_insight.schema.names import metric_name


class InsightLogger:
    """Implements the interface of a tracker: logged values become gauges of the run.

    >>> logger = InsightLogger()
    >>> logger.log({"reward/mean": 0.73, "actor": {"lr": 1e-6}}, step=7)

    `reward/mean` is recorded as `reward_mean`; the keys of nested dictionaries are joined with `_`. Values that are not
    numbers (strings, images, tables) are skipped and counted in `skipped`. It never raises and never blocks.

    Args:
        monitor: The monitor; the default one if None.
        prefix: Prepended to every name.
        labels: Attached to every value.
    """

    def __init__(self, monitor: Producer | None = None, *, prefix: str = "", **labels: Any) -> None:
        self._monitor = monitor or default_monitor
        self._prefix = prefix
        self._labels = labels
        self.skipped = 0

    def log(self, data: Mapping[str, Any], step: int | None = None, **_ignored: Any) -> None:
        """Record the values of a step; options of other trackers, such as `commit`, are ignored."""
        with nullcontext() if step is None else self._monitor.step(step):
            self._record(data)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Do the same, under the name that Lightning and MLflow use."""
        self.log(metrics, step)

    def finish(self) -> None:
        """Do nothing: the run ends with `insight.finish()`."""

    def _record(self, data: Mapping[str, Any]) -> None:
        for key, value in _flat(self._prefix, data):
            number = _number(value)
            if number is None:
                self.skipped += 1
                continue
            self._monitor.metric_gauge(metric_name(key), number, "", **self._labels)


def _flat(prefix: str, data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(f"{name}/", value)
        else:
            yield name, value


def _number(value: Any) -> float | None:
    """Return a scalar of Python, NumPy or PyTorch as a float; None for anything else."""
    if isinstance(value, (str, bytes)):
        return None
    try:
        return float(value)
    except Exception:  # noqa: BLE001  # a user's type may raise anything
        return None
