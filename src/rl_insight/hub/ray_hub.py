"""The hub: a Ray actor that collects the batches of a job's processes.

It serves `/metrics`, exports traces over OTLP if configured, and forwards the batches to the server if there is one;
the server then also scrapes the hub's health from its `/metrics`. The first process of the job that calls `init()`
starts the hub, which outlives that process and exits when the job has ended. A confirmed batch stays in the hub's spool
on disk until the server has it, so nothing is lost if the hub is killed and Ray restarts it.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import msgspec

from rl_insight.collector import Collector, Sink
from rl_insight.collector.derived import DerivedMetrics
from rl_insight.config import InsightConfig, config_from_dict, config_to_dict
from rl_insight.config.paths import find_server
from rl_insight.errors import InsightError, SchemaError
from rl_insight.hub.forwarding import ForwardingTransport
from rl_insight.hub.registration import HubTarget, TargetRegistration
from rl_insight.recorder.step_exchange import SETTLE_S
from rl_insight.schema import BatchBuilder, Process, decode, encode
from rl_insight.schema.names import TRAINER_JOB
from rl_insight.transport import Transport
from rl_insight.transport.ingest_client import TARGETS_PATH, IngestClient
from rl_insight.transport.ray import RayTransport
from rl_insight.transport.registry import make_http
from rl_insight.urls import host_and_port, is_loopback
from rl_insight.waiting import wait_for

logger = logging.getLogger("rl_insight")

NAMESPACE = "rl-insight-monitor"
NAME_PREFIX = "RLInsightMonitorHub_"
_KEPT_STEPS = 256
_LAST_FLUSH_S = 10.0
"""For final delivery when the job has ended; the rest stays in the spool for the next sender on this machine."""
_LEAVE_S = 1.0
_JOB_POLL_S = 1.0
_EVERYWHERE = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 -- listening there is the user's choice


class RunIdentity(msgspec.Struct, frozen=True):
    """The identity of a run, shared by all processes of a job."""

    run_id: str
    project: str = ""
    experiment_name: str = ""

    def takes(self, project: str | None, experiment_name: str | None) -> bool:
        """Return whether a process with these names belongs to the run; a process without names always does."""
        return not project or not self.project or (project, experiment_name) == (self.project, self.experiment_name)


class MonitorHub:
    """The actor class. Other processes call its methods by name, so the names are stable."""

    def __init__(self, config: dict[str, Any], run: dict[str, str], hub_id: str) -> None:
        self._config = config_from_dict(config)
        self._run = run
        self._batches = 0
        self._joined = 0
        settings = self._config
        process = Process(process_id=_spool_name(hub_id), run_id=run["run_id"], host="", pid=0)
        relay = make_http(settings, process, bundles=True) if settings.server.url else None
        sinks: list[Sink] = [DerivedMetrics()]
        if settings.otlp.traces_endpoint:
            from rl_insight.collector.sinks.otlp import OtlpTraceSink

            sinks.append(OtlpTraceSink(settings.otlp.traces_endpoint))
        self._collector = Collector(sinks, namespace=settings.server.namespace)
        self._road = ForwardingTransport(self._collector, relay)
        self._wanted_s = 0.0
        self._ended: set[str] = set()
        """Processes whose final batch was made here."""
        self._steps: deque[tuple[int, int]] = deque(maxlen=_KEPT_STEPS)
        self._stacks_of: set[str] = set()
        """Processes whose stacks the server requested; they are notified in the response to their next batch."""
        self._road.on_flush_interval = partial(setattr, self, "_wanted_s")
        self._road.on_stacks_of_others = self._stacks_of.update
        self._endpoint = _metrics_endpoint(self._collector, settings)
        self._registration: TargetRegistration | None = None
        self._not_registered = ""
        try:
            self._registration = _registration(self._endpoint, settings, run, hub_id)
        except Exception as error:  # noqa: BLE001 -- the hub works without a registration
            self._not_registered = str(error)
        if _can_watch_job():
            threading.Thread(target=self._end_with_job, name="rl-insight-job", daemon=True).start()

    def _end_with_job(self) -> None:
        """Exit when the job has ended, after delivering all accepted batches: Ray keeps detached actors alive."""
        import ray

        _wait_for_end_of_job()
        self.flush(_LAST_FLUSH_S)
        if self._registration is not None:
            self._registration.leave(_LEAVE_S)
        self._road.close()
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    def ingest(self, payload: bytes) -> float | tuple[float, bool]:
        """Ingest one encoded batch; return the flush interval that the server requests, 0 for any.

        A process whose stacks are requested gets a pair of that interval and True. Only plain values are returned,
        because workers may have another version of this package.
        """
        self._batches += 1
        self._road.send(self._renumbered(payload) if self._ended else payload)
        return (self._wanted_s, True) if self._stacks_of and self._is_asked(payload) else self._wanted_s

    def _is_asked(self, payload: bytes) -> bool:
        """Return whether the stacks of a batch's sender are requested; each request is forwarded once."""
        try:
            sender = decode(payload).process.process_id
        except SchemaError:
            return False
        is_asked = sender in self._stacks_of
        self._stacks_of.discard(sender)
        return is_asked

    def note_step(self, mark: tuple[int, int]) -> None:
        """Record the start of a driver step; they arrive in order."""
        self._steps.append(mark)

    def get_steps(self) -> list[tuple[int, int]]:
        """Return the start times of the driver's latest steps."""
        return list(self._steps)

    def get_start(self) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the configuration and the run's identity, for a worker that starts recording."""
        self._joined += 1
        return config_to_dict(self._config), self._run

    def name_run(self, project: str, experiment_name: str) -> None:
        """Name a run that was started without names."""
        if not self._run.get("project"):
            self._run |= {"project": project, "experiment_name": experiment_name}

    def count_joining(self, asking: str) -> int:
        """Return how many workers, not counting the caller, joined the run but have not sent anything yet."""
        heard = self._collector.status().processes.keys() - {asking}
        return max(0, self._joined - len(heard))

    def get_status(self) -> dict[str, Any]:
        """Return the hub's received, dropped and forwarded batches, and the URL of its `/metrics`."""
        status = self._road.get_status()
        status["metrics_url"] = self._endpoint.url if self._endpoint else None
        status |= {  # the names of rl-insight 0.3.0
            "actor_name": NAME_PREFIX.rstrip("_"),
            "namespace": NAMESPACE,
            "node_ip": _node_address(),
            "metrics_endpoint": status["metrics_url"],
            "prometheus_metrics_enabled": self._endpoint is not None,
            "otel_traces_enabled": bool(self._config.otlp.traces_endpoint or self._config.server.url),
            "events_applied": self._batches,
        }
        status["registration"] = (
            self._registration.get_status() if self._registration else {"not_registered": self._not_registered}
        )
        return status

    def leave(self, timeout_s: float) -> bool:
        """Send final batches for the job's workers and deregister `/metrics`; called when the driver ends.

        Ray kills workers together with their driver, so they cannot send their final batches themselves.
        """
        deadline = time.monotonic() + timeout_s
        for process, last in self._collector.last_batches():
            if process.process_id not in self._ended:
                self._ended.add(process.process_id)
                ending = BatchBuilder().build(process, sequence=last + 1, sent_ns=time.time_ns(), final=True)
                self._road.send(encode(ending))
        sent = self._road.flush(timeout_s)
        left = self._registration is None or self._registration.leave(max(0.0, deadline - time.monotonic()))
        return sent and left

    def _renumbered(self, payload: bytes) -> bytes:
        """Renumber a batch of a worker that outlived its driver: its next number was used for its final batch."""
        batch = decode(payload)
        if batch.process.process_id not in self._ended:
            return payload
        batch.sequence += 1
        return encode(batch)

    def stay(self) -> None:
        """Register `/metrics` again: a process records to this hub after its driver has finished."""
        if self._registration is not None:
            self._registration.stay()

    def flush(self, timeout_s: float) -> bool:
        """Forward everything; called by the driver before the job ends."""
        deadline = time.monotonic() + timeout_s
        idle = self._collector.wait_idle(timeout_s)
        return self._road.flush(max(0.0, deadline - time.monotonic())) and idle


