"""The harness for all benchmarks: figures with budgets, discovery, running, and printing the results.

A benchmark is a module of this package with a `NAME` and a `run`:

    NAME = "startup"

    def run(options: Options) -> Iterator[Figure]:
        yield Figure("server start to ready", 1.4, "s", budget=2.0)

Each benchmark runs in a separate process, unaffected by the threads, imports or garbage of another.
"""

from __future__ import annotations

import ast
import importlib
import json
import multiprocessing
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TextIO


@dataclass(frozen=True, slots=True)
class Options:
    """The command-line options of every benchmark."""

    quick: bool = False
    """Fewer and shorter rounds: checks that everything works, with rough values."""
    minutes: float = 0.0
    """How long the page follows a run in real time; 0 extrapolates from a shorter run."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value, and its budget.

    >>> Figure("start", 1.4, "s", budget=2.0).ok, Figure("rate", 30, "/s", budget=50, at_least=True).ok
    (True, False)
    """

    metric: str
    value: float
    unit: str
    budget: float | None = None
    """None: shown for comparison only."""
    at_least: bool = False
    """The budget is a lower limit, not an upper one."""

    @property
    def ok(self) -> bool:
        """Whether the value meets its budget."""
        if self.budget is None:
            return True
        return self.value >= self.budget if self.at_least else self.value <= self.budget

    @property
    def limit(self) -> str | None:
        """The budget as text, such as `<= 2`."""
        if self.budget is None:
            return None
        return f"{'>=' if self.at_least else '<='} {self.budget:.4g}"

    def as_json(self, benchmark: str) -> str:
        """Return the figure as one JSON line."""
        return json.dumps(
            {
                "benchmark": benchmark,
                "metric": self.metric,
                "value": self.value,
                "unit": self.unit,
                "budget": self.limit,
                "ok": self.ok,
            }
        )


class SkipBenchmark(Exception):  # noqa: N818  # not an error
    """Raised by `run` if a benchmark cannot run here: the message names the missing prerequisite."""


def discover(package: str = "benchmarks") -> dict[str, str]:
    """Return the module of each benchmark by its name.

    The sources are parsed, not imported: the dependencies of one benchmark must not be loaded for another.
    """
    found: dict[str, str] = {}
    for folder in map(Path, importlib.import_module(package).__path__):
        for path in sorted(folder.glob("*.py")):
            name = _name_in(path)
            if name is not None:
                found[name] = f"{package}.{path.stem}"
    return dict(sorted(found.items()))


def _name_in(path: Path) -> str | None:
    for node in ast.parse(path.read_text("utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="NAME")], value=ast.Constant(value=str(name))):
                return name
    return None


def run_benchmark(module: str, options: Options) -> Iterator[Figure]:
    """Run one benchmark in a fresh process and yield its figures as they come.

    Raises:
        SkipBenchmark: it cannot run here.
        RuntimeError: it failed; the message contains its traceback.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_run_in_child, args=(module, options, sender))
    child.start()
    sender.close()
    try:
        while True:
            message = receiver.recv()
            if isinstance(message, BaseException):
                raise message
            if message is None:
                return
            yield message
    except EOFError:
        child.join()
        raise RuntimeError(f"the process ended with status {child.exitcode}.") from None
    finally:
        receiver.close()
        child.join()


def _run_in_child(module: str, options: Options, sender: Connection) -> None:
    os.dup2(2, 1)  # stdout is reserved for figures; output of libraries goes to stderr
    try:
        for figure in importlib.import_module(module).run(options):
            sender.send(figure)
        sender.send(None)
    except SkipBenchmark as reason:
        sender.send(reason)
    except Exception:
        sender.send(RuntimeError(traceback.format_exc()))


def run_all(
    benchmarks: Mapping[str, str], options: Options, *, json_path: Path | None = None, out: TextIO, err: TextIO
) -> int:
    """Run benchmarks one after another; returns 1 if a budget was missed or a benchmark failed, else 0."""
    lines: list[str] = []
    results: list[tuple[str, Figure]] = []
    failed = False
    for name, module in benchmarks.items():
        try:
            for figure in run_benchmark(module, options):
                lines.append(figure.as_json(name))
                print(lines[-1], file=out, flush=True)
                results.append((name, figure))
        except SkipBenchmark as reason:
            print(f"{name}: skipped. {reason}", file=err, flush=True)
        except RuntimeError as error:
            failed = True
            print(f"{name}: failed. {error}", file=err, flush=True)
    if json_path is not None:
        json_path.write_text("".join(line + "\n" for line in lines), "utf-8")
    show_table(results, err)
    return int(failed or not all(figure.ok for _, figure in results))


def show_table(results: Sequence[tuple[str, Figure]], stream: TextIO) -> None:
    """Print the figures as a table, in color on a terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for title, justify in (("benchmark", "left"), ("metric", "left"), ("value", "right"), ("unit", "left")):
        table.add_column(title, justify=justify)  # type: ignore[arg-type]  # rich's literal type
    table.add_column("budget", justify="right")
    table.add_column("")
    for name, figure in results:
        verdict = "" if figure.budget is None else "[green]ok[/]" if figure.ok else "[bold red]missed[/]"
        table.add_row(name, figure.metric, f"{figure.value:.4g}", figure.unit, figure.limit or "", verdict)
    width = None if stream.isatty() else 140
    Console(file=stream, width=width).print(table)


Loop = Callable[[int], None]
"""Makes the measured call a given number of times."""


def measure_calls(
    contenders: Mapping[str, Loop], *, rounds: int, turn_s: float = 0.000_4, between: Callable[[], Any] = lambda: None
) -> dict[str, float]:
    """Return the cost of one call of each contender in nanoseconds: the median of many short rounds.

    The contenders alternate in rounds of about the same length, so that a slow phase of the machine affects all of
    them equally. `between` runs, unmeasured, after each round. As with `timeit`, the loop around the call is part of
    its cost.
    """
    calls: dict[str, int] = {}
    for name, loop in contenders.items():
        probe_s = min(_timed(loop, 50) for _ in range(10)) / 1e9
        calls[name] = max(10, int(50 * turn_s / max(probe_s, 1e-9)))
        between()
    costs: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, loop in contenders.items():
            costs[name].append(_timed(loop, calls[name]) / calls[name])
            between()
    return {name: statistics.median(measured) for name, measured in costs.items()}


def _timed(loop: Loop, calls: int) -> int:
    start = time.perf_counter_ns()
    loop(calls)
    return time.perf_counter_ns() - start


def say(message: str) -> None:
    """Print what is being measured."""
    print(message, file=sys.stderr, flush=True)
