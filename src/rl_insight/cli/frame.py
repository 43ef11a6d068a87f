"""One frame of `rl-insight top`: what a run is doing, in as many lines as the terminal has."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rl_insight.cli.hotspots import duration_text

if TYPE_CHECKING:
    from rl_insight.reader.sources import RunSource

VIEWS = ("overview", "sessions", "findings", "processes")
_BARS = "▁▂▃▄▅▆▇█"
_STEPS = 60
_METRICS = ("reward", "score", "return", "kl", "entropy", "loss", "grad", "throughput", "tokens", "length", "lr")
"""What is worth a line, by a part of its name, the first first."""


def sparkline(values: list[float], width: int) -> str:
    """Return values as a line of bars, the newest at the right.

    >>> sparkline([0.0, 1.0, 2.0, 3.0], 10)
    '▁▃▆█'
    >>> sparkline([5.0, 5.0], 10), sparkline([], 10)
    ('▁▁', '')
    """
    shown = [value for value in values if value == value][-width:]  # noqa: PLR0124 -- NaN differs from itself
    low, high = min(shown, default=0.0), max(shown, default=0.0)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in shown)


def read(source: RunSource, view: str) -> dict[str, Any]:
    """Ask a run for everything that a view shows."""
    found: dict[str, Any] = {"view": view, "run_id": source.run_id, "place": source.place, "time": time.strftime("%X")}
    found["summary"] = source.ask("summary")
    if view == "processes":
        return found | {"processes": source.ask("processes")}
    if view == "sessions":
        return found | {"in_flight": source.ask("sessions/in_flight", limit=200)}
    if view == "findings":
        return found | {"findings": source.ask("findings")}
    steps = source.ask("steps", limit=_STEPS)
    found |= {"steps": steps, "work": source.ask("open/work"), "findings": source.ask("findings")}
    found["processes"] = source.ask("processes")
    finished = [step["step"] for step in steps if step["end_ns"] is not None]
    if finished:
        found["breakdown"] = source.ask("steps/breakdown", first=finished[-1], last=finished[-1])
        found["metrics"] = source.ask("steps/metrics", first=finished[0], last=steps[-1]["step"])
    return found


def draw(found: dict[str, Any], width: int, height: int) -> list[str]:
    """Return the lines of a frame, each cut to the width, at most as many as the height."""
    head = f" {found['run_id']}  {_steps_text(found['summary'])}"
    lines = [f"{head:<{max(0, width - 9)}}{found['time']:>8}"]
    body = {"overview": _overview, "sessions": _sessions, "findings": _findings, "processes": _processes}
    lines += body[found["view"]](found, width, height - 2)
    keys = f" {found['view']}  |  1-4 view  n/p run  q quit"
    lines = lines[: height - 1]
    lines += [""] * (height - 1 - len(lines))
    return [line[:width] for line in [*lines, keys]]


def _steps_text(summary: dict[str, Any]) -> str:
    if summary["last_step"] is None:
        return "no step yet"
    return f"step {summary['last_step']}"


def _overview(found: dict[str, Any], width: int, room: int) -> list[str]:
    lines = [*_step_lines(found, width), ""]
    lines += [*_metric_lines(found, width, max(2, room // 4)), ""]
    lines += [*_work_lines(found, max(2, room // 5)), ""]
    states: dict[str, int] = {}
    for process in found["processes"]:
        states[process["state"]] = states.get(process["state"], 0) + 1
    lines.append(" processes  " + ", ".join(f"{count:,} {state}" for state, count in sorted(states.items())))
    return lines + _findings(found, width, max(2, room - len(lines)))


def _step_lines(found: dict[str, Any], width: int) -> list[str]:
    lasted = [(step["end_ns"] - step["start_ns"]) for step in found["steps"] if step["end_ns"] is not None]
    if not lasted:
        return [" no finished step yet"]
    lines = [f" step time  {duration_text(lasted[-1]):>8}  {sparkline([*map(float, lasted)], width - 23)}"]
    for step in found.get("breakdown", {}).get("steps", [])[-1:]:
        whole = max(1, step["end_ns"] - step["start_ns"])
        parts = [(phase["name"], phase["wall_ns"]) for phase in step["phases"]] + [("idle", step["idle_ns"])]
        for name, wall in sorted(parts, key=lambda part: -part[1])[:4]:
            share = wall / whole
            lines.append(
                f"   {name[:18]:<18} {duration_text(wall):>8} {share:>4.0%} {'█' * round(share * (width - 38))}"
            )
    return lines


def _metric_lines(found: dict[str, Any], width: int, room: int) -> list[str]:
    series: dict[str, list[float]] = {}
    for row in found.get("metrics", []):
        series.setdefault(row["name"], []).append(float(row["average"]))
    names = sorted(series, key=lambda name: (_interest(name), name))[:room]
    return [f" {name[-24:]:<24} {series[name][-1]:>10.4g}  {sparkline(series[name], width - 39)}" for name in names]


def _interest(name: str) -> int:
    return next((place for place, part in enumerate(_METRICS) if part in name.lower()), len(_METRICS))


def _work_lines(found: dict[str, Any], room: int) -> list[str]:
    work = found["work"]
    if not work:
        return [" open work  none"]
    lines = [" open work"]
    for one in work[:room]:
        age = duration_text(one["oldest_age_s"] * 1e9)
        lines.append(f"   {one['name'][:28]:<28} {one['count']:>6}  oldest {age:>8}  {one['role']} {_rank(one)}")
    return lines


def _rank(row: dict[str, Any]) -> str:
    return "" if row.get("rank") is None else f"rank {row['rank']}"


def _findings(found: dict[str, Any], width: int, room: int) -> list[str]:
    open_ones = [finding for finding in found["findings"] if finding["status"] == "open"]
    shown = open_ones if found["view"] == "overview" else found["findings"]
    if not shown:
        return [" findings   none"]
    lines = [f" findings   {len(open_ones)} open"]
    for finding in shown[:room]:
        lines.append(f"   {finding['severity']:<8} {finding['title']}"[:width])
        if found["view"] == "findings":
            lines.append(f"            {finding['remedy']}"[:width])
    return lines[:room]


def _sessions(found: dict[str, Any], width: int, room: int) -> list[str]:
    waiting = found["in_flight"]
    lines = [f" {len(waiting):,} sessions in flight, of {found['summary']['sessions']:,}", ""]
    for one in waiting[: room - 2]:
        age, phase = duration_text(one["age_s"] * 1e9), one["phase"] or "-"
        lines.append(
            f"   {one['session_id'][: width - 50]:<{max(8, width - 50)}} {age:>8}  {phase[:16]:<16} {_rank(one)}"
        )
    return lines


def _processes(found: dict[str, Any], _width: int, room: int) -> list[str]:
    order = {"silent": 0, "live": 1, "ended": 2}
    rows = sorted(found["processes"], key=lambda row: (order.get(row["state"], 3), -row["silent_s"]))
    lines = [f" {len(rows):,} processes, the silent ones first", ""]
    for row in rows[: room - 2]:
        silent = duration_text(row["silent_s"] * 1e9)
        lines.append(
            f"   {row['state']:<7} {row['role'][:14]:<14} {_rank(row):<9} {row['host'][:18]:<18} heard {silent} ago"
        )
    return lines
