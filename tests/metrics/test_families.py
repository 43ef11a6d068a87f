"""The metric model: kinds, declared names, and the metrics of one batch."""

import doctest
import importlib
from math import inf, nan

import pytest

from rl_insight.metrics import COUNTER, GAUGE, HISTOGRAM, KINDS, Declaration, Family, Point, batch_families
from rl_insight.metrics.families import reserved_names
from rl_insight.schema import BatchBuilder, Process
from rl_insight.schema.histogram import bucket_code, upper_bound


@pytest.mark.parametrize("name", ["families", "kinds", "prometheus", "totals"])
def test_doctests(name):
    assert doctest.testmod(importlib.import_module(f"rl_insight.metrics.{name}")).failed == 0


@pytest.mark.parametrize(
    ("namespace", "name", "kind", "expected"),
    [
        ("rl_insight_monitor", "steps", COUNTER, "rl_insight_monitor_steps_total"),
        ("rl_insight_monitor", "steps_total", COUNTER, "rl_insight_monitor_steps_total"),
        ("rl_insight_monitor", "reward", GAUGE, "rl_insight_monitor_reward"),
        ("rl_insight_monitor", "reward_total", GAUGE, "rl_insight_monitor_reward_total"),
        ("", "latency", HISTOGRAM, "latency"),
    ],
)
def test_exposed_names(namespace, name, kind, expected):
    assert kind.exposed_name(namespace, name) == expected


def test_a_declared_histogram_reserves_the_names_of_all_its_series():
    declared = [Declaration("wait_seconds", HISTOGRAM, "Waits."), Declaration("waits", COUNTER, "Number of waits.")]
    assert reserved_names(declared) == {
        "wait_seconds",
        "wait_seconds_bucket",
        "wait_seconds_sum",
        "wait_seconds_count",
        "waits_total",
    }


def test_the_metrics_of_a_batch_keep_their_times_and_leave_out_what_is_not_a_metric():
    builder = BatchBuilder()
    reward = builder.add_series("reward", "gauge", "Mean reward.", '{"worker":"0"}')
    other = builder.add_series("reward", "gauge", "", '{"worker":"1"}')
    tokens = builder.add_series("tokens", "counter", "", "{}")
    latency = builder.add_series("latency", "histogram", "", "{}")
    odd = builder.add_series("odd", "summary", "", "{}")
    for position, time_ns, value in [
        (reward, 5, 0.5),
        (other, 6, 0.7),
        (reward, 7, nan),
        (tokens, 5, nan),
        (odd, 5, 1),
    ]:
        builder.add_sample(position, time_ns=time_ns, value=value)
    builder.add_sample(latency, time_ns=5, value=1.0)
    builder.add_histogram(latency, time_ns=8, count=2, total=3.0, minimum=1.0, maximum=2.0, buckets={7: 1, 9: 1})
    builder.add_histogram(tokens, time_ns=8, count=2, total=3.0, minimum=1.0, maximum=2.0, buckets={7: 1})
    batch = builder.build(Process(process_id="p", run_id="r", host="h", pid=1), sequence=1, sent_ns=9)
    found = {family.name: family for family in batch_families(batch)}
    assert set(found) == {"reward", "latency"}
    assert (found["reward"].kind, found["reward"].documentation) == (GAUGE, "Mean reward.")
    assert [(point.labels, point.time_ns) for point in found["reward"].points] == [
        ((("worker", "0"),), 5),
        ((("worker", "1"),), 6),
        ((("worker", "0"),), 7),
    ]
    (point,) = found["latency"].points
    assert (point.value.count, point.value.sum, point.value.buckets, point.time_ns) == (2, 3.0, {7: 1, 9: 1}, 8)
    assert (point.value.minimum, point.value.maximum) == (1.0, 2.0)


def test_a_histogram_shows_its_explicit_bounds_or_those_of_its_codes():
    explicit = Family("d", HISTOGRAM, "", [], bounds=(0.5, 2.0))
    assert explicit.cumulative_bounds() == [(0.5, [0]), (2.0, [1])]
    code = bucket_code(3.0)
    by_code = Family("d", HISTOGRAM, "", [], codes=[code, code + 1])
    bounds = by_code.cumulative_bounds()
    assert [codes for _, codes in bounds] == [[], [code], [code + 1]]
    assert bounds[1][0] == upper_bound(code)
    assert all(bound < inf for bound, _ in bounds)


def test_kinds_are_found_by_the_name_on_the_wire():
    assert {name: kind.name for name, kind in KINDS.items()} == {name: name for name in KINDS}
    assert Family("x", KINDS["counter"], "", [Point((), 1.0)]).exposed_name("ns") == "ns_x_total"
