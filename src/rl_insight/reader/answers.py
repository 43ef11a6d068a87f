"""What a run file answers, as the server's routes do."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import msgspec

from rl_insight.errors import ConfigError
from rl_insight.questions import QUESTIONS
from rl_insight.store import queries
from rl_insight.store.queries import Cursor


def answer(cursor: Cursor, question: str, conditions: Mapping[str, Any]) -> Any:
    """Answer a question as the route `/api/v1/<question>` does; conditions that are None are left out.

    Raises:
        ConfigError: there is no such question, or it has no such condition.
        QueryError: it cannot be answered as asked.
    """
    if question not in QUESTIONS:
        raise ConfigError(f"a run cannot be asked for {question!r}: choose one of {', '.join(sorted(QUESTIONS))}.")
    known = QUESTIONS[question].conditions
    given = {name: value for name, value in conditions.items() if value is not None}
    unknown = sorted(given.keys() - known)
    if unknown:
        raise ConfigError(f"cannot ask for {question} with {unknown[0]!r}: the conditions are {', '.join(known)}.")
    missing = [name for name, one in known.items() if one.default is inspect.Parameter.empty and name not in given]
    if missing:
        raise ConfigError(f"cannot ask for {question} without {missing[0]!r}.")
    found = QUESTIONS[question].ask(cursor, given)
    if question == "findings" and not found and not queries.read_findings(cursor):
        found = _diagnosed(cursor, **given)
    return msgspec.to_builtins(found)


def _diagnosed(cursor: Cursor, *, explained: bool = False, muted: bool = False) -> list[queries.Finding]:
    """Diagnose a run that live diagnosis never saw."""
    from rl_insight.diagnosis.run import heard, replay

    report = replay(cursor)
    kept = (report if muted else heard(cursor, report)).findings
    return kept if explained else queries.top_findings(kept)
