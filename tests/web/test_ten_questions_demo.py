"""The ten questions of docs/page.md, asked of the example training with a slow worker and a stuck tool call."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.web.test_ten_questions import MOST_CLICKS, Hand, how_stale_are_the_samples, which_tool_is_slow_and_since_when

pytestmark = [pytest.mark.xdist_group("web"), pytest.mark.slow]

ROOT = Path(__file__).parents[2]
STEPS, FAULT_AT, EARLIER_STEPS = 60, 20, 20
SLOW_WORKER = "rollout 1"


def start_training(server, *words):
    """Start the example; its processes form one group."""
    command = [sys.executable, "-m", "examples.async_grpo", "--server", server.url, "--speed", "4", *words]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def ask_server(server, question):
    with urllib.request.urlopen(f"{server.url}/api/v1/{question}") as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def runs(server, wait_until):
    """Record an earlier healthy run; start one with faults, and return both once its steps are done."""
    earlier = start_training(server, "--steps", str(EARLIER_STEPS), "--exit")
    assert earlier.wait(120) == 0
    before = [run["run_id"] for run in ask_server(server, "runs")]
    training = start_training(server, "--hang", "--fault", "slow_rollout", "--fault-at", str(FAULT_AT))
    try:
        wait_until(lambda: len(ask_server(server, "runs")) > len(before), 60)
        run = next(run["run_id"] for run in ask_server(server, "runs") if run["run_id"] not in before)
        wait_until(lambda: any(one["step"] >= STEPS for one in ask_server(server, f"steps?run={run}")), 180)
        wait_until(lambda: any(SLOW_WORKER in one["title"] for one in ask_server(server, f"findings?run={run}")), 60)
        yield run, before[0]
    finally:
        os.killpg(training.pid, signal.SIGINT)
        try:
            training.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(training.pid, signal.SIGKILL)
            training.wait(10)


def where_did_the_time_of_a_step_go(hand, _runs):
    hand.click_step("Step times", 0.5, 0, 1)
    hand.page.get_by_text(re.compile(r"Step \d+ took .* usual")).wait_for()


def which_rank_is_a_straggler_and_since_when(hand, _runs):
    text = re.compile(f"{SLOW_WORKER} .* takes .* as long as its peers in generate")
    hand.go("Findings")
    hand.click(hand.page.get_by_role("link", name=text).first)
    hand.page.wait_for_url("**view=timeline**")


def what_is_stuck_and_why(hand, _runs):
    hand.page.locator(".panel", has_text="Work in flight").get_by_text("toolcall").first.wait_for()
    hand.go("Processes")
    hand.click(hand.page.get_by_role("button", name=re.compile("Stacks", re.IGNORECASE)))
    hand.page.get_by_text(re.compile("tool.py")).first.wait_for()


def how_stale(hand, _runs):
    hand.page.get_by_role("figure", name="staleness_mean by step").wait_for()
    how_stale_are_the_samples(hand)


def are_the_gpus_idle_during_rollout(hand, _runs):
    hand.go("Hardware")
    hand.page.get_by_text("No hardware metrics in this run").wait_for()


def which_tool_is_slow(hand, _runs):
    which_tool_is_slow_and_since_when(hand)


def how_does_it_compare_with_yesterday(hand, runs):
    hand.go("Runs")
    for run in runs:
        hand.click(hand.page.get_by_label(f"Compare {run}", exact=True))
    hand.page.get_by_text("Changes in the second run").wait_for()
    hand.page.get_by_text(re.compile("step time|Step time", re.IGNORECASE)).first.wait_for()


def what_changed_at_a_step(hand, _runs):
    hand.click_step("reward_mean by step", 0.5, 0, 1)
    hand.go("Changes")
    hand.page.get_by_text(re.compile(r"\d+ of \d+ series")).wait_for()


def which_session_is_the_longest_and_what_is_inside(hand, _runs):
    hand.go("Sessions")
    hand.click(hand.page.get_by_role("columnheader", name="Total"))
    hand.page.wait_for_url("**sort=-total_s**")
    hand.click(hand.page.get_by_role("table", name="Sessions").get_by_role("row").nth(1))
    hand.page.locator(".side-panel").get_by_text("generate").first.wait_for()


def was_telemetry_lost_and_by_whom(hand, _runs):
    hand.click(hand.page.locator(".tile", has_text="Telemetry").filter(has_text="complete"))
    hand.page.get_by_role("row").filter(has_text=SLOW_WORKER).wait_for()


QUESTIONS = (
    where_did_the_time_of_a_step_go,
    which_rank_is_a_straggler_and_since_when,
    what_is_stuck_and_why,
    how_stale,
    are_the_gpus_idle_during_rollout,
    which_tool_is_slow,
    how_does_it_compare_with_yesterday,
    what_changed_at_a_step,
    which_session_is_the_longest_and_what_is_inside,
    was_telemetry_lost_and_by_whom,
)


@pytest.mark.parametrize("ask", QUESTIONS, ids=lambda ask: ask.__name__)
def test_question_is_answered_on_the_demo(page, runs, ask):
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"/?run={runs[0]}")
    page.get_by_text("Critical path").wait_for()
    hand = Hand(page)
    ask(hand, runs)
    assert hand.clicks <= MOST_CLICKS
