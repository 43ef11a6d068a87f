"""Maps OTLP resources to processes."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from typing import Any

import msgspec

from rl_insight.intake.process import FIRST_HEARTBEAT_S
from rl_insight.otlp.decode.experiments import NAMELESS, Experiment, run_of_day
from rl_insight.otlp.decode.values import as_text, plain
from rl_insight.otlp.mapping import RUN_KEYS, label_attributes
from rl_insight.schema import Process
from rl_insight.schema.json_values import whole_number

_MAX_TEXT = 200
_MAX_LABELS = 32
_MAX_CACHED = 4096


class ProcessBook:
    """Maps each resource to a process; the same resource always maps to the same process.

    A process is identified by `service.instance.id`, else by host and pid, else by the full resource and the sender's
    address.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[bytes, str, str, Experiment], Process] = OrderedDict()

    def process_of(self, resource: Any, peer: str, experiment: Experiment = NAMELESS) -> Process:
        """Return the process of a `Resource` message from the address `peer`.

        `experiment` is that of its data, if the resource does not name it.
        """
        day = time.strftime("%Y%m%d", time.gmtime())
        key = (resource.SerializeToString(deterministic=True), peer, day, experiment)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = describe(plain(resource.attributes), peer, day, experiment)
            if len(self._known) > _MAX_CACHED:
                self._known.popitem(last=False)
        return found


def describe(attributes: dict[str, Any], peer: str, day: str, experiment: Experiment = NAMELESS) -> Process:
    """Return the process that resource attributes describe.

    >>> process = describe({"service.name": "rollout", "run_id": "r1", "process.pid": 7, "host.name": "n1"}, "", "")
    >>> process.process_id, process.run_id, process.role
    ('rollout-n1-7', 'r1', 'rollout')
    """
    service = service_of(attributes)
    own = names_of(attributes)
    names = Experiment(experiment.project or own.project, experiment.name or own.name)
    host = _text(attributes, "host.name") or peer
    pid = whole_number(attributes.get("process.pid")) or 0
    labels = {key: as_text(value)[:_MAX_TEXT] for key, value in label_attributes(attributes).items()}
    return Process(
        process_id=_identity(attributes, service, host, pid, peer),
        run_id=run_of(attributes) or run_of_day(service, names, day),
        host=host,
        pid=pid,
        project=names.project,
        experiment_name=names.name,
        role=_text(attributes, "role") if "role" in attributes else service,
        rank=whole_number(attributes.get("rank")),
        labels=dict(list(labels.items())[:_MAX_LABELS]),
        started_ns=time.time_ns(),
        heartbeat_s=FIRST_HEARTBEAT_S,
    )


def run_of(attributes: dict[str, Any]) -> str:
    """Return the run id in resource attributes, or an empty string.

    >>> run_of({"run.id": "20260101-1", "service.name": "xtuner"})
    '20260101-1'
    """
    return next((run_id for key in RUN_KEYS if (run_id := _text(attributes, key))), "")


def service_of(attributes: dict[str, Any]) -> str:
    """Return the service in resource attributes."""
    return _text(attributes, "service.name") or "unknown_service"


def names_of(attributes: dict[str, Any]) -> Experiment:
    """Return the experiment in resource attributes."""
    return Experiment(_text(attributes, "project"), _text(attributes, "experiment_name"))


def _identity(attributes: dict[str, Any], service: str, host: str, pid: int, peer: str) -> str:
    instance = _text(attributes, "service.instance.id")
    if instance:
        return instance
    if pid:
        return f"{service}-{host}-{pid}"
    everything = msgspec.json.encode([sorted((key, as_text(value)) for key, value in attributes.items()), peer])
    return f"{service}-{hashlib.blake2b(everything, digest_size=6).hexdigest()}"


def _text(attributes: dict[str, Any], key: str) -> str:
    value = attributes.get(key)
    return "" if value is None else as_text(value)[:_MAX_TEXT]
