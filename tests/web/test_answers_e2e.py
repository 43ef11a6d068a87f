"""Configuration, tags, overlays, groups, changes and SQL as their readers use them."""

from __future__ import annotations

import json
import time

import pytest

from rl_insight.schema import BatchBuilder, Process
from rl_insight.schema.names import CONFIG_EVENT
from tests.web.sending import send_batches

pytestmark = pytest.mark.xdist_group("web")

SECOND = 1_000_000_000
STEPS = 30
CHANGED = 15
HOSTILE = "<img src=x onerror=alert(1)>"


def recorded(run_id, config, *, changes):
    """Return a run of 30 steps; with `changes`, lr and reward change at step 15, and tasks become all or nothing."""
    builder = BatchBuilder()
    begin = time.time_ns() - 600 * SECOND
    builder.add_event(time_ns=begin, name=CONFIG_EVENT, attributes=json.dumps(config))
    series = {name: builder.add_series(name, "gauge", "", "{}") for name in ("lr", "reward_mean")}
    for step in range(STEPS):
        has_changed = changes and step >= CHANGED
        start = begin + step * 10 * SECOND
        length = 9 if has_changed else 6
        builder.add_span(
            span_id=step + 1,
            trace=(1, 2),
            name="update",
            start_ns=start,
            duration_ns=length * SECOND,
            segment="state_interval",
            step=step,
        )
        if changes and step == CHANGED:
            builder.add_event(time_ns=start - 1, name="config_changed", attributes=json.dumps({"lr": 1e-5}))
        noise = 0.001 * (step % 3)
        for name, value in (("lr", 1e-5 if has_changed else 1e-6), ("reward_mean", 0.2 if has_changed else 0.6)):
            builder.add_sample(series[name], time_ns=start, value=value * (1 + noise), step=step)
        for sample in range(4):
            record = {
                "step": step,
                "reward": 0.0 if has_changed else sample / 4,
                "model_version": str(max(0, step - 2 if has_changed else step)),
                "counters": {"turns": sample + 1},
                "submit_ts": start / 1e9,
                "finalized_ts": start / 1e9 + 1,
            }
            builder.add_session(
                session_id=f"{run_id}-{step}-{sample}",
                status="accepted",
                time_ns=start,
                record=json.dumps(record),
                task_id="gsm8k-1",
            )
    process = Process(process_id=run_id, run_id=run_id, host="node", pid=1, role="trainer", rank=0)
    return builder.build(process, sequence=1, sent_ns=time.time_ns(), final=True)


@pytest.fixture(scope="module")
def runs(server):
    batches = [
        recorded("steady", {"actor.lr": 1e-6, "seed": 1, "note": HOSTILE}, changes=False),
        recorded("changed", {"actor.lr": 1e-5, "seed": 1, "note": HOSTILE}, changes=True),
    ]
    send_batches(server.url, *batches)


def rows_of(page, label):
    return page.get_by_role("table", name=label).locator(".table-row")


def test_a_run_shows_its_configuration_and_keeps_tags_and_notes(page, runs):
    page.goto("/?view=runs")
    row = rows_of(page, "Runs").filter(has_text="steady")
    row.get_by_text("0.6").first.wait_for()
    page.get_by_role("button", name="Details of steady").click()
    panel = page.locator(".side-panel")
    panel.get_by_text("actor.lr").wait_for()
    panel.get_by_text(HOSTILE).wait_for()
    assert page.locator("main img").count() == 0
    panel.get_by_label("Tags").fill("baseline, the one to beat")
    panel.get_by_label("Notes").fill("before the change")
    panel.get_by_role("button", name="Save").click()
    panel.get_by_text("Saved.").wait_for()
    row.locator(".badge", has_text="the one to beat").wait_for()
    page.reload()
    rows_of(page, "Runs").filter(has_text="the one to beat").wait_for()
    page.get_by_label("Search runs").fill("before the change")
    page.get_by_text("1 run,").wait_for()


