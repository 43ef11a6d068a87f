"""Stacks show where the culprit is and where the others are waiting."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec

from rl_insight.diagnosis.rows import EventRow
from rl_insight.diagnosis.stacks import stack_evidence
from rl_insight.schema.stacks import Stack, Stacks


def _model(**frames):
    """Return a run in which each process has sent a stack with these frames, or an event without stacks."""
    processes, stacks = {}, {}
    for number, (process_id, some) in enumerate(frames.items()):
        processes[number] = SimpleNamespace(process_id=process_id, title=process_id)
        sent = [Stack(name="MainThread", kind="thread", frames=some)] if some else []
        stacks[number] = EventRow(10, number, "stacks", None, msgspec.json.encode(Stacks(stacks=sent)).decode())
    return SimpleNamespace(processes=processes, stacks=stacks)


def test_the_stack_of_the_culprit_is_compared_with_the_large_group():
    model = _model(a=["wait (x.py:1)"], b=["wait (x.py:2)"], c=["crunch (y.py:3)"])
    (found,) = stack_evidence(model, {"process_id": "c"}, 0)
    assert found == {
        "name": "stack of c",
        "value": "crunch (y.py:3)",
        "compared_with": "2 of 3 processes are in wait (x.py:1)",
    }


def test_a_culprit_that_sent_no_stacks_leaves_those_of_the_others():
    model = _model(a=["wait (x.py:1)"], b=["wait (x.py:2)"], c=[])
    assert stack_evidence(model, {"process_id": "c"}, 0) == [
        {"name": "stack of most processes", "value": "wait (x.py:1)"}
    ]
