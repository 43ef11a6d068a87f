"""The read side, against plain Python."""

from __future__ import annotations

import importlib
import math
import random
import statistics
from collections import defaultdict

import duckdb
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rl_insight.schema import Loss
from rl_insight.schema.histogram import bucket_code
from rl_insight.store import QueryError, RunStore, queries
from rl_insight.store.queries.intervals import order_by, quantiles, union_ns
from rl_insight.store.queries.measures import SHARES, measure_large
from rl_insight.store.rollup import rolled_up_rows
from rl_insight.store.sessions import entry_of, read_entries, write_entries
from rl_insight.store.tables import ROLLUPS

SECOND = 1_000_000_000


def search_spans(cursor, *, order="newest", limit=100, **conditions):
    return queries.search_spans(cursor, queries.SpanConditions(**conditions), order=order, limit=limit)


def _union(intervals):
    total, reached = 0, None
    for start, end in sorted(intervals):
        if reached is None or start > reached:
            total += end - start
            reached = end
        elif end > reached:
            total += end - reached
            reached = end
    return total


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 200)), min_size=1))
def test_union_of_intervals_is_what_a_sweep_finds(pairs):
    starts = np.array([start for start, _ in pairs], np.int64)
    ends = starts + np.array([length for _, length in pairs], np.int64)
    assert union_ns(starts, ends) == _union([(start, start + length) for start, length in pairs])


