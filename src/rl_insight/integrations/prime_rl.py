"""prime-rl: one line before `prime_rl.monitors.setup` runs.

>>> import rl_insight.integrations.prime_rl as insight_prime
>>> insight_prime.register()

Metrics come with their steps; episodes are counted by kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from rl_insight.integrations.hooks import on_import, report_once
from rl_insight.integrations.starting import ensure_started, is_wanted
from rl_insight.integrations.trackers.logger import InsightLogger
from rl_insight.monitor import default_monitor as monitor


class InsightMonitor:
    """Has the methods of prime-rl's `Monitor`; none of them raises."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self._logger = InsightLogger()

    async def init(self, **_settings: Any) -> None:
        """Start recording."""
        try:
            ensure_started("prime-rl", "training", role="orchestrator")
        except Exception as error:  # noqa: BLE001  # training must start as if we were not here
            report_once("the prime-rl monitor", error)

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        """Record values of one step."""
        try:
            self._logger.log(metrics, int(step))
            monitor.set_step(int(step) + 1)  # prime-rl logs a step when it is over
        except Exception as error:  # noqa: BLE001
            report_once("the prime-rl monitor", error)

    def log_episodes(self, episodes: Iterable[Any], step: int, kind: Any = None, subset: Any = None) -> None:
        """Count the episodes of one step."""
        try:
            labels = {"kind": str(kind or ""), "subset": str(subset or "")}
            with monitor.step(int(step)):
                monitor.metric_count("episodes", len(list(episodes)), **labels)
        except Exception as error:  # noqa: BLE001
            report_once("the prime-rl monitor", error)

    def finalize(self) -> None:
        """Deliver what was recorded."""
        monitor.flush()


def register() -> None:
    """Add our monitor to prime-rl's, where a server is configured or running; calling it again changes nothing."""
    if is_wanted():
        on_import("prime_rl.monitors", _append)


def _append(module: ModuleType) -> None:
    if InsightMonitor not in module.MONITORS:
        module.MONITORS.append(InsightMonitor)
