"""The tracer behind AReaL's functions."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from typing import Any, SupportsIndex

from rl_insight.compat._recording import start_recording
from rl_insight.compat.areal.config import RANKS_VARIABLE, is_rank_chosen, read_config
from rl_insight.compat.areal.files import ArealFiles
from rl_insight.compat.areal.names import category_name
from rl_insight.compat.areal.scopes import instant_attributes, new_scope, scope_attributes
from rl_insight.compat.areal.sessions import SessionTracer
from rl_insight.integrations.torch_profiler import merge_chrome_trace
from rl_insight.monitor import default_monitor
from rl_insight.recorder.context import current_step
from rl_insight.recorder.recorder import EVENT
from rl_insight.recorder.spans import NO_SPAN, NoSpan, Span


class PerfTracer:
    """The tracer of one process.

    Args:
        config: A mapping, a dataclass or an OmegaConf node with `enabled`, `experiment_name`, `trial_name`,
            `fileroot`, `save_interval`, `profile_steps` and `session_tracer.{enabled, flush_threshold}`.
        rank: The rank of this process.
        role: Its role; a directory in the paths of the files.

    Raises:
        TypeError: the rank is not an integer.
        ValueError: the rank is negative.
    """

    def __init__(self, config: Any, *, rank: int, role: str | None = None) -> None:
        self.config = read_config(config)
        if isinstance(rank, bool) or not isinstance(rank, SupportsIndex):
            raise TypeError(f"rank is {type(rank).__name__}: it must be an integer.")
        if rank < 0:
            raise ValueError(f"rank is {rank}: it cannot be negative.")
        self.rank = operator.index(rank)
        self.role = role
        self.session_tracer = SessionTracer() if self.config.sessions_enabled else None
        """Needs only `session_tracer.enabled`; None if the configuration turns it off."""
        self._files: ArealFiles | None = None
        self.set_enabled(self.config.enabled and is_rank_chosen(self.rank, os.environ.get(RANKS_VARIABLE)))
        if self.session_tracer is not None and self._files is None:
            self._start()

    def set_enabled(self, flag: bool) -> None:
        """Turn scopes and instants on or off."""
        self.enabled = bool(flag)
        if self.enabled and self._files is None:
            self._start()

    def _start(self) -> None:
        config = self.config
        run: dict[str, Any] = {}
        if config.experiment_name:
            run = {"project": config.experiment_name, "experiment_name": config.trial_name or config.experiment_name}
        flusher = start_recording(role=self.role, rank=self.rank, **run)
        if flusher is None:
            return
        sessions = self.session_tracer
        self._files = ArealFiles(flusher, config, rank=self.rank, role=self.role, sessions=sessions)
        if sessions is not None:
            sessions.write_to(self._files)

    def trace_scope(
        self,
        name: str,
        *,
        category: Any = None,
        enable_profiler: bool = False,
        profiler_args: Mapping[str, Any] | None = None,
        args: Mapping[str, Any] | None = None,
    ) -> Span | NoSpan:
        """Record a scope; `with` and `async with`.

        Args:
            name: The name of the scope.
            category: One of `Category`, or any string.
            enable_profiler: Profile with PyTorch if the step is in `profile_steps`.
            profiler_args: More arguments for `torch.profiler.profile`.
            args: Attached to the scope; `global_step` is the step of everything inside.
        """
        if not self.enabled:
            return NO_SPAN
        steps = self.config.profile_steps if enable_profiler else frozenset()
        return new_scope(name, category_name(category), args, steps, profiler_args)

    atrace_scope = trace_scope

    def instant(self, name: str, *, category: Any = None, args: Mapping[str, Any] | None = None) -> None:
        """Record an instant."""
        recorder = default_monitor._recorder
        if self.enabled and recorder is not None:
            recorder.record_point(EVENT, 0, name, instant_attributes(category_name(category), args))

    def merge_profiler_trace(
        self, profiler_traces: Any, base_time_ns: int, *, args: Mapping[str, Any] | None = None
    ) -> None:
        """Record a PyTorch profile, as loaded from its JSON.

        Args:
            profiler_traces: The document with `traceEvents`.
            base_time_ns: The start of the profile, from `time.perf_counter_ns`.
            args: `global_step` is the step of the events.
        """
        recorder = default_monitor._recorder
        if self.enabled and recorder is not None:
            _, step = scope_attributes("misc", args)
            step = current_step.get() if step is None else step
            merge_chrome_trace(profiler_traces, step=step, starts_ns=recorder.clock.wall_ns(base_time_ns))

    def save(self, *, step: int | None = None, force: bool = False) -> None:
        """Write the trace: in the background at every `save_interval`-th step, otherwise at once.

        Sessions are written only if forced, and then all of them.
        """
        if self._files is None:
            return
        if force:
            self._save_all(self._files)
        elif step is None:
            self._files.save()
        elif (step + 1) % self.config.save_interval == 0:
            self._files.save_soon()

    def _save_all(self, files: ArealFiles) -> None:
        if self.session_tracer is not None:
            self.session_tracer.flush(force=True)
        else:
            files.save(everything=True)

    def reset(self) -> None:
        """Write everything, and return to the configured state."""
        if self._files is not None:
            self._save_all(self._files)
        self.enabled = self.config.enabled

    def close(self) -> None:
        """Write everything and stop."""
        files, self._files = self._files, None
        self.enabled = False
        if files is not None:
            self._save_all(files)
            files.close()
