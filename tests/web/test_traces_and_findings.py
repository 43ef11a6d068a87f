"""Ways out of the page and into the timeline: traces for Perfetto, steps as colors, findings."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from rl_insight.store import queries
from rl_insight.store.runs import RunDirectory

pytestmark = pytest.mark.xdist_group("web")

PRODUCE = Path(__file__).with_name("produce.py")
VIEWER = "https://ui.perfetto.dev/"
# Answers as the real viewer does, and keeps what it is given.
VIEWER_PAGE = """<!doctype html><title>viewer</title><script>
window.addEventListener("message", (event) => {
  if (event.data === "PING") event.source.postMessage("PONG", event.origin);
  else document.title = new TextDecoder().decode(event.data.perfetto.buffer).length + " " + event.data.perfetto.title;
});
</script>"""


@pytest.fixture(scope="module")
def recorded(server):
    """Record a run of three steps, and write a finding about it while no server has it open; returns the finding."""
    command = [sys.executable, str(PRODUCE), "--server", server.url, "--run-id", "traced", "--experiment", "traced"]
    subprocess.run([*command, "--steps", "3", "--sessions", "4"], check=True, timeout=60)
    server.kill()
    runs = RunDirectory(server.data_dir)
    try:
        with runs.open("traced") as store:
            with store.reader() as cursor:
                lanes = queries.lanes(cursor)
                (slowest,) = queries.search_spans(
                    cursor, queries.SpanConditions(name="update"), order="longest", limit=1
                )
            finding = queries.Finding(
                finding_id="straggler/1",
                rule="straggler",
                severity="warning",
                title="update is slow on rank 0 </script>",
                start_ns=slowest.start_ns,
                end_ns=slowest.start_ns + slowest.duration_ns,
                lanes=[lanes[0].lane_id],
                evidence=[{"name": "ratio", "value": 2.5}],
                updated_ns=time.time_ns(),
            )
            queries.write_findings(store, [finding])
    finally:
        runs.close()
    server.start()
    return finding


def open_timeline(page, query=""):
    page.goto(f"/?view=timeline&run=traced{query}")
    wait_for_drawing(page)


def wait_for_drawing(page):
    deadline = time.monotonic() + 20
    while not page.evaluate("window.rlInsightTimeline !== undefined && rlInsightTimeline.frames.length > 3"):
        assert time.monotonic() < deadline
        page.wait_for_timeout(50)


def trace_of(download):
    trace = json.loads(Path(download.path()).read_text("utf-8"))
    named = {(event["pid"], event["tid"]) for event in trace["traceEvents"] if event["name"] == "thread_name"}
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert spans
    assert {(event["pid"], event["tid"]) for event in spans} <= named
    return spans


def test_what_is_in_view_is_saved_as_a_trace(page, recorded):
    open_timeline(page)
    with page.expect_download() as whole:
        page.get_by_role("button", name="Save as trace").click()
    assert whole.value.suggested_filename == "traced.trace.json"
    everything = trace_of(whole.value)
    assert {"rollout", "update", "generate"} <= {span["name"] for span in everything}

    # A moment of the slowest update: only what ran then. Addresses tell times to the microsecond.
    moment = (recorded.start_ns + 1_000_000) / 1e9
    open_timeline(page, f"&from={moment:.6f}&to={moment + 1e-4:.6f}")
    with page.expect_download() as part, page.expect_request("**/api/v1/trace**") as request:
        page.get_by_role("button", name="Save as trace").click()
    query = parse_qs(urlsplit(request.value.url).query)
    assert int(query["end_ns"][0]) - int(query["start_ns"][0]) < 200_000
    some = trace_of(part.value)
    assert "update" in {span["name"] for span in some}
    assert len(some) < len(everything)


def test_one_session_is_saved_as_a_trace(page, recorded):
    page.goto("/?view=sessions&run=traced")
    page.get_by_role("table", name="Sessions").locator(".table-row").first.click()
    panel = page.locator(".side-panel")
    panel.locator(".waterfall-bar").first.wait_for()
    session = panel.locator("h2 code").inner_text()
    with page.expect_download() as saved:
        panel.get_by_role("button", name="Save as trace").click()
    assert {span["args"]["session_id"] for span in trace_of(saved.value)} == {session}


def test_a_trace_is_handed_to_the_viewer(page, recorded):
    page.context.route(f"{VIEWER}**", lambda route: route.fulfill(body=VIEWER_PAGE, content_type="text/html"))
    open_timeline(page)
    with page.expect_popup() as opened:
        page.get_by_role("button", name="Perfetto").click()
    viewer = opened.value
    deadline = time.monotonic() + 20
    while not (title := viewer.title()).endswith(" traced"):
        assert time.monotonic() < deadline, title
        viewer.wait_for_timeout(50)
    assert int(title.split()[0]) > 10_000
    viewer.close()


def test_without_the_viewer_the_trace_is_saved_and_the_page_says_so(page, recorded):
    page.context.route(f"{VIEWER}**", lambda route: route.abort())
    page.clock.install()
    open_timeline(page)
    with page.expect_download() as saved:
        with page.expect_popup():
            page.get_by_role("button", name="Perfetto").click()
        page.clock.fast_forward(20_000)  # longer than the page waits for the viewer
    trace_of(saved.value)
    page.get_by_text("the trace was saved as a file instead").wait_for()


def test_a_trace_that_cannot_be_made_is_explained(page, recorded):
    open_timeline(page)
    page.route("**/api/v1/trace?**", lambda route: route.fulfill(status=400, json={"error": "too many spans."}))
    page.get_by_role("button", name="Save as trace").click()
    page.get_by_text("too many spans.").wait_for()


def test_color_by_step_asks_for_the_steps_of_the_spans(page, recorded):
    open_timeline(page)
    with page.expect_response(lambda answer: "/api/v1/timeline" in answer.url and "steps=true" in answer.url) as asked:
        page.get_by_role("radio", name="Step").click()
    answer = asked.value.json()
    assert {0, 1, 2} <= set(answer["step"])
    page.wait_for_url("**colour=step**")


@pytest.mark.parametrize(
    ("view", "place"), [("findings", "main"), ("overview", ".panel"), ("overview", ".finding-banner")]
)
def test_a_finding_leads_to_its_lanes_and_time(page, recorded, view, place):
    page.goto(f"/?view={view}&run=traced")
    page.locator(place).get_by_role("link", name=recorded.title).click()
    page.wait_for_url("**view=timeline**finding=**")
    line = page.locator(".finding-line")
    line.get_by_text(recorded.title).wait_for()
    page.reload()
    wait_for_drawing(page)
    line.wait_for()
    marked = page.evaluate("({...rlInsightTimeline.highlight(), lanes: [...rlInsightTimeline.highlight().lanes]})")
    assert marked["lanes"] == recorded.lanes
    assert marked["end"] - marked["start"] == pytest.approx(recorded.end_ns - recorded.start_ns, abs=1000)
    window = page.evaluate("({...rlInsightTimeline.currentWindow()})")
    assert window["start"] < marked["start"] < marked["end"] < window["end"]
    page.keyboard.press("Escape")
    line.wait_for(state="detached")
    assert "finding=" not in page.url


def test_phase_search_is_answered_by_the_server(page, recorded):
    page.goto("/?view=sessions&run=traced")
    page.get_by_text("12 sessions").wait_for()
    with page.expect_response(lambda answer: "/api/v1/sessions?" in answer.url and "phase=" in answer.url) as asked:
        page.get_by_label("Search sessions").fill("phase:toolcall")
    with_tools = asked.value.json()["total"]
    assert 0 < with_tools < 12
    page.get_by_text(f"{with_tools} sessions").wait_for()
    page.get_by_label("Search sessions").fill("phase:nothing-of-that-name")
    page.get_by_text("0 sessions").wait_for()
