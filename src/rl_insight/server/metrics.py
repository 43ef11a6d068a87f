"""The server's health as Prometheus metrics, on the same page as those of the runs."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import psutil

from rl_insight._version import __version__
from rl_insight.diagnosis.steps import Step
from rl_insight.metrics import COUNTER, GAUGE
from rl_insight.metrics.families import Readings, by, several, single
from rl_insight.metrics.prometheus import render as render_families
from rl_insight.server.counters import ServerCounters
from rl_insight.store.writer import WriterStatus

if TYPE_CHECKING:
    from rl_insight.server.services import Services


class ServerView(NamedTuple):
    """What the metrics are read from."""

    uptime_s: float
    writer: WriterStatus
    counters: ServerCounters
    inflight_bytes: int
    open_runs: int
    targets: int
    targets_up: int
    findings: Mapping[tuple[str, str, str], int]
    """Open findings by run, rule and severity."""
    steps: Mapping[str, Step]
    """The step that finished last in each run that is being recorded."""


SERVER: Readings[ServerView] = Readings(
    by("version", "server_info", GAUGE, "The version of the server.", lambda _: [(__version__, 1)]),
    single(
        "server_uptime_seconds",
        GAUGE,
        "Time since the server started.",
        lambda state: state.uptime_s,
    ),
    single("server_memory_bytes", GAUGE, "Resident memory.", lambda _: psutil.Process(os.getpid()).memory_info().rss),
    single("server_ingest_lag_seconds", GAUGE, "Age of the oldest queued batch.", lambda state: state.writer.lag_s),
    single("server_pending_batches", GAUGE, "Batches queued for commit.", lambda state: state.writer.pending_batches),
    single("server_pending_bytes", GAUGE, "Bytes queued for commit.", lambda state: state.writer.pending_bytes),
    single("server_pending_limit_bytes", GAUGE, "Queue limit in bytes.", lambda state: state.writer.max_pending_bytes),
    single("server_inflight_bytes", GAUGE, "Bytes of requests in flight.", lambda state: state.inflight_bytes),
    single("server_commits", COUNTER, "Commits.", lambda state: state.writer.commits),
    single("server_commit_seconds", GAUGE, "Duration of the last commit.", lambda state: state.writer.last_commit_s),
    single(
        "server_longest_commit_seconds",
        GAUGE,
        "The longest commit so far.",
        lambda state: state.writer.longest_commit_s,
    ),
    single("server_committed_batches", COUNTER, "Batches stored.", lambda state: state.writer.committed_batches),
    single(
        "server_duplicate_batches", COUNTER, "Batches received again.", lambda state: state.writer.duplicate_batches
    ),
    single(
        "server_failed_batches",
        COUNTER,
        "Batches that could not be written.",
        lambda state: state.writer.failed_batches,
    ),
    by(
        "route",
        "server_requests",
        COUNTER,
        "Requests to ingest routes.",
        lambda state: state.counters.requests().items(),
    ),
    by(
        "route",
        "server_received_bytes",
        COUNTER,
        "Bytes of requests to ingest routes.",
        lambda state: state.counters.received_bytes().items(),
    ),
    several(
        "server_refused",
        COUNTER,
        "Requests and batches refused.",
        lambda state: [
            ((("route", route), ("reason", why)), count) for (route, why), count in state.counters.refused().items()
        ],
    ),
    single("server_open_runs", GAUGE, "Run files that are open.", lambda state: state.open_runs),
    by(
        "state",
        "server_targets",
        GAUGE,
        "Registered scrape targets.",
        lambda state: [("up", state.targets_up), ("down", state.targets - state.targets_up)],
    ),
    by(
        "run_id",
        "run_last_step",
        GAUGE,
        "The step that finished last.",
        lambda state: [(run_id, step.number) for run_id, step in state.steps.items()],
    ),
    by(
        "run_id",
        "run_step_seconds",
        GAUGE,
        "Duration of the step that finished last, from its start to the start of the next one.",
        lambda state: [(run_id, step.seconds) for run_id, step in state.steps.items()],
    ),
    several(
        "open_findings",
        GAUGE,
        "Open findings of diagnosis, without those that another one explains.",
        lambda state: [
            ((("run_id", run_id), ("rule", rule), ("severity", severity)), count)
            for (run_id, rule, severity), count in state.findings.items()
        ],
    ),
)
"""The names are reserved: recorded metrics cannot use them."""


def render(services: Services, accept: str = "", *, all_ranks: bool = False) -> tuple[bytes, str]:
    """Return the page of metrics and its content type for an HTTP `Accept` header.

    With many processes it has series by role, unless those of all ranks are asked for.
    """
    targets = services.scraper.health().values()
    state = ServerView(
        uptime_s=(time.time_ns() - services.started_ns) / 1e9,
        writer=services.writer.get_status(),
        counters=services.counters,
        inflight_bytes=services.inflight.used,
        open_runs=len(services.runs.open_runs()),
        targets=len(targets),
        targets_up=sum(target.is_up for target in targets),
        findings=services.diagnosis.open_findings(),
        steps=services.diagnosis.last_steps(),
    )
    is_by_role = not all_ranks and services.collector.live_processes() > services.settings.max_rank_processes
    families = [*services.collector.families(by_role=is_by_role), *SERVER.families(state)]
    return render_families(families, services.collector.namespace, accept)
