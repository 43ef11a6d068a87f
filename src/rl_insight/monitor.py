"""The monitor: a producer plus its lifecycle: `init()`, `finish()`, fork, child processes, Ray workers."""

from __future__ import annotations

import atexit
import logging
import math
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rl_insight.producer import Producer
from rl_insight.recorder.propagation import INHERIT_VARIABLE
from rl_insight.recorder.recorder import Recorder
from rl_insight.recorder.session_producer import nothing_to_join

if TYPE_CHECKING:
    from rl_insight.config import InsightConfig
    from rl_insight.startup import Pipeline

logger = logging.getLogger("rl_insight")

_HUB_WAIT_S = 30.0
_INCOMPLETE = (
    "run %s is incomplete: not everything was delivered in time. %d batches remain on disk. The next process on this "
    "machine that records to this server sends them, or a server that starts here ingests them."
)


class Monitor(Producer):
    """Records for one process. `rl_insight`'s functions are the bound methods of one default monitor.

    >>> monitor = Monitor()
    >>> monitor.init(config={"server": {"backend": "memory"}})
    >>> monitor.metric_count("steps")
    >>> monitor.finish()
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()
        self._pipeline: Pipeline | None = None
        self._starting: threading.Thread | None = None
        self._exit_registered = False
        self._finishing = False
        self._captured_by: Monitor | None = None
        _monitors.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the monitor of the receiving process, for decorated functions that are sent to Ray workers."""
        return _monitor_of_this_process, ()

    # -- start

    def init(
        self,
        project: str | Mapping[str, Any] | None = None,
        experiment_name: str | None = None,
        config: Any = None,
        *,
        run_id: str | None = None,
        role: str | None = None,
        rank: int | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Start recording in this process; once per process.

        >>> import rl_insight as insight
        >>> insight.init("math", "grpo-7b", role="trainer", rank=0)  # doctest: +SKIP

        Args:
            project: The project; pass it together with `experiment_name`, or neither. A mapping in this place
                is accepted as `config`, for compatibility.
            experiment_name: The experiment.
            config: RL-Insight's settings: a mapping, a dataclass, an OmegaConf `DictConfig`, or the path of a YAML
                file. Its `run_config` is the configuration of the run, recorded as by `record_config`.
            run_id: The run ID, the same in all processes of the run; generated if omitted.
            role: The role of this process: `trainer`, `rollout`, ...
            rank: Its rank within the role.
            labels: Attached to everything this process records.

        Raises:
            ValueError: the configuration is invalid; the message says why.
        """
        from rl_insight import startup

        with self._lock:
            if self._captured_by is None and (self._pipeline is not None or self._starting is not None):
                self._warn_of_second_init(
                    project=project, experiment_name=experiment_name, run_id=run_id, role=role, rank=rank, labels=labels
                )
                return
            if project is not None and not isinstance(project, str):
                if config is not None:
                    raise TypeError("init() got two configurations: the first argument and config=.")
                project, config = None, project
            settings = startup.load(
                config,
                project=project,
                experiment_name=experiment_name,
                run_id=run_id,
                role=role,
                rank=rank,
                labels=dict(labels) if labels else None,
            )
            if self._captured_by is not None:
                return
            self._join = nothing_to_join
            if settings.run_id is None:
                settings = startup.joined(settings, os.environ.get(INHERIT_VARIABLE))
            if settings.enabled:
                # Recorded once: children and workers, which inherit the settings, do not repeat it.
                recorded, settings = settings.run_config, replace(settings, run_config={})
                self._begin(settings)
                if recorded:
                    self.record_config(recorded)
                self._announce(settings)

    def _warn_of_second_init(self, **arguments: Any) -> None:
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items() if value is not None)
        run = "" if self._pipeline is None else f" run {self._pipeline.process.run_id!r}"
        warnings.warn(
            f"rl_insight.init({given}) was ignored: this process is already recording{run}. Call "
            "rl_insight.finish() first to start another run, or remove the second call.",
            RuntimeWarning,
            stacklevel=3,
        )

    def _begin(self, settings: InsightConfig) -> None:
        from rl_insight import startup

        resolved = startup.resolve(settings)
        if resolved is None:
            return
        recorder = Recorder(resolved.recorder)
        if resolved.server.backend == "ray" and _may_join_a_job():
            self._begin_in_background(recorder, lambda: _join_job(resolved, may_start_hub=True))
            return
        self._begin_now(resolved, recorder)

    def _begin_now(self, settings: InsightConfig, recorder: Recorder) -> None:
        from rl_insight import startup

        try:
            self._pipeline = startup.connect(settings, recorder)
        except Exception:  # a server or a cluster in a bad state must not stop training
            logger.exception("RL-Insight is not recording: the %s transport failed to start.", settings.server.backend)
            self._recorder = None
            return
        self._recorder = recorder
        self._export_to_children()
        self._register_exit()

    def _announce(self, settings: InsightConfig) -> None:
        """Print the link to the run; only the first process of a launch does."""
        pipeline, url = self._pipeline, self.run_url()
        if pipeline is None or not url or not settings.announce or pipeline.process.rank not in (None, 0):
            return
        if pipeline.claim_link(url):  # ranks are per role: each role may have a rank 0
            print(f"RL-Insight: run {pipeline.process.run_id} at {url}", file=sys.stderr, flush=True)  # noqa: T201

    def run_url(self) -> str | None:
        """Return the URL of the page of this run; None while it is unknown.

        >>> import rl_insight as insight
        >>> insight.run_url()  # doctest: +SKIP
        'http://127.0.0.1:18080/?run=grpo-7b-20260131-120000-9f3a'
        """
        pipeline = self._pipeline
        url = None if pipeline is None else pipeline.transport.server_url or pipeline.config.server.url
        if pipeline is None or not url:
            return None
        from urllib.parse import quote  # not at the top: `import rl_insight` does not need it

        from rl_insight.urls import without_credentials

        return f"{without_credentials(url).rstrip('/')}/?run={quote(pipeline.process.run_id)}"

    def _begin_in_background(self, recorder: Recorder, find_settings: Any) -> None:
        """Start recording now, and look up the hub in a background thread, because that may take a while."""

        def start() -> None:
            try:
                settings = find_settings()
            except Exception:
                logger.exception("RL-Insight is not recording in this process.")
                settings = None
            with self._lock:
                self._starting = None
                if self._recorder is not recorder:  # finished in the meantime
                    return
                if settings is None:
                    self._recorder = None
                    return
                recorder.apply(settings.recorder)
                self._begin_now(settings, recorder)
                self._announce(settings)

        self._recorder = recorder
        self._starting = threading.Thread(target=start, name="rl-insight-start", daemon=True)
        self._starting.start()

    def _join_parent(self) -> Recorder | None:
        """Join the run of a parent process or of this Ray worker's driver, if any; tried once."""
        with self._lock:
            if self._join is nothing_to_join:
                return self._recorder
            self._join = nothing_to_join
            if self._recorder is not None:
                return self._recorder
            try:
                self._begin_inherited()
            except Exception:  # no call of the hot path raises because of monitoring
                logger.exception("RL-Insight is not recording in this process.")
            return self._recorder

    def _begin_inherited(self) -> None:
        if inherited := os.environ.get(INHERIT_VARIABLE):
            import msgspec

            from rl_insight.config import config_from_dict

            settings = config_from_dict(msgspec.json.decode(inherited))
            self._begin_now(settings, Recorder(settings.recorder))
        elif _is_ray_worker():
            self._begin_in_background(Recorder(), lambda: _join_job(None, may_start_hub=False))

    def _export_to_children(self) -> None:
        """Let spawned child processes join the run without calling `init()`."""
        if self is not default_monitor or self._pipeline is None:
            return
        import msgspec

        from rl_insight.config import config_to_dict

        config, process = self._pipeline.config, self._pipeline.process
        child = replace(config, run_id=process.run_id, rank=None)
        os.environ[INHERIT_VARIABLE] = msgspec.json.encode(config_to_dict(child)).decode()

    # -- end

    def finish(self) -> None:
        """Deliver all events, within `recorder.finish_timeout_s`, and stop recording."""
        if self._captured_by is not None:
            return
        self._finishing = True
        try:
            self._finish()
        finally:
            self._finishing = False

    def _finish(self, longest_s: float = math.inf) -> None:
        with self._lock:
            starting, self._starting = self._starting, None
        if starting is not None:
            starting.join(min(longest_s, _HUB_WAIT_S))
        with self._lock:
            pipeline, self._pipeline = self._pipeline, None
            self._recorder = None
            self._join = nothing_to_join
        if pipeline is None:
            return
        if self is default_monitor:
            os.environ.pop(INHERIT_VARIABLE, None)
        try:
            if not pipeline.finish(min(longest_s, pipeline.config.recorder.finish_timeout_s)):
                waiting = pipeline.transport.get_status().get("waiting_batches", 0)
                logger.warning(_INCOMPLETE, pipeline.process.run_id, waiting)
        except Exception:
            logger.exception("RL-Insight did not shut down cleanly.")

    close = finish

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Deliver all events recorded so far; return whether that succeeded in time."""
        if (starting := self._starting) is not None:
            starting.join(timeout_s)
        pipeline = self._pipeline
        if pipeline is None:
            return False
        return pipeline.flusher.request_flush(timeout_s) and pipeline.transport.flush(timeout_s)

    def get_status(self) -> dict[str, Any]:
        """Return whether this process is recording, its identity, losses and delivery status."""
        pipeline = self._pipeline
        if pipeline is None:
            return {"recording": self._recorder is not None}
        process = pipeline.process
        return {
            "recording": True,
            "process_id": process.process_id,
            "run_id": process.run_id,
            "backend": pipeline.config.server.backend,
            "losses": {f"{loss.kind}/{loss.reason}": loss.count for loss in pipeline.recorder.losses.snapshot()},
            "transport": pipeline.transport.get_status(),
            "companions": [companion.get_status() for companion in pipeline.companions],
        }

    def _register_exit(self) -> None:
        """Deliver when the interpreter or a `multiprocessing` child exits for any reason."""
        if not self._exit_registered:
            self._exit_registered = True
            atexit.register(self.finish)
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.Finalize(None, self.finish, exitpriority=0)
        process = sys.modules.get("multiprocessing.process")
        if process is not None and process.parent_process() is not None:
            from rl_insight.termination import LONGEST_S, deliver_before_termination

            deliver_before_termination(lambda: self._finish(LONGEST_S * 0.8), lambda: self._finishing)

    # -- tests

    def _redirect_to(self, other: Monitor) -> tuple[Any, ...]:
        """Record through another monitor; see `rl_insight.testing`."""
        with self._lock:
            before = (self._recorder, self._pipeline, self._join, self._captured_by)
            self._restore((other._recorder, other._pipeline, nothing_to_join, other))
            return before

    def _restore(self, state: tuple[Any, ...]) -> None:
        with self._lock:
            self._recorder, self._pipeline, self._join, self._captured_by = state

    # -- fork

    def _after_fork_in_child(self) -> None:
        """Restart under a new identity; the parent sends the events that it had buffered."""
        self._lock = threading.RLock()
        self._starting = None
        self._finishing = False
        pipeline, self._pipeline, self._recorder = self._pipeline, None, None
        if pipeline is None:
            return
        pipeline.recorder.after_fork()
        pipeline.release_link()
        pipeline.transport.abandon()
        settings = replace(pipeline.config, run_id=pipeline.process.run_id)
        if settings.server.backend == "ray":  # Ray's connection does not survive a fork
            return
        recorder = Recorder(settings.recorder)
        recorder.step = pipeline.recorder.step
        self._begin_now(settings, recorder)
        util = sys.modules.get("multiprocessing.util")
        if util is not None:  # its children clear finalizers right after this hook, and then run these
            util.register_after_fork(self, Monitor._register_exit)


def _is_ray_worker() -> bool:
    if "ray" not in sys.modules:
        return False
    from rl_insight.hub.ray_hub import is_ray_worker

    return is_ray_worker()


def _may_join_a_job() -> bool:
    """Return whether a hub may know the run of this Ray job: a worker may have recorded first."""
    from rl_insight.hub.ray_hub import is_hub_of_another_process

    return _is_ray_worker() or is_hub_of_another_process()


def _join_job(own: InsightConfig | None, *, may_start_hub: bool) -> InsightConfig | None:
    """Return the settings of this process in a Ray job: those of the job, updated by its own `init()`."""
    from rl_insight import startup
    from rl_insight.hub import ray_hub

    hub = ray_hub.find_hub() if may_start_hub else ray_hub.wait_for_hub(_HUB_WAIT_S)
    if hub is None:
        if own is None:
            return None
        # Workers often start together: the hub that the job ends up with names the run for all of them.
        run_id = own.run_id or startup.new_run_id(own, os.environ)
        identity = ray_hub.RunIdentity(run_id, own.project or "", own.experiment_name or "")
        hub = ray_hub.start_hub(own, identity)
    settings, run = ray_hub.fetch_start(hub, _HUB_WAIT_S)
    is_driver = not _is_ray_worker()
    if own is not None and is_driver and (own.run_id or not run.takes(own.project, own.experiment_name)):
        return own  # a driver may have several runs, one after another
    server = replace(settings.server, backend="ray")
    joined = replace(
        settings,
        server=server,
        run_id=run.run_id,
        project=run.project or None,
        experiment_name=run.experiment_name or None,
        role=None,
        rank=None,
        announce=is_driver and settings.announce,  # once per job
    )
    if own is None:
        return joined
    if own.project and not run.project:  # the hub was started by a worker without names
        hub.name_run.remote(own.project, own.experiment_name)
    return replace(
        joined,
        project=own.project or joined.project,
        experiment_name=own.experiment_name or joined.experiment_name,
        role=own.role,
        rank=own.rank,
        labels={**settings.labels, **own.labels},
    )


_monitors: weakref.WeakSet[Monitor] = weakref.WeakSet()


def _monitor_of_this_process() -> Monitor:
    return default_monitor


def _restart_in_child() -> None:
    for monitor in list(_monitors):
        try:
            monitor._after_fork_in_child()
        except Exception:
            logger.exception("RL-Insight is not recording in this forked process.")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restart_in_child)


default_monitor = Monitor()
"""The monitor behind `rl_insight`'s functions."""
