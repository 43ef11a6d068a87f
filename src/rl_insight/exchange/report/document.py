"""Collects the data of a report from a run."""

from __future__ import annotations

import time
from typing import TypeVar, get_args

import msgspec

from rl_insight._version import __version__
from rl_insight.exchange.errors import NothingSelectedError
from rl_insight.exchange.report.metrics import metric_lines
from rl_insight.exchange.report.model import VERSION, ReportDocument
from rl_insight.exchange.report.sessions import session_report, session_transcripts
from rl_insight.exchange.report.spans import open_until, span_blocks, span_columns, text_column
from rl_insight.schema.captured_text import without_texts, without_texts_in
from rl_insight.schema.names import TEXTS_EVENT
from rl_insight.sessions.transcript import is_message_event
from rl_insight.store import queries
from rl_insight.store.connections import RunFile
from rl_insight.store.queries import Breakdown, Cursor, Hotspot, Scope, SpanSeries, Step
from rl_insight.store.queries.gpus_now import gpus_now
from rl_insight.store.queries.hardware import usage_of_run
from rl_insight.store.queries.hotspots import GroupBy
from rl_insight.store.queries.logs import events_and_texts, logs_and_texts
from rl_insight.store.queries.process_ends import process_ends
from rl_insight.store.queries.span_series import SeriesAxis

RecordT = TypeVar("RecordT", queries.Event, queries.LogLine)

_SECOND = 1_000_000_000
_MAX_STEPS = 1_000
SHOWN_STEPS = 60
"""How many steps the overview shows."""
IDLE_STEPS = 15
"""How many steps the overview computes the idle share for."""
_MAX_HOTSPOTS = 2_000
_MAX_SERIES = 30
_MAX_POINTS = 400
_MAX_LOGS = 5_000
_MAX_EVENTS = 10_000
_GROUPINGS: tuple[GroupBy, ...] = ("role", "lane", "name_role", "name_lane")


def check_scope(cursor: Cursor, scope: Scope) -> None:
    """Raise if a run does not have the step of a scope.

    Raises:
        NothingSelectedError: no span belongs to the step.
    """
    if scope.step is not None and not queries.hotspots(cursor, scope, limit=1):
        run_id = queries.summary(cursor).run_id
        raise NothingSelectedError(f"nothing was written: there are no spans in step {scope.step} of {run_id}.")


def build_document(store: RunFile, scope: Scope | None = None, *, transcripts: bool = False) -> ReportDocument:
    """Return the data of a report; it includes the text of sessions only with `transcripts`.

    >>> build_document(store, Scope(last_steps=1)).hotspots[0].name  # doctest: +SKIP
    """
    with store.reader() as cursor:
        return _document(cursor, scope or Scope(), transcripts=transcripts)


