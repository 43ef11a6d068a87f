"""prime-rl: one line before `prime_rl.monitors.setup` runs.

>>> import rl_insight.integrations.prime_rl as insight_prime
>>> insight_prime.register()

Metrics come with their steps; each episode is a session with its phases and reward.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

from rl_insight.integrations.hooks import around, on_import, quiet, replace_once
from rl_insight.integrations.mirrors import paused
from rl_insight.integrations.prime_rl_episodes import samples_of
from rl_insight.integrations.samples import record_sample
from rl_insight.integrations.starting import ensure_started, is_wanted
from rl_insight.integrations.trackers.logger import InsightLogger
from rl_insight.monitor import default_monitor as monitor

_LISTS = ("MONITORS", "_monitors")
"""Where prime-rl keeps the monitors that are set up, in current and in earlier releases."""


class _Done:
    """What the monitor's methods return: prime-rl awaits them in current releases, and did not in earlier ones."""

    def __await__(self) -> Iterator[None]:
        return iter(())


class InsightMonitor:
    """Has the methods of prime-rl's `Monitor`, for releases that await them and for those that do not; none raises."""

    run_id = None

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self._logger = InsightLogger()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("log_"):  # annotations, live traces and what later releases add
            return lambda *_args, **_kwargs: _Done()
        raise AttributeError(name)

    def init(self, *_args: Any, **_settings: Any) -> _Done:
        """Start recording."""
        return self._guarded(ensure_started, "prime-rl", "training", role="orchestrator")

    def log(self, data: Any, step: int | None = None, kind: Any = "train", subset: Any = "effective") -> _Done:
        """Record values of one step, or episodes."""
        if isinstance(data, Mapping):
            return self.log_metrics(data, step)
        return self.log_episodes(data if isinstance(data, list) else [data], step, kind, subset)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> _Done:
        """Record values of one step; without one, of this moment."""
        return self._guarded(self._record_metrics, metrics, step)

    def log_episodes(
        self, episodes: Iterable[Any], step: int | None = None, kind: Any = None, subset: Any = None
    ) -> _Done:
        """Record the episodes of one step: each once, when it arrives, and not again when it is trained on."""
        return self._guarded(self._record_episodes, episodes, step, kind, subset)

    def finalize(self) -> _Done:
        """Deliver what was recorded."""
        return self._guarded(monitor.flush)

    def _record_metrics(self, metrics: Mapping[str, Any], step: int | None) -> None:
        self._logger.log(metrics, None if step is None else int(step))
        if step is not None:
            monitor.set_step(int(step) + 1)  # prime-rl logs a step when it is over

    def _record_episodes(self, episodes: Iterable[Any], step: int | None, kind: Any, subset: Any) -> None:
        whole_step = None if step is None else int(step)
        listed = list(episodes)
        labels = {"kind": str(kind or ""), "subset": str(subset or "")}
        if whole_step is None:
            monitor.metric_count("episodes", len(listed), **labels)
        else:
            with monitor.step(whole_step):
                monitor.metric_count("episodes", len(listed), **labels)
        if subset == "effective" and kind is not None:
            return
        for episode in listed:
            for sample in samples_of(episode, time.time(), whole_step, str(kind or "train")):
                record_sample(sample)

    def _guarded(self, record: Any, *args: Any, **kwargs: Any) -> _Done:
        quiet("the prime-rl monitor")(record)(*args, **kwargs)
        return _Done()


def register() -> None:
    """Add our monitor to prime-rl's, where a server is configured or running; calling it again changes nothing."""
    if is_wanted():
        on_import("prime_rl.monitors", _patch_setup)


def _patch_setup(module: Any) -> None:
    """Add the monitor when prime-rl has set up its own: it asserts that there are none before."""
    if not any(hasattr(module, name) for name in _LISTS):
        raise AttributeError(f"prime_rl.monitors has none of {', '.join(_LISTS)}")

    def with_ours(original: Callable[..., Any]) -> Callable[..., Any]:
        def setup(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if inspect.isawaitable(result):
                return _append_after(result, module)
            _append(module)
            return result

        return setup

    replace_once(module, "setup", with_ours)


async def _append_after(result: Any, module: ModuleType) -> Any:
    value = await result
    _append(module)
    return value


def _leave_unmirrored(other: type) -> None:
    """Keep what our monitor records from coming back through the mirrors of prime-rl's other monitors."""
    for name in ("log", "log_metrics"):
        if name in vars(other):
            around(other, name, paused)


@quiet("the prime-rl monitor")
def _append(module: ModuleType) -> None:
    """Add one monitor in the process of rank 0: prime-rl has none in the others."""
    monitors = next(getattr(module, name) for name in _LISTS if hasattr(module, name))
    is_first = os.environ.get("RANK", os.environ.get("DP_RANK", "0")) == "0"
    if is_first and not any(isinstance(one, InsightMonitor) for one in monitors):
        for other in monitors:
            _leave_unmirrored(type(other))
        ours = InsightMonitor()
        ours.init()
        monitors.append(ours)
