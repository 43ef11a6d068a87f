from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rl_insight as insight
from rl_insight.schema.histogram import quantile
from rl_insight.testing import capture


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "rl_insight"]


def test_counter_adds_one_by_default_and_any_amount(insight_capture):
    insight.metric_count("rollouts")
    insight.metric_count("rollouts", 2.5)
    insight.metric_count("rollouts", 3)
    assert insight_capture.value("rollouts") == 6.5
    assert insight_capture.metric("rollouts").kind == "counter"


def test_counter_travels_as_its_total_since_the_start(insight_capture):
    insight.metric_count("rollouts", 2)
    insight_capture.flush()
    insight.metric_count("rollouts", 3)
    assert [record.value for record in insight_capture.metrics] == [2.0, 5.0]


@pytest.mark.parametrize("amount", [-1, -0.5, float("nan"), float("inf"), float("-inf"), -(10**400)])
def test_bad_counter_amount_is_refused_counted_and_warned_once(insight_capture, caplog, amount):
    for _ in range(3):
        insight.metric_count("rollouts", amount)
    insight.metric_count("rollouts", 1)
    assert insight_capture.value("rollouts") == 1.0
    assert insight_capture.losses == {"metrics/bad_amount": 3}
    assert len(warnings_of(caplog)) == 1
    assert "rollouts" in warnings_of(caplog)[0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 0.0, -1.5, 1e308])
def test_gauge_keeps_every_float(insight_capture, value):
    insight.metric_gauge("reward_mean", value)
    assert insight_capture.value("reward_mean") == pytest.approx(value, nan_ok=True)
    assert insight_capture.losses == {}


def test_every_gauge_value_is_kept_with_its_own_time(insight_capture):
    for value in (1.0, 2.0, 3.0):
        insight.metric_gauge("reward_mean", value)
        insight_capture.clock.advance(1)
    times = [record.time_ns for record in insight_capture.metrics]
    assert [record.value for record in insight_capture.metrics] == [1.0, 2.0, 3.0]
    assert [later - times[0] for later in times] == [0, 10**9, 2 * 10**9]


@pytest.mark.parametrize("sign", [1, -1])
def test_integer_beyond_floats_becomes_infinite_and_spoils_nothing(insight_capture, sign):
    insight.metric_gauge("huge", sign * 10**400)
    insight.metric_gauge("other", 1)
    assert insight_capture.value("huge") == sign * math.inf
    assert insight_capture.value("other") == 1.0


@pytest.mark.parametrize("value", [True, Fraction(1, 2), "1.5"])
def test_what_has_a_float_value_is_a_number(insight_capture, value):
    insight.metric_gauge("ratio", value)
    assert insight_capture.value("ratio") == float(value)


class Unconvertible:
    def __float__(self):
        raise RuntimeError("no")

    __str__ = __repr__ = __float__


@pytest.mark.parametrize("value", [None, "many", [], {}, object(), Unconvertible()])
@pytest.mark.parametrize("call", [insight.metric_count, insight.metric_gauge, insight.metric_histogram])
def test_what_is_not_a_number_is_refused_counted_and_warned_once(insight_capture, caplog, call, value):
    call("tokens", value)
    call("tokens", value)
    assert insight_capture.metrics == []
    assert insight_capture.losses == {"metrics/not_a_number": 2}
    assert len(warnings_of(caplog)) == 1


def test_aliases_record_the_same(insight_capture):
    insight.metric_value("reward_mean", 0.5, documentation="Mean reward", worker="0")
    insight.metric_distribution("latency_ms", 12.0)
    gauge = insight_capture.metric("reward_mean", worker="0")
    assert (gauge.kind, gauge.value, gauge.documentation) == ("gauge", 0.5, "Mean reward")
    assert insight_capture.metric("latency_ms").count == 1


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e3, 1e6])
def test_histogram_quantiles_are_good_for_any_unit(insight_capture, scale):
    generator = random.Random(7)
    values = sorted(generator.lognormvariate(0, 1) * scale for _ in range(2000))
    for value in values:
        insight.metric_histogram("latency", value)
    record = insight_capture.metric("latency")
    assert (record.count, record.min, record.max) == (2000, values[0], values[-1])
    assert record.sum == pytest.approx(sum(values))
    for q in (0.5, 0.95, 0.99):
        assert quantile(record.buckets, q) == pytest.approx(values[int(q * 2000) - 1], rel=0.03)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400])
