"""The page as its readers use it."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import time

import pytest

pytestmark = pytest.mark.xdist_group("web")

HOSTILE = "</script><img src=x onerror='window.hacked=1'>"
EMOJI = "rollout 🦊🚀 приве́т"
LONG = "long-" + "x" * 10_000

_WINDOW = "() => { const found = rlInsightTimeline.currentWindow(); return [found.start, found.end] }"


def wait_for(page, condition, argument=None):
    """Wait for a condition in the page; Playwright's own wait evaluates a string, which the page's CSP forbids."""
    deadline = time.monotonic() + 20
    while not page.evaluate(condition, argument):
        assert time.monotonic() < deadline, f"did not come true: {condition}"
        page.wait_for_timeout(50)


def open_timeline(page, query=""):
    page.goto(f"/?view=timeline{query}")
    wait_for_drawing(page)
    return page.locator(".timeline-canvas")


def wait_for_drawing(page):
    wait_for(page, "window.rlInsightTimeline !== undefined && rlInsightTimeline.frames.length > 3")


def window_of(page):
    return page.evaluate(_WINDOW)


def width_of(page):
    start, end = window_of(page)
    return end - start


def settled_window_of(page):
    """Return the window once the animation of a zoom or a drag has ended; following continues forever."""
    before = window_of(page)
    for _ in range(8):
        page.wait_for_timeout(150)
        now = window_of(page)
        if now == before:
            break
        before = now
    return now


def wait_for_narrower(page, width):
    wait_for(
        page,
        "width => { const found = rlInsightTimeline.currentWindow(); return found.end - found.start < width * 0.9 }",
        width,
    )


def pick_a_span(page, canvas):
    """Click along the lanes until a click hits a span, and wait until the panel shows it."""
    box = canvas.bounding_box()
    for y in range(70, 300, 8):
        page.mouse.click(box["x"] + box["width"] * 0.55, box["y"] + y)
        picked = page.evaluate("new URLSearchParams(location.search).get('span')")
        if picked:
            wait_for(
                page, "picked => document.querySelector('.side-panel .facts code')?.textContent === picked", picked
            )
            return
        page.wait_for_timeout(50)
    raise AssertionError("no click met a span")


def test_overview_says_where_the_time_goes_and_who_waits(page, training):
    page.goto("/")
    page.locator('[data-live="live"]').wait_for()
    page.get_by_text("wait_for_samples").first.wait_for(timeout=40_000)
    idle = page.locator(".panel", has_text="Slow steps and idle lanes").locator(".bar-line", has_text="trainer").first
    idle.wait_for(timeout=40_000)
    assert "%" in idle.inner_text()
    page.locator(".tile", has_text="Running step").wait_for()
    page.get_by_role("button", name="Previous step").click()
    page.wait_for_url("**window=**")
    page.get_by_text("compared with a typical step").wait_for()
    page.get_by_role("button", name="Show the entire run").click()
    page.get_by_text("compared with a typical step").wait_for(state="detached")


def test_lanes_move_while_the_run_continues(page, training):
    open_timeline(page)
    before = window_of(page)[1]
    wait_for(page, "before => rlInsightTimeline.currentWindow().end > before + 2e9", before)
    assert page.get_by_role("button", name="Follow").get_attribute("aria-pressed") == "true"


def test_wheel_zooms_drag_pans_and_the_address_keeps_the_window(page, training):
    canvas = open_timeline(page)
    box = canvas.bounding_box()
    width = width_of(page)
    page.mouse.move(box["x"] + 700, box["y"] + 200)
    page.mouse.wheel(0, -300)
    wait_for_narrower(page, width)
    start = settled_window_of(page)[0]
    page.mouse.down()
    page.mouse.move(box["x"] + 950, box["y"] + 200, steps=4)
    page.mouse.up()
    assert settled_window_of(page)[0] < start
    assert page.get_by_role("button", name="Follow").get_attribute("aria-pressed") == "false"
    page.wait_for_url("**from=**")
    page.wait_for_timeout(400)
    shown = window_of(page)
    page.reload()
    wait_for_drawing(page)
    assert window_of(page) == pytest.approx(shown, abs=2e6)


def test_keys_move_and_fit(page, training):
    open_timeline(page)
    width = width_of(page)
    page.keyboard.press("w")
    wait_for_narrower(page, width)
    page.keyboard.press("a")
    page.keyboard.press("f")
    wait_for(
        page,
        "width => { const found = rlInsightTimeline.currentWindow(); return found.end - found.start > width }",
        width,
    )
    page.keyboard.press("?")
    page.get_by_role("dialog").wait_for()


def test_search_finds_spans_and_opens_them(page, training):
    open_timeline(page)
    page.keyboard.press("/")
    page.keyboard.type("sync_weights")
    page.get_by_text(re.compile(r"^\d+ spans?$")).wait_for()
    page.keyboard.press("Enter")
    panel = page.locator(".side-panel")
    panel.get_by_role("heading", name="sync_weights").wait_for()
    assert "trainer" in panel.inner_text()
    assert "search=sync_weights" in page.url
    first = panel.locator(".facts code").inner_text()
    page.get_by_role("button", name="Previous match").click()
    wait_for(page, "first => document.querySelector('.side-panel .facts code')?.textContent !== first", first)


def test_click_shows_a_span_and_leads_to_its_relatives(page, training):
    canvas = open_timeline(page)
    pick_a_span(page, canvas)
    panel = page.locator(".side-panel")
    relatives = panel.locator(".side-span")
    relatives.first.wait_for()
    name = relatives.first.locator("span").inner_text()
    relatives.first.click()
    panel.get_by_role("heading", name=name, exact=True).wait_for()
    page.keyboard.press("Escape")
    panel.wait_for(state="detached")


def test_selected_range_has_statistics(page, training):
    canvas = open_timeline(page)
    box = canvas.bounding_box()
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + 300, box["y"] + 200)
    page.mouse.down()
    page.mouse.move(box["x"] + 600, box["y"] + 220, steps=4)
    page.mouse.up()
    page.keyboard.up("Shift")
    panel = page.get_by_label("Selected range")
    panel.locator(".bar-line", has_text="generate").wait_for()
    panel.get_by_text("Idle share by lane").wait_for()
    shares = [
        int(float(text.removesuffix(" %"))) for text in panel.locator("b").all_inner_texts() if text.endswith("%")
    ]
    assert shares
    assert all(0 <= share <= 100 for share in shares)


def test_every_view_opens_in_both_themes(page, training):
    page.goto("/")
    page.locator('[data-live="live"]').wait_for()
    links = page.locator(".navigation a")
    themes = set()
    for number in range(links.count()):
        links.nth(number).click()
        page.locator(".navigation a[aria-current=page]", has_text=links.nth(number).inner_text()).wait_for()
        page.locator("main > *").first.wait_for()
        assert page.get_by_text("This view failed").count() == 0
        page.get_by_role("button", name="theme").click()
        themes.add(page.evaluate("document.documentElement.dataset.theme"))
    assert themes == {"dark", "light"}
    page.go_back()
    assert page.locator(".navigation a[aria-current=page]").inner_text() == links.nth(links.count() - 2).inner_text()


def test_page_recovers_after_the_server_was_killed(page, server, training):
    open_timeline(page)
    page.locator('[data-live="live"]').wait_for()
    server.kill()
    page.locator('[data-live="disconnected"]').wait_for()
    end = window_of(page)[1]
    server.start()
    page.locator('[data-live="live"]').wait_for()
    wait_for(page, "end => rlInsightTimeline.currentWindow().end > end + 6e9", end)


def test_pausing_keeps_the_view_until_it_is_resumed(page, training):
    page.goto("/")
    page.locator('[data-live="live"]').click()
    page.locator('[data-live="paused"]').click()
    page.locator('[data-live="live"]').wait_for()


def test_hostile_names_are_shown_as_text(page, server):
    script = textwrap.dedent(
        """
        import sys, rl_insight as insight
        names = sys.argv[2:]
        insight.init("hostile", names[0], {"server": {"url": sys.argv[1]}}, run_id="hostile", role=names[0])
        with insight.step(1):
            for name in names:
                with insight.trace_state(name, state_lane_id=name, label=name):
                    with insight.trace_span(name, {"attribute": name}):
                        insight.log("error", name, field=name)
        insight.finish()
        """
    )
    subprocess.run([sys.executable, "-c", script, server.url, HOSTILE, EMOJI, LONG], check=True)
    page.goto("/?run=hostile")
    page.get_by_text(HOSTILE).first.wait_for()
    open_timeline(page, "&run=hostile")
    for name in (HOSTILE, EMOJI, LONG[:200]):
        search = page.get_by_role("searchbox", name="Search spans")
        search.fill(f'"{name}"')
        page.get_by_text(re.compile(r"\d+ spans?$")).wait_for()
        search.press("Shift+Enter")
        wait_for(
            page, "name => document.querySelector('.side-panel h2')?.textContent.startsWith(name.slice(0, 190))", name
        )
        assert name[:100] in page.locator(".side-panel").inner_text()
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0


def test_a_run_that_does_not_exist_is_explained(page):
    page.goto("/?run=nobody")
    page.locator("main").get_by_text("nobody").first.wait_for()
