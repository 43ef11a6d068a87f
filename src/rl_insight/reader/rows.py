"""Lazily read rows of a run, convertible to several formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from rl_insight.errors import ConfigError, InsightError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

Row = dict[str, Any]
Fetch = Callable[[Mapping[str, Any], int | None], Iterator[Row]]
"""Yields the rows that match conditions; the second argument is the limit, None for all."""


class Rows:
    """Rows that match some conditions; nothing is read until they are iterated or converted.

    >>> slow = run.spans(name="rollout").where(longer_than_ns=10**9)  # doctest: +SKIP
    >>> slow.to_pandas()  # doctest: +SKIP

    Iterating yields dicts. Each iteration reads again, so a live run shows new rows.
    """

    def __init__(
        self, title: str, fetch: Fetch, allowed: frozenset[str], conditions: Mapping[str, Any], limit: int | None = None
    ) -> None:
        self._title = title
        self._fetch = fetch
        self._allowed = allowed
        self._conditions = {name: value for name, value in conditions.items() if value is not None}
        self._limit = limit
        _check(title, allowed, self._conditions, limit)

    def where(self, **conditions: Any) -> Rows:
        """Return the rows that also match these conditions; they replace earlier ones with the same name.

        Raises:
            ConfigError: there is no such condition; the message lists the valid ones.
        """
        return Rows(self._title, self._fetch, self._allowed, self._conditions | conditions, self._limit)

    def head(self, count: int) -> Rows:
        """Return at most the first `count` rows."""
        limit = count if self._limit is None else min(count, self._limit)
        return Rows(self._title, self._fetch, self._allowed, self._conditions, limit)

    def __iter__(self) -> Iterator[Row]:
        """Read the rows, page by page."""
        return islice(self._fetch(self._conditions, self._limit), self._limit)

    def first(self) -> Row | None:
        """Return the first row; None if there is none."""
        return next(iter(self.head(1)), None)

    def to_dicts(self) -> list[Row]:
        """Return the rows as dicts; nested values are unchanged."""
        return list(self)

    def to_columns(self) -> dict[str, list[Any]]:
        """Return the rows as columns; objects, such as attributes, as JSON strings."""
        columns: dict[str, list[Any]] = {}
        count = 0
        for count, row in enumerate(self, 1):
            for name, value in row.items():
                if name not in columns:
                    columns[name] = [None] * (count - 1)
                columns[name].append(value)
            for values in columns.values():
                if len(values) < count:
                    values.append(None)
        return {name: _flat(values) for name, values in columns.items()}

    def to_arrow(self) -> pa.Table:
        """Return the rows as an Arrow table; needs pyarrow."""
        arrow = _imported("pyarrow")
        return arrow.table({name: arrow.array(values) for name, values in self.to_columns().items()})

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a pandas data frame; integers stay integers where some are missing (`Int64`)."""
        pandas = _imported("pandas")
        columns = self.to_columns()
        return pandas.DataFrame(
            {
                name: pandas.array(values, dtype="Int64") if _has_missing_integers(values) else values
                for name, values in columns.items()
            }
        )

    def to_polars(self) -> pl.DataFrame:
        """Return the rows as a Polars data frame; needs polars."""
        polars = _imported("polars")
        return polars.DataFrame(self.to_columns(), strict=False, infer_schema_length=None)

    def __repr__(self) -> str:
        """Describe the rows without reading them."""
        where = ", ".join(f"{name}={value!r}" for name, value in self._conditions.items())
        most = "" if self._limit is None else f", at most {self._limit:,}"
        return f"<{self._title}{f' where {where}' if where else ''}{most}>"


def _check(title: str, allowed: frozenset[str], conditions: Mapping[str, Any], limit: int | None) -> None:
    unknown = sorted(conditions.keys() - allowed)
    if unknown:
        known = f"the conditions are {', '.join(sorted(allowed))}" if allowed else "they take no conditions"
        raise ConfigError(f"{title} have no condition {unknown[0]!r}: {known}.")
    if limit is not None and limit < 1:
        raise ConfigError(f"cannot return {limit} rows: ask for at least 1.")


def _flat(values: list[Any]) -> list[Any]:
    """Return a column whose values have one type: objects as JSON strings, mixed types as strings."""
    if any(isinstance(value, (dict, list)) for value in values):
        return [None if value is None else msgspec.json.encode(value).decode() for value in values]
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1:
        return values
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    return [None if value is None else str(value) for value in values]


def _has_missing_integers(values: list[Any]) -> bool:
    return None in values and {type(value) for value in values if value is not None} == {int}


def _imported(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InsightError(
            f"{name} is not installed: `pip install {name}`, or use to_dicts(), which needs no package."
        ) from error
