"""`rl-insight top`: a run, live, in a terminal."""

from __future__ import annotations

import os
import select
import shutil
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated

import typer

from rl_insight.cli.completion import one_of
from rl_insight.cli.console import say, working
from rl_insight.cli.frame import VIEWS, draw, read
from rl_insight.cli.opening import Run, RunWord, given_run
from rl_insight.cli.place import current_place
from rl_insight.errors import InsightError

_ENTER = "\x1b[?1049h\x1b[?25l"
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME = "\x1b[H"
_CLEAR_LINE = "\x1b[K"
_DEFAULT_SIZE = (80, 24)


def top(
    word: RunWord = None,
    run: Run = None,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit.")] = False,
    view: Annotated[str, one_of(lambda: VIEWS, help=f"The view to start with: {', '.join(VIEWS)}.")] = "overview",
    metric: Annotated[
        list[str] | None, typer.Option("--metric", "-m", help="A metric to show at the top; may be repeated.")
    ] = None,
    interval: Annotated[float, typer.Option(help="Seconds between updates.", min=0.2, max=3600)] = 2.0,
) -> None:
    """Watch a run in a terminal: steps, metrics, open work, findings, processes, slow ranks, GPUs.

    Keys: 1 to 6 view, n and p run, q quit.
    """
    screen = Screen(given_run(word, run), view, tuple(metric or ()))
    try:
        if once or not (sys.stdin.isatty() and sys.stdout.isatty()):
            with working("querying the run"):
                lines = screen.frame()
            for line in lines:
                say(line.rstrip())
            return
        with _full_screen():
            screen.watch(interval)
    finally:
        screen.close()


class Screen:
    """The run and the view on the screen."""

    def __init__(self, run: str | None, view: str, metrics: tuple[str, ...] = ()) -> None:
        from rl_insight.reader.opening import open_source

        self._place = current_place()
        self._source = open_source(self._place, run)
        self._view = view
        self._metrics = metrics

    def frame(self) -> list[str]:
        """Return the lines to show; if the server cannot be reached, its error."""
        width, height = shutil.get_terminal_size(_DEFAULT_SIZE)
        try:
            return draw(read(self._source, self._view, self._metrics), max(width, 40), max(height, 10))
        except InsightError as error:
            lines = [f" {self._source.run_id}", "", f" {error}", "", " Retrying. Press q to quit."]
            return [line[:width] for line in lines] + [""] * (height - len(lines))

    def watch(self, interval: float) -> None:
        """Draw until `q` or Ctrl+C."""
        while True:
            shown = (_CLEAR_LINE + "\r\n").join(self.frame())
            sys.stdout.write(_HOME + shown + _CLEAR_LINE)
            sys.stdout.flush()
            if not self._obey(_key(interval)):
                return

    def _obey(self, key: str) -> bool:
        if key in {"q", "Q", "\x03", "\x04"}:
            return False
        if key.isdecimal() and 1 <= int(key) <= len(VIEWS):
            self._view = VIEWS[int(key) - 1]
        elif key in {"n", "p"}:
            self._change_run(1 if key == "n" else -1)
        return True

    def _change_run(self, by: int) -> None:
        from rl_insight.reader.opening import list_runs, open_source

        run_id = self._source.run_id
        self._source.close()  # a file that this process has open cannot be listed
        with suppress(InsightError):  # the next frame shows the error
            known = [row["run_id"] for row in list_runs(self._place) if not row.get("problem")]
            place = known.index(run_id) if run_id in known else 0
            self._source = open_source(self._place, known[(place + by) % len(known)])

    def close(self) -> None:
        """Close the run."""
        self._source.close()


@contextmanager
def _full_screen() -> Iterator[None]:
    """Use the alternate screen and read single keys; the terminal is always restored."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    sys.stdout.write(_ENTER)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()


def _key(timeout_s: float) -> str:
    """Return the key pressed within the timeout, or an empty string; a closed terminal counts as `q`."""
    ready, _, _ = select.select([sys.stdin], [], [], timeout_s)
    if not ready:
        return ""
    return os.read(sys.stdin.fileno(), 1).decode("utf-8", "replace") or "q"
