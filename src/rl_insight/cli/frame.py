"""One frame of `rl-insight top`: the state of a run, in as many lines as the terminal has."""

from __future__ import annotations

import textwrap
import time
from collections import Counter
from math import isfinite
from statistics import median
from typing import TYPE_CHECKING, Any

from rl_insight.schema.names import DeviceId
from rl_insight.words import duration_text, seconds_text

if TYPE_CHECKING:
    from rl_insight.reader.sources import RunSource

VIEWS = ("overview", "sessions", "findings", "processes", "ranks", "gpus")
_INDENT = " " * 12
_BARS = "▁▂▃▄▅▆▇█"
_STEPS = 60
_RANK_STEPS = 20
_GPU_WINDOW_NS = 600 * 10**9
_GPU_POINTS = 20
_GPU_LINES = 500
"""The most lines that a range query returns."""


def sparkline(values: list[float], width: int, bounds: tuple[float, float] | None = None) -> str:
    """Return values as a line of bars, newest on the right, scaled to `bounds` or to their range.

    >>> sparkline([0.0, 1.0, 2.0, 3.0], 10)
    '▁▃▆█'
    >>> sparkline([5.0, 5.0], 10), sparkline([], 10)
    ('▁▁', '')
    """
    shown = [value for value in values if value == value][-width:]  # noqa: PLR0124 -- NaN differs from itself
    low, high = bounds or (min(shown, default=0.0), max(shown, default=0.0))
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[min(max(round((value - low) * scale), 0), len(_BARS) - 1)] for value in shown)


def read(source: RunSource, view: str, metrics: tuple[str, ...] = ()) -> dict[str, Any]:
    """Query everything that a view shows; the overview shows `metrics` first."""
    found: dict[str, Any] = {"view": view, "run_id": source.run_id, "place": source.place, "time": time.strftime("%X")}
    found["summary"] = source.ask("summary")
    if view == "processes":
        return found | {"processes": source.ask("processes")}
    if view == "sessions":
        return found | {"in_flight": source.ask("sessions/in_flight", limit=200)}
    if view == "findings":
        return found | {"findings": source.ask("findings")}
    steps = source.ask("steps", limit=_STEPS)
    finished = [step["step"] for step in steps if step["end_ns"] is not None]
    if view == "gpus":
        gpus = source.ask("hardware/now")
        return found | {"gpus": gpus, "gpu_history": _ask_gpu_history(source, finished[-_RANK_STEPS:], gpus)}
    if view == "ranks":
        return found | {"ranks": _ask_ranks(source, finished[-_RANK_STEPS:])}
    found |= {"steps": steps, "work": source.ask("open/work"), "findings": source.ask("findings")}
    found |= {"processes": source.ask("processes"), "chosen": metrics}
    found |= {"ranks": _ask_ranks(source, finished[-1:]), "gpus": source.ask("hardware/now", devices=False)}
    if finished:
        found["breakdown"] = source.ask("steps/breakdown", first=finished[-1], last=finished[-1])
        found["metrics"] = source.ask("steps/metrics", first=finished[0], last=steps[-1]["step"])
        # Of equally interesting metrics, the one that shows a quantity of the run comes first.
        listed = source.ask("metrics")
        found["interest"] = {row["name"]: (row["interest"], row["quantity"] is None) for row in listed}
    return found


def _ask_ranks(source: RunSource, finished: list[int], metric: str | None = None) -> dict[str, Any]:
    """Query a metric, or the phase that takes the most time, by process and step."""
    if not finished:
        return {"name": "", "rows": []}
    grid: dict[str, Any] = source.ask("steps/ranks", first=finished[0], last=finished[-1], metric=metric)
    return grid


