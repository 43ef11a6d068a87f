from __future__ import annotations

import math
import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_insight.collector import SeriesTable
from rl_insight.metrics import GAUGE
from rl_insight.schema import BatchBuilder, Process
from rl_insight.schema.histogram import bucket_code
from rl_insight.schema.names import RESERVED_LABELS


def values(table, name):
    """Return ``{label items: value}`` of a counter or a gauge."""
    return {
        tuple(pair for pair in labels if pair[0] not in RESERVED_LABELS): value
        for family in table.families()
        if family.name == name
        for labels, value, _ in family.points
    }


def only(table, name):
    (value,) = values(table, name).values()
    return value


def distribution(table, name):
    (family,) = [family for family in table.families() if family.name == name]
    ((_, found, _),) = family.points
    return found


def test_counters_of_two_processes_add(fake_process):
    table = SeriesTable()
    first, second = fake_process("a"), fake_process("b")
    table.apply(first.count("steps", 3).batch())
    table.apply(second.count("steps", 4).batch())
    table.apply(first.count("steps", 1).batch())
    assert only(table, "steps") == 8


def test_replayed_batch_changes_nothing(fake_process):
    table = SeriesTable()
    process = fake_process()
    batches = [process.count("steps").observe("latency", 5.0).gauge("loss", 1.0, time_ns=9).batch() for _ in range(3)]
    for batch in batches + batches[::-1]:
        table.apply(batch)
    assert only(table, "steps") == 3
    assert distribution(table, "latency").count == 3
    assert distribution(table, "latency").buckets == {bucket_code(5.0): 3}


def test_lost_batch_is_made_good_by_the_next(fake_process):
    table = SeriesTable()
    process = fake_process()
    table.apply(process.count("steps", 1).observe("latency", 5.0).batch())
    process.count("steps", 10).observe("latency", 50.0).batch()
    table.apply(process.count("steps", 100).observe("latency", 500.0).batch())
    assert only(table, "steps") == 111
    assert distribution(table, "latency").count == 3
    assert distribution(table, "latency").sum == 555.0


@given(
    increments=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1000)), min_size=1, max_size=30),
    seed=st.integers(),
)
def test_any_order_and_repetition_gives_the_same_totals(increments, seed):
    totals: dict[str, list[int]] = {}
    batches = []
    for name, amount in increments:
        seen = totals.setdefault(name, [])
        seen.append(amount)
        builder = BatchBuilder()
        builder.add_sample(builder.add_series("tokens", "counter", "", "{}"), time_ns=1, value=sum(seen))
        buckets = {bucket_code(value): 0 for value in seen}
        for value in seen:
            buckets[bucket_code(value)] += 1
        series = builder.add_series("length", "histogram", "", "{}")
        builder.add_histogram(
            series, time_ns=1, count=len(seen), total=sum(seen), minimum=min(seen), maximum=max(seen), buckets=buckets
        )
        process = Process(process_id=name, run_id="r", host="h", pid=1)
        batches.append(builder.build(process, sequence=len(seen), sent_ns=1))
    order = batches * 2
    random.Random(seed).shuffle(order)
    table = SeriesTable()
    for batch in order:
        table.apply(batch)
    everything = [value for seen in totals.values() for value in seen]
    assert only(table, "tokens") == sum(everything)
    found = distribution(table, "length")
    assert (found.count, found.sum) == (len(everything), sum(everything))
    assert (found.minimum, found.maximum) == (min(everything), max(everything))
    assert sum(found.buckets.values()) == len(everything)


def test_gauge_keeps_the_value_with_the_latest_time(fake_process):
    table = SeriesTable()
    first, second = fake_process("a"), fake_process("b")
    table.apply(first.gauge("loss", 1.0, time_ns=100).batch())
    table.apply(second.gauge("loss", 2.0, time_ns=300).batch())
    table.apply(first.gauge("loss", 3.0, time_ns=200).batch())
    assert only(table, "loss") == 2.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_gauge_keeps_values_that_are_not_finite_numbers(fake_process, value):
    table = SeriesTable()
    table.apply(fake_process().gauge("loss", 1.0, time_ns=1).gauge("loss", value, time_ns=2).batch())
    assert repr(only(table, "loss")) == repr(value)


