"""Names of spans, events and tasks as they are recorded: bounded text without secrets."""

from __future__ import annotations

from typing import Any

from rl_insight.recorder.losses import MAX_NAME, short_text
from rl_insight.recorder.redaction import DROPPED, LONGEST_KNOWN, MASK, Redactor

_SECRET_MARGIN = 512
_MAX_KNOWN = 4096


class CleanNames(dict[str, str]):
    """Clean names by the names that users gave: a program has few, and cleaning one takes as long as its row.

    Looking up a known one is a lookup in a dictionary, without a call; only texts of up to `LONGEST_KNOWN` characters.
    """

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def __missing__(self, name: str) -> str:
        clean = self._clean(name)
        if len(self) < _MAX_KNOWN:
            self[name] = clean
        return clean

    def of(self, name: Any) -> str:
        """Return the clean form of what a user gave as a name, whatever it is."""
        return self[name] if name.__class__ is str and len(name) <= LONGEST_KNOWN else self._clean(name)

    def _clean(self, name: Any) -> str:
        # The margin lets a secret be recognized that the cut would otherwise go through.
        text = self._redactor.text(short_text(name, MAX_NAME + _SECRET_MARGIN))
        return MASK if text is DROPPED else str(text[:MAX_NAME])
