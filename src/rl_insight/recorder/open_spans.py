"""The spans of a process that have begun and not ended, as far as the flusher has taken them."""

from __future__ import annotations

from collections.abc import Iterator

from rl_insight.recorder.spans import Span


class OpenSpans:
    """Keeps spans until they end; one that stays open for longer than a flush is reported once as open."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._reported: set[int] = set()

    def __len__(self) -> int:
        return len(self._spans)

    def add(self, span: Span) -> None:
        """Keep a span that has not ended."""
        self._spans.append(span)

    def has_unreported(self, oldest: int) -> bool:
        """Return whether a span that began before a moment is open, and no batch has said so."""
        known = self._reported
        return any(not span.end and span.start <= oldest and span.span_id not in known for span in self._spans)

    def take(self, oldest: int) -> Iterator[Span | None]:
        """Yield the spans to write: those that ended, and those to report that began before a moment.

        None stands for a span that there is nothing to say about.
        """
        spans, self._spans = self._spans, []
        for span in spans:
            if span.end:
                self._reported.discard(span.span_id)
                yield span
                continue
            self._spans.append(span)
            if span.start <= oldest and span.span_id not in self._reported:
                self._reported.add(span.span_id)
                yield span
            else:
                yield None
