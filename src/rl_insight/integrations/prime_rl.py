"""prime-rl: one line before `prime_rl.monitors.setup` runs.

>>> import rl_insight.integrations.prime_rl as insight_prime
>>> insight_prime.register()

Metrics are recorded with their steps, and each episode becomes a session with its phases and reward.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from types import ModuleType
from typing import Any

from rl_insight.integrations.hooks import after, around, on_import, quiet
from rl_insight.integrations.mirrors import paused
from rl_insight.integrations.prime_rl_episodes import samples_of
from rl_insight.integrations.samples import record_sample
from rl_insight.integrations.starting import ensure_started, is_wanted
from rl_insight.integrations.trackers.logger import InsightLogger
from rl_insight.monitor import default_monitor as monitor

_LISTS = ("MONITORS", "_monitors")
"""Names of prime-rl's list of active monitors, in current and in earlier releases."""


class _Done:
    """Returned by the monitor's methods: current releases of prime-rl await it, earlier ones ignore it."""

    def __await__(self) -> Iterator[None]:
        return iter(())


def _awaitable(method: Callable[..., None]) -> Callable[..., _Done]:
    """Decorate a method of the monitor: it never raises, and its result may be awaited."""
    guarded = quiet("the prime-rl monitor")(method)

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> _Done:
        guarded(*args, **kwargs)
        return _Done()

    return call


class InsightMonitor:
    """Implements prime-rl's `Monitor`, for releases that await its methods and those that do not; they never raise."""

    run_id = None

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self._logger = InsightLogger()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("log_"):  # annotations, live traces, and additions of later releases
            return lambda *_args, **_kwargs: _Done()
        raise AttributeError(name)

    @_awaitable
    def init(self, *_args: Any, **_settings: Any) -> None:
        """Start recording."""
        ensure_started("prime-rl", "training", role="orchestrator")

    def log(self, data: Any, step: int | None = None, kind: Any = "train", subset: Any = "effective") -> _Done:
        """Record the values of a step, or episodes."""
        if isinstance(data, Mapping):
            return self.log_metrics(data, step)
        return self.log_episodes(data if isinstance(data, list) else [data], step, kind, subset)

    @_awaitable
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Record the values of a step; without one, with the current time only."""
        self._logger.log(metrics, None if step is None else int(step))
        if step is not None:
            monitor.set_step(int(step) + 1)  # prime-rl logs a step when it ends

    @_awaitable
    def log_episodes(
        self, episodes: Iterable[Any], step: int | None = None, kind: Any = None, subset: Any = None
    ) -> None:
        """Record the episodes of a step: once, on arrival, and not again when they are trained on."""
        whole_step = None if step is None else int(step)
        listed = list(episodes)
        with nullcontext() if whole_step is None else monitor.step(whole_step):
            monitor.metric_count("episodes", len(listed), kind=str(kind or ""), subset=str(subset or ""))
        if subset == "effective" and kind is not None:
            return
        for episode in listed:
            for sample in samples_of(episode, time.time(), whole_step, str(kind or "train")):
                record_sample(sample)

    @_awaitable
    def finalize(self) -> None:
        """Flush."""
        monitor.flush()


def register() -> None:
    """Add our monitor to prime-rl's if a server is configured or running. Idempotent."""
    if is_wanted():
        on_import("prime_rl.monitors", _patch_setup)


def _patch_setup(module: ModuleType) -> None:
    """Add the monitor after prime-rl has set up its own: it asserts that the list is empty before that."""
    name = next((name for name in _LISTS if hasattr(module, name)), None)
    if name is None:
        raise AttributeError(f"prime_rl.monitors has none of {', '.join(_LISTS)}")
    after(module, "setup", lambda _call, _result: _add_monitor(getattr(module, name)))


def _add_monitor(monitors: list[Any]) -> None:
    """Add one monitor in the process of rank 0; prime-rl has none in the others."""
    is_first = os.environ.get("RANK", os.environ.get("DP_RANK", "0")) == "0"
    if is_first and not any(isinstance(one, InsightMonitor) for one in monitors):
        for other in map(type, monitors):  # they get the same values, which must not be mirrored
            for name in {"log", "log_metrics"} & vars(other).keys():
                around(other, name, paused)
        ours = InsightMonitor()
        ours.init()
        monitors.append(ours)
