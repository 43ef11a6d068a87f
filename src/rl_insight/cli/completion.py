"""What the shell completes: runs, formats, statuses and scopes."""

from __future__ import annotations

from collections.abc import Callable


def complete_run(incomplete: str) -> list[str]:
    """Return the runs and experiments that begin as typed; none where they cannot be listed."""
    from rl_insight.errors import InsightError
    from rl_insight.reader import runs

    try:
        found = runs()
    except (InsightError, OSError, ImportError):
        return []
    names = [name for row in found for name in (row["run_id"], row.get("experiment_name") or "")]
    return [name for name in dict.fromkeys(names) if name and name.startswith(incomplete)]


def complete_words(words: Callable[[], tuple[str, ...]]) -> Callable[[str], list[str]]:
    """Return a completion of fixed words, which are looked up when they are needed."""
    return lambda incomplete: [word for word in words() if word.startswith(incomplete)]