def _document(cursor: Cursor, scope: Scope, *, transcripts: bool) -> ReportDocument:
    now_ns = time.time_ns()
    run = queries.summary(cursor)
    steps = queries.steps(cursor, _MAX_STEPS)
    shown = steps[-SHOWN_STEPS:]
    recent = [one.step for one in shown if one.end_ns is not None][-IDLE_STEPS:]
    step = _step_of(scope, steps)
    last_ns = max(run.end_ns or 0, *open_until(cursor, now_ns).values(), 0)
    start_ns, end_ns = _window(run.start_ns or 0, last_ns, steps, step)
    origin_ns = start_ns // _SECOND * _SECOND
    spans = span_columns(cursor, start_ns, end_ns, origin_ns, now_ns)
    metrics = queries.metrics(cursor)
    hotspots = queries.hotspots(cursor, scope, limit=_MAX_HOTSPOTS)
    sessions = session_report(cursor, scope)
    of_logs = queries.LogConditions(start_ns=start_ns, end_ns=end_ns)
    of_events = queries.EventConditions(start_ns=start_ns, end_ns=end_ns)
    logs = _without_texts(logs_and_texts(cursor, of_logs, limit=_MAX_LOGS))
    events = _without_texts(events_and_texts(cursor, of_events, limit=_MAX_EVENTS))
    return ReportDocument(
        version=VERSION,
        generated_s=now_ns / _SECOND,
        now_ns=max((end.until_ns for end in process_ends(cursor, now_ns).values()), default=now_ns),
        generator=f"rl-insight {__version__}",
        scope="the whole run" if step is None else f"step {step}",
        step=step,
        origin_ns=origin_ns,
        start_ns=start_ns,
        end_ns=end_ns,
        run=run,
        processes=queries.processes(cursor, now_ns),
        losses=queries.losses(cursor),
        lanes=queries.lanes(cursor),
        steps=steps,
        breakdowns=_breakdowns(cursor, steps),
        idle=queries.idle_by_role(cursor, recent[0], recent[-1]) if recent else [],
        first_idle_step=recent[0] if recent else None,
        last_idle_step=recent[-1] if recent else None,
        step_metrics=queries.step_metrics(cursor, shown[0].step, shown[-1].step) if shown else [],
        hotspots=hotspots,
        hotspots_by={by: queries.hotspots(cursor, scope, by, limit=_MAX_HOTSPOTS) for by in _GROUPINGS},
        flame=queries.flame(cursor, scope, now_ns),
        spans=spans,
        timelines=span_blocks(cursor, start_ns, end_ns, origin_ns, now_ns),
        open_work=queries.open_work(cursor, now_ns),
        pace=queries.step_pace(cursor, SHOWN_STEPS, now_ns=now_ns),
        sessions_in_flight=queries.sessions_in_flight(cursor, now_ns),
        sessions=sessions,
        metrics=metrics,
        lines=metric_lines(cursor, metrics, run),
        usage=usage_of_run(cursor),
        gpus_now=gpus_now(cursor, with_devices=False),
        logs=[line for line, _ in logs],
        log_texts=text_column(text for _, text in logs),
        events=[event for event, _ in events],
        event_texts=text_column(text for _, text in events),
        marks=queries.marks(cursor),
        series=_series(cursor, hotspots[:_MAX_SERIES], start_ns, end_ns),
        findings=queries.read_findings(cursor),
        transcripts=session_transcripts(cursor, sessions.sessions) if transcripts else {},
    )


def _without_texts(records: list[tuple[RecordT, str | None]]) -> list[tuple[RecordT, str | None]]:
    """Return events or log lines with text replaced by its length; OpenTelemetry's messages are text."""
    found: list[tuple[RecordT, str | None]] = []
    for record, text in records:
        name = getattr(record, "name", "")
        if name == TEXTS_EVENT:
            continue
        if is_message_event(name or str(record.attributes.get("event.name", ""))):
            found.append((msgspec.structs.replace(record, attributes={}), None))
        else:
            attributes = without_texts(record.attributes)
            found.append((msgspec.structs.replace(record, attributes=attributes), without_texts_in(text)))
    return found


def _breakdowns(cursor: Cursor, steps: list[Step]) -> dict[str, Breakdown]:
    """Return where the time of steps went, by role; "" is the role that leads them."""
    if not steps:
        return {}
    last = max(one.step for one in steps)
    first = max(min(one.step for one in steps), last - _MAX_STEPS + 1)
    leading = queries.breakdown(cursor, first, last)
    return {"": leading} | {role: queries.breakdown(cursor, first, last, role) for role in leading.roles}


def _series(cursor: Cursor, hotspots: list[Hotspot], start_ns: int, end_ns: int) -> list[SpanSeries]:
    """Return how the hotspots developed, by step and by time."""
    points = {"time": _MAX_POINTS, "step": 0}
    return [
        queries.span_series(cursor, spot.name, axis=axis, points=points[axis], start_ns=start_ns, end_ns=end_ns)
        for spot in hotspots
        if spot.name is not None
        for axis in get_args(SeriesAxis)
    ]


def _step_of(scope: Scope, steps: list[Step]) -> int | None:
    """Return the step of a scope; None for the entire run, which is always the case for a run without steps."""
    if scope.step is not None:
        return scope.step
    return steps[-1].step if scope.last_steps is not None and steps else None


def _window(start_ns: int, last_ns: int, steps: list[Step], step: int | None) -> tuple[int, int]:
    """Return the time window of a report, the end exclusive."""
    chosen = next((one for one in steps if one.step == step), None)
    if chosen is not None:
        return chosen.start_ns, chosen.end_ns or max(chosen.start_ns, last_ns) + 1
    return start_ns, max(start_ns, last_ns) + 1
