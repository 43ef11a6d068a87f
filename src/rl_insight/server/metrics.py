"""The server's health as Prometheus metrics, on the same page as those of the runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psutil

from rl_insight._version import __version__
from rl_insight.metrics import COUNTER, GAUGE
from rl_insight.metrics.families import MetricReading, Readings, by, several, single
from rl_insight.metrics.prometheus import render as render_families

if TYPE_CHECKING:
    from rl_insight.metrics.kinds import MetricKind
    from rl_insight.server.services import Services


def _of_writer(name: str, kind: MetricKind, documentation: str, field: str) -> MetricReading[Services]:
    return single(name, kind, documentation, lambda server: getattr(server.writer.get_status(), field))


def _targets(server: Services) -> list[tuple[str, int]]:
    up = [target.is_up for target in server.scraper.health().values()]
    return [("up", sum(up)), ("down", len(up) - sum(up))]


SERVER: Readings[Services] = Readings(
    by("version", "server_info", GAUGE, "The version of the server.", lambda _: [(__version__, 1)]),
    single(
        "server_uptime_seconds",
        GAUGE,
        "Time since the server started.",
        lambda server: (time.time_ns() - server.started_ns) / 1e9,
    ),
    single("server_memory_bytes", GAUGE, "Resident memory.", lambda _: psutil.Process().memory_info().rss),
    _of_writer("server_ingest_lag_seconds", GAUGE, "Age of the oldest queued batch.", "lag_s"),
    _of_writer("server_pending_batches", GAUGE, "Batches queued for commit.", "pending_batches"),
    _of_writer("server_pending_bytes", GAUGE, "Bytes queued for commit.", "pending_bytes"),
    _of_writer("server_pending_limit_bytes", GAUGE, "Queue limit in bytes.", "max_pending_bytes"),
    single("server_inflight_bytes", GAUGE, "Bytes of requests in flight.", lambda server: server.inflight.used),
    _of_writer("server_commits", COUNTER, "Commits.", "commits"),
    _of_writer("server_commit_seconds", GAUGE, "Duration of the last commit.", "last_commit_s"),
    _of_writer("server_longest_commit_seconds", GAUGE, "Duration of the longest commit so far.", "longest_commit_s"),
    _of_writer("server_committed_batches", COUNTER, "Batches stored.", "committed_batches"),
    _of_writer("server_duplicate_batches", COUNTER, "Batches received again.", "duplicate_batches"),
    _of_writer("server_failed_batches", COUNTER, "Batches that could not be written.", "failed_batches"),
    by(
        "route",
        "server_requests",
        COUNTER,
        "Requests to ingest routes.",
        lambda server: server.counters.requests().items(),
    ),
    by(
        "route",
        "server_received_bytes",
        COUNTER,
        "Bytes of requests to ingest routes.",
        lambda server: server.counters.received_bytes().items(),
    ),
    several(
        "server_refused",
        COUNTER,
        "Requests and batches refused.",
        lambda server: [
            ((("route", route), ("reason", why)), count) for (route, why), count in server.counters.refused().items()
        ],
    ),
    single("server_open_runs", GAUGE, "Open run files.", lambda server: len(server.runs.open_runs())),
    by("state", "server_targets", GAUGE, "Registered scrape targets.", _targets),
    by(
        "result",
        "server_alerts",
        COUNTER,
        "Deliveries of alerts, and alerts postponed because too many waited.",
        lambda server: server.alerts.counts().items(),
    ),
    by(
        "run_id",
        "run_last_step",
        GAUGE,
        "The step that finished last.",
        lambda server: [(run_id, step.step) for run_id, step in server.diagnosis.last_steps().items()],
    ),
    by(
        "run_id",
        "run_step_seconds",
        GAUGE,
        "Duration of the step that finished last, from its start to the start of the next one.",
        lambda server: [
            (run_id, ((step.end_ns or 0) - step.start_ns) / 1e9)
            for run_id, step in server.diagnosis.last_steps().items()
        ],
    ),
    several(
        "open_findings",
        GAUGE,
        "Open findings of diagnosis, without those explained by another finding.",
        lambda server: [
            ((("run_id", run_id), ("rule", rule), ("severity", severity)), count)
            for (run_id, rule, severity), count in server.diagnosis.open_findings().items()
        ],
    ),
)
"""The names are reserved: recorded metrics cannot use them."""


def render(services: Services, accept: str = "", *, all_ranks: bool = False) -> tuple[bytes, str]:
    """Return the page of metrics and its content type for an HTTP `Accept` header.

    With many processes, series are aggregated by role unless `all_ranks` is set.
    """
    is_by_role = not all_ranks and services.collector.live_processes() > services.settings.max_rank_processes
    families = [*services.collector.families(by_role=is_by_role), *SERVER.families(services)]
    return render_families(families, services.collector.namespace, accept)
