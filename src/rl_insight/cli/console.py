"""What commands print, for people and for machines."""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec

_NO_WIDTH = 10_000
_SHORT = 10


def say(text: str = "") -> None:
    """Print a line for people."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def counted(number: int, noun: str) -> str:
    """Return a number of things.

    >>> counted(1, "file"), counted(1200, "record")
    ('1 file', '1,200 records')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def say_json(value: Any) -> None:
    """Print a value for machines."""
    say(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def warn(text: str) -> None:
    """Print a line to the error stream."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def fail(sentence: str, code: int) -> int:
    """Print what went wrong and return the exit code."""
    warn(f"rl-insight: {sentence}")
    return code


def say_table(columns: list[str], rows: list[list[str]]) -> None:
    """Print a table without its empty columns; colors only on a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    used = [place for place in range(len(columns)) if not rows or any(row[place] for row in rows)]
    for place in used:
        cells = [row[place] for row in rows if row[place]]
        # What is short stays whole in a narrow terminal: names are folded instead.
        is_short = all(len(cell) <= _SHORT for cell in cells)
        is_figure = is_short and all(cell[0].isdigit() for cell in cells)
        table.add_column(columns[place], overflow="fold", no_wrap=is_short, justify="right" if is_figure else "left")
    for row in rows:
        # As plain text: square brackets in an address are not markup.
        table.add_row(*(Text(row[place]) for place in used))
    # A file or a pipe has no width that lines would have to be folded for.
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _NO_WIDTH
    console = Console(width=width)
    if console.measure(table, options=console.options.update(max_width=_NO_WIDTH)).maximum > console.width:
        table.padding = (0, 1, 0, 0)
    console.print(table)
