"""Resolves the name of a run: its id, a prefix of its id, or its experiment."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from rl_insight.errors import InsightError

_SHOWN = 5

RunRow = Mapping[str, Any]
"""A run as `GET /api/v1/runs` lists it; the latest start comes first."""


class NoSuchRunError(InsightError, KeyError):
    """No run, or more than one, matches a name."""

    def __str__(self) -> str:
        return str(self.args[0])


def find_run(name: str | None, rows: Sequence[RunRow], place: str) -> str:
    """Return the id of the run that a name refers to; without a name, of the run that started last.

    A name is an id, the name of an experiment (its latest run), or a unique prefix of an id.

    Raises:
        NoSuchRunError: there is no such run, or the prefix matches several; the message lists them.

    >>> rows = [{"run_id": "grpo-7b-2", "experiment_name": "grpo-7b"},
    ...         {"run_id": "grpo-7b-1", "experiment_name": "grpo-7b"}]
    >>> find_run("grpo-7b", rows, "here"), find_run(None, rows, "here"), find_run("grpo-7b-1", rows, "here")
    ('grpo-7b-2', 'grpo-7b-2', 'grpo-7b-1')
    """
    readable = [row for row in rows if not row.get("problem")]
    if name is None:
        if not readable:
            raise NoSuchRunError(f"there are no runs {place}. Record one, or bring one in with `rl-insight import`.")
        return str(readable[0]["run_id"])
    if any(row["run_id"] == name for row in rows):
        return name
    of_experiment = [row for row in readable if row.get("experiment_name") == name]
    if of_experiment:
        return str(of_experiment[0]["run_id"])
    beginning = [str(row["run_id"]) for row in readable if name and str(row["run_id"]).startswith(name)]
    if len(beginning) == 1:
        return beginning[0]
    if beginning:
        more = "" if len(beginning) <= _SHOWN else f" and {len(beginning) - _SHOWN} more"
        raise NoSuchRunError(
            f"{name!r} is a prefix of {len(beginning)} runs: {', '.join(beginning[:_SHOWN])}{more}. "
            "Type more of the id."
        )
    raise NoSuchRunError(f"there is no run {name!r} {place}. {_suggestion(name, readable)}")


def _suggestion(name: str, rows: Sequence[RunRow]) -> str:
    known = {str(row["run_id"]) for row in rows} | {str(row.get("experiment_name") or "") for row in rows} - {""}
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"Did you mean {near[0]!r}?" if near else "`rl-insight runs list` shows the runs."
