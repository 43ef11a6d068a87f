"""Builds a running pipeline from a configuration: recorder, flusher, transport."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import msgspec

from rl_insight.config import InsightConfig, config_from_dict, load_config
from rl_insight.config.paths import find_server
from rl_insight.errors import ConfigError, InsightError
from rl_insight.launchers import launch_name, launcher_rank, may_be_repeated, restarts
from rl_insight.recorder.dumps import open_dump
from rl_insight.recorder.flusher import Flusher
from rl_insight.recorder.ids import host_name, new_process_id
from rl_insight.recorder.recorder import Recorder
from rl_insight.recorder.step_exchange import StepExchange
from rl_insight.schema import Process
from rl_insight.transport import Transport, available_backends, create_transport
from rl_insight.transport.registry import unknown_backend

logger = logging.getLogger("rl_insight")

_JOIN_S = 2.0
_STEP_MARKS = 256
"""Steps that a driver keeps until its flusher has published them."""


class Companion(Protocol):
    """Listens to the batches of a pipeline and is closed with it."""

    def close(self, timeout_s: float) -> None:
        """Finish accepted work within a bounded time."""

    def get_status(self) -> dict[str, Any]:
        """Return its state."""


@dataclass(slots=True)
class Pipeline:
    """The components of one process between recording and sending."""

    config: InsightConfig
    process: Process
    recorder: Recorder
    flusher: Flusher
    transport: Transport
    companions: list[Companion] = field(default_factory=list)
    link_claim: socket.socket | None = None
    """Held by the process on this machine that printed the link to the run."""

    def claim_link(self, url: str) -> bool:
        """Return whether this process should print the link: no other live process on this machine has."""
        if not sys.platform.startswith("linux"):
            return True
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            # An abstract name leaves nothing behind, no matter how the process ends.
            claim.bind(b"\0rl-insight-link-" + hashlib.sha256(f"{os.geteuid()} {url}".encode()).digest())
        except OSError as error:
            claim.close()
            return error.errno != errno.EADDRINUSE
        self.link_claim = claim
        return True

    def release_link(self) -> None:
        """Let another process print the link to the run."""
        if self.link_claim is not None:
            self.link_claim.close()

    def finish(self, timeout_s: float) -> bool:
        """Deliver all events within a time limit; True if everything was delivered."""
        deadline = time.monotonic() + timeout_s
        self.release_link()
        # Before the last batch, so that it can still report them.
        if missing := self.transport.hear_others(timeout_s):
            self.recorder.losses.count("processes", "not_heard", missing)
        stopped = self.flusher.stop(max(0.0, deadline - time.monotonic()))
        self.flusher.stacks.close()
        delivered = self.transport.flush(max(0.0, deadline - time.monotonic()))
        self.transport.close()
        for companion in self.companions:
            companion.close(max(0.0, deadline - time.monotonic()))
        return stopped and delivered


def resolve(config: InsightConfig) -> InsightConfig | None:
    """Choose the backend; a Ray job also gets the address of the server on this machine, for its other nodes.

    Returns None, with one warning, if the backend is Ray but Ray is not initialized: Ray is never started here.

    Raises:
        ConfigError: an unknown backend.
    """
    server = config.server
    backend = server.backend
    if backend not in available_backends():
        raise unknown_backend(backend)
    if backend == "auto":
        backend = "ray" if ray_is_initialized() else "http"
    if backend == "ray" and not ray_is_initialized():
        logger.warning("RL-Insight is not recording: Ray is not initialized. Call ray.init() first, then init() again.")
        return None
    known = find_server(server.url, server.token) if backend == "ray" else None
    if known is not None:
        server = replace(server, url=known.url, token=known.token)
    return replace(config, server=replace(server, backend=backend))


def load(config: Any, **overrides: Any) -> InsightConfig:
    """Return the validated configuration for `init`.

    Raises:
        ConfigError: it is invalid; the message says why.
    """
    settings = load_config(config, overrides=overrides)
    if (settings.project is None) != (settings.experiment_name is None):
        missing = "experiment_name" if settings.experiment_name is None else "project"
        raise ConfigError(f"{missing} is missing: project and experiment_name are needed together, or neither.")
    return settings


_SECTIONS = ("server", "prometheus", "recorder", "redaction", "http", "file", "ray", "otlp")
"""Sections that a child inherits unless it sets them."""


def joined(settings: InsightConfig, inherited: str | None) -> InsightConfig:
    """Return settings that join the run of the parent process, if they name its experiment or none."""
    if not inherited:
        return settings
    try:
        parent = config_from_dict(msgspec.json.decode(inherited))
    except (msgspec.MsgspecError, ConfigError):  # left by another version: not a reason to stop training
        return settings
    names = (parent.project, parent.experiment_name)
    if settings.project is not None and (settings.project, settings.experiment_name) != names:
        return settings
    default = InsightConfig()
    unset = [name for name in _SECTIONS if getattr(settings, name) == getattr(default, name)]
    inherited_too = {name: getattr(parent, name) for name in unset}
    return replace(
        settings, project=names[0], experiment_name=names[1], run_id=parent.run_id, announce=False, **inherited_too
    )


def connect(config: InsightConfig, recorder: Recorder) -> Pipeline:
    """Create the transport of a resolved configuration and start the flusher."""
    process = identify(config)
    transport = create_transport(config.server.backend, config, process)
    if config.otlp.traces_endpoint and config.server.backend != "ray":
        transport = _with_trace_export(transport, config)
    flusher = Flusher(recorder, process, config, transport.send, transport.max_batch_bytes)
    transport.on_loss = flusher.note_loss
    transport.on_receiver_restarted = flusher.resend_metrics
    transport.on_stacks_wanted = flusher.stacks.request
    transport.on_stacks_of_others = flusher.stacks.request_others
    flusher.stacks.dump = open_dump(process.process_id)
    transport.on_flush_interval = flusher.pace.follow
    if transport.leads_steps:
        recorder.step_marks = deque(maxlen=_STEP_MARKS)
        flusher.steps = StepExchange(recorder, publish=transport.tell_step)
    elif transport.follows_steps:
        flusher.steps = StepExchange(recorder, fetch=transport.ask_steps)
    flusher.start()
    return Pipeline(config, process, recorder, flusher, transport)


def _with_trace_export(transport: Transport, config: InsightConfig) -> Transport:
    """Export the spans of this process, in addition to sending them to the server."""
    from rl_insight.collector import Collector
    from rl_insight.collector.sinks.otlp import OtlpTraceSink
    from rl_insight.hub.forwarding import ForwardingTransport

    sink = OtlpTraceSink(config.otlp.traces_endpoint or "")
    collector = Collector([sink], namespace=config.server.namespace)
    return ForwardingTransport(collector, transport)


def ray_is_initialized() -> bool:
    """Return whether Ray is initialized here, without importing it."""
    ray = sys.modules.get("ray")
    try:
        return ray is not None and bool(ray.is_initialized())
    except AttributeError:  # partially imported by another thread
        return False


def identify(config: InsightConfig) -> Process:
    """Describe this process."""
    rank = config.rank if config.rank is not None else launcher_rank(os.environ)
    return Process(
        process_id=new_process_id(),
        run_id=config.run_id or new_run_id(config, os.environ),
        host=host_name(),
        pid=os.getpid(),
        project=config.project or "",
        experiment_name=config.experiment_name or "",
        role=config.role or "",
        rank=rank,
        labels=dict(config.labels),
        started_ns=time.time_ns(),
        heartbeat_s=config.recorder.heartbeat_s,
    )


def new_run_id(config: InsightConfig, environ: Mapping[str, str]) -> str:
    """Create a run id: the same in all processes of one launch, new for each launch.

    Processes without a common launcher share a run through `RL_INSIGHT_RUN_ID`.
    """
    name = config.experiment_name or config.project or "run"
    launch = launch_name(environ)
    if launch is not None:
        run_id = f"{name}-{launch}"
        return _assigned_run(config, run_id, environ) if may_be_repeated(environ) else run_id
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"


def _assigned_run(config: InsightConfig, run_id: str, environ: Mapping[str, str]) -> str:
    """Get the run of a launch whose name is not unique from the server; fall back to the name."""
    from rl_insight.http_client import request

    server = find_server(config.server.url, config.server.token)
    if server is None:
        return run_id
    asked = {"run_id": run_id, "rank": launcher_rank(environ) or 0, "restarts": restarts(environ)}
    try:
        answer = request(
            "POST",
            f"{server.url.rstrip('/')}/api/v1/runs/join",
            msgspec.json.encode(asked),
            headers={"Content-Type": "application/json"},
            token=server.token,
            trust=server.tls_cert,
            timeout_s=_JOIN_S,
        )
        if answer.is_success:
            return str(msgspec.json.decode(answer.body, type=dict[str, str])["run_id"])
    except (InsightError, msgspec.MsgspecError, KeyError) as error:
        logger.debug("the server did not assign a run to this launch: %s", error)
    return run_id
