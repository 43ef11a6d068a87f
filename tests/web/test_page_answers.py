"""The page answers: which rank, which step, since when, what else; on a run with many ranks and injected faults."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.web.many_ranks import CHANGED_STEP, ROLLOUTS, RUN, SLOW_RANK, SLOW_STEP, record

pytestmark = pytest.mark.xdist_group("web")

LANES = """() => {
    const timeline = rlInsightTimeline;
    const top = timeline.scrollTop;
    const bottom = top + timeline.canvas.clientHeight - 38;
    return timeline.layout.rows.filter((row) => row.kind === "lane")
        .map((row) => ({ title: row.title, role: row.lane.role, rank: row.lane.rank, id: row.lane.lane_id,
            isInView: row.y >= top && row.y + row.height <= bottom, isPinned: row.isPinned }));
}"""
GROUPS = """() => rlInsightTimeline.layout.rows.filter((row) => row.kind === "group").map((row) => row.title)"""


@pytest.fixture(scope="module")
def recorded(server):
    record(server.url)
    return RUN


@pytest.fixture
def open_view(page, recorded):
    def open_it(view, query=""):
        page.goto(f"/?view={view}&run={recorded}{query}")
        if view == "timeline":
            page.wait_for_function("() => window.rlInsightTimeline?.frames.length > 3")
        if view == "overview":  # the banner moves what is below it when it comes
            page.locator(".finding-banner").wait_for(timeout=40_000)
        return page

    return open_it


def lanes_of(page):
    return page.evaluate(LANES)


def rank_is_in_view(page, rank):
    page.wait_for_function(
        f"rank => ({LANES})().some((lane) => lane.rank === rank && lane.role === 'rollout' && lane.isInView)", arg=rank
    )


def test_link_with_a_lane_brings_that_lane_into_view(open_view):
    page = open_view("timeline")
    lane = next(one for one in lanes_of(page) if one["role"] == "rollout" and one["rank"] == SLOW_RANK)
    assert not lane["isInView"]
    open_view("timeline", f"&lane={lane['id']}")
    rank_is_in_view(page, SLOW_RANK)


def test_open_work_is_red_says_what_is_usual_and_leads_to_its_lane(open_view):
    page = open_view("overview")
    work = page.locator(".panel", has_text="Work in flight").locator(".bar-line", has_text="toolcall")
    age = work.locator("b")
    age.wait_for()
    assert re.search("Usually (300 ms|1.80 s)", age.get_attribute("title"))
    work.get_by_role("link", name="toolcall").click()
    page.wait_for_url("**lane=**")
    page.wait_for_function("() => window.rlInsightTimeline?.frames.length > 3")
    rank_is_in_view(page, 21)


def test_log_line_leads_to_its_lane(open_view):
    page = open_view("logs")
    page.get_by_role("link", name="span").first.click()
    page.wait_for_url("**lane=**")
    page.wait_for_function("() => window.rlInsightTimeline?.frames.length > 3")
    rank_is_in_view(page, 3)


def test_search_finds_lanes_hosts_errors_sessions_and_conditions(open_view):
    page = open_view("timeline")
    # No two neighbors have the same answer: what is waited for cannot be the answer before it.
    for search, said in (
        (f"rollout {SLOW_RANK}", "2 lanes"),
        ("node-4", "8 lanes"),
        ("ToolTimeout", "20 spans"),
        ("longer:20s", "1 span"),
        ("status:error", "20 spans"),
        ("s037-17", "1 span"),
        ("tool=search step:37", f"{ROLLOUTS} spans"),
        ("foo:bar", "unknown condition"),
        ("nothing-like-this", "no matches: search names"),
    ):
        page.get_by_role("searchbox", name="Search spans").fill(search)
        page.get_by_text(said).first.wait_for()


def test_search_for_a_rank_shows_its_lanes(open_view):
    page = open_view("timeline", f"&search=rollout+{SLOW_RANK}")
    rank_is_in_view(page, SLOW_RANK)


def test_lanes_are_filtered_grouped_sorted_folded_and_pinned(open_view):
    page = open_view("timeline", "&lanes=role:rollout+rank:2-10")
    page.get_by_text(f"18 of {2 * ROLLOUTS + 1} lanes").wait_for()
    assert {lane["rank"] for lane in lanes_of(page)} == set(range(2, 11))
    page.get_by_label("Group lanes").select_option("node")
    page.wait_for_function(f"() => ({GROUPS})().join() === 'node-0,node-1,node-2'")
    page.get_by_label("Group lanes").select_option("none")
    page.get_by_label("Sort lanes").select_option("name")
    page.wait_for_function(f"() => ({LANES})()[0].title === 'rollout 2'")
    titles = [lane["title"] for lane in lanes_of(page) if "slot" not in lane["title"]]
    assert titles == [f"rollout {rank}" for rank in range(2, 11)]
    box = page.locator(".timeline-canvas").bounding_box()
    page.mouse.click(box["x"] + 60, box["y"] + 38 + 26)
    page.wait_for_url("**pin=**")
    assert [lane["title"] for lane in lanes_of(page) if lane["isPinned"]]
    page.get_by_label("Group lanes").select_option("process")
    before = page.evaluate("rlInsightTimeline.layout.height")
    page.get_by_role("button", name="Fold").click()
    page.wait_for_function("before => rlInsightTimeline.layout.height < before * 0.8", arg=before)


def test_events_and_checkpoints_are_marks_on_the_axes(open_view):
    page = open_view("timeline")
    page.keyboard.press("f")
    page.wait_for_function("() => rlInsightTimeline.inputs.marks.length === 2")
    texts = page.evaluate("rlInsightTimeline.inputs.marks.map((mark) => mark.text)")
    assert texts[0].startswith("save_checkpoint 31.0 s")
    assert texts[1].startswith("config_changed")
    place = page.evaluate(
        """() => { const { marks } = rlInsightTimeline.inputs; const { start, end } = rlInsightTimeline.window;
        return 148 + (marks[1].time - start) / (end - start) * (rlInsightTimeline.canvas.clientWidth - 148); }"""
    )
    box = page.locator(".timeline-canvas").bounding_box()
    page.mouse.move(box["x"] + place, box["y"] + 30)
    page.get_by_text("config_changed").wait_for()


def test_step_is_two_clicks_away_beside_a_usual_one(open_view):
    page = open_view("overview")
    chart = page.get_by_label("Step times").locator(".u-over")
    chart.wait_for()
    box = chart.bounding_box()
    # The last step has not ended: the axis is of steps 0 to 58.
    page.mouse.click(box["x"] + box["width"] * SLOW_STEP / 58, box["y"] + box["height"] / 2)
    page.get_by_text(f"Step {SLOW_STEP} took 41.0 s, 31.0 s longer than usual: save_checkpoint took 31.0 s").wait_for()
    assert f"window={SLOW_STEP}-{SLOW_STEP}" in page.url


def test_window_goes_along_to_every_view_and_can_be_taken_back(open_view):
    page = open_view("overview", f"&window={SLOW_STEP}-{SLOW_STEP}")
    page.get_by_text(f"Step {SLOW_STEP} compared").wait_for()
    page.keyboard.press("4")
    page.get_by_role("row").filter(has_text="save_checkpoint").wait_for()
    expect(page.get_by_label("Scope")).to_have_value("window")
    page.keyboard.press("7")
    page.get_by_text("No matching log lines").wait_for()
    page.keyboard.press("3")
    page.get_by_text(re.compile("^0 sessions|session")).first.wait_for()
    page.keyboard.press("2")
    page.wait_for_function("() => window.rlInsightTimeline?.frames.length > 3")
    shown = page.evaluate("(rlInsightTimeline.window.end - rlInsightTimeline.window.start) / 1e9")
    assert 41 <= shown <= 60
    page.get_by_role("button", name="Show the entire run").click()
    page.get_by_label("Selected range").wait_for(state="detached")
    assert "window=" not in page.url


def test_selected_range_is_in_the_address_and_leads_to_other_views(open_view):
    page = open_view("timeline")
    box = page.locator(".timeline-canvas").bounding_box()
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + 300, box["y"] + 200)
    page.mouse.down()
    page.mouse.move(box["x"] + 600, box["y"] + 220, steps=4)
    page.mouse.up()
    page.keyboard.up("Shift")
    page.wait_for_url(re.compile(r"window=\d+\.\d+-\d+\.\d+"))
    panel = page.get_by_label("Selected range")
    panel.get_by_role("link", name="Hotspots").click()
    page.wait_for_url(re.compile(r"view=hotspots.*window="))
    page.get_by_role("row").filter(has_text="generate").first.wait_for()
    page.go_back()
    page.get_by_label("Selected range").wait_for()


def test_annotation_is_kept_and_shown_as_a_mark(open_view):
    page = open_view("timeline", f"&window={SLOW_STEP}-{SLOW_STEP}")
    page.get_by_label("Annotate the start of this range").fill("the disk was full")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_text("on every time axis").wait_for()
    page.reload()
    page.get_by_label("Selected range").get_by_text("the disk was full").wait_for()
    page.get_by_role("button", name="Remove the annotation the disk was full").click()
    page.get_by_text("Removed.").wait_for()


def test_any_name_over_steps_counts_everything_and_samples_evenly(open_view):
    page = open_view("hotspots", "&scope=all")
    page.get_by_role("row").filter(has_text="toolcall").get_by_role("link", name="over time").click()
    page.get_by_label("Durations of toolcall by step").locator("canvas").wait_for()
    page.get_by_text(f"{60 * ROLLOUTS:,} finished spans, 20 with an error").wait_for()


def test_ranks_by_step_lead_to_the_lane_and_the_step(open_view):
    page = open_view("ranks", "&phase=generate")
    canvas = page.get_by_label("generate by rank and step")
    canvas.wait_for()
    page.get_by_text(f"{ROLLOUTS} rows, 59 steps").wait_for()
    box = canvas.bounding_box()
    row_height = (box["height"] - 22) / ROLLOUTS
    page.mouse.click(box["x"] + box["width"] * 0.6, box["y"] + row_height * (SLOW_RANK + 0.5))
    page.wait_for_url("**view=timeline**lane=**")
    page.wait_for_function("() => window.rlInsightTimeline?.frames.length > 3")
    rank_is_in_view(page, SLOW_RANK)


def test_nan_is_said_and_not_drawn_over(open_view):
    page = open_view("metrics", "&metric=grad_norm&axis=step")
    chart = page.get_by_label("grad_norm", exact=True)
    over = chart.locator(".u-over")
    over.wait_for()
    width = page.wait_for_function("() => document.querySelector('.u-over').getBoundingClientRect().width")
    over.hover(position={"x": width.json_value() * CHANGED_STEP / 59, "y": 30})  # waits until the chart is in place
    chart.get_by_text("NaN").wait_for()


def test_rule_is_muted_and_unmuted_from_the_list(open_view):
    page = open_view("findings")
    page.get_by_role("button", name="Mute rule").first.wait_for(timeout=40_000)
    rule = page.locator("article").first.locator("p.muted").first.inner_text().split(" · ")[0]
    page.get_by_role("button", name="Mute rule").first.click()
    page.locator("article p.muted", has_text=rule).first.wait_for(state="detached", timeout=20_000)
    page.goto(page.url + "&muted=1")
    page.get_by_role("button", name="Unmute rule").first.click()
    page.get_by_role("button", name="Unmute rule").first.wait_for(state="detached", timeout=20_000)


@pytest.mark.parametrize("view", ["overview", "findings", "timeline", "ranks", "hotspots", "metrics"])
def test_view_fits_the_screen(open_view, page, view):
    page.set_viewport_size({"width": 390, "height": 844})
    open_view(view, f"&window={SLOW_STEP}-{SLOW_STEP}" if view == "overview" else "")
    page.locator("main > *").first.wait_for()
    for width, height in ((390, 844), (1366, 768)):
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_timeout(300)
        # Charts take the width of their place when they are drawn, which a busy machine does later.
        page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=width)
        page.wait_for_function(
            "() => { const main = document.querySelector('main'); return main.scrollWidth - main.clientWidth <= 1 }"
        )
