"""The server's own health as Prometheus metrics, on the same page as those of the runs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import psutil

from rl_insight._version import __version__
from rl_insight.collector.sinks.prometheus import HealthFamily, PrometheusRenderer, label_text, number
from rl_insight.schema.names import exposed_name

if TYPE_CHECKING:
    from rl_insight.server.services import Services

SERVER_NAMES = frozenset(
    {
        "server_commit_seconds",
        "server_committed_batches_total",
        "server_commits_total",
        "server_duplicate_batches_total",
        "server_failed_batches_total",
        "server_inflight_bytes",
        "server_info",
        "server_ingest_lag_seconds",
        "server_longest_commit_seconds",
        "server_memory_bytes",
        "server_open_runs",
        "server_pending_batches",
        "server_pending_bytes",
        "server_pending_limit_bytes",
        "server_received_bytes_total",
        "server_refused_total",
        "server_requests_total",
        "server_targets",
        "server_unpublished_batches",
        "server_uptime_seconds",
    }
)
"""Exposed names, without the namespace, that belong to the server itself."""

_EOF = b"# EOF\n"


def render(services: Services, accept: str = "") -> tuple[bytes, str]:
    """Return the page of metrics and its content type for an HTTP `Accept` header."""
    body, content_type = PrometheusRenderer(services.collector, services.derived).render(accept)
    is_openmetrics = body.endswith(_EOF)
    lines = [
        line
        for family in [*server_families(services), *services.gpu_usage.families()]
        for line in _lines(family, services.collector.namespace, is_openmetrics=is_openmetrics)
    ]
    own = "\n".join([*lines, ""]).encode()
    if is_openmetrics:
        return body.removesuffix(_EOF) + own + _EOF, content_type
    return body + own, content_type


def server_families(services: Services) -> list[HealthFamily]:
    """Return what the server knows about itself."""
    writer = services.writer.get_status()
    counters = services.counters
    healthy = services.scraper.health()
    up = sum(1 for state in healthy.values() if state.is_up)
    refused: list[tuple[dict[str, str], float]] = [
        ({"route": route, "reason": why}, count) for (route, why), count in counters.refused().items()
    ]
    return [
        HealthFamily("server_info", "gauge", "The version of the server.", [({"version": __version__}, 1)]),
        _single("server_uptime_seconds", "gauge", "Since the start.", (time.time_ns() - services.started_ns) / 1e9),
        _single("server_memory_bytes", "gauge", "Resident memory.", psutil.Process(os.getpid()).memory_info().rss),
        _single("server_ingest_lag_seconds", "gauge", "How long the oldest waiting batch has waited.", writer.lag_s),
        _single("server_pending_batches", "gauge", "Batches that wait for their commit.", writer.pending_batches),
        _single("server_pending_bytes", "gauge", "What waits for its commit.", writer.pending_bytes),
        _single("server_pending_limit_bytes", "gauge", "What may wait at most.", writer.max_pending_bytes),
        _single("server_unpublished_batches", "gauge", "Stored, not yet with sinks.", services.ingest.unpublished),
        _single("server_inflight_bytes", "gauge", "Requests in work.", services.inflight.used),
        _single("server_commits", "counter", "Commits.", writer.commits),
        _single("server_commit_seconds", "gauge", "How long the last commit took.", writer.last_commit_s),
        _single("server_longest_commit_seconds", "gauge", "The longest commit so far.", writer.longest_commit_s),
        _single("server_committed_batches", "counter", "Batches stored.", writer.committed_batches),
        _single("server_duplicate_batches", "counter", "Batches stored before.", writer.duplicate_batches),
        _single("server_failed_batches", "counter", "Batches that could not be written.", writer.failed_batches),
        _by("server_requests", "Requests to ingest routes.", "route", counters.requests().items()),
        _by("server_received_bytes", "Bytes of those requests.", "route", counters.received_bytes().items()),
        HealthFamily("server_refused", "counter", "What was not taken.", refused),
        _single("server_open_runs", "gauge", "Run files that are open.", len(services.runs.open_runs())),
        HealthFamily(
            "server_targets",
            "gauge",
            "Registered scrape targets.",
            [({"state": "up"}, up), ({"state": "down"}, len(healthy) - up)],
        ),
    ]


def _single(name: str, kind: str, documentation: str, value: float) -> HealthFamily:
    return HealthFamily(name, "counter" if kind == "counter" else "gauge", documentation, [({}, value)])


def _by(name: str, documentation: str, label: str, items: Iterable[tuple[str, int]]) -> HealthFamily:
    return HealthFamily(name, "counter", documentation, [({label: key}, value) for key, value in items])


def _lines(family: HealthFamily, namespace: str, *, is_openmetrics: bool) -> list[str]:
    name = exposed_name(namespace, family.name, family.kind)
    shown = name.removesuffix("_total") if is_openmetrics and family.kind == "counter" else name
    lines = [f"# HELP {shown} {family.documentation}", f"# TYPE {shown} {family.kind}"]
    for labels, value in family.values:
        lines.append(f"{name}{label_text(labels)} {number(value)}")
    return lines
