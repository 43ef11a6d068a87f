"""`rl-insight diff A B`: two runs side by side: time per step, metrics, configuration."""

from __future__ import annotations

from contextlib import ExitStack
from math import isnan, nan
from typing import Any

from rl_insight.cli.console import say, say_json, say_table, working
from rl_insight.cli.opening import AsJson, RunName, asked_run
from rl_insight.words import seconds_text

_METRICS = 30
_KEYS = 100


def diff(first: RunName, second: RunName, as_json: AsJson = False) -> None:
    """Compare two runs over their common steps: a summary, times by phase, metrics, and configuration."""
    with ExitStack() as stack:
        sources = [stack.enter_context(asked_run(name)) for name in (first, second)]
        with working("comparing"):
            found = sources[0].compare(sources[1])
    if as_json:
        say_json(found)
        return
    names = [found["first"], found["second"]]
    say(found["sentence"])
    if found["steps"]:
        _say_figures(found, names)
    if found["config"]:
        say()
        rows = [[row["key"], _value(row["first"]), _value(row["second"])] for row in found["config"][:_KEYS]]
        say_table(["configuration", *names], rows, whole=["configuration"])


def _say_figures(found: dict[str, Any], names: list[str]) -> None:
    say(f"Steps {found['first_step']} to {found['last_step']}, which both have.")
    rows = [
        [row["name"], seconds_text(row["first"]), seconds_text(row["second"]), _change(row)] for row in found["times"]
    ]
    say_table(["time per step", *names, "change"], rows, whole=["time per step"])
    if found["metrics"]:
        say()
        shown = found["metrics"][:_METRICS]
        rows = [[row["name"], f"{row['first']:.4g}", f"{row['second']:.4g}", _change(row)] for row in shown]
        say_table(["metric, mean", *names, "change"], rows, whole=["metric, mean"])


def _change(row: dict[str, Any]) -> str:
    ratio = (row["second"] - row["first"]) / abs(row["first"]) if row["first"] else nan
    return "" if isnan(ratio) else f"{ratio:+.1%}"


def _value(value: Any) -> str:
    return "" if value is None else str(value)
