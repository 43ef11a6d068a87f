"""A number that two views show is the same in both, and is the one computed by hand."""

from __future__ import annotations

import json
import re
import time

import pytest
from playwright.sync_api import expect

from rl_insight.schema import BatchBuilder, Process
from tests.web.sending import send_batches

pytestmark = pytest.mark.xdist_group("web")

SECOND = 1_000_000_000
LONG = 1200


def batch(builder, run_id):
    process = Process(process_id=run_id, run_id=run_id, host="node", pid=1, role="trainer", rank=0)
    return builder.build(process, sequence=1, sent_ns=time.time_ns(), final=True)


def with_gpus(begin):
    """Return a run with three GPUs at 40%, 60% and 80%; a fourth died at 0%. An exporter reports 0% for all."""
    builder = BatchBuilder()
    for host, gpu, value in (("a", "0", 0.4), ("a", "1", 0.6), ("b", "0", 0.8), ("b", "1", 0.0)):
        own = builder.add_series("gpu_utilization_ratio", "gauge", "", json.dumps({"host": host, "gpu": gpu}))
        other = builder.add_series("DCGM_FI_DEV_GPU_UTIL", "gauge", "", json.dumps({"Hostname": host, "gpu": gpu}))
        until = 300 if (host, gpu) != ("b", "1") else 60
        for at in range(0, until + 1, 5):
            builder.add_sample(own, time_ns=begin + at * SECOND, value=value if at == until else 1.0)
            builder.add_sample(other, time_ns=begin + at * SECOND, value=0.0)
    return batch(builder, "gpus")


def with_steps(begin, run_id, steps, update_s):
    """return a run of steps of 10 s, with an update each."""
    builder = BatchBuilder()
    for step in range(steps):
        builder.add_span(
            span_id=step + 1, trace=(1, 2), name="update", segment="state_interval", step=step,
            start_ns=begin + step * 10 * SECOND, duration_ns=update_s * SECOND,
        )  # fmt: skip
    return batch(builder, run_id)


def with_sessions(begin):
    """Return a run of 5,000 finished sessions, more than a chart has points: 4,751 took 1 s and 249 took 10 s."""
    builder = BatchBuilder()
    for number in range(5000):
        submit_ts = begin / SECOND + number
        record = {"submit_ts": submit_ts, "finalized_ts": submit_ts + (1.0 if number < 4751 else 10.0)}
        builder.add_session(
            session_id=f"s{number}", status="accepted", time_ns=begin, record=json.dumps(record), task_id="t"
        )
    return batch(builder, "sessions")


@pytest.fixture(scope="module")
def _recorded(server):
    begin = time.time_ns() - (LONG + 10) * 10 * SECOND
    batches = [with_gpus(begin), with_steps(begin, "long", LONG, 4), with_steps(begin, "longer", LONG, 6)]
    batches.append(with_sessions(begin))
    send_batches(server.url, *batches)


@pytest.mark.usefixtures("_recorded")
def test_overview_and_hardware_show_the_same_gpu_use(page):
    page.goto("/?view=overview&run=gpus")
    panel = page.locator(".panel", has_text="GPU use").first
    expect(panel).to_contain_text(re.compile(r"GPU use\s*60 %"))
    page.goto("/?view=hardware&run=gpus")
    page.get_by_text("60 % now, average of 3, 1 silent for more than 30 s").wait_for()
    page.get_by_text("lowest 40 % on a · GPU 0 · highest 80 % on b · GPU 0").wait_for()
    page.get_by_role("button", name="By node").click()
    page.get_by_text("60 % now, average of 3, 1 silent for more than 30 s").wait_for()


@pytest.mark.usefixtures("_recorded")
def test_the_table_of_two_long_runs_agrees_with_the_sentence(page):
    page.goto("/?view=runs&one=long&other=longer")
    page.get_by_text("Steps take about the same time, 10.0 s").wait_for()
    row = page.get_by_role("table", name="Differences").get_by_role("row").filter(has_text="update")
    expect(row).to_contain_text(
        re.compile(r"update\s*phase\s*4\.00 s\s*6\.00 s\s*\+2\.00 s\s*× 1\.50\s*4\.00 s\s*6\.00 s")
    )


@pytest.mark.usefixtures("_recorded")
def test_the_server_decides_how_severe_failed_spans_are(page):
    def answer(route):
        found = route.fetch().json()
        errors = {"spans": 1000, "errors": 1, "share": 0.001, "severity": "critical"}
        route.fulfill(json=found | {"errors": errors})

    page.route("**/api/v1/steps/pace*", answer)
    page.goto("/?view=overview&run=long")
    tile = page.locator(".tile", has_text="Errors, 10 steps")
    expect(tile).to_contain_text("0.1 % of spans")
    expect(tile).to_have_class("tile tone-bad")


@pytest.mark.usefixtures("_recorded")
def test_the_durations_of_sessions_are_of_all_of_them(page):
    page.goto("/?view=sessions&run=sessions")
    page.get_by_text("5,000 finished").wait_for()
    total = page.locator(".distributions tr", has_text="total")
    expect(total.locator("td.right")).to_have_text(["1.00 s", "1.00 s", "10.0 s", "10.0 s"])
    chart = page.locator(".panel", has_text="Total time")
    expect(chart).to_contain_text(re.compile(r"4,0\d\d of 5,000 shown"))
    expect(chart.locator("figcaption")).to_contain_text(re.compile(r"p50\s*1.00 s\s*p95\s*1.00 s"))