def _can_watch_job() -> bool:
    """Return whether this Ray version reports ended jobs; otherwise a hub ends with the process that started it."""
    return _job_table() is not None


def _wait_for_end_of_job() -> None:
    """Block until the Ray job of this process has ended."""
    import ray

    job_id = ray.get_runtime_context().get_job_id()
    jobs = _job_table()
    while jobs is not None:
        with contextlib.suppress(Exception):  # the cluster's head may be restarting
            if any(job["JobID"] == job_id and job["IsDead"] for job in jobs()):
                return
        time.sleep(_JOB_POLL_S)


def _job_table() -> Callable[[], list[dict[str, Any]]] | None:
    """Return Ray's internal list of jobs; the public API needs the dashboard, which many clusters lack."""
    try:
        from ray._private.state import jobs
    except ImportError:
        return None
    return jobs  # type: ignore[no-any-return]


def _spool_name(hub_id: str) -> str:
    """Return the name of the hub's spool: stable across restarts, different for each cluster on this machine."""
    import ray

    return f"{hub_id}-{ray.get_runtime_context().gcs_address}"


def _metrics_endpoint(collector: Collector, config: InsightConfig) -> Any:
    from rl_insight.metrics.endpoint import MetricsEndpoint

    try:
        return MetricsEndpoint(
            collector.metrics_page, config.prometheus.metrics_report_host, config.prometheus.metrics_report_port
        )
    except OSError as error:
        logger.warning("the hub cannot serve /metrics: %s. Set prometheus.metrics_report_host and _port.", error)
        return None