def test_a_comparison_says_what_is_different(page, runs):
    page.goto("/?view=runs&one=steady&other=changed")
    page.get_by_text("1 configuration value differs: actor.lr").wait_for()
    page.get_by_text("reward_mean is 0.4").wait_for()
    table = page.get_by_role("table", name="Configuration differences")
    assert table.locator("tbody tr").count() == 1


def test_metrics_of_several_runs_share_a_chart_and_are_smoothed_pinned_and_saved(page, runs):
    page.goto("/?view=runs&one=steady&other=changed")
    page.get_by_role("link", name="Overlay 2 runs in Metrics").click()
    page.get_by_role("button", name="reward_mean", exact=True).click()
    page.locator(".legend-switch", has_text="run=changed").wait_for()
    page.locator(".legend-switch", has_text="run=steady").wait_for()
    with page.expect_response(lambda answer: "smoothing=0.9" in answer.url):
        page.get_by_label("Smooth").select_option("0.9")
    page.get_by_role("button", name="Pin", exact=True).click()
    page.get_by_role("button", name="Pinned").wait_for()
    page.locator("summary", has_text="Views").click()
    page.get_by_label("Name of this view").fill("rewards of both")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("button", name="rewards of both", exact=True).wait_for()

    page.goto("/?view=metrics&run=steady")
    page.get_by_role("figure", name="reward_mean").wait_for()
    assert page.get_by_role("figure").count() == 1
    page.locator("summary", has_text="Views").click()
    page.get_by_role("button", name="rewards of both", exact=True).click()
    page.locator(".legend-switch", has_text="run=changed").wait_for()
    assert "smooth=0.9" in page.url
    page.get_by_role("button", name="Remove the view rewards of both").click()
    page.get_by_text("No saved views yet.").wait_for()


def test_groups_show_spread_dead_groups_and_staleness(page, runs):
    page.goto("/?view=sessions&run=changed&show=groups")
    page.get_by_text(f"{STEPS} groups, {STEPS - CHANGED} dead").wait_for()
    page.get_by_role("figure", name="Staleness by step").wait_for()
    page.get_by_role("figure", name="Dead groups by step").wait_for()
    page.get_by_label("Which groups").select_option("dead")
    page.get_by_text(f"{STEPS - CHANGED} groups, {STEPS - CHANGED} dead").wait_for()
    samples = rows_of(page, "Groups").first.get_by_role("link")
    assert "4 of 4 have a reward" in samples.get_attribute("title")
    samples.click()
    page.get_by_text("4 sessions").wait_for()
    page.get_by_label("Search sessions").fill("turns:>2 reward:<0.1")
    page.get_by_text(f"{2 * (STEPS - CHANGED)} sessions").wait_for()


def test_what_changed_at_a_step_is_ranked_and_leads_to_the_metric(page, runs):
    page.goto(f"/?view=changes&run=changed&step={CHANGED}")
    rows_of(page, "Changes").filter(has_text="config_changed").wait_for()
    names = rows_of(page, "Changes").locator(".cell:nth-child(2)").all_inner_texts()
    assert {"lr", "reward_mean", "config_changed", "update"} <= set(names)
    page.get_by_label("Step", exact=True).fill("8")
    page.get_by_text("Nothing stands out at step 8").wait_for()
    page.goto(f"/?view=changes&run=changed&window={CHANGED}-{CHANGED}")
    page.get_by_role("link", name="reward_mean").click()
    page.wait_for_url("**view=metrics**metric=reward_mean**")


def test_the_sql_console_says_how_it_is_switched_on(page, runs):
    page.goto("/?view=sql&run=changed")
    says = page.get_by_text("rl-insight server start sql.enabled=true")
    says.wait_for()
    run = page.get_by_role("button", name="Run", exact=True)
    assert says.bounding_box()["y"] < run.bounding_box()["y"]
    assert run.is_disabled()