def test_distribution_refuses_what_is_not_finite(insight_capture, caplog, value):
    insight.metric_histogram("latency", value)
    insight.metric_histogram("latency", 1.0)
    assert insight_capture.metric("latency").count == 1
    assert insight_capture.losses == {"metrics/not_finite": 1}
    assert len(warnings_of(caplog)) == 1


def test_label_values_become_strings_and_types_stay_apart(insight_capture):
    for value in (1, 1.0, True, None, "1"):
        insight.metric_count("seen", worker=value)
    totals = {record.labels["worker"]: record.value for record in insight_capture.metrics}
    assert totals == {"1": 2.0, "1.0": 1.0, "True": 1.0, "None": 1.0}


def test_label_order_does_not_make_two_series(insight_capture):
    insight.metric_count("seen", a="1", b="2")
    insight.metric_count("seen", b="2", a="1")
    assert [record.value for record in insight_capture.metrics] == [2.0]


def test_two_label_sets_of_one_metric_are_both_kept(insight_capture):
    insight.metric_gauge("reward_mean", 1.0, worker="0")
    insight.metric_gauge("reward_mean", 2.0, task="math", worker="0")
    insight.metric_gauge("reward_mean", 3.0)
    assert {tuple(record.labels.items()): record.value for record in insight_capture.metrics} == {
        (("worker", "0"),): 1.0,
        (("task", "math"), ("worker", "0")): 2.0,
        (): 3.0,
    }
    assert insight_capture.losses == {}


def test_one_name_as_two_kinds_refuses_the_second(insight_capture, caplog):
    insight.metric_count("tokens", 5)
    insight.metric_gauge("tokens", 7)
    insight.metric_gauge("tokens", 8)
    assert [(record.kind, record.value) for record in insight_capture.metrics] == [("counter", 5.0)]
    assert insight_capture.losses == {"metrics/two_kinds": 2}
    assert len(warnings_of(caplog)) == 1
    assert "counter" in warnings_of(caplog)[0]


@pytest.mark.parametrize(
    ("given", "recorded"),
    [("timing_s/step", "timing_s_step"), ("perf.mfu", "perf_mfu"), ("a-b c", "a_b_c"), ("99th", "_99th"), ("é", "_")],
)
def test_changed_name_is_shown_in_one_warning(insight_capture, caplog, given, recorded):
    insight.metric_count(given)
    insight.metric_count(given, worker="1")
    insight_capture.flush()
    assert {record.metric for record in insight_capture.metrics} == {recorded}
    assert len(warnings_of(caplog)) == 1
    assert given in warnings_of(caplog)[0]
    assert recorded in warnings_of(caplog)[0]


def test_changed_label_name_is_shown_in_one_warning(insight_capture, caplog):
    insight.metric_count("tokens", **{"gen_ai.system": "vllm"})
    insight.metric_count("tokens", **{"gen_ai.system": "sglang"})
    assert {record.labels["gen_ai_system"] for record in insight_capture.metrics} == {"vllm", "sglang"}
    assert len(warnings_of(caplog)) == 1


@pytest.mark.parametrize("name", ["", None, 7, ["a"], b"tokens"])
def test_bad_metric_name_is_refused_and_counted(insight_capture, caplog, name):
    insight.metric_count(name)
    insight.metric_count("good")
    assert [record.metric for record in insight_capture.metrics] == ["good"]
    assert insight_capture.losses == {"metrics/bad_name": 1}
    assert len(warnings_of(caplog)) == 1


@pytest.mark.parametrize("label", ["project", "experiment_name", "run_id"])
def test_reserved_label_is_left_out_counted_and_warned(insight_capture, caplog, label):
    insight.metric_count("tokens", **{label: "mine", "worker": "0"})
    assert insight_capture.metric("tokens").labels == {"worker": "0"}
    assert insight_capture.losses == {"labels/reserved": 1}
    assert label in warnings_of(caplog)[0]


def test_series_past_the_limit_collapse_into_overflow(caplog):
    with capture({"recorder": {"max_series_per_metric": 3}}) as captured:
        for worker in range(10):
            insight.metric_count("tokens", worker=worker, role="rollout")
        for worker in range(10):
            insight.metric_count("tokens", worker=worker, role="rollout")
        insight.metric_count("other", worker=99)
        totals = {tuple(sorted(r.labels.items())): r.value for r in captured.metrics if r.metric == "tokens"}
    overflow = (("role", "__overflow__"), ("worker", "__overflow__"))
    assert totals[overflow] == 14.0
    assert len(totals) == 4
    assert sum(totals.values()) == 20.0
    assert captured.losses == {"series/too_many": 14}
    assert captured.value("other", worker="99") == 1.0
    assert len(warnings_of(caplog)) == 1