def _registration(endpoint: Any, config: InsightConfig, run: dict[str, str], hub_id: str) -> TargetRegistration:
    """Register the hub as a scrape target of the server.

    Raises:
        InsightError: that is impossible.
    """
    server = find_server(config.server.url, config.server.token) if config.server.url else None
    if server is None:
        raise InsightError("no server is configured.")
    if endpoint is None:
        raise InsightError("the hub does not serve /metrics.")
    job, _, node = hub_id.removeprefix(NAME_PREFIX).partition("_")
    target = HubTarget(
        addresses=[_reachable_address(endpoint, server.url)],
        job_name=TRAINER_JOB,
        owner=f"{run['run_id']}/{hub_id}",
        labels={"ray_job": job} | ({"ray_node": node} if node else {}),
        run_id=run["run_id"],
        project=run.get("project", ""),
        experiment_name=run.get("experiment_name", ""),
    )
    client = IngestClient(
        server.url, token=server.token, ca_file=server.tls_cert, timeout_s=config.http.timeout_s, path=TARGETS_PATH
    )
    return TargetRegistration(client, target)


def _reachable_address(endpoint: Any, server_url: str) -> str:
    """Return the address at which the server can scrape the hub.

    Raises:
        InsightError: the hub listens on loopback and the server is on another machine.
    """
    if endpoint.host in _EVERYWHERE:
        return host_and_port(_node_address(), endpoint.port)
    if is_loopback(endpoint.host) and not is_loopback(urlsplit(server_url).hostname or ""):
        raise InsightError(
            f"the server cannot reach {endpoint.url}: it is on another machine. Set prometheus.metrics_report_host."
        )
    return str(endpoint.address)


