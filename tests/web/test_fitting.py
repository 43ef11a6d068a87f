"""At 1440 x 900, legends, short ids, figures and placeholders are shown in full."""

from __future__ import annotations

import json
import time

import pytest
from playwright.sync_api import expect

from rl_insight.schema import BatchBuilder, Process
from tests.web.sending import send_batches

pytestmark = pytest.mark.xdist_group("web")

SECOND = 1_000_000_000
STATUSES = ("accepted", "rejected", "failed", "cancelled", "dropped", "lost")
PLACEHOLDER_FITS = """box => {
    const style = getComputedStyle(box), pen = document.createElement('canvas').getContext('2d');
    pen.font = style.font;
    const room = box.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    return pen.measureText(box.placeholder).width <= room;
}"""
IS_CUT = "cells => cells.some(one => one.scrollWidth > one.clientWidth)"


@pytest.fixture(scope="module")
def _recorded(server):
    builder, now = BatchBuilder(), time.time()
    for number in range(60):
        is_open = number == 59
        status = "pending" if is_open else STATUSES[number % 6]
        record = {"submit_ts": now - 600 + number, "step": 1, "tokens": 1_234_567, "reward": 0.5}
        if is_open:
            builder.add_span(
                span_id=1, trace=(1, 1), name="generate", segment="phase", start_ns=int((now - 500) * SECOND),
                duration_ns=-1, status="open", step=1, session_id=f"s{number}",
            )  # fmt: skip
        else:
            record["finalized_ts"] = record["submit_ts"] + 1.234
        builder.add_session(
            session_id=f"s{number}", status=status, time_ns=int(now * SECOND), record=json.dumps(record),
            task_id=f"gsm8k-{4938 + number}",
        )  # fmt: skip
    process = Process(process_id="p", run_id="fitting", host="node", pid=1, role="rollout", rank=0, heartbeat_s=3600.0)
    batch = builder.build(process, sequence=1, sent_ns=time.time_ns())
    send_batches(server.url, batch)


@pytest.fixture
def wide_page(page, _recorded):
    page.set_viewport_size({"width": 1440, "height": 900})
    return page


def test_the_legend_of_six_statuses_is_inside_of_its_card(wide_page):
    wide_page.goto("/?view=sessions&run=fitting")
    card = wide_page.locator(".panel", has_text="Total time")
    legend = card.locator("figcaption")
    for name in (*STATUSES, "p50", "p95"):
        expect(legend.get_by_text(name, exact=True)).to_be_visible()
    outer, inner = card.bounding_box(), legend.bounding_box()
    assert inner["y"] + inner["height"] <= outer["y"] + outer["height"]
    assert legend.evaluate("one => one.scrollHeight <= one.clientHeight")


def test_short_task_ids_are_not_cut(wide_page):
    wide_page.goto("/?view=sessions&run=fitting")
    for label in ("Sessions", "Suspect open work"):
        task = wide_page.get_by_role("table", name=label).get_by_label("gsm8k-4997")
        expect(task).to_be_visible()
        assert not task.locator("span").evaluate_all(IS_CUT), label


def test_the_tokens_of_groups_are_not_cut(wide_page):
    wide_page.goto("/?view=sessions&show=groups&run=fitting")
    wide_page.route(
        "**/api/v1/sessions/groups?*",
        lambda route: route.fulfill(
            json={
                "total": 1,
                "dead": 0,
                "groups": [
                    {
                        "group_id": "g", "step": 1, "task_id": "t", "samples": 8, "open": 0, "rewarded": 8, "mean": 0.5,
                        "spread": 0.1, "least": 0, "most": 1, "is_dead": False, "longest_s": 1, "tokens": 1_234_567,
                    }
                ],
            }
        ),
    )  # fmt: skip
    wide_page.reload()
    cell = wide_page.get_by_role("table", name="Groups").get_by_role("cell", name="1,234,567")
    expect(cell).to_be_visible()
    assert not cell.evaluate_all(IS_CUT)


@pytest.mark.parametrize("view", ["timeline", "sessions"])
def test_placeholders_are_not_cut(wide_page, view):
    wide_page.goto(f"/?view={view}&run=fitting")
    boxes = wide_page.locator("input[type=search]")
    expect(boxes.first).to_be_visible()
    for box in boxes.all():
        assert box.evaluate(PLACEHOLDER_FITS), box.get_attribute("placeholder")
