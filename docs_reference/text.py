"""Pieces of Markdown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence

_SECTION = re.compile(r"^(Args|Returns|Raises|Yields):$", re.MULTILINE)
_EXAMPLE = re.compile(r"(?:^>>> .*(?:\n(?!$).*)*\n?)", re.MULTILINE)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; empty without rows."""
    lines = [_row(row) for row in rows]
    return "\n".join([_row(head), _row(["---"] * len(head)), *lines, ""]) if lines else ""


def _row(cells: Sequence[str]) -> str:
    texts = (re.sub(r"\s*\n\s*", " ", cell).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(texts)} |"


def docstring(documented: object) -> str:
    """Return a docstring as Markdown: examples become code, and arguments become lists."""
    text = inspect.getdoc(documented) or ""
    text = _EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text)
    return _with_lists(text.replace("  # doctest: +SKIP", ""))


def _with_lists(text: str) -> str:
    """Return a docstring whose sections are lists."""
    first, *sections = _SECTION.split(text)
    parts = [first.rstrip()]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        parts.append(f"**{title}**\n")
        parts.append("\n".join(_items(inspect.cleandoc(body))))
    return "\n\n".join(parts).rstrip() + "\n"


def _items(body: str) -> Iterable[str]:
    """Yield the entries of a section, each of which begins at the margin."""
    for line in body.splitlines():
        if not line.startswith(" ") and line:
            name, colon, rest = line.partition(": ")
            yield f"- `{name}`: {rest}" if colon and " " not in name else f"- {line}"
        else:
            yield f"  {line.strip()}"
