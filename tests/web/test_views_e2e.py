"""Sessions, hotspots, metrics, hardware, logs, runs and findings as their readers use them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("web")

PRODUCE = Path(__file__).with_name("produce.py")
STEPS = 4
SESSIONS = 12
VIEWS = ("sessions", "hotspots", "metrics", "hardware", "logs", "findings", "runs")

MOVE_OVER_CHARTS = """setInterval(() => {
    for (const chart of document.querySelectorAll(".u-over")) {
        const { left, top, width } = chart.getBoundingClientRect();
        const place = { clientX: left + width * Math.random(), clientY: top + 10, bubbles: true };
        chart.dispatchEvent(new MouseEvent("mousemove", place));
    }
}, 0)"""


@pytest.fixture(scope="module")
def runs(server):
    """Record two short runs that have ended, and one whose only tool call hangs."""

    def produce(run_id, *words):
        command = [sys.executable, str(PRODUCE), "--server", server.url, "--experiment", run_id, "--run-id", run_id]
        return subprocess.Popen([*command, *words], stdout=subprocess.DEVNULL)

    first = produce("first", "--steps", str(STEPS), "--sessions", str(SESSIONS))
    second = produce("second", "--steps", "3", "--sessions", "4")
    stuck = produce("stuck", "--steps", "0", "--stuck", "600")
    assert first.wait(60) == 0
    assert second.wait(60) == 0
    yield
    stuck.send_signal(signal.SIGKILL)
    stuck.wait(10)


def rows_of(page, label):
    return page.get_by_role("table", name=label).locator(".table-row")


def test_sessions_are_counted_filtered_and_sorted(page, runs):
    page.goto("/?view=sessions&run=first")
    page.get_by_text(f"{STEPS * SESSIONS} sessions").wait_for()
    page.get_by_label("Search sessions").fill("status:failed step:1-3")
    page.get_by_text(re.compile(r"^[1-9] sessions?$")).wait_for()
    assert set(rows_of(page, "Sessions").locator(".badge").all_inner_texts()) == {"✕ failed"}
    assert "search=status" in page.url

    page.get_by_label("Search sessions").fill("")
    page.get_by_text(f"{STEPS * SESSIONS} sessions").wait_for()
    page.get_by_role("button", name="Total").click()
    page.locator('[aria-sort="descending"]', has_text="Total").wait_for()
    assert "sort=-total_s" in page.url


def test_a_wrong_search_says_what_would_be_right(page, runs):
    page.goto("/?view=sessions&run=first&search=step%3Anever")
    page.get_by_text("use step:7, step:3-9 or step:>5").wait_for()
    page.goto("/?view=sessions&run=first&search=foo%3Abar")
    page.get_by_text("unknown condition “foo:”").wait_for()


def test_one_session_shows_waterfall_events_logs_and_counters(page, runs):
    page.goto("/?view=sessions&run=first&search=status%3Aaccepted")
    table = page.get_by_role("table", name="Sessions")
    rows_of(page, "Sessions").first.wait_for()
    table.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    panel = page.locator(".side-panel")
    panel.locator(".waterfall-bar").nth(2).wait_for()
    panel.get_by_text("turns").first.wait_for()
    panel.get_by_text(re.compile(r"turn 0 done")).first.wait_for()
    assert "session=" in page.url
    panel.locator("a.waterfall-line", has_text="generate").first.click()
    page.wait_for_url("**view=timeline**span=**")
    page.go_back()
    page.locator(".side-panel .waterfall-bar").first.wait_for()
    page.keyboard.press("Escape")
    page.locator(".side-panel").wait_for(state="detached")


def test_hostile_names_are_shown_as_text(page, runs):
    page.goto("/?view=logs&run=first&level=40")
    rows_of(page, "Logs").first.click()
    page.locator(".side-panel", has_text="</script><img src=x onerror=alert(1)> 🦊").wait_for()
    assert page.locator("main img").count() == 0


def test_stuck_work_is_found_with_its_age_and_leads_into_the_timeline(page, runs):
    page.goto("/?view=sessions&run=stuck")
    work = rows_of(page, "Suspect open work").filter(has_text="toolcall")
    work.wait_for()
    task = work.get_by_role("link", name="stuck-task")
    task.wait_for()
    assert "in toolcall for" in task.get_attribute("title")
    rows_of(page, "Sessions").filter(has_text="stuck-task").locator(".is-open").wait_for()
    work.get_by_role("link", name="toolcall").click()
    page.wait_for_url("**view=timeline**span=**")


def test_hotspots_show_figures_and_a_flame(page, runs):
    page.goto("/?view=hotspots&run=first&scope=all")
    row = rows_of(page, "Hotspots").filter(has_text="backward")
    row.wait_for()
    assert row.locator(".cell").nth(3).inner_text() == str(STEPS)
    page.get_by_label("Scope").select_option("step")
    page.get_by_label("Step", exact=True).fill("2")
    one_step = rows_of(page, "Hotspots").filter(has_text="backward").filter(has=page.get_by_text("1", exact=True))
    one_step.first.wait_for()
    page.get_by_role("radio", name="Flame").click()
    page.get_by_role("button", name=re.compile("^backward")).first.click()
    page.get_by_role("button", name="Show all").click()
    assert "shape=flame" in page.url
    assert "step=2" in page.url


def test_a_metric_is_picked_grouped_filtered_and_saved(page, runs):
    page.goto("/?view=metrics&run=first")
    page.get_by_role("button", name="gpu_power_watts").click()
    page.locator(".legend-switch").nth(7).wait_for()
    page.locator("label.field", has_text=re.compile("^by")).locator("select").select_option("host")
    page.locator(".legend-switch", has_text="host=node-1").wait_for()
    assert page.locator(".legend-switch").count() == 2
    page.locator(".legend-switch", has_text="host=node-1").click()
    page.locator('.legend-switch[aria-pressed="false"]', has_text="node-1").wait_for()

    with page.expect_download() as saved:
        page.get_by_role("button", name="CSV").click()
    lines = Path(saved.value.path()).read_text().splitlines()
    assert lines[0].startswith("time,")
    assert len(lines) > 1
    with page.expect_download() as picture:
        page.get_by_role("button", name="PNG").click()
    assert Path(picture.value.path()).read_bytes().startswith(b"\x89PNG")

    page.get_by_label("Filter by label").select_option("gpu")
    page.get_by_label("Value of gpu").select_option("2")
    page.get_by_role("button", name="Remove the filter gpu=2").wait_for()
    assert "match=gpu%3D2" in page.url


def test_a_distribution_has_quantiles_and_a_heat_map(page, runs):
    page.goto("/?view=metrics&run=first&metric=generate_tokens")
    page.locator(".legend-switch", has_text="p95").wait_for()
    heat_map = page.get_by_role("img", name=re.compile("Distribution of generate_tokens"))
    heat_map.focus()
    page.keyboard.press("ArrowDown")
    page.get_by_role("tooltip").wait_for()


def test_hardware_shows_every_accelerator_or_how_to_watch_them(page, runs):
    page.goto("/?view=hardware&run=first")
    page.get_by_text("average of 8").wait_for()
    heat_map = page.get_by_role("img", name="GPU busy by node and accelerator over time")
    heat_map.focus()
    for _ in range(7):
        page.keyboard.press("ArrowDown")
    page.get_by_role("tooltip").get_by_text("GPU 3").wait_for()
    page.goto("/?view=hardware&run=stuck")
    page.get_by_text("insight.monitor_hardware()").wait_for()


def test_logs_are_searched_by_level_and_text_and_lead_to_their_session(page, runs):
    page.goto("/?view=logs&run=first")
    turns = rows_of(page, "Logs").filter(has_text=re.compile(r"turn \d done"))  # which one heads a fold is chance
    turns.first.wait_for()
    page.get_by_label("Level").select_option("40")
    turns.first.wait_for(state="detached")
    assert set(rows_of(page, "Logs").locator(".cell:nth-child(2)").all_inner_texts()) == {"ERROR"}
    page.get_by_label("Search logs").fill("no such text")
    page.get_by_text("No matching log lines").wait_for()
    page.get_by_label("Search logs").fill("refused")
    rows_of(page, "Logs").first.get_by_role("link", name="session").click()
    page.locator(".side-panel .badge", has_text="failed").wait_for()


def test_two_runs_are_compared_by_step_and_by_hotspot(page, runs):
    page.goto("/?view=runs")
    page.get_by_label("Compare first").check()
    page.get_by_label("Compare second").check()
    page.get_by_role("figure", name="step time").wait_for()
    page.get_by_role("figure", name="reward_mean").wait_for()
    rows_of(page, "Differences").filter(has_text="rollout").wait_for()
    page.reload()
    rows_of(page, "Differences").filter(has_text="rollout").wait_for()


def test_a_healthy_run_has_no_findings_and_says_so(page, runs):
    page.goto("/?view=findings&run=first")
    page.get_by_text("No findings", exact=True).wait_for()


def test_views_fit_a_tablet_in_both_themes(page, runs):
    page.set_viewport_size({"width": 1024, "height": 768})
    page.goto("/?view=overview&run=first")
    for view in VIEWS:
        page.get_by_role("navigation").get_by_role("link", name=view.capitalize()).click()
        page.wait_for_url(f"**view={view}**")
        page.locator("main .view, main .empty").first.wait_for()
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.locator(f'html[data-theme="{scheme}"]').wait_for()
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), view


def test_the_theme_follows_the_system_while_the_page_draws(page, runs):
    page.goto("/?view=metrics&run=first")
    page.locator(".u-over").first.wait_for()
    page.evaluate(MOVE_OVER_CHARTS)
    for _ in range(20):
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.locator(f'html[data-theme="{scheme}"]').wait_for()


def test_a_run_is_deleted_only_after_a_question(page, runs):
    page.goto("/?view=runs")
    page.get_by_role("button", name="Delete second").click()
    page.get_by_role("button", name="Keep it").click()
    rows_of(page, "Runs").filter(has_text="second").wait_for()
    page.get_by_role("button", name="Delete second").click()
    page.get_by_role("button", name="Delete permanently").click()
    rows_of(page, "Runs").filter(has_text="second").wait_for(state="detached")