def _ask_gpu_history(source: RunSource, finished: list[int], now: dict[str, Any]) -> dict[str, list[float]]:
    """Query how busy each GPU was in the last steps, or in a run without steps, in the last minutes."""
    metric = now["metric"]
    if metric is None:
        return {}
    if finished:
        lines = [(row["title"], row["values"]) for row in _ask_ranks(source, finished, metric)["rows"]]
    elif now["gpus"] <= _GPU_LINES:
        end = now["time_ns"] + 1
        window = {"start_ns": max(0, end - _GPU_WINDOW_NS), "end_ns": end, "width": _GPU_WINDOW_NS // _GPU_POINTS}
        found = source.ask("metrics/range", metric=metric, group_by=["host", "gpu"], **window)
        lines = [(_gpu_title(line["labels"]), line["y"]) for line in found]
    else:
        lines = []
    return {title: [value * now["factor"] for value in _numbers(values)] for title, values in lines}


def _gpu_title(gpu: dict[str, Any]) -> str:
    return DeviceId(gpu.get("host", ""), gpu.get("gpu")).title


def _numbers(values: list[Any]) -> list[float]:
    return [float(value) for value in values if value is not None and isfinite(float(value))]


def draw(found: dict[str, Any], width: int, height: int) -> list[str]:
    """Return the lines of a frame, truncated to the width and height."""
    last = found["summary"]["last_step"]
    head = f" {found['run_id']}  {'no step yet' if last is None else f'step {last}'}"
    lines = [f"{head:<{max(0, width - 9)}}{found['time']:>8}"]
    lines += _BODIES[found["view"]](found, width, height - 2)
    keys = f" {found['view']}  |  1-{len(VIEWS)} view  n/p run  q quit"
    lines = lines[: height - 1]
    lines += [""] * (height - 1 - len(lines))
    return [line[:width] for line in [*lines, keys]]


def _overview(found: dict[str, Any], width: int, room: int) -> list[str]:
    lines = [*_step_lines(found, width), ""]
    lines += [*_metric_lines(found, width, max(2, room // 5)), ""]
    lines += _work_lines(found, max(1, room // 9))
    states = Counter(process["state"] for process in found["processes"])
    lines.append(" processes  " + ", ".join(f"{count:,} {state}" for state, count in sorted(states.items())))
    lines += [line[:width] for line in (_slowest_line(found["ranks"]), _gpu_line(found["gpus"])) if line]
    return lines + _findings(found, width, max(2, room - len(lines)))


def _slowest_line(grid: dict[str, Any]) -> str:
    slow = slowest(grid)
    if len(slow) < 2:
        return ""
    shown = ", ".join(f"{row['title']} {seconds_text(seconds)}" for seconds, row in slow[:2])
    middle = seconds_text(median(seconds for seconds, _ in slow))
    return f" slowest    {grid['name']}: {shown}; median of {len(slow):,} {middle}"


def slowest(grid: dict[str, Any]) -> list[tuple[float, dict[str, Any]]]:
    """Return the processes by their last value, largest first."""
    rows = [(row["values"][-1], row) for row in grid["rows"] if row["values"][-1] is not None]
    return sorted(rows, key=lambda pair: -pair[0])


def _gpu_line(now: dict[str, Any]) -> str:
    if not now["gpus"]:
        return ""
    use = _utilization(now)
    least = "" if use is None else f"; least: {_gpu_title(use['lowest'])} {use['lowest']['value']:.0%}"
    return f" GPUs       {_gpu_words(now)}{least}"


def _gpu_words(now: dict[str, Any]) -> str:
    use = _utilization(now)
    words = [f"{now['gpus']:,}"]
    words += [] if use is None else [f"{use['mean']:.0%} busy"]
    words += [f"{now['stale']:,} silent"] if now["stale"] else []
    return ", ".join(words)


def _utilization(now: dict[str, Any]) -> dict[str, Any] | None:
    return next((one for one in now["quantities"] if one["quantity"] == "utilization_ratio"), None)


def _step_lines(found: dict[str, Any], width: int) -> list[str]:
    lasted = [(step["end_ns"] - step["start_ns"]) for step in found["steps"] if step["end_ns"] is not None]
    if not lasted:
        return [" no finished step yet"]
    lines = [f" step time  {duration_text(lasted[-1]):>11}  {sparkline([*map(float, lasted)], width - 26)}"]
    for step in found.get("breakdown", {}).get("steps", [])[-1:]:
        whole = max(1, step["end_ns"] - step["start_ns"])
        parts = [(phase["name"], phase["wall_ns"]) for phase in step["phases"]] + [("idle", step["idle_ns"])]
        for name, wall in sorted(parts, key=lambda part: -part[1])[:4]:
            share = wall / whole
            lines.append(
                f"   {name[:18]:<18} {duration_text(wall):>11} {share:>4.0%} {'█' * round(share * (width - 41))}"
            )
    return lines


def _metric_lines(found: dict[str, Any], width: int, room: int) -> list[str]:
    series: dict[str, list[float]] = {}
    for row in found.get("metrics", []):
        series.setdefault(row["name"], []).append(float(row["average"]))
    chosen = [name for name in found["chosen"] if name in series]
    others = sorted(series.keys() - set(chosen), key=lambda name: (found["interest"].get(name, (0, True)), name))
    names = [*chosen, *others][:room]
    return [f" {name[-24:]:<24} {series[name][-1]:>10.4g}  {sparkline(series[name], width - 39)}" for name in names]


def _work_lines(found: dict[str, Any], room: int) -> list[str]:
    work = found["work"]
    if not work:
        return [" open work  none"]
    lines = [" open work"]
    for one in work[:room]:
        age = seconds_text(one["oldest_age_s"])
        lines.append(f"   {one['name'][:28]:<28} {one['count']:>6}  oldest {age:>11}  {one['role']} {_rank(one)}")
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
        title = f"   {finding['severity']:<8} {finding['title']}"
        if found["view"] == "overview":
            lines.append(title[:width])
        else:
            lines += textwrap.wrap(title, width, subsequent_indent=_INDENT)
            lines += textwrap.wrap(finding["remedy"], width, initial_indent=_INDENT, subsequent_indent=_INDENT)
    return lines[:room]


def _sessions(found: dict[str, Any], width: int, room: int) -> list[str]:
    waiting = found["in_flight"]
    lines = [f" {len(waiting):,} sessions in flight, of {found['summary']['sessions']:,}", ""]
    for one in waiting[: room - 2]:
        age, phase = seconds_text(one["age_s"]), one["phase"] or "-"
        lines.append(
            f"   {one['session_id'][: width - 53]:<{max(8, width - 53)}} {age:>11}  {phase[:16]:<16} {_rank(one)}"
        )
    return lines


def _processes(found: dict[str, Any], _width: int, room: int) -> list[str]:
    order = {"silent": 0, "live": 1, "ended": 2}
    rows = sorted(found["processes"], key=lambda row: (order.get(row["state"], 3), -row["silent_s"]))
    lines = [f" {len(rows):,} processes, silent ones first", ""]
    for row in rows[: room - 2]:
        silent = seconds_text(row["silent_s"])
        lines.append(
            f"   {row['state']:<7} {row['role'][:14]:<14} {_rank(row):<9} {row['host'][:18]:<18} last seen {silent} ago"
        )
    return lines


def _ranks(found: dict[str, Any], width: int, room: int) -> list[str]:
    grid = found["ranks"]
    slow = slowest(grid)
    if not slow:
        return [" no finished step yet"]
    middle = median(seconds for seconds, _ in slow)
    lines = [
        f" {grid['name']} by process, slowest of {len(slow):,} first; median {seconds_text(middle)}",
        "",
    ]
    for seconds, row in slow[: room - 2]:
        times = f"{seconds / middle:.2f}x" if middle > 0 else ""
        values = [value for value in row["values"] if value is not None]
        title, host = row["title"][:22], row["host"][:16]
        lines.append(
            f"   {title:<22} {host:<16} {seconds_text(seconds):>11} {times:>6}  {sparkline(values, width - 67)}"
        )
    return lines


def _gpus(found: dict[str, Any], width: int, room: int) -> list[str]:
    now = found["gpus"]
    if not now["gpus"]:
        return [" no GPU metrics: call rl_insight.monitor_hardware() in one process per host"]
    lines = [f" GPUs       {_gpu_words(now)}; silent and idle ones first", ""]
    for gpu in sorted(now["devices"], key=lambda gpu: (not gpu["is_stale"], gpu["utilization_ratio"] or 0.0))[
        : room - 2
    ]:
        title, use = _gpu_title(gpu), gpu["utilization_ratio"]
        recent = sparkline(found["gpu_history"].get(title, []), width - 44, (0.0, 1.0))
        silent = f"silent for {duration_text(gpu['age_s'] * 1e9)}"
        lines.append(
            f"   {title[-30:]:<30} {'-' if use is None else f'{use:.0%}':>5}  {silent if gpu['is_stale'] else recent}"
        )
    return lines


_BODIES = dict(zip(VIEWS, (_overview, _sessions, _findings, _processes, _ranks, _gpus), strict=True))
