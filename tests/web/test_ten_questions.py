"""The ten questions of docs/page.md: each is answered within three clicks from the overview."""

from __future__ import annotations

import re

import pytest

from tests.web.many_ranks import (
    CHANGED_STEP,
    EARLIER_RUN,
    LOST,
    ROLLOUTS,
    RUN,
    SLOW_RANK,
    SLOW_STEP,
    STEPS,
    record,
    record_earlier,
)

pytestmark = pytest.mark.xdist_group("web")

MOST_CLICKS = 3


class Hand:
    """Clicks, and counts the clicks."""

    def __init__(self, page):
        self.page = page
        self.clicks = 0

    def click(self, target):
        target.wait_for()
        target.click()
        self.clicks += 1

    def go(self, view):
        self.click(self.page.get_by_role("navigation").get_by_role("link", name=view))

    def click_step(self, chart, step, first, last):
        """Click a chart of steps at a step."""
        plot = self.page.get_by_role("figure", name=chart).locator(".u-over")
        plot.wait_for()
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        self.page.mouse.click(box["x"] + box["width"] * (step - first) / (last - first), box["y"] + box["height"] / 2)
        self.clicks += 1


def where_did_the_time_of_a_step_go(hand):
    hand.click_step("Step times", SLOW_STEP, 0, STEPS - 2)
    hand.page.get_by_text(f"Step {SLOW_STEP} took 41.0 s, 31.0 s longer than usual: save_checkpoint").wait_for()


def which_rank_is_a_straggler_and_since_when(hand):
    hand.go("Ranks")
    grid = hand.page.get_by_label("generate by rank and step")
    grid.wait_for()
    box = grid.bounding_box()
    row_height = (box["height"] - 22) / ROLLOUTS
    hand.page.mouse.click(box["x"] + box["width"] * 0.6, box["y"] + row_height * (SLOW_RANK + 0.5))
    hand.clicks += 1
    hand.page.wait_for_url("**view=timeline**lane=**")


def what_is_stuck_and_why(hand):
    hand.page.locator(".panel", has_text="Work in flight").get_by_text("rollout 21").wait_for()
    hand.go("Processes")
    hand.click(hand.page.get_by_role("button", name=re.compile("Stacks", re.IGNORECASE)))


def how_stale_are_the_samples(hand):
    hand.go("Sessions")
    hand.click(hand.page.get_by_role("radio", name="Groups"))
    hand.page.get_by_role("figure", name="Staleness by step").wait_for()


def are_the_gpus_idle_during_rollout(hand):
    hand.go("Hardware")
    table = hand.page.locator(".panel", has_text="GPU busy by state")
    table.get_by_text("wait_for_samples").wait_for()


def which_tool_is_slow_and_since_when(hand):
    hand.go("Hotspots")
    row = hand.page.get_by_role("row").filter(has_text="toolcall")
    hand.click(row.get_by_role("link", name="over time"))
    hand.page.get_by_role("figure", name=re.compile("toolcall")).first.wait_for()


def how_does_it_compare_with_yesterday(hand):
    hand.go("Runs")
    for run in (RUN, EARLIER_RUN):
        hand.click(hand.page.get_by_label(f"Compare {run}", exact=True))
    hand.page.get_by_text("Changes in the second run").wait_for()


def what_changed_at_a_step(hand):
    hand.click_step("reward_mean by step", CHANGED_STEP, 0, STEPS - 1)
    hand.go("Changes")
    hand.page.get_by_label("Changes").get_by_text("config_changed").wait_for()
    hand.page.get_by_label("Changes").get_by_text("grad_norm").wait_for()


def which_session_is_the_longest_and_what_is_inside(hand):
    hand.go("Sessions")
    hand.click(hand.page.get_by_role("columnheader", name="Total"))
    hand.click(hand.page.get_by_role("row").filter(has_text=f"s{SLOW_STEP:03d}-7").first)
    hand.page.get_by_text("toolcall").first.wait_for()


def was_telemetry_lost_and_by_whom(hand):
    hand.click(hand.page.locator(".tile", has_text="Telemetry").filter(has_text=f"{LOST:,} lost"))
    row = hand.page.get_by_role("row").filter(has_text=re.compile("buffer.full"))
    row.filter(has_text="rollout").wait_for()


QUESTIONS = (
    where_did_the_time_of_a_step_go,
    which_rank_is_a_straggler_and_since_when,
    what_is_stuck_and_why,
    how_stale_are_the_samples,
    are_the_gpus_idle_during_rollout,
    which_tool_is_slow_and_since_when,
    how_does_it_compare_with_yesterday,
    what_changed_at_a_step,
    which_session_is_the_longest_and_what_is_inside,
    was_telemetry_lost_and_by_whom,
)


@pytest.fixture(scope="module")
def recorded(server):
    record_earlier(server.url)
    record(server.url)


@pytest.mark.parametrize("ask", QUESTIONS, ids=lambda ask: ask.__name__)
def test_question_is_answered_within_three_clicks(page, recorded, ask):
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"/?run={RUN}")
    page.get_by_text("Critical path").wait_for()
    hand = Hand(page)
    ask(hand)
    assert hand.clicks <= MOST_CLICKS