def _node_address() -> str:
    """Return the address of this node in the Ray cluster."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    return next(str(node["NodeManagerAddress"]) for node in ray.nodes() if node["NodeID"] == here)


def is_ray_worker() -> bool:
    """Return whether this process is a Ray worker rather than a driver."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    return bool(ray.get_runtime_context().worker.mode == ray.WORKER_MODE)


def hub_name(node_id: str | None = None) -> str:
    """Return the name of this job's hub, or of its hub on one node."""
    import ray

    name = NAME_PREFIX + ray.get_runtime_context().get_job_id()
    return f"{name}_{node_id}" if node_id else name


def find_hub() -> Any:
    """Return the hub on this node, else the job's hub; None if there is none."""
    import ray

    for name in (hub_name(ray.get_runtime_context().get_node_id()), hub_name()):
        with contextlib.suppress(ValueError):
            return ray.get_actor(name, namespace=NAMESPACE)
    return None


def is_hub_of_another_process() -> bool:
    """Return whether the job has a hub that another process started."""
    return not _node_hubs and find_hub() is not None


def start_hub(config: InsightConfig, run: RunIdentity) -> Any:
    """Start this job's hub, and one on every other node if configured; return the hub for this process.

    The hubs end with the job, not with this process.
    """
    hub = _start_actor(hub_name(), config, run)
    if config.ray.hub == "node":
        import ray

        here = ray.get_runtime_context().get_node_id()
        for node in ray.nodes():
            if node["Alive"] and node["NodeID"] != here:
                _start_actor(hub_name(node["NodeID"]), config, run, node_id=node["NodeID"])
    return hub


_node_hubs: list[Any] = []
"""The hubs that this process started."""


def _start_actor(name: str, config: InsightConfig, run: RunIdentity, node_id: str | None = None) -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    node = node_id or ray.get_runtime_context().get_node_id()
    actor = ray.remote(MonitorHub).options(
        name=name,
        namespace=NAMESPACE,
        get_if_exists=True,
        num_cpus=0,
        max_restarts=-1,
        lifetime="detached" if _can_watch_job() else None,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=True),
    )
    handle = actor.remote(config_to_dict(config), msgspec.structs.asdict(run), name)
    _node_hubs.append(handle)
    return handle


def fetch_start(hub: Any, timeout_s: float) -> tuple[InsightConfig, RunIdentity]:
    """Get the configuration and the run from a hub. Blocks, so only RL-Insight's threads may call it.

    Raises:
        InsightError: the hub does not respond in time.
    """
    import ray

    try:
        config, run = ray.get(hub.get_start.remote(), timeout=timeout_s)
    except Exception as error:
        raise InsightError(f"the monitor hub does not respond: {error}.") from error
    return config_from_dict(config), msgspec.convert(run, RunIdentity)


def wait_for_hub(timeout_s: float) -> Any:
    """Wait for this job's hub for up to `timeout_s`. Blocks, so only RL-Insight's threads may call it."""
    return wait_for(find_hub, timeout_s, 0.5)


def create_ray_transport(config: InsightConfig, process: Process) -> Transport:
    """Create the transport to the job's hub, which is started if there is none."""
    run = RunIdentity(process.run_id, process.project, process.experiment_name)
    options: dict[str, Any] = {
        "process_id": process.process_id,
        "settle_s": config.recorder.flush_interval_s * 1.5 + SETTLE_S,
        "leads_steps": not is_ray_worker(),
        "other_hubs": _node_hubs,
    }

    def find_or_start() -> Any:
        found = find_hub()
        if found is None:
            found = start_hub(config, run)
            transport.flush_hub = True
        return found

    hub = find_hub()
    if hub is not None:
        hub.stay.remote()
        ends_the_job = bool(_node_hubs) or not is_ray_worker()
        transport = RayTransport(hub, find_or_start, flush_hub=ends_the_job, **options)
    else:
        transport = RayTransport(start_hub(config, run), find_or_start, flush_hub=True, **options)
    return transport
