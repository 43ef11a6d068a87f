"""`rl-insight diff A B`: two runs side by side: where their time goes, and their metrics."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_insight.cli.completion import complete_run
from rl_insight.cli.console import say, say_json, say_table, working
from rl_insight.cli.hotspots import duration_text
from rl_insight.cli.opening import AsJson, DataDir, asked_run

if TYPE_CHECKING:
    from rl_insight.reader.sources import RunSource

_STEPS = 200
_METRICS = 30

RunName = Annotated[
    str,
    typer.Argument(help="A run: its id, the beginning of it, or its experiment.", autocompletion=complete_run),
]


def diff(first: RunName, second: RunName, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Compare two runs: the average time of a step and of its states, and metrics over their common steps."""
    with ExitStack() as stack:
        sources = [stack.enter_context(asked_run(data_dir, name)) for name in (first, second)]
        with working("comparing"):
            found = compare(*sources)
    if as_json:
        say_json(found)
        return
    names = [found["first"], found["second"]]
    if not found["times"] and not found["metrics"]:
        say(f"{names[0]} and {names[1]} have no steps in common to compare.")
        return
    say(f"Steps {found['first_step']} to {found['last_step']}, which both have.")
    rows = [[row["name"], _time(row["first"]), _time(row["second"]), _change(row)] for row in found["times"]]
    say_table(["time per step", *names, "change"], rows, whole=["time per step"])
    if found["metrics"]:
        say()
        shown = found["metrics"][:_METRICS]
        rows = [[row["name"], f"{row['first']:.4g}", f"{row['second']:.4g}", _change(row)] for row in shown]
        say_table(["metric, mean", *names, "change"], rows, whole=["metric, mean"])


def compare(one: RunSource, other: RunSource) -> dict[str, Any]:
    """Return the differences of two runs over the finished steps that both have, the largest first."""
    steps = [
        {row["step"] for row in run.ask("steps", limit=_STEPS) if row["end_ns"] is not None} for run in (one, other)
    ]
    common = sorted(steps[0] & steps[1])
    found: dict[str, Any] = {"first": one.run_id, "second": other.run_id, "times": [], "metrics": []}
    if not common:
        return found
    span = {"first": common[0], "last": common[-1]}
    found |= {"first_step": common[0], "last_step": common[-1]}
    found["times"] = _pairs(*(_times(run.ask("steps/breakdown", **span), set(common)) for run in (one, other)))
    found["metrics"] = _pairs(*(_means(run.ask("steps/metrics", **span), set(common)) for run in (one, other)))
    return found


def _times(breakdown: dict[str, Any], common: set[int]) -> dict[str, float]:
    """Return the mean seconds of a step and of each of its states."""
    steps = [step for step in breakdown["steps"] if step["step"] in common]
    totals: dict[str, float] = {}
    for step in steps:
        parts = [("step", step["end_ns"] - step["start_ns"]), ("idle", step["idle_ns"])]
        for name, wall in parts + [(phase["name"], phase["wall_ns"]) for phase in step["phases"]]:
            totals[name] = totals.get(name, 0.0) + wall / 1e9
    return {name: total / len(steps) for name, total in totals.items()}


def _means(rows: list[dict[str, Any]], common: set[int]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for row in rows:
        if row["step"] in common:
            values.setdefault(row["name"], []).append(float(row["average"]))
    return {name: sum(some) / len(some) for name, some in values.items()}


def _pairs(one: dict[str, float], other: dict[str, float]) -> list[dict[str, Any]]:
    rows = [{"name": name, "first": one[name], "second": other[name]} for name in one if name in other]
    return sorted(rows, key=lambda row: (row["name"] != "step", -abs(_ratio(row) or 0.0)))


def _ratio(row: dict[str, Any]) -> float | None:
    return None if not row["first"] else (row["second"] - row["first"]) / abs(row["first"])


def _change(row: dict[str, Any]) -> str:
    ratio = _ratio(row)
    return "" if ratio is None or ratio != ratio else f"{ratio:+.1%}"  # noqa: PLR0124 -- NaN differs from itself


def _time(seconds: float) -> str:
    return duration_text(seconds * 1e9)
