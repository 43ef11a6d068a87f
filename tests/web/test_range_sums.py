"""The panel of a range on the timeline shows the server's sums, also for many short spans."""

from __future__ import annotations

import time

import pytest

from rl_insight.schema import BatchBuilder
from tests.web.test_properties import send

pytestmark = pytest.mark.xdist_group("web")

MILLISECOND = 1_000_000
SPANS = 10_000
BEGIN_NS = (time.time_ns() // 10**9 - 600) * 10**9


@pytest.fixture(scope="module")
def recorded(server):
    """Record ten seconds of short spans on two lanes that take turns: one of them is always running."""
    builder = BatchBuilder()
    for number in range(SPANS):
        start_ns = BEGIN_NS + number * MILLISECOND
        builder.add_span(
            span_id=number + 1, trace=(1, 1), name="op", start_ns=start_ns, lane="ab"[number % 2],
            duration_ns=MILLISECOND, status="ok", segment="duration",
        )  # fmt: skip
    builder.add_span(
        span_id=SPANS + 1, trace=(1, 1), name="wait_for_b", start_ns=BEGIN_NS, lane="c", segment="state_interval",
        duration_ns=SPANS * MILLISECOND, status="ok",
    )  # fmt: skip
    send(server, builder, run="short", final=True)


def open_range(page, first_s, last_s):
    """Open the timeline with a selected range, and return its panel."""
    begin = BEGIN_NS // 10**9
    page.goto(f"/?view=timeline&run=short&window={begin + first_s:.6f}-{begin + last_s:.6f}")
    return page.get_by_label("Selected range")


def test_wall_time_is_that_of_the_linked_hotspots(page, recorded):
    panel = open_range(page, 2, 6)
    line = panel.locator(".bar-line", has_text="op")
    line.get_by_text("4.00 s").wait_for()
    assert "4,000 ×" in line.inner_text()
    assert "100 %" in line.inner_text()
    panel.get_by_role("link", name="Hotspots").click()
    row = page.locator(".table-row", has_text="op")
    row.get_by_text("4.00 s").first.wait_for()
    assert "4,000" in row.inner_text()


def test_idle_shares_count_gaps_between_short_spans_and_waits(page, recorded):
    panel = open_range(page, 2, 6)
    shares = {"a": "50 %", "b": "50 %", "c": "100 %"}
    for lane, share in shares.items():
        panel.locator(".bar-line", has_text=f"· {lane}").get_by_text(share, exact=True).wait_for()


def test_sums_say_that_they_are_being_loaded(page, recorded):
    def hold(_route):
        """Leave the request without an answer."""

    page.route("**/api/v1/hotspots?*", hold)
    panel = open_range(page, 2, 6)
    panel.locator("section[aria-busy=true]", has_text="Wall time by name").get_by_text("Loading").wait_for()
    page.unroute_all(behavior="ignoreErrors")


def test_sums_follow_records_that_arrive_later(page, server, recorded):
    panel = open_range(page, 2, 6)
    panel.locator(".bar-line", has_text="op").get_by_text("4.00 s").wait_for()
    late = BatchBuilder()
    late.add_span(
        span_id=SPANS + 2, trace=(1, 1), name="late", start_ns=BEGIN_NS + 3000 * MILLISECOND, lane="d",
        duration_ns=1000 * MILLISECOND, status="ok", segment="duration",
    )  # fmt: skip
    send(server, late, run="short", role="rollout")
    panel.locator(".bar-line", has_text="late").get_by_text("1.00 s").wait_for()
    panel.locator(".bar-line", has_text="rollout 0 · d").get_by_text("75 %", exact=True).wait_for()
