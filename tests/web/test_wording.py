"""Texts of a run with one of each: one run, one step, one group."""

from __future__ import annotations

import json
import time

import pytest
from playwright.sync_api import expect

from rl_insight.schema import BatchBuilder, Process
from tests.web.sending import send_batches

pytestmark = pytest.mark.xdist_group("web")

SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def _recorded(server):
    builder, begin = BatchBuilder(), time.time_ns() - 60 * SECOND
    builder.add_span(
        span_id=1, trace=(1, 2), name="update", segment="state_interval", step=0, start_ns=begin, duration_ns=SECOND
    )
    for number in range(2):
        record = {"submit_ts": begin / SECOND, "finalized_ts": begin / SECOND + 1, "step": 0, "reward": number}
        builder.add_session(
            session_id=f"s{number}", status="accepted", time_ns=begin, record=json.dumps(record), task_id="t"
        )
    process = Process(process_id="p", run_id="one", host="node", pid=1, role="trainer", rank=0)
    batch = builder.build(process, sequence=1, sent_ns=time.time_ns(), final=True)
    send_batches(server.url, batch)


@pytest.mark.usefixtures("_recorded")
def test_one_of_each_is_singular(page):
    page.goto("/?view=runs&run=one")
    page.get_by_text("1 run, ").wait_for()
    page.goto("/?view=sessions&show=groups&run=one")
    page.get_by_text("1 group, 0 dead").wait_for()
    page.goto("/?view=overview&run=one")
    page.get_by_text("last 1 step", exact=True).wait_for()
    page.goto("/?view=ranks&run=one")
    page.get_by_text("1 row, 1 step", exact=True).wait_for()


@pytest.mark.usefixtures("_recorded")
@pytest.mark.parametrize(
    ("lost_s", "text"),
    [(0.0216, "No single process delayed the others."), (0.0, "No process delayed the others.")],
)
def test_lost_time_without_a_culprit_is_nobodys_alone(page, lost_s, text):
    def answer(route):
        found = route.fetch().json()
        route.fulfill(json=found | {"culprit": None, "suspects": [], "excess_seconds": lost_s, "steps": [{}]})

    page.route("**/api/v1/steps/critical_path*", answer)
    page.goto("/?view=overview&run=one")
    panel = page.locator(".panel", has_text="Critical path")
    expect(panel).to_contain_text(text)
    expect(panel).to_contain_text("1 step")
