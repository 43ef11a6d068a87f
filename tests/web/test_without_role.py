"""A run whose processes have no role: each place on the page names the process by its id."""

from __future__ import annotations

import re
import time

import pytest

from rl_insight.schema import BatchBuilder, Process
from tests.web.sending import send_batches

pytestmark = pytest.mark.xdist_group("web")

SECOND = 1_000_000_000
PROCESS = "node-7-4242"
LIVE_PROCESS = "node-8-4343"


@pytest.fixture(scope="module")
def recorded(server):
    """Record two processes without a role and a rank: one fell silent in the middle of its work, one is at work."""
    begin = time.time_ns() - 600 * SECOND
    builder = BatchBuilder()
    for number in range(1, 9):
        builder.add_span(
            span_id=number, trace=(1, 1), name="update", start_ns=begin + number * SECOND, segment="state_interval",
            duration_ns=SECOND // 2, status="ok",
        )  # fmt: skip
    builder.add_span(
        span_id=9, trace=(1, 1), name="update", start_ns=begin + 9 * SECOND, segment="state_interval",
        duration_ns=-1, status="open",
    )  # fmt: skip
    builder.add_log(time_ns=begin + SECOND, level=30, message="low memory")
    send_batches(server.url, builder.build(process(PROCESS, 0.1), sequence=1, sent_ns=time.time_ns()))
    builder = BatchBuilder()
    builder.add_span(span_id=10, trace=(1, 2), name="judge", start_ns=begin, duration_ns=-1, status="open")
    send_batches(server.url, builder.build(process(LIVE_PROCESS, 600.0), sequence=1, sent_ns=time.time_ns()))
    time.sleep(2)  # until the process counts as silent


def process(process_id, heartbeat_s):
    host, _, pid = process_id.rpartition("-")
    return Process(
        process_id=process_id, run_id="roleless", host=host, pid=int(pid), project="math", experiment_name="page",
        role="", rank=None, heartbeat_s=heartbeat_s,
    )  # fmt: skip


def test_the_overview_names_the_process(page, recorded):
    page.goto("/?run=roleless")
    page.locator(".tile", has_text="Processes").get_by_text(re.compile(f"^{PROCESS} silent for")).wait_for()
    page.locator(".panel", has_text="Work in flight").locator(".bar-line", has_text="judge").get_by_text(
        LIVE_PROCESS
    ).wait_for()
    page.locator(".panel", has_text="Warnings and errors").locator(".log-line").get_by_text(PROCESS).wait_for()


def test_processes_and_logs_name_the_process(page, recorded):
    page.goto("/?view=processes&run=roleless")
    page.get_by_role("table", name="Processes").get_by_role("link", name=PROCESS).wait_for()
    page.goto("/?view=logs&run=roleless")
    page.get_by_role("table", name="Logs").get_by_text(PROCESS).wait_for()


def test_the_timeline_names_the_process(page, recorded):
    page.goto("/?view=timeline&run=roleless&span=0000000000000001")
    panel = page.get_by_role("complementary", name="Span")
    panel.get_by_text(PROCESS).first.wait_for()
    assert panel.get_by_text(PROCESS, exact=True).count() == 2, "its title, and its id"
