"""Paging through questions that return at most ten thousand rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rl_insight.errors import InsightError
from rl_insight.reader.rows import Row
from rl_insight.reader.sources import RunSource

PAGE = 10_000
_STEPS_PAGE = 1_000


def in_time(
    source: RunSource, question: str, conditions: Mapping[str, Any], most: int | None, time: str
) -> Iterator[Row]:
    """Yield rows from the oldest to the newest, or in reverse if the conditions say so.

    The next page starts with the last timestamp of the previous one, which may have been incomplete.

    Raises:
        InsightError: more rows than a page holds have the same time.
    """
    given = dict(conditions)
    newest_first = given.get("newest_first") is True or given.get("order") == "newest"
    while True:
        wanted = PAGE if most is None else min(PAGE, most)
        page = source.ask(question, **given, limit=wanted)
        if len(page) < wanted or wanted == most:
            yield from page
            return
        last = page[-1][time]
        complete = [row for row in page if row[time] != last]
        if not complete:
            raise InsightError(
                f"more than {PAGE:,} {question} have the timestamp {last}: add conditions, or export the run."
            )
        yield from complete
        most = None if most is None else most - len(complete)
        given |= {"end_ns": last + 1} if newest_first else {"start_ns": last}


def longest(source: RunSource, conditions: Mapping[str, Any], most: int | None) -> Iterator[Row]:
    """Yield the longest spans; that order has no pages.

    Raises:
        InsightError: more than one page was requested.
    """
    if most is None or most > PAGE:
        raise InsightError(f"at most {PAGE:,} of the longest spans can be read: use head(n).")
    yield from source.ask("spans", **conditions, limit=most)


def sessions(source: RunSource, conditions: Mapping[str, Any], most: int | None) -> Iterator[Row]:
    """Yield sessions in the requested order."""
    offset = 0
    while most is None or offset < most:
        wanted = PAGE if most is None else min(PAGE, most - offset)
        page = source.ask("sessions", **conditions, limit=wanted, offset=offset)["sessions"]
        yield from page
        offset += len(page)
        if len(page) < wanted:
            return


def steps(source: RunSource, conditions: Mapping[str, Any], most: int | None) -> Iterator[Row]:
    """Yield steps in order; with a limit, the last ones."""
    pages: list[list[Row]] = []
    last, count = conditions.get("last"), 0
    while most is None or count < most:
        wanted = _STEPS_PAGE if most is None else min(_STEPS_PAGE, most - count)
        page = source.ask("steps", limit=wanted, last=last)
        if not page:
            break
        pages.insert(0, page)
        count += len(page)
        lowest = min(row["step"] for row in page)
        if len(page) < wanted or last == lowest - 1:
            break
        last = lowest - 1
    first = conditions.get("first")
    for page in pages:
        yield from (row for row in page if first is None or row["step"] >= first)
