"""Spans as rows of a batch, many at a time: a column is made in one pass, most of it without Python code per span."""

from __future__ import annotations

from collections.abc import Sequence
from operator import sub
from typing import Any

from msgspec.structs import astuple

from rl_insight.recorder.attributes import AttributeEncoder
from rl_insight.recorder.context import step_of
from rl_insight.recorder.losses import short_text
from rl_insight.recorder.names import CleanNames
from rl_insight.recorder.redaction import LONGEST_KNOWN
from rl_insight.recorder.spans import STILL_OPEN, Span
from rl_insight.recorder.text_sample import TextSample
from rl_insight.schema import NO_STEP, OPEN, BatchBuilder
from rl_insight.schema.agent_loop import TRACE_SOURCE, read_agent_span, session_row
from rl_insight.schema.builder import TextTable
from rl_insight.schema.captured_text import CAPTURED_TEXT

_SPECIAL = {"step", TRACE_SOURCE}
"""Attributes that say more than themselves."""


class EncodedSpans:
    """Writes spans into batches; one per process, used by the flusher alone."""

    def __init__(self, names: CleanNames, attributes: AttributeEncoder) -> None:
        self._names = names
        self._attributes = attributes

    def add(
        self, spans: Sequence[Span], builder: BatchBuilder, offset_ns: int, sample: TextSample | None = None
    ) -> bool:
        """Add spans, all or none, at times moved by an offset; returns whether one of them failed.

        With a sample, texts of sessions beyond it are left out.
        """
        columns: Any = zip(*map(astuple, spans))  # noqa: B905  # a state has more fields than a span: left out
        _, name, attributes, segment, lane, start, end, span_id, parent_id, trace_high, trace_low, *rest = columns
        step, session_id, status, error = rest[:4]
        sessions: list[dict[str, Any]] = []
        special: list[int] = []
        if not _SPECIAL.isdisjoint(set().union(*filter(None, attributes))):
            special = [at for at, given in enumerate(attributes) if given and not _SPECIAL.isdisjoint(given)]
            segment, step, session_id = list(segment), list(step), list(session_id)
        for at in special:
            given = attributes[at]
            if step[at] is None and "step" in given:
                step[at] = step_of(given["step"])
            if TRACE_SOURCE in given and (found := read_agent_span(given)) is not None:
                segment[at], session_id[at] = found.segment or segment[at], found.session_id
                step[at] = found.step if step[at] is None else step[at]
                row = session_row(given, start[at] + offset_ns, end[at] + offset_ns) if end[at] else None
                sessions += [row] if row is not None else []
        duration = list(map(sub, end, start))
        is_open = 0 in end
        if is_open or min(duration) < 0:
            duration = [max(after - before, 0) if after else OPEN for before, after in zip(start, end, strict=True)]
        if is_open:
            status = [outcome if ended else STILL_OPEN for outcome, ended in zip(status, end, strict=True)]
        texts = builder.texts
        hidden: set[int] = set()
        if sample is not None:
            hidden = {
                at
                for at, given in enumerate(attributes)
                if given
                and session_id[at] is not None
                and not CAPTURED_TEXT.isdisjoint(given)
                and not sample.shows(spans[at], short_text(session_id[at]), step[at], start[at] + offset_ns)
            }
        builder.add_spans(
            span_id,
            trace_high,
            trace_low,
            parent_id,
            list(map(texts.__getitem__, self._clean_names(name))),
            [reading + offset_ns for reading in start],
            duration,
            _positions(texts, segment),
            _positions(texts, lane),
            _positions(texts, status),
            _positions(texts, error),
            [NO_STEP if number is None else number for number in step],
            _positions(texts, session_id),
            texts.of_column(self._attributes.encode_all(attributes, hidden)),
        )
        for row in sessions:
            builder.add_session(**{**row, "record": self._attributes.encode(row["record"]) or "{}"})
        return any(error)

    def _clean_names(self, names: Sequence[Any]) -> Any:
        if set(map(type, names)) == {str} and max(map(len, names)) <= LONGEST_KNOWN:
            return map(self._names.__getitem__, names)
        return map(self._names.of, names)


def _positions(texts: TextTable, column: Sequence[Any]) -> list[int]:
    """Return where a column's texts are, cut to the length of a name; one that all rows share is looked up once."""
    first = column[0]
    if column.count(first) == len(column):
        return [texts[None if first is None else short_text(first)]] * len(column)
    return [texts[None if value is None else short_text(value)] for value in column]