def test_counter_that_is_not_a_number_is_refused_and_an_infinite_one_stays(fake_process):
    table = SeriesTable()
    process = fake_process()
    table.apply(process.count("steps", math.inf).batch())
    table.apply(process.count("steps", 1).batch())
    assert only(table, "steps") == math.inf
    table.apply(process.count("steps", math.nan).batch())
    assert only(table, "steps") == math.inf
    assert table.refused == {"value": 1}


def test_ended_process_keeps_its_contribution_and_is_never_counted_twice(fake_process):
    table = SeriesTable()
    process = fake_process("a")
    table.apply(process.count("steps", 5).observe("latency", 1.0).batch())
    table.forget("a")
    assert only(table, "steps") == 5
    table.apply(process.count("steps", 2).observe("latency", 1.0).batch())
    assert only(table, "steps") == 5
    table.apply(process.count("steps", 3).observe("latency", 1.0).batch())
    assert only(table, "steps") == 8
    assert distribution(table, "latency").count == 2


def test_differing_label_sets_under_one_name_are_all_kept(fake_process):
    table = SeriesTable()
    process = fake_process()
    table.apply(process.gauge("reward", 1.0).gauge("reward", 2.0, rank="0").gauge("reward", 3.0, tool="x").batch())
    assert values(table, "reward") == {(): 1.0, (("rank", "0"),): 2.0, (("tool", "x"),): 3.0}


def test_a_colon_in_a_name_becomes_an_underscore(fake_process):
    table = SeriesTable()
    table.apply(fake_process().gauge("vllm:num_requests_running", 3.0).batch())
    assert only(table, "vllm_num_requests_running") == 3.0


def test_label_order_does_not_make_a_new_series(fake_process):
    table = SeriesTable()
    table.apply(fake_process("a").count("steps", 1, a="1", b="2").batch())
    table.apply(fake_process("b").count("steps", 1, b="2", a="1").batch())
    assert values(table, "steps") == {(("a", "1"), ("b", "2")): 2.0}


def test_runs_are_told_apart_and_can_be_dropped(fake_process):
    table = SeriesTable()
    table.apply(fake_process("a", run_id="r1").count("steps", 1).batch())
    table.apply(fake_process("b", run_id="r2").count("steps", 2).gauge("x", 1.0).batch())
    assert len(table) == 3
    table.drop_run("r2")
    assert only(table, "steps") == 1
    assert len(table) == 1
    table.apply(fake_process("c", run_id="r3").count("x", 1).batch())
    assert only(table, "x") == 1


class Clock:
    """A clock in nanoseconds that advances on request."""

    def __init__(self):
        self.now_ns = 0

    def __call__(self):
        return self.now_ns

    def wait(self, seconds):
        self.now_ns += int(seconds * 1e9)


def test_series_of_ended_runs_leave_so_that_new_ones_are_never_refused(fake_process):
    clock = Clock()
    table = SeriesTable(max_series=6, clock=clock)
    for number in range(50):
        process = fake_process(f"p{number}", run_id=f"r{number}")
        table.apply(process.count("steps", 3).observe("latency", 1.0).gauge("reward", 0.5).batch(final=True))
        table.forget(f"p{number}")
        clock.wait(301)
    assert table.refused == {}
    assert len(table) == 3
    assert list(table.families()) == []
    assert len(table) == 0


def test_a_run_stays_for_a_while_after_its_last_process_ended_and_as_long_as_one_reports(fake_process):
    clock = Clock()
    table = SeriesTable(clock=clock)
    process, other = fake_process("a"), fake_process("b")
    table.apply(process.count("steps", 3).batch(final=True))
    table.apply(other.batch())
    table.forget("a")
    clock.wait(3000)
    table.apply(other.batch())  # without a metric
    clock.wait(3000)
    assert only(table, "steps") == 3
    table.forget("b")
    table.apply(fake_process("c").batch(final=True))
    table.forget("c")
    clock.wait(299)
    assert only(table, "steps") == 3
    clock.wait(2)
    assert values(table, "steps") == {}


