"""Steps from columns of spans equal those from spans processed one by one."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rl_insight.diagnosis.robust import clipped, length_s, median, union
from rl_insight.diagnosis.span_table import NO_STEP, SEGMENTS, SpanTable
from rl_insight.diagnosis.steps import StepBook

SECOND = 1_000_000_000
NAMES = ["", "update_actor", "save_checkpoint", "generate"]


def _moment(draw, begin_s):
    """Return spans that end within ten seconds, ordered by their ends: start, end, name, lane, segment, step."""
    rows = []
    for _ in range(draw.randrange(60)):
        end_s = begin_s + draw.uniform(0, 10)
        step = None if draw.random() < 0.3 else int(end_s // 4) + draw.choice((0, 0, 0, -1, 1))
        length_s = draw.expovariate(0.7)
        segment = draw.choice(("state_interval", "state_nested", "duration"))
        times = (int((end_s - length_s) * SECOND), int(end_s * SECOND))
        rows.append((*times, draw.randrange(1, len(NAMES)), draw.randrange(4), segment, step))
    return sorted(rows, key=lambda row: row[1])


def _table(rows):
    count = len(rows)
    columns = list(zip(*rows, strict=True)) or [()] * 6
    starts, ends, names, lanes = (np.array(column, np.int64) for column in columns[:4])
    segments = np.array([SEGMENTS.index(one) for one in columns[4]], np.int64)
    steps = np.array([NO_STEP if one is None else one for one in columns[5]], np.int64)
    zeros, nothing = np.zeros(count, np.int64), np.full(count, None, object)
    return SpanTable(
        ends, starts, zeros, lanes, names, segments, steps, zeros > 0, nothing, nothing, nothing,
        np.full(count, np.nan), zeros,
    )  # fmt: skip


class _OneByOne:
    """Processes spans one by one."""

    def __init__(self):
        self.drafts = {}
        self.done = set()
        self.last = NO_STEP

    def current(self):
        return max(self.drafts.values(), key=lambda draft: draft["start"])["number"] if self.drafts else self.last

    def take(self, start, end, name, lane, segment, step):
        if step is None and not self.drafts:
            return
        number = self.current() if step is None else step
        if number in self.done:
            return
        draft = self.drafts.setdefault(number, {"number": number, "start": start, "rows": []})
        if step is not None:
            draft["start"] = min(draft["start"], start)
        draft["rows"].append((start, end, name, lane, segment))


def _phases(draft, end_ns):
    lanes = {}
    for start, end, name, lane, segment in draft["rows"]:
        if segment == "state_interval":
            lanes.setdefault(lane, {}).setdefault(name, []).append((start, end))
    found, covered = {}, [0.0]
    for names in lanes.values():
        inside = {name: union(clipped(some, draft["start"], end_ns)) for name, some in names.items()}
        for name, some in inside.items():
            found.setdefault(NAMES[name], []).append(length_s(some))
        covered.append(length_s(union(one for some in inside.values() for one in some)))
    return {n: median(some) if 2 * len(some) >= len(lanes) else max(some) for n, some in found.items()}, max(covered)


@pytest.mark.parametrize("seed", range(12))
def test_steps_of_columns_are_those_of_one_span_after_the_other(seed):
    draw = random.Random(seed)
    book, slow = StepBook(NAMES), _OneByOne()
    for begin_s in range(1_000, 1_060, 10):
        rows = _moment(draw, begin_s)
        asked = sorted(draw.choices(range(len(rows) + 1), k=20))
        told = book.note(_table(rows), np.zeros(len(rows), np.int64), np.array(asked, np.int64)).tolist()
        running = [slow.current()]
        for row in rows:
            slow.take(*row)
            running.append(slow.current())
        assert told == [running[count] for count in asked]
        for step in book.close((begin_s + 10) * SECOND, has_ended=begin_s == 1_050):
            draft = slow.drafts.pop(step.number)
            slow.done.add(step.number)
            slow.last = step.number
            assert step.start_ns == draft["start"]
            phases, covered_s = _phases(draft, step.end_ns)
            assert step.phases == pytest.approx(phases)
            assert step.covered_s == pytest.approx(covered_s)
            assert step.kind == ({"checkpoint"} if any(row[2] == 2 for row in draft["rows"]) else frozenset())
    assert book.total > 5
