"""Gathers the data of a report from a run."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import numpy as np

from rl_insight._version import __version__
from rl_insight.exchange.report.metrics import metric_charts
from rl_insight.exchange.report.model import VERSION, ReportDocument, ReportProcess, Scatter
from rl_insight.exchange.report.numbers import outlier_bound, sample_rows
from rl_insight.exchange.report.sessions import session_report
from rl_insight.store import RunStore, queries
from rl_insight.store.queries import Cursor, Hotspot, Lane, RunSummary, Scope, Step, Timeline
from rl_insight.store.queries.base import conditions

_PIXELS = 1_600
_MAX_BLOCKS = 20_000
_MAX_HOTSPOTS = 200
_LATENCY_NAMES = 10
_POINTS = 1_500
_FRAGMENTS = {"first": "step >= $first", "last": "step <= $last", "names": "name_id IN (SELECT unnest($names))"}
_NAMES = "SELECT name_id, name FROM names"
_SPANS = """
    SELECT name_id, start_ns + clock_offset_ns AS start_ns, duration_ns, status, span_id
    FROM span_data JOIN lanes USING (lane_id) JOIN processes USING (process) WHERE {where}
"""


def build_document(store: RunStore, scope: Scope | None = None) -> ReportDocument:
    """Return the data of a report.

    >>> build_document(store, Scope(last_steps=1)).hotspots[0].name  # doctest: +SKIP
    """
    with store.reader() as cursor:
        return _document(cursor, scope or Scope())


def _document(cursor: Cursor, scope: Scope) -> ReportDocument:
    run = queries.summary(cursor)
    steps = queries.steps(cursor, 1_000)
    chosen = [step for step in steps if _is_in(step.step, scope, steps)]
    hotspots = queries.hotspots(cursor, scope, limit=_MAX_HOTSPOTS)
    metrics, hardware = metric_charts(cursor, run)
    lanes = queries.lanes(cursor)
    return ReportDocument(
        version=VERSION,
        generated_s=time.time(),
        generator=f"rl-insight {__version__}",
        scope=_in_words(scope, chosen),
        run=run,
        processes=_processes(cursor, run),
        losses=queries.losses(cursor),
        steps=steps,
        hotspots=hotspots,
        lanes=lanes,
        timeline=_timeline(cursor, run, scope, chosen, lanes),
        latency=_latency(cursor, hotspots, chosen if _is_bounded(scope) else None),
        sessions=session_report(cursor, scope),
        metrics=metrics,
        hardware=hardware,
        findings=[msgspec.to_builtins(finding) for finding in queries.findings(cursor)],
    )


def _is_bounded(scope: Scope) -> bool:
    return scope.step is not None or scope.last_steps is not None


def _is_in(step: int, scope: Scope, steps: list[Step]) -> bool:
    if scope.step is not None:
        return step == scope.step
    return scope.last_steps is None or step > steps[-1].step - scope.last_steps


def _in_words(scope: Scope, chosen: list[Step]) -> str:
    if not _is_bounded(scope) or (not chosen and scope.step is None):
        return "the whole run"
    return f"step {scope.step if scope.step is not None else chosen[-1].step}"


def _processes(cursor: Cursor, run: RunSummary) -> list[ReportProcess]:
    return [
        ReportProcess(
            process_id=one.process_id,
            title=f"{one.role or 'process'}{'' if one.rank is None else f' {one.rank}'}",
            host=one.host,
            clock_offset_ns=one.clock_offset_ns,
            open_spans=one.open_spans,
            lost=one.lost,
        )
        for one in queries.processes(cursor, run.end_ns or 0)
    ]


def _timeline(cursor: Cursor, run: RunSummary, scope: Scope, chosen: list[Step], lanes: list[Lane]) -> Timeline | None:
    if run.start_ns is None or run.end_ns is None or not lanes:
        return None
    start_ns, end_ns = run.start_ns, run.end_ns
    if _is_bounded(scope) and chosen:
        start_ns, end_ns = chosen[0].start_ns, max(step.end_ns for step in chosen)
    return queries.timeline(
        cursor,
        start_ns=start_ns,
        end_ns=end_ns + 1,
        pixels=_PIXELS,
        now_ns=run.end_ns,
        max_blocks=_MAX_BLOCKS,
    )


def _latency(cursor: Cursor, hotspots: list[Hotspot], steps: list[Step] | None) -> list[Scatter]:
    """Return the durations of the names that take most of the time, as points."""
    wanted = [spot.name for spot in hotspots if spot.name is not None and spot.count > 1][:_LATENCY_NAMES]
    ids = {name: number for number, name in cursor.execute(_NAMES).fetchall()}
    first = last = None
    if steps:
        first, last = steps[0].step, steps[-1].step
    names = [ids[name] for name in wanted]
    where, given = conditions(_FRAGMENTS, {"first": first, "last": last, "names": names})
    found = cursor.execute(_SPANS.format(where=where), given).fetchnumpy()
    return [_scatter(name, found, found["name_id"] == ids[name]) for name in wanted]


def _scatter(name: str, found: dict[str, Any], chosen: Any) -> Scatter:
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(found["start_ns"][rows], kind="stable")]
    seconds = found["duration_ns"][rows] / 1e9
    bound = outlier_bound(seconds) if len(seconds) else 0.0
    p50, p95 = np.quantile(seconds, (0.5, 0.95)).tolist() if len(seconds) else (0.0, 0.0)
    kept = sample_rows(seconds, bound, _POINTS)
    statuses = [str(status) for status in found["status"][rows[kept]]]
    groups = sorted(set(statuses))
    return Scatter(
        name=name,
        total=len(rows),
        p50_s=p50,
        p95_s=p95,
        outlier_s=bound,
        start_ns=found["start_ns"][rows[kept]].tolist(),
        duration_s=seconds[kept].tolist(),
        group=[groups.index(status) for status in statuses],
        groups=groups,
        label=[f"{number:016x}" for number in found["span_id"][rows[kept]].tolist()],
    )