def test_a_silent_run_leaves_after_an_hour_and_counts_in_full_when_it_returns(fake_process):
    clock = Clock()
    table = SeriesTable(clock=clock)
    process = fake_process()
    table.apply(process.count("steps", 3).observe("latency", 1.0).batch())
    clock.wait(3599)
    assert only(table, "steps") == 3
    clock.wait(2)
    assert values(table, "steps") == {}
    table.apply(process.count("steps", 2).observe("latency", 1.0).batch())
    assert only(table, "steps") == 5
    assert distribution(table, "latency").count == 2


def test_series_that_were_refused_for_lack_of_room_are_taken_once_there_is_some(fake_process):
    table = SeriesTable(max_series=1)
    table.apply(fake_process("a", run_id="old").count("steps").batch())
    process = fake_process("b", run_id="new")
    table.apply(process.gauge("reward", 1.0).batch())
    assert table.refused == {"limit": 1}
    table.drop_run("old")
    table.apply(process.gauge("reward", 2.0).batch())
    assert only(table, "reward") == 2.0


def test_changes_are_what_was_set_since_they_were_last_taken(fake_process):
    table = SeriesTable()
    changes = table.follow()
    process = fake_process()
    table.apply(process.count("steps", 2).gauge("reward", 1.0, time_ns=5).gauge("reward", 2.0, time_ns=7).batch())
    assert changes.pending_points == 2
    taken = {family.name: [(point.value, point.time_ns) for point in family.points] for family in changes.take()}
    assert taken == {"steps": [(2.0, 0)], "reward": [(1.0, 5), (2.0, 7)]}
    assert changes.take() == []
    table.apply(process.count("steps", 1).batch())
    (family,) = changes.take()
    assert (family.name, family.points[0].value) == ("steps", 3.0)


def test_a_histogram_with_a_new_bucket_changes_in_all_its_series(fake_process):
    table = SeriesTable()
    changes = table.follow()
    process = fake_process()
    table.apply(process.observe("latency", 1.0, rank="0").observe("latency", 1.0, rank="1").batch())
    assert [len(family.points) for family in changes.take()] == [2]
    table.apply(process.observe("latency", 1.0, rank="0").batch())
    assert [len(family.points) for family in changes.take()] == [1]
    table.apply(process.observe("latency", 99.0, rank="0").batch())
    (family,) = changes.take()
    assert len(family.points) == 2
    assert family.codes == sorted({bucket_code(1.0), bucket_code(99.0)})


def test_changes_that_nothing_takes_stay_bounded_and_keep_the_latest_value(fake_process):
    table = SeriesTable()
    changes = table.follow(max_points=3)
    process = fake_process()
    for number in range(10):
        process.gauge("reward", float(number), time_ns=number, rank=str(number % 2))
        process.gauge("late", float(number), time_ns=number) if number > 5 else None
    table.apply(process.batch())
    assert changes.pending_points == 3
    taken = {family.name: [point.value for point in family.points] for family in changes.take()}
    assert taken == {"reward": [0.0, 2.0, 1.0], "late": [9.0]}


def test_second_kind_of_a_name_is_refused_and_counted(fake_process):
    table = SeriesTable()
    process = fake_process()
    table.apply(process.gauge("reward", 1.0).batch())
    table.apply(process.count("reward", 7).observe("reward", 3.0).gauge("reward", 2.0).batch())
    assert [family.kind for family in table.families()] == [GAUGE]
    assert only(table, "reward") == 2.0
    assert table.refused == {"kind": 2}


def test_names_that_would_collide_when_exposed_are_refused(fake_process):
    table = SeriesTable(reserved={"own_total"})
    process = fake_process()
    table.apply(process.count("steps", 1).gauge("steps_total", 1.0).batch())
    table.apply(process.observe("latency", 1.0).gauge("latency_sum", 1.0).count("own", 1).batch())
    assert {family.name for family in table.families()} == {"steps", "latency"}
    assert table.refused == {"name": 3}


