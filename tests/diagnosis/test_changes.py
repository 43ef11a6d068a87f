"""What changed at a step: injected changes are found at their step, and nothing is found in noise."""

from __future__ import annotations

import json
import math
import random
import time

import pytest

from rl_insight.diagnosis.change_points import change_at
from rl_insight.diagnosis.changes import what_changed
from rl_insight.schema import BatchBuilder, Process
from rl_insight.store import RunStore
from rl_insight.store.errors import QueryError

SECOND = 1_000_000_000
BEGIN_NS = 1_760_000_000_000_000_000
STEPS = 100
CHANGED = 60


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Record 100 steps, of which step 30 has a long checkpoint; from step 60 on much is different.

    lr is ten times as high, reward falls, tool calls take six times as long, some fail, and warnings are logged;
    just before, the configuration changed.
    """
    dice = random.Random(3)
    builder = BatchBuilder()
    spans = 0
    now = float(BEGIN_NS)

    def span(name, seconds, step, **fields):
        nonlocal spans
        spans += 1
        builder.add_span(
            span_id=spans,
            trace=(1, 2),
            name=name,
            start_ns=int(now),
            duration_ns=int(seconds * SECOND),
            step=step,
            **fields,
        )

    series = {name: builder.add_series(name, "gauge", "", "{}") for name in ("lr", "reward", "kl", "grad_norm")}
    for step in range(STEPS):
        has_changed = step >= CHANGED
        if step == CHANGED:
            builder.add_event(time_ns=int(now) - SECOND, name="config_changed", attributes=json.dumps({"lr": 1e-5}))
        builder.add_event(time_ns=int(now) + SECOND, name="weights_published")
        length = 10 + dice.gauss(0, 0.2) + (31 if step == 30 else 0)
        span("train_step", length * 0.9, step, segment="state_interval")
        if step == 30:
            span("save_checkpoint", 31, step, segment="state_nested")
        elif step % 10 == 0:
            span("save_checkpoint", 1, step, segment="state_nested")
        for call in range(10):
            failed = has_changed and call < 4
            seconds = (6 if has_changed else 1) * dice.uniform(0.9, 1.1)
            span("toolcall", seconds, step, segment="phase", status="error" if failed else "ok")
        values = {
            "lr": 1e-5 if has_changed else 1e-6,
            "reward": (0.3 if has_changed else 0.6) + dice.gauss(0, 0.02),
            "kl": 0.1 + dice.gauss(0, 0.01),
            "grad_norm": math.nan if step == 80 else 1.0 + dice.gauss(0, 0.05),
        }
        for name, value in values.items():
            builder.add_sample(series[name], time_ns=int(now), value=value, step=step)
        if has_changed:
            for number in range(3):
                text = f"request {dice.randint(1, 9999)} was refused"
                builder.add_log(time_ns=int(now) + number, level=30, message=text)
        now += length * SECOND
    process = Process(process_id="p", run_id="r", host="node", pid=1, role="trainer", rank=0)
    with RunStore(tmp_path_factory.mktemp("changes") / "run.duckdb", min_free_bytes=0, create=True) as store:
        store.commit([builder.build(process, sequence=1, sent_ns=time.time_ns())])
        yield store


def changes_at(store, step, **given):
    with store.reader() as cursor:
        return what_changed(cursor, step, **given)


def named(found):
    return {(change.kind, change.name): change for change in found.changes}


def test_everything_planted_at_a_step_is_found_and_nothing_else(planted):
    found = named(changes_at(planted, CHANGED))
    assert set(found) == {
        ("event", "config_changed"),
        ("metric", "lr"),
        ("metric", "reward"),
        ("phase", "toolcall"),
        ("errors", "toolcall"),
        ("logs", "warning: request # was refused"),
    }
    assert {change.step for change in found.values()} <= {CHANGED, CHANGED - 1}
    learning_rate = found["metric", "lr"]
    assert (learning_rate.shape, learning_rate.before, learning_rate.after) == ("shift", 1e-6, 1e-5)
    reward = found["metric", "reward"]
    assert (reward.before, reward.after) == pytest.approx((0.6, 0.3), abs=0.02)
    tool = found["phase", "toolcall"]
    assert (tool.before, tool.after) == pytest.approx((1.0, 6.0), rel=0.05)
    errors = found["errors", "toolcall"]
    assert (errors.before, errors.after) == (0.0, 4.0)
    assert found["event", "config_changed"].detail == {"lr": 1e-5}


def test_changes_are_ranked_by_their_size(planted):
    ranked = [change.name for change in changes_at(planted, CHANGED).changes]
    assert ranked[:2] == ["lr", "config_changed"]
    assert ranked.index("lr") < ranked.index("reward")


def test_one_long_step_is_a_spike_of_its_phase_and_of_the_step(planted):
    found = named(changes_at(planted, 30))
    assert set(found) == {("step", "step time"), ("phase", "train_step")}
    assert found["step", "step time"].shape == "spike"
    assert found["step", "step time"].after == pytest.approx(41, abs=1)


def test_a_metric_that_becomes_nan_is_a_change(planted):
    (change,) = changes_at(planted, 80, window=15).changes
    assert (change.name, change.after, change.detail) == ("grad_norm", None, {"value": "NaN"})


@pytest.mark.parametrize("step", [10, 45, 75, 90])
def test_steps_at_which_nothing_changed_have_no_changes(planted, step):
    assert changes_at(planted, step).changes == []


def test_a_step_that_is_not_there_is_refused(planted):
    with pytest.raises(QueryError, match="has not finished"):
        changes_at(planted, 5000)
    with pytest.raises(QueryError, match="out of range"):
        changes_at(planted, 10, window=0)


def test_noise_alone_rarely_changes():
    dice = random.Random(1)
    found = sum(change_at([dice.gauss(10, 1) for _ in range(80)], 40) is not None for _ in range(500))
    assert found <= 5


def test_a_change_elsewhere_is_none_here():
    values = [1.0] * 30 + [9.0] * 50
    assert change_at(values, 30).place == 30
    assert change_at(values, 32).place == 30
    assert change_at(values, 40) is None
    assert change_at([1.0, math.nan] * 10, 5) is None
    assert change_at([], 0) is None


def counts(dice: random.Random, rate: float, steps: int) -> list[float]:
    """How often an event with a hundred trials per step happens."""
    return [float(sum(dice.random() < rate / 100 for _ in range(100))) for _ in range(steps)]


def test_a_rise_of_rare_errors_is_found_although_counts_vary():
    dice = random.Random(1)
    runs = [counts(dice, 0.5, 40) + counts(dice, 4.0, 40) for _ in range(100)]
    assert sum(change_at(values, 40, is_count=True) is not None for values in runs) >= 80
    quiet = [counts(dice, rate, 80) for rate in (0.5, 4.0) for _ in range(100)]
    assert sum(change_at(values, 40, is_count=True) is not None for values in quiet) <= 2
