"""Model calls become phases of the session whose trace they belong to: vLLM's `llm_request`, and GenAI spans.

vLLM continues the trace of a request's `traceparent` header, and exports one span when the request has ended. The span
has neither session nor run: both are looked up by trace here, before the request is converted. The same holds for
instrumented clients of models and tools, whose spans have OpenTelemetry's `gen_ai.operation.name`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final

from rl_insight.errors import InsightError
from rl_insight.otlp.decode.processes import run_of
from rl_insight.otlp.decode.values import plain
from rl_insight.otlp.mapping import GEN_AI_OPERATION, RUN_KEYS, SEGMENT, STATE_NAME
from rl_insight.schema.names import PHASE_SEGMENT
from rl_insight.store import queries
from rl_insight.store.queries.trace_sessions import ForeignSpan, FoundSession
from rl_insight.store.runs import RunDirectory

logger = logging.getLogger("rl_insight")

ENGINE_SPAN: Final = b"llm_request"
"""The name of vLLM's span."""
MARKERS: Final = (ENGINE_SPAN, GEN_AI_OPERATION.encode())
"""A request without any of these is skipped."""
_PHASE = "generate"


class EngineRequests:
    """Assigns the spans of engines to sessions; a span of an unknown session stays unchanged."""

    def __init__(self, runs: RunDirectory) -> None:
        self._runs = runs

    def assign(self, request: Any) -> None:
        """Add sessions to the spans of engines in a trace request, and move them to the session's run."""
        for entry in list(request.resource_spans):
            asked = dict(_engine_spans(entry))
            if not asked:
                continue
            own_run = run_of(plain(entry.resource.attributes))
            for run_id in [own_run] if own_run else self._runs.open_runs():
                found = self._find(run_id, asked)
                for place, session in found.items():
                    _add_attributes(asked.pop(place), session)
                if found and not own_run:
                    _move(request, entry, run_id, found.keys())
                    asked = dict(_engine_spans(entry))  # places have changed

    def _find(self, run_id: str, asked: dict[_Place, Any]) -> dict[_Place, FoundSession]:
        keys = {place: _key(span) for place, span in asked.items()}
        try:
            with self._runs.open(run_id) as store, store.reader() as cursor:
                sessions = queries.trace_sessions(cursor, keys.values())
        except InsightError as error:  # deleted, damaged or closed: the spans are stored without a session
            logger.debug("cannot look up the sessions of run %s: %s", run_id, error)
            return {}
        return {place: sessions[key] for place, key in keys.items() if key in sessions}


_Place = tuple[int, int]
"""The position of a scope in a resource, and of a span in it."""


def _engine_spans(entry: Any) -> Iterator[tuple[_Place, Any]]:
    name = ENGINE_SPAN.decode()
    for scope_number, scope in enumerate(entry.scope_spans):
        for number, span in enumerate(scope.spans):
            is_wanted = span.name == name or any(pair.key == GEN_AI_OPERATION for pair in span.attributes)
            if is_wanted and len(span.trace_id) == 16 and not _has_session(span):
                yield (scope_number, number), span


def _has_session(span: Any) -> bool:
    return any(attribute.key in {"session_id", SEGMENT} for attribute in span.attributes)


def _key(span: Any) -> ForeignSpan:
    trace = (int.from_bytes(span.trace_id[:8], "big"), int.from_bytes(span.trace_id[8:], "big"))
    return ForeignSpan(trace, int.from_bytes(span.parent_span_id, "big"), span.start_time_unix_nano)


def _add_attributes(span: Any, session: FoundSession) -> None:
    added = {"session_id": session.session_id}
    if span.name == ENGINE_SPAN.decode():
        added |= {SEGMENT: PHASE_SEGMENT, STATE_NAME: _PHASE}
    for key, value in added.items():
        span.attributes.add(key=key).value.string_value = value
    if session.step is not None:
        span.attributes.add(key="step").value.int_value = session.step


def _move(request: Any, entry: Any, run_id: str, places: Any) -> None:
    """Move spans to a separate resource with the run."""
    moved = request.resource_spans.add()
    moved.resource.CopyFrom(entry.resource)
    moved.resource.attributes.add(key=RUN_KEYS[0]).value.string_value = run_id
    for scope_number, number in sorted(places, reverse=True):
        scope = entry.scope_spans[scope_number]
        target = moved.scope_spans.add()
        target.scope.CopyFrom(scope.scope)
        target.spans.add().CopyFrom(scope.spans[number])
        del scope.spans[number]