@given(st.lists(st.integers(0, 10**12), min_size=1), st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_quantiles_are_those_of_numpy(values, shares):
    assert quantiles(np.array(values, np.int64), shares) == pytest.approx(np.quantile(values, shares).tolist())


spans_strategy = st.lists(
    st.tuples(
        st.integers(0, 2_000),  # start, in units of 10 ms
        st.one_of(st.integers(0, 30), st.integers(0, 3_000), st.just(-1)),
        st.sampled_from("ab"),
        st.sampled_from([None, "lane"]),
    ),
    max_size=40,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spans_strategy, st.integers(0, 1_500), st.integers(1, 1_000), st.integers(1, 20))
def test_timeline_is_what_merging_by_hand_gives(tmp_path_factory, make, begin_ns, rows, first, length, pixels):
    unit = 10_000_000
    path = tmp_path_factory.mktemp("timeline") / "a.duckdb"
    maker = make()
    for start, duration, name, lane in rows:
        maker.span(name, start=start * unit, duration=duration * unit if duration >= 0 else -1, lane=lane)
    start_ns, end_ns = begin_ns + first * unit, begin_ns + (first + length) * unit
    now_ns = begin_ns + 2_000 * unit
    with RunStore(path, min_free_bytes=0, create=True) as store:
        store.commit([maker.build()])
        with store.reader() as cursor:
            lanes = {lane.lane_id: lane.lane for lane in queries.lanes(cursor)}
            view = queries.timeline(cursor, start_ns=start_ns, end_ns=end_ns, pixels=pixels, now_ns=now_ns)
    pixel = (end_ns - start_ns) // pixels
    expected = defaultdict(list)
    for number, (start, duration, name, lane) in enumerate(rows):
        begin = begin_ns + start * unit
        end = max(begin, now_ns) if duration < 0 else begin + duration * unit
        if begin < end_ns and end >= start_ns:
            # What can be told apart by eye is not merged.
            apart = number if end - begin >= 4 * pixel else None
            expected[lane, name, duration < 0, begin // pixel, end - begin >= pixel, apart].append((begin, end))
    blocks = [
        (
            lane,
            name,
            is_open,
            min(b for b, _ in found),
            max(e for _, e in found),
            len(found),
            sum(e - b for b, e in found),
        )
        for (lane, name, is_open, *_), found in expected.items()
    ]
    columns = zip(
        (lanes[lane_id] for lane_id in view.lane_id),
        (view.names[position] for position in view.name),
        view.open,
        view.block_start_ns,
        view.block_end_ns,
        view.count,
        view.busy_ns,
        strict=True,
    )
    order = lambda block: (block[0] or "", *block[1:])
    assert sorted(columns, key=order) == sorted(blocks, key=order)
    assert view.pixel_ns == pixel


@pytest.mark.parametrize("length", [5 * SECOND, 50 * SECOND])
def test_spans_that_begin_together_stay_apart_and_know_their_parents(store, make, begin_ns, length):
    """Twelve sessions start at the same time, as with asyncio.gather; each has a phase inside."""
    maker = make()
    for number in range(12):
        parent = 2**63 + 2 * number + 1  # ids have all their 64 bits
        maker.span("session", start=number, duration=length + number, lane="sessions", span_id=parent)
        maker.span("generate", start=100 + number, duration=length - SECOND, lane="sessions", parent_id=parent)
    store.commit([maker.build()])
    with store.reader() as cursor:
        view = queries.timeline(
            cursor, start_ns=begin_ns, end_ns=begin_ns + 10_000_000_000, pixels=1_000, now_ns=begin_ns
        )
    assert view.count == [1] * 24
    blocks = list(zip(view.depth, view.span_id, view.parent, strict=True))
    assert [parent for depth, _, parent in blocks if depth == 0] == [-1] * 12
    pairs = [(int(view.span_id[parent], 16), int(span_id, 16)) for depth, span_id, parent in blocks if depth == 1]
    assert sorted(pairs) == [(2**63 + 2 * number + 1, 2**63 + 2 * number + 2) for number in range(12)]


def _many(store, make, monkeypatch, spans=3_000, portion=500):
    """Write spans of very different lengths over an hour, in small portions, so that rollups are used."""
    for module in ("run_store", "rollup"):
        monkeypatch.setattr(f"rl_insight.store.{module}.ROLLUP_ROWS", portion)
    monkeypatch.setattr(importlib.import_module("rl_insight.store.queries.timeline"), "MANY_SPANS", 100)
    rng = random.Random(3)
    makers = [make(f"p{i}", rank=i) for i in range(3)]
    found = []
    for number in range(spans):
        maker = makers[number % 3]
        start, duration = rng.randrange(3600 * SECOND), int(10 ** rng.uniform(3, 12.3))
        maker.span(rng.choice("abc"), start=start, duration=duration)
        found.append((number % 3, start, duration))
        if number % 90 == 89:
            store.commit([maker.build() for maker in makers])
    store.commit([maker.build() for maker in makers])
    return found


@pytest.mark.parametrize("pixels", [1, 4, 40, 400, 4_000])
def test_wide_views_count_every_span_exactly_once(store, make, begin_ns, monkeypatch, pixels):
    found = _many(store, make, monkeypatch)
    with store.reader() as cursor:
        view = queries.timeline(
            cursor, start_ns=begin_ns, end_ns=begin_ns + 6_000 * SECOND, pixels=pixels, now_ns=begin_ns
        )
    assert sum(view.count) == len(found)
    assert sum(view.busy_ns) == sum(duration for _, _, duration in found)
    per_pixel = defaultdict(int)
    columns = zip(view.lane_id, view.depth, view.block_start_ns, view.count, view.busy_ns, strict=True)
    for lane, depth, start, count, busy in columns:
        # A span that is wide enough to be seen beside concurrent ones has its own block.
        if count > 1 or busy < 4 * view.pixel_ns:
            per_pixel[lane, depth, start // view.pixel_ns] += 1
    assert max(per_pixel.values()) <= 4


def test_lanes_count_spans_that_are_summed_up_once_however_long_they_are(store, make, begin_ns, monkeypatch):
    found = _many(store, make, monkeypatch)
    with store.reader() as cursor:
        assert rolled_up_rows(cursor) > 0
        lanes = queries.lanes(cursor)
        summary = queries.summary(cursor)
    assert len(lanes) == 3
    assert summary.start_ns == begin_ns + min(start for _, start, _ in found)
    assert summary.end_ns == begin_ns + max(start + duration for _, start, duration in found)
    for lane in lanes:
        mine = [(start, start + duration) for number, start, duration in found if number == lane.lane_id]
        assert lane.spans == len(mine)
        assert lane.first_ns == begin_ns + min(start for start, _ in mine)
        assert lane.last_ns == begin_ns + max(end for _, end in mine)


@pytest.mark.parametrize("max_blocks", [200, 1_000])
def test_a_view_of_too_many_blocks_is_asked_for_twice_at_most(store, make, begin_ns, monkeypatch, max_blocks):
    makers = [make(f"p{i}", rank=i) for i in range(100)]
    for place, maker in enumerate(makers):
        for number in range(20):
            maker.span("a", start=number * SECOND + place * 9_999_999, duration=SECOND // 10)
    store.commit([maker.build() for maker in makers])
    module = importlib.import_module("rl_insight.store.queries.timeline")
    asked = []
    blocks = module._blocks
    monkeypatch.setattr(module, "_blocks", lambda *given, **more: asked.append(given) or blocks(*given, **more))
    with store.reader() as cursor:
        window = {"start_ns": begin_ns, "end_ns": begin_ns + 20 * SECOND, "now_ns": begin_ns}
        view = queries.timeline(cursor, **window, pixels=4_000, max_blocks=max_blocks)
    assert len(view.count) <= max_blocks
    assert sum(view.count) == 2_000
    assert len(asked) <= 2


@pytest.mark.parametrize("width_s", [0.5, 7, 60, 900])
def test_a_window_shows_all_that_overlaps_it_however_long_ago_it_began(store, make, begin_ns, monkeypatch, width_s):
    found = _many(store, make, monkeypatch)
    start, end = 2_000 * SECOND, 2_000 * SECOND + int(width_s * SECOND)
    inside = [one for one in found if one[1] < end and one[1] + one[2] >= start]
    with store.reader() as cursor:
        view = queries.timeline(cursor, start_ns=begin_ns + start, end_ns=begin_ns + end, pixels=4, now_ns=begin_ns)
    widest = max(width for width in [1, *ROLLUPS.values()] if width == 1 or width <= view.pixel_ns)
    # At the edges, a sum of short spans may hold some that just miss the window.
    near = [one for one in found if one[1] < end + 2 * widest and one[1] + one[2] >= start - 2 * widest]
    assert len(inside) <= sum(view.count) <= len(near)
    blocks = list(zip(view.lane_id, view.block_start_ns, view.block_end_ns, strict=True))
    for lane, begin, duration in inside:
        if duration >= view.pixel_ns:
            first, last = begin_ns + begin, begin_ns + begin + duration
            assert any(on == lane and start <= first and last <= end for on, start, end in blocks)


def test_too_many_blocks_make_the_pixels_coarser(store, make, begin_ns, monkeypatch):
    found = _many(store, make, monkeypatch)
    with store.reader() as cursor:
        view = queries.timeline(
            cursor, start_ns=begin_ns, end_ns=begin_ns + 6_000 * SECOND, pixels=4_000, now_ns=begin_ns, max_blocks=300
        )
        some = queries.timeline(
            cursor, start_ns=begin_ns, end_ns=begin_ns + 6_000 * SECOND, pixels=50, now_ns=begin_ns, lane_ids=[1]
        )
    assert len(view.count) <= 300
    assert sum(view.count) == len(found)
    assert set(some.lane_id) == {1}
    assert sum(some.count) == len(found) // 3


def test_a_few_of_many_lanes_are_shown_as_sharply_as_in_a_small_run(store, make, begin_ns, monkeypatch):
    """Names are merged where a view has many spans: those of lanes that were not requested do not count."""
    monkeypatch.setattr(importlib.import_module("rl_insight.store.queries.timeline"), "MANY_SPANS", 100)
    makers = [make(f"p{i}", rank=i) for i in range(40)]
    for maker in makers:
        for number in range(10):
            maker.span("ab"[number % 2], start=number * SECOND, duration=SECOND // 10)
    store.commit([maker.build() for maker in makers])
    with store.reader() as cursor:
        window = {"start_ns": begin_ns, "end_ns": begin_ns + 1_000 * SECOND, "pixels": 2, "now_ns": begin_ns}
        everything = queries.timeline(cursor, **window)
        some = queries.timeline(cursor, **window, lane_ids=[1, 2])
    assert (len(everything.count), sum(everything.count)) == (40, 400)
    assert sorted(zip(some.lane_id, some.name, some.count, strict=True)) == [(1, 0, 5), (1, 1, 5), (2, 0, 5), (2, 1, 5)]


@pytest.mark.parametrize("pixels", [4, 400, 4_000])
def test_blocks_know_the_step_of_the_span_they_show(store, make, begin_ns, monkeypatch, pixels):
    for module in ("run_store", "rollup"):
        monkeypatch.setattr(f"rl_insight.store.{module}.ROLLUP_ROWS", 200)
    monkeypatch.setattr(importlib.import_module("rl_insight.store.queries.timeline"), "MANY_SPANS", 100)
    rng = random.Random(5)
    steps = {}
    makers = [make(f"p{i}", rank=i) for i in range(2)]
    for number in range(1_000):
        process = number % 2
        duration = -1 if number > 990 else int(10 ** rng.uniform(3, 12))
        step = rng.choice([None, *range(50)])
        span_id = makers[process].span(start=rng.randrange(3600 * SECOND), duration=duration, step=step)
        steps[process, span_id] = step
    store.commit([maker.build() for maker in makers])
    with store.reader() as cursor:
        lanes = {lane.lane_id: lane.rank for lane in queries.lanes(cursor)}
        window = {"start_ns": begin_ns, "end_ns": begin_ns + 6_000 * SECOND, "pixels": pixels, "now_ns": begin_ns}
        view = queries.timeline(cursor, **window, with_steps=True)
        assert queries.timeline(cursor, **window).step is None
    shown = list(zip(view.lane_id, view.span_id, view.step, strict=True))
    assert len({step for _, _, step in shown}) > 4
    assert [step for _, _, step in shown] == [steps[lanes[lane], int(span_id, 16)] for lane, span_id, _ in shown]


def test_timelines_of_processes_with_wrong_clocks_are_aligned(store, make, begin_ns):
    right, ahead = make("right"), make("ahead")
    for maker, off in ((right, 0), (ahead, 90 * SECOND)):
        maker.span("same moment", start=off, duration=SECOND)
        batch = maker.build(sent_ns=begin_ns + 2 * SECOND + off)
        store.commit([batch], received_ns=[begin_ns + 2 * SECOND])
    with store.reader() as cursor:
        view = queries.timeline(cursor, start_ns=begin_ns, end_ns=begin_ns + SECOND, pixels=10, now_ns=begin_ns)
        spans = search_spans(cursor, name="same moment", start_ns=begin_ns, end_ns=begin_ns + 1)
        summary = queries.summary(cursor)
        health = queries.processes(cursor, begin_ns + 3 * SECOND)
        spots = [
            *queries.hotspots(cursor),
            *queries.hotspots(cursor, queries.Scope(start_ns=begin_ns, end_ns=begin_ns + SECOND)),
        ]
    assert view.block_start_ns == [begin_ns, begin_ns]
    assert [span.start_ns for span in spans] == [begin_ns, begin_ns]
    assert (summary.start_ns, summary.end_ns) == (begin_ns, begin_ns + SECOND)
    assert {one.process_id: one.clock_offset_ns for one in health} == {"right": 0, "ahead": -90 * SECOND}
    assert [(spot.count, spot.wall_ns) for spot in spots] == [(2, SECOND)] * 2


@pytest.mark.parametrize("years", [-55, 70])
def test_a_clock_that_is_decades_off_does_not_stretch_the_time_axis(store, make, begin_ns, years):
    """Like the clock of a machine without a battery, which starts in 1970."""
    right, wrong = make("right"), make("wrong")
    for maker, off in ((right, 0), (wrong, years * 365 * 86_400 * SECOND)):
        for second in range(3):  # a clock that is behind is believed when it was seen three times
            if not second:
                maker.span("work", start=off, duration=SECOND)
            arrived = begin_ns + (2 + second) * SECOND
            store.commit([maker.build(sent_ns=arrived + off)], received_ns=[arrived])
    with store.reader() as cursor:
        summary = queries.summary(cursor)
        view = queries.timeline(cursor, start_ns=begin_ns, end_ns=begin_ns + SECOND, pixels=10, now_ns=begin_ns)
    assert (summary.start_ns, summary.end_ns) == (begin_ns, begin_ns + SECOND)
    assert view.block_start_ns == [begin_ns, begin_ns]


@pytest.mark.parametrize(
    ("window", "pixels"), [((5, 5), 10), ((9, 5), 10), ((-1, 5), 10), ((0, 2**63), 10), ((0, 5), 0), ((0, 5), 10**6)]
)
def test_a_senseless_window_is_refused(store, window, pixels):
    with store.reader() as cursor, pytest.raises(QueryError):
        queries.timeline(cursor, start_ns=window[0], end_ns=window[1], pixels=pixels, now_ns=0)


def _training(store, make):
    """Write three steps of two workers; returns (name, role, step, start, duration, failed) of every span."""
    rng = random.Random(11)
    written = []
    for process, role in (("t", "trainer"), ("r", "rollout")):
        maker = make(process, role=role)
        for step in range(3):
            for _ in range(50):
                name = rng.choice(["generate", "update", "sync"])
                start, duration = step * SECOND + rng.randrange(SECOND), rng.randrange(SECOND // 5)
                failed = rng.random() < 0.1
                maker.span(name, start=start, duration=duration, step=step, status="error" if failed else "ok")
                written.append((name, role, step, start, duration, failed))
        maker.span("generate", start=2 * SECOND, duration=-1, step=2)
        store.commit([maker.build()])
    return written


@pytest.mark.parametrize(
    ("scope", "keep"),
    [
        (queries.Scope(), lambda step, start: True),
        (queries.Scope(step=1), lambda step, start: step == 1),
        (queries.Scope(last_steps=1), lambda step, start: step == 2),
        (queries.Scope(last_steps=2), lambda step, start: step >= 1),
        (queries.Scope(step=77), lambda step, start: False),
    ],
    ids=["all", "step", "latest step", "last two steps", "nothing"],
)
def test_hotspots_are_those_of_plain_statistics(store, make, scope, keep):
    written = [one for one in _training(store, make) if keep(one[2], one[3])]
    with store.reader() as cursor:
        spots = {spot.name: spot for spot in queries.hotspots(cursor, scope)}
    assert {name for name, spot in spots.items() if spot.count} == {one[0] for one in written}
    for name, spot in spots.items():
        mine = [one for one in written if one[0] == name]
        if not mine:
            continue
        durations = [one[4] for one in mine]
        cuts = statistics.quantiles(durations, n=100, method="inclusive")
        assert spot.count == len(mine)
        assert spot.total_ns == sum(durations)
        assert spot.max_ns == max(durations)
        assert spot.average_ns == pytest.approx(statistics.mean(durations))
        assert [spot.p50_ns, spot.p95_ns, spot.p99_ns] == pytest.approx([cuts[49], cuts[94], cuts[98]])
        assert spot.errors == sum(one[5] for one in mine)
        assert spot.wall_ns == _union([(one[3], one[3] + one[4]) for one in mine])
        assert spot.open == (2 if name == "generate" and keep(2, 2 * SECOND) else 0)


@pytest.mark.parametrize("scope", [None, queries.Scope(step=1), queries.Scope(last_steps=1), queries.Scope(step=77)])
@pytest.mark.parametrize("group_by", ["name", "name_lane", "role"])
def test_many_groups_are_measured_together_as_one_by_one(store, make, monkeypatch, scope, group_by):
    _training(store, make)
    with store.reader() as cursor:
        one_by_one = queries.hotspots(cursor, scope, group_by)
        monkeypatch.setattr(importlib.import_module("rl_insight.store.queries.measures"), "_MANY", 0)
        assert queries.hotspots(cursor, scope, group_by) == one_by_one


@pytest.mark.parametrize("max_rows", [30, 200])
@pytest.mark.parametrize("group_by", ["name", "name_lane", "role"])
def test_spans_beyond_what_memory_holds_are_measured_in_parts_as_at_once(
    store, make, monkeypatch, begin_ns, group_by, max_rows
):
    _training(store, make)
    scopes = [None, queries.Scope(step=1), queries.Scope(start_ns=begin_ns, end_ns=begin_ns + 7 * SECOND // 2)]
    with store.reader() as cursor:
        now_ns = begin_ns + 10 * SECOND
        at_once = [queries.hotspots(cursor, scope, group_by, now_ns=now_ns) for scope in scopes]
        assert all(at_once)
        for module in ("hotspots", "measures"):
            monkeypatch.setattr(importlib.import_module(f"rl_insight.store.queries.{module}"), "MAX_ROWS", max_rows)
        assert [queries.hotspots(cursor, scope, group_by, now_ns=now_ns) for scope in scopes] == at_once


@given(
    st.lists(st.tuples(st.integers(0, 50), st.one_of(st.integers(0, 9), st.integers(0, 10**15))), min_size=1),
    st.integers(1, 20),
)
def test_a_large_group_is_measured_as_plain_statistics_do(pairs, at_once):
    lengths = [length for _, length in pairs]
    columns = "unnest($starts)::BIGINT AS start_ns, unnest($lengths)::BIGINT AS duration_ns"
    rows = f"SELECT *, duration_ns % 2 = 1 AS failed FROM (SELECT {columns})"
    given = {"starts": [start for start, _ in pairs], "lengths": lengths}
    with duckdb.connect() as connection, pytest.MonkeyPatch.context() as patched:
        patched.setattr(importlib.import_module("rl_insight.store.queries.measures"), "MAX_ROWS", at_once)
        found = measure_large(lambda sql, **more: connection.execute(sql, given | more), rows)
    assert found[:3] == (len(pairs), sum(lengths), _union([(start, start + length) for start, length in pairs]))
    assert found.shares == pytest.approx(np.quantile(lengths, SHARES).tolist())
    assert (found.longest, found.errors) == (max(lengths), sum(length % 2 for length in lengths))


def test_hotspots_by_role_and_lane_and_window(store, make, begin_ns):
    written = _training(store, make)
    with store.reader() as cursor:
        by_role = queries.hotspots(cursor, group_by="name_role")
        by_lane = queries.hotspots(cursor, group_by="lane")
        window = queries.hotspots(cursor, queries.Scope(start_ns=begin_ns, end_ns=begin_ns + SECOND // 2))
        assert {spot.role for spot in queries.hotspots(cursor, group_by="role")} == {"trainer", "rollout"}
        with pytest.raises(QueryError, match="cannot group by"):
            queries.hotspots(cursor, group_by="name; DROP TABLE names")
    for spot in by_role:
        mine = [one for one in written if one[:2] == (spot.name, spot.role)]
        assert (spot.count, spot.wall_ns) == (len(mine), _union([(one[3], one[3] + one[4]) for one in mine]))
    assert sorted(spot.count for spot in by_lane) == [150, 150]
    inside = [min(one[4], SECOND // 2 - one[3]) for one in written if one[3] < SECOND // 2]
    assert (sum(spot.count for spot in window), sum(spot.total_ns for spot in window)) == (len(inside), sum(inside))


windows = st.one_of(st.none(), st.integers(0, 2_000))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spans_strategy, windows, windows, st.integers(0, 3_000))
def test_hotspots_of_a_window_are_the_parts_inside_it(tmp_path_factory, make, begin_ns, rows, first, last, now):
    maker = make()
    for start, duration, name, lane in rows:
        maker.span(name, start=start, duration=duration, lane=lane)
    begin, end = -begin_ns if first is None else first, 2**62 if last is None else last
    if begin >= end or (first is None and last is None):
        return
    parts = defaultdict(list)
    for start, duration, name, _ in rows:
        until = max(start, now) if duration < 0 else start + duration
        if start < end and (until > begin or start >= begin):
            parts[name].append((max(start, begin), min(until, end)))
    scope = queries.Scope(
        start_ns=None if first is None else begin_ns + first, end_ns=None if last is None else begin_ns + last
    )
    with RunStore(tmp_path_factory.mktemp("window") / "a.duckdb", create=True) as store:
        store.commit([maker.build()])
        with store.reader() as cursor:
            spots = {spot.name: spot for spot in queries.hotspots(cursor, scope, now_ns=begin_ns + now)}
    assert {name: (spot.count, spot.total_ns, spot.wall_ns) for name, spot in spots.items()} == {
        name: (len(some), sum(high - low for low, high in some), _union(some)) for name, some in parts.items()
    }
    for name, spot in spots.items():
        open_ones = [row for row in rows if row[1] < 0 and row[2] == name and row[0] < end]
        assert spot.open == len([row for row in open_ones if max(row[0], now) > begin or row[0] >= begin])


@pytest.mark.parametrize("width_s", [0.5, 60])
def test_hotspots_and_flame_of_a_window_know_what_began_long_before(store, make, begin_ns, monkeypatch, width_s):
    found = _many(store, make, monkeypatch)
    start, end = 2_000 * SECOND, 2_000 * SECOND + int(width_s * SECOND)
    inside = [min(one[1] + one[2], end) - max(one[1], start) for one in found if one[1] < end]
    inside = [length for length in inside if length > 0]
    scope = queries.Scope(start_ns=begin_ns + start, end_ns=begin_ns + end)
    with store.reader() as cursor:
        spots = queries.hotspots(cursor, scope, now_ns=begin_ns)
        flame = queries.flame(cursor, scope, now_ns=begin_ns)
    assert (sum(spot.count for spot in spots), sum(spot.total_ns for spot in spots)) == (len(inside), sum(inside))
    assert (flame.spans, sum(root.total_ns for root in flame.roots)) == (len(inside), sum(inside))


def test_hotspots_of_an_empty_window_are_refused(store):
    with store.reader() as cursor, pytest.raises(QueryError, match="it must end after it begins"):
        queries.hotspots(cursor, queries.Scope(start_ns=10, end_ns=10))


def test_open_spans_alone_are_a_hotspot_too(store, make):
    maker = make()
    maker.span("stuck", duration=-1)
    store.commit([maker.build()])
    with store.reader() as cursor:
        (spot,) = queries.hotspots(cursor)
    assert (spot.name, spot.count, spot.open, spot.wall_ns) == ("stuck", 0, 1, 0)


def test_gauges_of_steps(store, make):
    maker = make()
    for step in (4, 5):
        maker.sample("reward", step / 2, step=step)
    store.commit([maker.build()])
    with store.reader() as cursor:
        values = queries.step_metrics(cursor, 4, 5)
    assert [(one.step, one.name, one.average) for one in values] == [(4, "reward", 2.0), (5, "reward", 2.5)]


def test_one_span_comes_with_parents_children_events_and_logs(store, make, begin_ns):
    maker = make(role="rollout")
    root = maker.span("session", duration=-1)
    middle = maker.span("turn", parent_id=root, start=1, duration=50, attributes='{"tokens":7}')
    for start in (3, 2):
        maker.span("tool", parent_id=middle, start=start, duration=1)
    maker.span("tool of another trace", parent_id=middle, trace=(9, 9))
    maker.builder.add_event(time_ns=begin_ns + 4, name="first token", span_id=middle)
    maker.builder.add_log(time_ns=begin_ns + 5, level=40, message="tool failed", span_id=middle)
    maker.builder.add_log(time_ns=begin_ns + 5, level=40, message="not mine")
    store.commit([maker.build()])
    with store.reader() as cursor:
        detail = queries.span_detail(cursor, f"{middle:016x}")
        assert queries.span_detail(cursor, "ffffffffffffffff") is None
        assert queries.span(cursor, f"{middle:016x}", "another process") is None
        for bad in ("", "xyz", "1" * 17, "-1", "0x1", "1_0"):
            with pytest.raises(QueryError, match="not a span id"):
                queries.span(cursor, bad)
    assert detail.span.attributes == {"tokens": 7}
    assert [parent.name for parent in detail.parents] == ["session"]
    assert detail.parents[0].duration_ns is None
    assert [child.start_ns - begin_ns for child in detail.children] == [2, 3]
    assert [event.name for event in detail.events] == ["first token"]
    assert [line.message for line in detail.logs] == ["tool failed"]


@pytest.mark.parametrize("text", ["Needle", "need_le", "Need%-1"])
def test_text_is_found_wherever_it_is_and_each_span_once(store, make, text):
    maker = make()
    places = (
        {"name": f"a {text}"},
        {"attributes": f'{{"note":"{text.upper()}"}}'},
        {"error": text, "status": "error"},
        {"session_id": f"s-{text.lower()}"},
        {"name": text, "session_id": text, "attributes": f'{{"note":"{text}"}}'},
        {"name": "needl", "attributes": '{"note":"need-le"}'},
    )
    for number in range(30):
        maker.span(**{"name": "other", **places[number % len(places)]}, start=number, duration=1_000 - number)
    maker.span("open", start=30, duration=-1, attributes=f'{{"note":"{text}"}}')
    store.commit([maker.build()])
    found = [30, *(number for number in range(29, -1, -1) if number % len(places) != 5)]
    with store.reader() as cursor:
        (first,) = queries.search_spans(cursor, order="oldest", limit=1)

        def starts(**asked):
            return [one.start_ns - first.start_ns for one in search_spans(cursor, text=text, **asked)]

        assert starts() == found
        assert starts(limit=7) == found[:7]
        assert starts(order="oldest", limit=7) == found[::-1][:7]
        assert starts(order="longest", limit=7) == found[::-1][:7]
        assert starts(status="error") == [number for number in found if number % len(places) == 2 and number < 30]


@pytest.mark.parametrize("most", [3, 2**62])
@pytest.mark.parametrize("rows", [0, 1, 500])
def test_rows_are_ordered_by_one_column_after_the_other(rows, most):
    random_numbers = np.random.default_rng(rows)
    columns = [
        random_numbers.integers(-3, 4, rows).astype(np.int32),
        random_numbers.integers(0, most, rows),
        random_numbers.integers(0, 2, rows).astype(np.uint64),
    ]
    assert order_by(*columns).tolist() == sorted(range(rows), key=lambda row: [int(column[row]) for column in columns])


def test_spans_are_found_by_each_condition(store, make, begin_ns):
    one, two = make("one", role="trainer"), make("two", role="rollout")
    one.span("update_actor", start=10, duration=100, step=1, attributes='{"lr":"0.1","a b":"x"}')
    one.span("update_critic", start=20, duration=50, step=2, status="error", attributes="not json")
    two.span("generate", start=30, duration=500, session_id="s1", lane="lane 1", trace=(5, 6), attributes='{"n":3}')
    two.span("100%_done!", start=40, duration=-1)
    store.commit([one.build(), two.build()])

    def names(**conditions):
        with store.reader() as cursor:
            return [span.name for span in search_spans(cursor, **conditions)]

    assert names() == ["100%_done!", "generate", "update_critic", "update_actor"]
    assert names(order="oldest", limit=1) == ["update_actor"]
    assert names(order="longest", limit=1) == ["generate"]
    assert names(name="generate") == ["generate"]
    assert names(name_contains="UPDATE") == ["update_critic", "update_actor"]
    assert names(name_contains="%_") == ["100%_done!"]
    assert names(name="no such name") == []
    assert names(text="lr") == ["update_actor"]
    assert names(text="not JSON") == ["update_critic"]
    assert names(text='LR":"0.1') == ["update_actor"]
    assert names(text='r":"0.2') == names(text='x":"0.1') == []
    assert names(text="100%_DONE") == ["100%_done!"]
    assert names(text="1%_done") == []
    assert names(attribute="lr=0.1") == ["update_actor"]
    assert names(attribute="a b=x") == ["update_actor"]
    assert names(attribute="n=3") == ["generate"]
    assert names(attribute="n=4") == []
    assert names(status="error") == ["update_critic"]
    assert names(status="open") == ["100%_done!"]
    assert names(role="trainer", step=2) == ["update_critic"]
    assert names(session_id="s1") == ["generate"]
    assert names(trace_id=f"{5:016x}{6:016x}") == ["generate"]
    assert names(longer_than_ns=100) == ["generate", "update_actor"]
    assert names(start_ns=begin_ns + 20, end_ns=begin_ns + 40) == ["generate", "update_critic"]
    with store.reader() as cursor:
        lane = next(lane.lane_id for lane in queries.lanes(cursor) if lane.lane == "lane 1")
    assert names(lane_ids=[lane]) == ["generate"]
    assert names(lane_ids=[lane], role="trainer") == []
    for bad in (
        {"order": "start_ns; DROP"},
        {"limit": 0},
        {"limit": 10**9},
        {"trace_id": "5"},
        {"attribute": 'a"b=1'},
    ):
        with pytest.raises(QueryError):
            names(**bad)


def test_open_work_is_shown_by_age(store, make, begin_ns):
    maker = make(role="rollout")
    for start, name in ((5, "toolcall"), (3, "toolcall"), (9, "generate")):
        maker.span(name, start=start * SECOND, duration=-1, session_id=f"s{start}")
    store.commit([maker.build()])
    with store.reader() as cursor:
        work = queries.open_work(cursor, begin_ns + 10 * SECOND)
        oldest = queries.open_spans(cursor, limit=1)
    assert [(one.name, one.count, one.oldest_age_s, one.oldest_session_id) for one in work] == [
        ("toolcall", 2, 7.0, "s3"),
        ("generate", 1, 1.0, "s9"),
    ]
    assert oldest[0].session_id == "s3"


def test_lines_are_counted_by_time_and_level(store, make, begin_ns):
    maker = make()
    for at, level in ((0, 20), (1, 30), (2, 40), (90, 50), (99, 20)):
        maker.builder.add_log(time_ns=begin_ns + at, level=level, message=f"line {at}", step=at)
    store.commit([maker.build()])
    with store.reader() as cursor:
        whole = queries.log_histogram(cursor, intervals=10)
        grave = queries.log_histogram(
            cursor, queries.LogConditions(level=30, text="line", end_ns=begin_ns + 90), intervals=1
        )
        of_step = queries.log_histogram(cursor, queries.LogConditions(step=99))
        none = queries.log_histogram(cursor, queries.LogConditions(text="nothing like this"))
        with pytest.raises(QueryError, match="intervals 0 is out of range"):
            queries.log_histogram(cursor, intervals=0)
    assert whole.width_ns == 10
    counts = [(one.start_ns - begin_ns, one.lines, one.warnings, one.errors) for one in whole.intervals]
    assert counts == [(0, 3, 1, 1), (90, 2, 0, 1)]
    assert [(one.lines, one.warnings, one.errors) for one in grave.intervals] == [(2, 1, 1)]
    assert [one.lines for one in of_step.intervals] == [1]
    assert none.intervals == []


def test_logs_and_events_are_found_by_text_level_time_and_place(store, make, begin_ns):
    maker = make(role="rollout", rank=2)
    for at, level, message in ((1, 20, "loaded 100% of it"), (2, 40, "Tool FAILED"), (3, 30, "slow")):
        maker.builder.add_log(
            time_ns=begin_ns + at, level=level, message=message, session_id=f"s{at}", step=at, lane="l"
        )
    maker.builder.add_event(time_ns=begin_ns + 5, name="weights published", attributes='{"version":3}')
    store.commit([maker.build()])

    def messages(**conditions):
        with store.reader() as cursor:
            return [line.message for line in queries.search_logs(cursor, queries.LogConditions(**conditions))]

    assert messages() == ["slow", "Tool FAILED", "loaded 100% of it"]
    with store.reader() as cursor:
        (oldest,) = queries.search_logs(cursor, newest_first=False, limit=1)
    assert oldest.message == "loaded 100% of it"
    assert messages(text="failed") == ["Tool FAILED"]
    assert messages(text="100%") == ["loaded 100% of it"]
    assert messages(text="' OR 1=1 --") == []
    assert messages(level=30) == ["slow", "Tool FAILED"]
    assert messages(start_ns=begin_ns + 2, end_ns=begin_ns + 3) == ["Tool FAILED"]
    assert messages(session_id="s3", step=3, process_id="p1") == ["slow"]
    assert messages(lane_ids=[99]) == []
    assert messages(role=maker.process.role, rank=maker.process.rank, level=40) == ["Tool FAILED"]
    assert messages(role="trainer") == messages(rank=99) == []
    with store.reader() as cursor:
        assert queries.log_histogram(cursor, queries.LogConditions(rank=99)).intervals == []
        (event,) = queries.search_events(cursor, queries.EventConditions(text="VERSION"))
    assert (event.name, event.attributes) == ("weights published", {"version": 3})


@pytest.mark.parametrize("label", ["", "*", 'a"b', "a\\b", "a\0b"])
def test_labels_that_no_path_can_name_are_refused(store, label):
    with store.reader() as cursor, pytest.raises(QueryError, match="cannot be queried"):
        queries.label_values(cursor, label)


def test_metrics_are_listed_with_kinds_labels_and_values(store, make):
    maker = make(role="rollout", rank=2)
    maker.sample("tokens", 1.0, kind="counter", labels='{"engine":"vllm"}')
    maker.sample("tokens", 1.0, kind="counter", labels='{"engine":"sglang","gpu":"0"}')
    maker.sample("reward", 1.0)
    store.commit([maker.build()])
    with store.reader() as cursor:
        listed = queries.metrics(cursor)
        assert queries.label_values(cursor, "engine") == ["sglang", "vllm"]
        assert queries.label_values(cursor, "engine", "reward") == []
        assert queries.label_values(cursor, "rank", "tokens") == ["2"]
    assert [(one.name, one.kind, one.series, one.labels) for one in listed] == [
        ("reward", "gauge", 1, []),
        ("tokens", "counter", 2, ["engine", "gpu"]),
    ]


def _gauges(store, make):
    for process, rank in (("a", 0), ("b", 1)):
        maker = make(process, rank=rank)
        for second in range(4):
            for gpu in ("0", "1"):
                value = 100 * rank + 10 * int(gpu) + second
                maker.sample("util", value, at=second * SECOND, labels=f'{{"gpu":"{gpu}"}}', step=second // 2)
        store.commit([maker.build()])


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [("avg", [55.5, 57.5]), ("min", [0, 2]), ("max", [111, 113]), ("sum", [224, 232]), ("count", [8, 8])],
)
def test_a_gauge_is_aggregated_in_intervals(store, make, begin_ns, aggregation, expected):
    _gauges(store, make)
    with store.reader() as cursor:
        arguments = {"start_ns": begin_ns, "end_ns": begin_ns + 4 * SECOND, "group_by": [], "aggregation": aggregation}
        (line,) = queries.range_query(cursor, "util", width=2 * SECOND, **arguments)
        (by_step,) = queries.range_query(cursor, "util", width=1, axis="step", **arguments)
    assert line.x == [begin_ns, begin_ns + 2 * SECOND]
    assert line.y == expected
    assert (by_step.x, by_step.y) == ([0, 1], expected)


def test_lines_are_grouped_and_filtered_by_labels(store, make, begin_ns):
    _gauges(store, make)

    def lines(**arguments):
        with store.reader() as cursor:
            found = queries.range_query(
                cursor,
                "util",
                start_ns=begin_ns,
                end_ns=begin_ns + 4 * SECOND,
                width=4 * SECOND,
                aggregation="last",
                **arguments,
            )
        return [(line.labels, line.y) for line in found]

    assert lines(group_by=["rank"], matchers=["gpu=1"]) == [({"rank": "0"}, [13]), ({"rank": "1"}, [113])]
    assert lines(group_by=["gpu", "no such label"], matchers=["rank=~0|7"]) == [
        ({"gpu": "0"}, [3]),
        ({"gpu": "1"}, [13]),
    ]
    assert len(lines()) == 4
    assert lines(matchers=["gpu=9"]) == []
    with pytest.raises(QueryError, match="regular expression"):
        lines(matchers=["gpu=~("])


def test_nan_reaches_the_answer(store, make, begin_ns):
    maker = make()
    maker.sample("loss", math.nan)
    store.commit([maker.build()])
    with store.reader() as cursor:
        (line,) = queries.range_query(cursor, "loss", start_ns=begin_ns, end_ns=begin_ns + 10, width=10)
    assert math.isnan(line.y[0])


def test_a_counter_gives_rates_over_processes_and_across_resets(store, make, begin_ns):
    for process, totals in (("a", [10, 20, 40, 5, 15]), ("b", [100, 100, 100, 100, 101])):
        maker = make(process)
        for second, total in enumerate(totals):
            maker.sample("tokens", float(total), at=second * SECOND, kind="counter", step=second)
        store.commit([maker.build()])
    with store.reader() as cursor:
        arguments = {"width": SECOND, "group_by": []}
        (whole,) = queries.range_query(cursor, "tokens", start_ns=begin_ns, end_ns=begin_ns + 5 * SECOND, **arguments)
        (tail,) = queries.range_query(
            cursor, "tokens", start_ns=begin_ns + 2 * SECOND, end_ns=begin_ns + 5 * SECOND, **arguments
        )
        (wide,) = queries.range_query(
            cursor, "tokens", start_ns=begin_ns, end_ns=begin_ns + 5 * SECOND, width=10**15, aggregation="increase",
            group_by=[],
        )  # fmt: skip
        (by_step,) = queries.range_query(
            cursor, "tokens", start_ns=begin_ns, end_ns=begin_ns + 5 * SECOND, width=1, axis="step", group_by=[]
        )
    assert whole.y == [110, 10, 20, 5, 11]
    assert tail.y == [20, 5, 11]
    assert wide.y == [156]
    assert by_step.y == whole.y


@pytest.mark.parametrize(
    "change",
    [{"width": 0}, {"end_ns": 0}, {"width": 1}, {"aggregation": "median"}, {"axis": "moon"}, {"end_ns": 2**70}],
    ids=str,
)
def test_a_senseless_range_is_refused(store, make, begin_ns, change):
    _gauges(store, make)
    arguments = {"start_ns": begin_ns, "end_ns": begin_ns + SECOND, "width": SECOND} | change
    with store.reader() as cursor, pytest.raises(QueryError):
        queries.range_query(cursor, "util", **arguments)


def _distributions(store, make):
    """Record values of two processes in two seconds as growing histograms; returns the values of each second."""
    rng = random.Random(2)
    seconds = [[], []]
    for process in ("a", "b"):
        maker = make(process)
        buckets = defaultdict(int)
        for second in range(2):
            values = [rng.lognormvariate(second * 2, 1.0) for _ in range(800)] + [-rng.random(), 0.0]
            seconds[second] += values
            for value in values:
                buckets[bucket_code(value)] += 1
            series = maker.builder.add_series("latency", "histogram", "", "{}")
            total = sum(buckets.values())
            maker.builder.add_histogram(
                series, time_ns=(1_760_000_000 + second) * SECOND, count=total, total=0.0, minimum=0.0, maximum=1.0,
                buckets=buckets, step=second,
            )  # fmt: skip
        store.commit([maker.build()])
    return seconds


@pytest.mark.parametrize("axis", ["time", "step"])
def test_quantiles_over_time_are_within_3_percent(store, make, begin_ns, axis):
    seconds = _distributions(store, make)
    shares = [0.1, 0.5, 0.95, 0.99]
    with store.reader() as cursor:
        lines = queries.quantiles(
            cursor, "latency", start_ns=begin_ns, end_ns=begin_ns + 2 * SECOND,
            width=SECOND if axis == "time" else 1, shares=shares, axis=axis,
        )  # fmt: skip
    assert [line.labels for line in lines] == [{"quantile": f"{share:g}"} for share in shares]
    for line, share in zip(lines, shares, strict=True):
        for value, values in zip(line.y, seconds, strict=True):
            exact = sorted(values)[math.ceil(share * len(values)) - 1]
            assert value == pytest.approx(exact, rel=0.03)


def test_only_what_was_recorded_in_the_range_counts(store, make, begin_ns):
    seconds = _distributions(store, make)
    with store.reader() as cursor:
        arguments = {"start_ns": begin_ns + SECOND, "end_ns": begin_ns + 2 * SECOND, "width": SECOND}
        heat = queries.heat_map(cursor, "latency", **arguments)
        (median,) = queries.quantiles(cursor, "latency", shares=[0.5], **arguments)
        assert queries.heat_map(cursor, "nothing", **arguments).x == []
    assert sum(map(sum, heat.counts)) == len(seconds[1])
    assert median.y[0] == pytest.approx(statistics.median(seconds[1]), rel=0.03)


@pytest.mark.parametrize("rows", [1, 5, 40, 1000])
def test_a_heat_map_files_every_value_into_its_row(store, make, begin_ns, rows):
    seconds = _distributions(store, make)
    with store.reader() as cursor:
        heat = queries.heat_map(
            cursor, "latency", start_ns=begin_ns, end_ns=begin_ns + 2 * SECOND, width=SECOND, rows=rows
        )
    assert len(heat.lower) <= max(rows, 3)
    for values, counts in zip(seconds, heat.counts, strict=True):
        for low, high, count in zip(heat.lower, heat.upper, counts, strict=True):
            assert count == sum(low < value <= high or value == low == high for value in values)


def test_processes_show_their_health(store, make, begin_ns):
    alive, ended, lost = make("alive"), make("ended"), make("lost", heartbeat_s=1.0)
    alive.span("x", duration=-1)
    now = begin_ns + 10 * SECOND
    store.commit([alive.build(), alive.build(sequence=4)], received_ns=[now, now])
    store.commit([ended.build(final=True)], received_ns=[begin_ns])
    store.commit([lost.build(losses=[Loss("spans", "full", 4), Loss("logs", "full", 1)])], received_ns=[begin_ns])
    with store.reader() as cursor:
        health = {one.process_id: one for one in queries.processes(cursor, now)}
        losses = queries.losses(cursor)
    assert {name: one.state for name, one in health.items()} == {"alive": "live", "ended": "ended", "lost": "silent"}
    assert (health["alive"].batches, health["alive"].missing_batches, health["alive"].open_spans) == (2, 2, 1)
    assert health["lost"].lost == 5
    assert health["lost"].silent_s == 10.0
    assert [(one.process_id, one.kind, one.count) for one in losses] == [("lost", "spans", 4), ("lost", "logs", 1)]


def test_an_empty_run_answers_every_question(store):
    with store.reader() as cursor:
        assert queries.summary(cursor).start_ns is None
        assert (
            queries.lanes(cursor) == queries.hotspots(cursor) == queries.steps(cursor) == queries.metrics(cursor) == []
        )
        assert queries.timeline(cursor, start_ns=0, end_ns=10, pixels=5, now_ns=5).count == []
        assert queries.search_spans(cursor) == queries.search_logs(cursor) == queries.open_work(cursor, 0) == []
        assert queries.range_query(cursor, "m", start_ns=0, end_ns=10, width=5) == []
        assert queries.sessions(cursor) == ([], 0)
        assert queries.read_findings(cursor) == queries.losses(cursor) == queries.processes(cursor, 0) == []


def test_summary_counts_everything(store, make):
    _training(store, make)
    with store.reader() as cursor:
        found = queries.summary(cursor)
    assert (found.run_id, found.processes, found.spans, found.open_spans) == ("run", 2, 300, 2)
    assert (found.first_step, found.last_step) == (0, 2)


def _write_sessions(store, sessions):
    entries = {session.session_id: entry_of(session, 0) for session in sessions}
    with store.writing() as connection:
        _, _, rows = read_entries(connection, list(entries))
        write_entries(connection, entries, {}, rows)


def test_sessions_are_listed_and_sorted(store):
    def session(number, **fields):
        return queries.StoredSession(
            session_id=f"s{number}", task_id="t", group_id="g", submit_ts=float(number), **fields
        )  # fmt: skip

    _write_sessions(store, [session(1, status="accepted", finalized_ts=6.0), session(2), session(3, step=7, rank=1)])
    changed = session(
        2, status="failed", reason="50% off", reward=math.inf, counters={"turns": 2}, turns=2,
        phase_seconds={"my phase": 1.5},
        phases={
            "generate": [{"start_ts": 1.0, "outcome": "open", "payload": {"a": "b"}}],
            "my phase": [{"start_ts": 2.0, "end_ts": 3.5, "outcome": "ok"}],
        },
    )  # fmt: skip
    _write_sessions(store, [changed])

    def ids(chosen=None, **asked):
        with store.reader() as cursor:
            found, total = queries.sessions(cursor, chosen and queries.SessionConditions(**chosen), **asked)
        return [one.session_id for one in found], total

    with store.reader() as cursor:
        assert queries.sessions(cursor, queries.SessionConditions(session_id="s2")) == ([changed], 1)
    assert ids() == (["s3", "s2", "s1"], 3)
    assert ids(order="total_s") == (["s1", "s2", "s3"], 3)
    assert ids(limit=1, offset=1) == (["s2"], 3)
    assert ids({"status": ["failed", "accepted"]}, descending=False) == (["s1", "s2"], 2)
    assert ids({"first_step": 7, "rank": 1}) == (["s3"], 1)
    assert ids({"longer_than_s": 4}) == (["s1"], 1)
    assert ids({"text": "50%"}) == (["s2"], 1)
    with pytest.raises(QueryError, match="cannot sort"):
        ids(order="phases; --")


def test_sample_of_sessions_is_even_over_the_run(store):
    sessions = [queries.StoredSession(session_id=f"s{number}", submit_ts=float(number)) for number in range(1000)]
    _write_sessions(store, sessions)
    with store.reader() as cursor:
        found, total = queries.sessions(cursor, order="sample", limit=200)
    assert (len(found), total) == (200, 1000)
    by_quarter = [sum(number * 250 <= one.submit_ts < (number + 1) * 250 for one in found) for number in range(4)]
    assert all(25 <= count <= 80 for count in by_quarter), by_quarter


def test_sessions_are_found_by_reward_tokens_version_and_reason(store):
    def session(number, **fields):
        return queries.StoredSession(session_id=f"s{number}", status="accepted", submit_ts=float(number), **fields)

    some = [
        session(1, reward=0.1, tokens=64, model_version="7"),
        session(2, reward=-1.0, tokens=4096, reason="Tool timeout"),
        session(3),
    ]
    _write_sessions(store, some)
    for conditions, expected in (
        ({"most_reward": 0.05}, ["s2"]),
        ({"least_reward": 0.1}, ["s1"]),
        ({"least_reward": -1.0, "most_reward": 0.1}, ["s2", "s1"]),
        ({"least_tokens": 65}, ["s2"]),
        ({"most_tokens": 64}, ["s1"]),
        ({"model_version": "7"}, ["s1"]),
        ({"reason": "timeout"}, ["s2"]),
    ):
        with store.reader() as cursor:
            found, total = queries.sessions(cursor, queries.SessionConditions(**conditions))
        assert ([one.session_id for one in found], total) == (expected, len(expected)), conditions


def test_sessions_are_listed_with_as_much_detail_as_is_wanted(store):
    phases = {"generate": [{"start_ts": 1.0, "end_ts": 3.0, "outcome": "ok", "payload": {"tokens": 9}}]}
    whole = queries.StoredSession(
        session_id="s", generate_s=2.0, phase_seconds={"generate": 2.0}, phases=phases, counters={"turns": 2}, turns=2,
        rollout_stats={"running": 1},
    )  # fmt: skip
    _write_sessions(store, [whole])
    with store.reader() as cursor:
        found = {kind: queries.sessions(cursor, detail=kind)[0][0] for kind in ("full", "phases", "brief")}
    assert found["full"] == whole
    assert found["phases"].phases == {"generate": [{"start_ts": 1.0, "end_ts": 3.0, "outcome": "ok"}]}
    assert found["brief"].phases == {}
    for kind in ("phases", "brief"):
        assert (found[kind].counters, found[kind].rollout_stats) == ({}, {})
        assert (found[kind].generate_s, found[kind].phase_seconds) == (2.0, {"generate": 2.0})


def test_findings_are_written_and_replaced(store):
    def finding(severity):
        return queries.Finding(
            finding_id="f",
            rule="straggler",
            severity=severity,
            title="rank 3",
            start_ns=1,
            end_ns=2,
            culprit={"rank": 3},
            impact={"seconds_per_step": 13.0},
            first_step=7,
            lanes=[1],
            sessions=["t-1"],
            evidence=[{"name": "ratio", "value": 2.4, "unit": ""}],
            explains=["g"],
        )

    queries.write_findings(store, [finding("info")])
    queries.write_findings(store, [finding("warning")])
    with store.reader() as cursor:
        assert queries.read_findings(cursor) == [finding("warning")]


def test_people_can_open_a_copy_with_duckdb_itself(tmp_path, store, make):
    _training(store, make)
    store.copy_to(tmp_path / "copy.duckdb")
    with duckdb.connect(str(tmp_path / "copy.duckdb"), read_only=True) as connection:
        rows = connection.execute("SELECT role, name, sum(duration_ns) / 1e9 FROM spans GROUP BY ALL").fetchall()
    assert len(rows) == 6


_EVERY_MOMENT = """
    SELECT start_ns, start_ns + duration_ns FROM spans
    UNION ALL SELECT start_ns, start_ns FROM open_spans
    UNION ALL SELECT time_ns, time_ns FROM samples
"""


def test_a_summary_spans_the_first_and_last_time_by_aligned_clocks(make, store, begin_ns, fetch):
    draw = random.Random(9)
    for number in range(12):
        process = make(f"p{number}")
        for _ in range(6):
            process.span("work", draw.randrange(300) * SECOND, draw.choice((0, 1, 3, 25, 400)) * SECOND)
        process.sample("loss", 1.0, at=draw.randrange(500) * SECOND)
        process.span("open", draw.randrange(300) * SECOND, -1)
        sent_ns = begin_ns + 900 * SECOND
        arrived_ns = sent_ns + draw.choice((0, 40, -90, 7_200)) * SECOND  # by the server's clock
        assert store.commit([process.build(sent_ns=sent_ns)], received_ns=[arrived_ns]) == [True]
        moments = fetch(store, _EVERY_MOMENT)
        with store.reader() as cursor:
            found = queries.summary(cursor)
        assert (found.start_ns, found.end_ns) == (min(one[0] for one in moments), max(one[1] for one in moments))
    assert len(set(fetch(store, "SELECT clock_offset_ns FROM processes"))) > 1
