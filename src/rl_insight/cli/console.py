"""Output of commands, for people and for programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from rich.table import Table

Advance = Callable[..., None]
"""Reports progress: `advance(done, total, text)`, with bytes and, optionally, the current item."""
_NO_WIDTH = 10_000
_SHORT = 10


def say(text: str = "") -> None:
    """Print a line for people."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def say_json(value: Any) -> None:
    """Print a value as JSON."""
    say(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def warn(text: str) -> None:
    """Print a line to stderr."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def fail(sentence: str, code: int) -> int:
    """Print an error and return the exit code."""
    warn(f"rl-insight: {sentence}")
    return code


def say_table(
    columns: list[str], rows: list[list[str]], *, whole: Sequence[str] = (), optional: Sequence[str] = ()
) -> None:
    """Print a table without its empty columns; with colors only on a terminal.

    Args:
        columns: the headings.
        rows: the cells.
        whole: columns that are never folded, such as ids to be copied.
        optional: columns to drop if the terminal is too narrow, in this order.
    """
    from rich.console import Console

    # A file or a pipe has no width to fold lines for.
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _NO_WIDTH
    console = Console(width=width)
    used = [place for place in range(len(columns)) if not rows or any(row[place] for row in rows)]
    for name in [*optional, None]:
        table = _table(columns, rows, used, whole)
        needed = console.measure(table, options=console.options.update(max_width=_NO_WIDTH)).maximum
        if needed <= console.width or name is None:
            break
        used = [place for place in used if columns[place] != name]
    if needed > console.width:
        table.padding = (0, 1, 0, 0)
    console.print(table)


def _table(columns: list[str], rows: list[list[str]], used: list[int], whole: Sequence[str]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for place in used:
        cells = [row[place] for row in rows if row[place]]
        # In a narrow terminal, names are folded and short cells are not.
        is_short = all(len(cell) <= _SHORT for cell in cells)
        is_figure = is_short and all(cell[0].isdigit() for cell in cells)
        is_whole = is_short or columns[place] in whole
        table.add_column(
            columns[place],
            overflow="ignore" if columns[place] in whole else "fold",
            no_wrap=is_whole,
            min_width=max((len(cell) for cell in cells), default=0) if columns[place] in whole else None,
            justify="right" if is_figure else "left",
        )
    for row in rows:
        # Plain text: square brackets in an address are not markup.
        table.add_row(*(Text(row[place]) for place in used))
    return table


@contextmanager
def working(text: str) -> Iterator[Advance]:
    """Show on a terminal that a command is busy, with a progress bar once progress is reported."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _done, _total, _text="": None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(text, total=None)

        def advance(done: int, total: int | None, text: str = text) -> None:
            bar.columns = (*columns, BarColumn(), DownloadColumn())
            bar.update(task, completed=done, total=total, description=text)

        yield advance
