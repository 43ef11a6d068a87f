"""Scrape targets for Prometheus by file discovery: Prometheus picks up changes without a reload.

The server keeps the registered targets in `targets.json` of its data directory; this module writes them in Prometheus'
format. A Prometheus that the user runs can read the same file: its configuration is never modified.
"""

from __future__ import annotations

import fcntl
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec

from rl_insight.files import replace_file

logger = logging.getLogger(__name__)

TARGETS_FILE = "targets.json"
"""In the data directory; see `rl_insight.server.scrape.targets`."""
CLIENTS_FILE = "targets/prometheus-targets.yml"
"""In the data directory: the discovery file for a Prometheus that was set up for rl-insight 0.3.0."""
JOB_LABELS = ("job",)
CLIENTS_JOB_LABELS = ("job", "rl_insight_job")
"""rl-insight 0.3.0 puts the job in a label that its Prometheus renames to `job`."""


class RegisteredTarget(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint that serves metrics in Prometheus' format."""

    url: str
    job_name: str = "targets"
    labels: dict[str, str] = {}
    run_id: str = ""
    project: str = ""
    experiment_name: str = ""
    forwards: bool = False
    """Its metrics are also in the server's `/metrics`, which Prometheus scrapes: scraping both would double them."""


class _Book(msgspec.Struct):
    targets: list[RegisteredTarget] = []


def discovery_entry(target: RegisteredTarget, job_labels: Sequence[str] = JOB_LABELS) -> dict[str, Any]:
    """Return a target as an entry of Prometheus' file discovery.

    >>> discovery_entry(RegisteredTarget(url="http://node7:8000/metrics", job_name="vllm"))
    {'targets': ['node7:8000'], 'labels': {'job': 'vllm'}}
    """
    parts = urlsplit(target.url)
    labels = {
        **target.labels,
        "project": target.project,
        "experiment_name": target.experiment_name,
        "run_id": target.run_id,
        **dict.fromkeys(job_labels, target.job_name),
        "__scheme__": "" if parts.scheme == "http" else parts.scheme,
        "__metrics_path__": "" if parts.path == "/metrics" else parts.path,
        **{f"__param_{name}": value for name, value in parse_qsl(parts.query)},
    }
    return {"targets": [parts.netloc], "labels": {name: value for name, value in labels.items() if value}}


def write_discovery(path: Path, targets: Iterable[RegisteredTarget], job_labels: Sequence[str] = JOB_LABELS) -> bool:
    """Replace a discovery file, under a lock; False if its content is already the same."""
    text = json.dumps([discovery_entry(target, job_labels) for target in targets], indent=2) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            if path.read_text(encoding="utf-8") == text:
                return False
        except OSError:
            pass
        replace_file(path, text.encode(), durable=True)
    return True


class TargetMirror:
    """Keeps a discovery file in sync with `book`, the server's `targets.json`; `job_labels` name a target's job."""

    def __init__(self, book: Path, path: Path, job_labels: Sequence[str] = JOB_LABELS) -> None:
        self._book = book
        self._path = path
        self._job_labels = job_labels
        self._seen: tuple[int, int] | None = None

    def refresh(self) -> None:
        """Write the discovery file if the registered targets have changed."""
        try:
            found = self._book.stat()
            stamp = (found.st_mtime_ns, found.st_ino)
        except OSError:
            stamp = (0, 0)
        if stamp == self._seen:
            return
        write_discovery(self._path, read_targets(self._book), self._job_labels)
        self._seen = stamp


def read_targets(book: Path) -> list[RegisteredTarget]:
    """Return the targets registered with the server, without those that forward their metrics to it."""
    try:
        found = msgspec.json.decode(book.read_bytes(), type=_Book).targets
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError) as error:
        logger.warning("the registered scrape targets in %s cannot be read: %s", book, error)
        return []
    return [target for target in found if not target.forwards]


def ray_metrics_addresses(nodes: Iterable[Mapping[str, Any]] | None = None) -> list[str]:
    """Return the metrics endpoints of all live nodes of the Ray cluster, as ``host:port``.

    >>> insight.update_prometheus_config(ray_metrics_addresses(), "ray")  # doctest: +SKIP

    Args:
        nodes: The result of `ray.nodes()`, which is called if this is omitted.
    """
    if nodes is None:
        import ray

        nodes = ray.nodes()
    return [
        f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}"
        for node in nodes
        if node.get("Alive") and node.get("MetricsExportPort")
    ]