def test_metrics_with_similar_names_that_do_not_collide_are_kept(fake_process):
    table = SeriesTable()
    process = fake_process()
    table.apply(process.gauge("tokens", 1.0).count("tokens_total", 2).observe("x", 1.0).count("x_count", 3).batch())
    assert table.refused == {}
    assert sorted((family.name, family.kind.name) for family in table.families()) == [
        ("tokens", "counter"),
        ("tokens", "gauge"),
        ("x", "histogram"),
        ("x_count", "counter"),
    ]


def test_foreign_names_and_labels_become_what_prometheus_takes(fake_process):
    table = SeriesTable()
    labels = {"a.b": "1", "run_id": "mine", "empty": "", "number": 3}
    table.apply(fake_process().gauge("timing_s/step", 1.0, **labels).observe("h", 1.0, le="x").batch())
    assert values(table, "timing_s_step") == {(("a_b", "1"), ("number", "3")): 1.0}
    (histogram,) = [family for family in table.families() if family.name == "h"]
    assert histogram.points[0].labels[0] == ("_le", "x")


@pytest.mark.parametrize("labels", ["[1]", "{", "nonsense", '"text"'])
def test_unreadable_labels_are_refused_and_the_rest_of_the_batch_is_kept(labels):
    builder = BatchBuilder()
    builder.add_sample(builder.add_series("bad", "gauge", "", labels), time_ns=1, value=1.0)
    builder.add_sample(builder.add_series("good", "gauge", "", '{"list":[1]}'), time_ns=1, value=1.0)
    builder.add_sample(builder.add_series("odd", "summary", "", ""), time_ns=1, value=1.0)
    table = SeriesTable()
    table.apply(builder.build(Process(process_id="p", run_id="r", host="h", pid=1), sequence=1, sent_ns=1))
    assert [family.name for family in table.families()] == ["good"]
    assert table.refused == {"labels": 1, "kind": 1}


def test_rows_in_the_wrong_table_for_their_kind_are_refused():
    builder = BatchBuilder()
    builder.add_sample(builder.add_series("h", "histogram", "", "{}"), time_ns=1, value=1.0)
    gauge = builder.add_series("g", "gauge", "", "{}")
    builder.add_histogram(gauge, time_ns=1, count=1, total=1, minimum=1, maximum=1, buckets={bucket_code(1.0): 1})
    table = SeriesTable()
    table.apply(builder.build(Process(process_id="p", run_id="r", host="h", pid=1), sequence=1, sent_ns=1))
    assert table.refused == {"kind": 2}
    assert values(table, "g") == {}


def test_series_beyond_the_limit_are_refused_and_known_ones_continue(fake_process):
    table = SeriesTable(max_series=2)
    process = fake_process()
    for number in range(4):
        process.gauge("x", float(number), i=str(number))
    table.apply(process.batch())
    table.apply(process.gauge("x", 9.0, i="0").batch())
    assert values(table, "x") == {(("i", "0"),): 9.0, (("i", "1"),): 1.0}
    assert table.refused == {"limit": 2}


def test_first_documentation_that_says_something_is_kept(fake_process):
    table = SeriesTable()
    process = fake_process()
    table.apply(process.gauge("x", 1.0).gauge("x", 1.0, documentation="what x is", a="b").batch())
    (family,) = table.families()
    assert family.documentation == "what x is"


def test_infinite_sum_of_a_histogram_stays_infinite():
    table = SeriesTable()
    for sequence in (1, 2):
        builder = BatchBuilder()
        series = builder.add_series("h", "histogram", "", "{}")
        builder.add_histogram(
            series, time_ns=1, count=sequence, total=math.inf, minimum=1, maximum=math.inf, buckets={32767: sequence}
        )
        process = Process(process_id="p", run_id="r", host="h", pid=1)
        table.apply(builder.build(process, sequence=sequence, sent_ns=1))
    assert distribution(table, "h").sum == math.inf


def test_readers_and_writers_do_not_disturb_each_other(fake_process):
    table = SeriesTable()

    def write(name):
        process = fake_process(name)
        for number in range(100):
            table.apply(process.count("steps").observe("h", float(number + 1)).gauge("g", 1.0, i=str(number)).batch())

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        list(table.families())
    assert only(table, "steps") == 400
    assert distribution(table, "h").count == 400
