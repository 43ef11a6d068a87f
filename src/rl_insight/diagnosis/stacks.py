"""Stacks as evidence of stuck work: the large group of processes is waiting, the small one is the culprit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from rl_insight.diagnosis.model import RunModel
from rl_insight.schema.stacks import Stack, read_told
from rl_insight.store.queries.stacks import function_of

_SHOWN_FRAMES: Final = 4
_PAUSED: Final = re.compile(r"[/(](pdb|bdb|debugpy|pydevd\w*|code|cmd|ipdb|IPython)(\.py:|/)|^(input|readline) \(")
"""Frames of debuggers and prompts."""


def stack_evidence(model: RunModel, culprit: Mapping[str, Any], since_ns: int) -> list[dict[str, Any]]:
    """Return where the culprit is, where its task is, and where the largest group of processes is."""
    sent = {number: event.text for number, event in model.stacks.items() if event.time_ns >= since_ns}
    known = {number: stacks for number, text in sent.items() if (stacks := read_told(text).stacks)}
    groups: dict[tuple[str, ...], list[int]] = {}
    for number, stacks in known.items():
        groups.setdefault(tuple(map(function_of, stacks[0].frames)), []).append(number)
    if not groups:
        return []
    largest = max(groups.values(), key=len)
    suspects = [number for number in known if model.processes[number].process_id == culprit.get("process_id")]
    if not suspects and len(groups) > 1:
        suspects = min(groups.values(), key=len)[:1]
    waits = f"{len(largest)} of {len(known)} processes are in {_text(known[largest[0]][0])}"
    found = []
    for number in suspects:
        title = model.processes[number].title
        compared = {} if number in largest else {"compared_with": waits}
        found.append({"name": f"stack of {title}", "value": _text(known[number][0])} | compared)
        session_id = culprit.get("session_id") or ""
        task = next((one for one in known[number] if one.kind == "task" and one.session_id == session_id), None)
        if task is not None:
            found.append({"name": f"task {task.name} of {title}", "value": _text(task)})
    return found or [{"name": "stack of most processes", "value": _text(known[largest[0]][0])}]


def is_paused(model: RunModel, since_ns: int) -> bool | None:
    """Return whether stacks show a debugger or a prompt for input; None before any have arrived."""
    recent = [event for event in model.stacks.values() if event.time_ns >= since_ns]
    if not recent:
        return None
    return any(
        _PAUSED.search(frame) for event in recent for stack in read_told(event.text).stacks for frame in stack.frames
    )


def _text(stack: Stack) -> str:
    return " ← ".join(stack.frames[:_SHOWN_FRAMES])