def test_label_names_without_number_do_not_make_series_without_number(caplog):
    with capture({"recorder": {"max_series_per_metric": 3}}) as captured:
        for number in range(50):
            insight.metric_count("tokens", **{f"label_{number}": "x"})
        series = {tuple(record.labels.items()) for record in captured.metrics}
    assert len(series) <= 7
    assert sum(captured.value("tokens", **dict(labels)) for labels in series) >= 50.0


def test_secret_label_values_are_redacted(insight_capture):
    insight.metric_count("calls", api_key="sk-abcdefghijklmnopqrstu", header="Bearer abcdefghijklmnop")
    assert insight_capture.metric("calls").labels == {"api_key": "[redacted]", "header": "[redacted]"}


class Hostile:
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__

    def __hash__(self):
        raise ValueError("no hash")

    def __eq__(self, other):
        raise ValueError("no comparison")


@pytest.mark.parametrize("value", [Hostile(), [1], {"a": 1}, "\ud800", b"raw", object])
def test_any_object_as_label_value_is_survived(insight_capture, value):
    insight.metric_count("tokens", 2, thing=value)
    insight.metric_count("tokens", 2, thing=value)
    assert insight_capture.value("tokens") == 4.0


def test_objects_given_as_labels_are_not_kept_alive(insight_capture):
    import gc
    import weakref

    class Tensor:
        pass

    tensor = Tensor()
    gone = weakref.ref(tensor)
    insight.metric_count("tokens", thing=tensor)
    insight_capture.flush()
    del tensor
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("documentation", [None, 5, Hostile()])
def test_odd_documentation_spoils_nothing(insight_capture, documentation):
    insight.metric_count("tokens", 1, documentation)
    insight.metric_count("other", 1)
    assert insight_capture.value("tokens") == 1.0
    assert insight_capture.value("other") == 1.0


def test_documentation_may_come_with_a_later_call(insight_capture):
    insight.metric_count("tokens")
    insight.metric_count("tokens", documentation="Tokens generated", worker="0")
    insight.metric_count("tokens", documentation="Tokens generated")
    assert insight_capture.metric("tokens", worker="0").documentation == "Tokens generated"


def test_totals_are_separated_by_step(insight_capture):
    for number in (1, 2):
        with insight.step(number):
            insight.metric_count("tokens", 10 * number)
            insight.metric_histogram("length", number)
    samples = [(r.step, r.value) for r in insight_capture.metrics if r.metric == "tokens"]
    counts = [(r.step, r.count) for r in insight_capture.metrics if r.metric == "length"]
    assert samples == [(1, 10.0), (2, 30.0)]
    assert counts == [(1, 1), (2, 2)]


@pytest.mark.parametrize(("label", "step"), [(7, 7), ("7", None), (10**30, None), (True, None)])
def test_an_integer_label_named_step_is_the_step(insight_capture, label, step):
    insight.metric_gauge("reward_mean", 1.0, step=label)
    record = insight_capture.metric("reward_mean")
    assert record.step == step
    assert record.labels == {"step": str(label)}


@given(st.lists(st.floats(min_value=-1e9, max_value=1e9), min_size=1, max_size=50))
def test_histogram_counts_every_value_once(values):
    with capture() as captured:
        for value in values:
            insight.metric_histogram("x", value)
        record = captured.metric("x")
    assert record.count == sum(record.buckets.values()) == len(values)
    assert (record.min, record.max) == (min(values), max(values))


def test_totals_of_several_steps_in_one_flush_stand_in_the_order_of_time(insight_capture):
    for step in (1, 2, 3):
        insight_capture.set_step(step)
        insight_capture.metric_count("tokens", 10)
        insight_capture.metric_histogram("latency", 10)
    totals = [
        (record.step, record.value, record.time_ns) for record in insight_capture.metrics if record.metric == "tokens"
    ]
    assert [total[:2] for total in totals] == [(1, 10.0), (2, 20.0), (3, 30.0)]
    times = [record.time_ns for record in insight_capture.metrics if record.metric == "latency"]
    assert times == sorted(set(times)) == [total[2] for total in totals]
