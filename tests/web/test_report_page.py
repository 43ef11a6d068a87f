"""Reports in a real browser: opened from disk, with the page's own views and no network."""

from __future__ import annotations

import json
import re

import pytest

from benchmarks.make_store import make_store
from rl_insight.exchange.report import build_document, render
from rl_insight.exchange.report.page import load_bundle
from rl_insight.schema import BatchBuilder, Process
from rl_insight.store import RunDirectory, RunStore
from rl_insight.store.queries import Scope

BEGIN_NS = 1_767_225_600_000_000_000
SECOND = 10**9
TAGS = "</script><script>document.title='broken'</script><img src=x onerror=alert(1)>"
EMOJI = "rollout 🙂 👩‍🚀"
LONG = "long-" + "x" * 10_000
VIEWS = ("Overview", "Timeline", "Sessions", "Hotspots", "Metrics", "Hardware", "Logs", "Findings")


def training(builder):
    """Record six steps of a trainer, with an error, an open span, metrics, hardware, logs and hostile names."""
    names = ["generate", TAGS, EMOJI, LONG]
    for step in range(6):
        at = BEGIN_NS + step * 10 * SECOND
        base = 100 * (step + 1)
        builder.add_span(
            span_id=base, trace=(7, step), name="train_step", start_ns=at, duration_ns=9 * SECOND, step=step,
            segment="state_interval", lane="trainer", attributes=json.dumps({"loss": 0.5, "note": TAGS}),
        )  # fmt: skip
        builder.add_span(
            span_id=base + 1, trace=(7, step), parent_id=base, name="update", start_ns=at + 5 * SECOND,
            duration_ns=2 * SECOND, step=step, lane="trainer", status="error", error=f"ValueError {TAGS}",
        )  # fmt: skip
        for place, name in enumerate(names):
            session = f"{step}-{place} {TAGS if place == 1 else ''}"
            builder.add_span(
                span_id=base + 10 + place, trace=(7, step), parent_id=base, name=name, segment="phase", step=step,
                start_ns=at + place * SECOND, duration_ns=(3 + place) * SECOND, lane=f"slot_{place}",
                session_id=session,
            )  # fmt: skip
            record = {
                "session_id": session, "submit_ts": at / 1e9, "finalized_ts": at / 1e9 + 4 + place, "step": step,
                "reward": 1.0, "reason": TAGS,
            }  # fmt: skip
            builder.add_session(
                session_id=session, task_id=EMOJI, status="accepted" if place else "failed",
                time_ns=at + 8 * SECOND, record=json.dumps(record),
            )  # fmt: skip
    builder.add_span(
        span_id=999, trace=(7, 9), name="stuck", start_ns=BEGIN_NS + 55 * SECOND, duration_ns=-1, status="open"
    )
    builder.add_log(time_ns=BEGIN_NS + SECOND, level=40, message=f"bad {TAGS} line", logger="app", span_id=101)
    gauge = builder.add_series("reward_mean", "gauge", TAGS, json.dumps({"task": TAGS}))
    busy = builder.add_series("gpu_utilization_ratio", "gauge", "", json.dumps({"host": "node-1", "gpu": "0"}))
    spread = builder.add_series("latency_s", "histogram", "Latency", "{}")
    for step in range(6):
        at = BEGIN_NS + step * 10 * SECOND
        builder.add_sample(gauge, time_ns=at, value=0.1 * step, step=step)
        builder.add_sample(busy, time_ns=at, value=0.5, step=step)
        builder.add_histogram(
            spread, time_ns=at, count=step + 1, total=1.0, minimum=0.1, maximum=2.0, buckets={100: step + 1}, step=step
        )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    builder = BatchBuilder()
    training(builder)
    process = Process(process_id="p1", run_id="run", host="node-1", pid=1, role="trainer", rank=0, project=TAGS)
    directory = RunDirectory(tmp_path_factory.mktemp("runs"), min_free_bytes=0)
    with directory.open("run", create=True) as store:
        store.commit([builder.build(process, sequence=1, sent_ns=0)])
        yield store
    directory.close()


@pytest.fixture(scope="module")
def written(built_page):
    """Write a report with the page built for these tests: `written(store, path, scope)`."""
    bundle = load_bundle(built_page / "report")

    def write(store, path, scope=None):
        path.write_bytes(render(build_document(store, scope), bundle))
        return path

    return write


@pytest.fixture(scope="module")
def report(written, run, tmp_path_factory):
    return written(run, tmp_path_factory.mktemp("report") / "report.html")


@pytest.fixture
def open_report(browser):
    """Open a file; a script error, a CSP violation or any other request fails the test."""
    context = browser.new_context(viewport={"width": 1360, "height": 850})
    tab = context.new_page()
    tab.set_default_timeout(20_000)
    problems = []
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("dialog", lambda dialog: problems.append(f"a dialog: {dialog.message}"))
    tab.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    asked = []
    tab.on("request", lambda request: asked.append(request.url))

    def open_file(path, query=""):
        tab.goto(f"file://{path}{query}")
        tab.get_by_role("navigation", name="Views").wait_for()
        return tab

    yield open_file
    context.close()
    assert problems == []
    assert {url.partition("?")[0].partition("://")[0] for url in asked} <= {"file"}
    assert all(url.partition("?")[0].endswith(".html") for url in asked)


def show(page, view):
    page.get_by_role("navigation", name="Views").get_by_role("link", name=view).click()


def width(page):
    """Return the width of the timeline's window, in nanoseconds."""
    return page.evaluate("() => { const { start, end } = rlInsightTimeline.currentWindow(); return end - start }")


def canvas_box(page):
    canvas = page.locator("canvas.timeline-canvas")
    canvas.wait_for()
    page.wait_for_function("() => window.rlInsightTimeline?.fine.blocks != null")
    return canvas.bounding_box()


def test_every_view_of_the_page_is_there_but_those_of_a_server(open_report, report):
    page = open_report(report)
    names = page.get_by_role("navigation", name="Views").get_by_role("link").all_inner_texts()
    assert [name.strip() for name in names] == list(VIEWS)
    assert page.get_by_text("Report of the whole run").is_visible()
    for view in VIEWS:
        show(page, view)
        page.wait_for_function("name => document.title.startsWith(name)", arg=view)
        page.locator("main .panel, main canvas, main .empty").first.wait_for()
    assert page.locator(".live-badge").count() == 0


def test_the_overview_shows_where_steps_spend_their_time(open_report, report):
    page = open_report(report)
    page.get_by_label("Step time by phase").locator("canvas").wait_for()
    page.get_by_label("reward_mean by step").locator("canvas").wait_for()
    page.get_by_text("No long-running work.").wait_for()  # what an import left open is not in flight


def test_the_timeline_zooms_and_finds_spans(open_report, report, wait_until):
    page = open_report(report, "?view=timeline")
    box = canvas_box(page)
    before = width(page)
    page.mouse.move(box["x"] + 700, box["y"] + 200)
    page.mouse.wheel(0, -800)
    wait_until(lambda: width(page) < before / 2)
    page.keyboard.press("f")
    wait_until(lambda: width(page) >= before * 0.99)
    search = page.get_by_role("searchbox", name="Search spans")
    search.fill("update")
    page.get_by_text("6 spans").wait_for()
    search.press("Enter")
    panel = page.get_by_role("complementary", name="Span")
    panel.get_by_text("Parents (1)").wait_for()
    assert "ValueError" in panel.inner_text()


def test_the_address_keeps_what_is_on_show(open_report, report):
    page = open_report(report, "?view=timeline")
    canvas_box(page)
    page.get_by_role("searchbox", name="Search spans").fill("update")
    page.wait_for_function("() => location.search.includes('search=update')")
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    page.get_by_text("6 spans").wait_for()


def test_a_range_of_the_timeline_offers_only_what_a_report_can_answer(open_report, report):
    page = open_report(report, "?view=timeline")
    box = canvas_box(page)
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + 500, box["y"] + 200)
    page.mouse.down()
    page.mouse.move(box["x"] + 900, box["y"] + 220, steps=5)
    page.mouse.up()
    page.keyboard.up("Shift")
    panel = page.get_by_role("complementary", name="Selected range")
    panel.get_by_role("link", name="Logs").wait_for()
    assert panel.get_by_role("link").all_inner_texts() == ["Sessions", "Metrics", "Hardware", "Logs", "Findings"]
    assert panel.get_by_role("heading").count() == 1
    assert "live page" not in panel.inner_text()


def test_sessions_are_drawn_sorted_and_searched(open_report, report):
    page = open_report(report, "?view=sessions")
    page.get_by_text("24 sessions").wait_for()
    page.get_by_role("img", name="Distribution of total").wait_for()
    chart = page.get_by_label("Total time of sessions by submission")
    chart.locator("canvas").wait_for()
    assert "p95" in chart.inner_text()
    page.get_by_role("radio", name="By step").click()
    page.get_by_label("Total time of sessions by step").locator("canvas").wait_for()
    table = page.get_by_label("Sessions", exact=True)
    first = table.get_by_role("row").nth(1)
    assert "7.00 s" in first.inner_text()  # the slowest first
    assert first.locator(".phase-bars i").count() >= 2
    page.get_by_role("searchbox", name="Search sessions").fill("status:failed step:3")
    page.get_by_text("1 session", exact=True).wait_for()
    table.get_by_role("row").nth(1).click()
    page.get_by_role("heading", name="Waterfall").wait_for()


def test_hotspots_show_figures_a_flame_and_latencies(open_report, report):
    page = open_report(report, "?view=hotspots")
    row = page.get_by_role("row").filter(has_text="update")
    row.wait_for()
    assert re.search(r"12\.0 s.*2\.00 s", row.inner_text(), re.DOTALL)
    page.get_by_role("radio", name="Flame").click()
    page.get_by_role("button", name=re.compile("^train_step: ")).wait_for()
    page.get_by_role("radio", name="Over time").click()
    page.get_by_role("combobox", name="Name").select_option("generate")
    page.get_by_label("Durations of generate by step").locator("canvas").wait_for()
    page.get_by_role("radio", name="Time", exact=True).click()
    page.get_by_text("All 6 spans.").wait_for()


def test_metrics_and_hardware_are_drawn(open_report, report):
    page = open_report(report, "?view=metrics&metric=reward_mean&metric=latency_s")
    for label in ("reward_mean", "latency_s · quantiles"):
        page.get_by_label(label, exact=True).locator("canvas").first.wait_for()
    page.get_by_label("Distribution of latency_s").wait_for()
    page.get_by_role("radio", name="Step", exact=True).click()
    page.wait_for_function("() => location.search.includes('axis=step')")
    page.get_by_label("reward_mean", exact=True).locator("canvas").wait_for()
    show(page, "Hardware")
    page.get_by_label("GPU busy by node and accelerator over time").wait_for()
    page.get_by_text("GPU busy by state, entire run").wait_for()


@pytest.mark.parametrize(
    "view", ["timeline&search=update&span=0000000000000065", "sessions", "hotspots", "metrics", "logs"]
)
def test_hostile_names_are_text(view, open_report, report):
    page = open_report(report, f"?view={view}")
    page.get_by_text("</script><script>").first.wait_for(state="attached")
    assert "broken" not in page.title()
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2


def test_emoji_and_long_names_are_shown(open_report, report):
    page = open_report(report, "?view=hotspots")
    page.get_by_text(EMOJI).first.wait_for()
    page.get_by_text("long-xxxx").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_report_of_one_step_keeps_to_it(open_report, run, written, tmp_path):
    written(run, tmp_path / "step.html", Scope(step=2))
    page = open_report(tmp_path / "step.html", "?view=timeline")
    page.get_by_text("Report of step 2").wait_for()
    canvas_box(page)
    assert 10e9 < width(page) < 11e9  # a step lasts until the next begins
    show(page, "Sessions")
    page.get_by_text("4 sessions").wait_for()
    page.get_by_role("radio", name="By step").click()
    page.get_by_label("Total time of sessions by step").locator("canvas").wait_for()


def test_a_filter_of_the_logs_filters(open_report, report):
    page = open_report(report, "?view=logs&rank=0")
    page.get_by_text("1 line, newest first").wait_for()
    page = open_report(report, "?view=logs&rank=1")
    page.get_by_text("0 lines, newest first").wait_for()
    page.get_by_text("No matching log lines").wait_for()


def test_dark_and_light(open_report, report):
    page = open_report(report)
    before = page.evaluate("document.documentElement.dataset.theme")
    page.get_by_role("button", name=re.compile("^Use the .* theme$")).click()
    page.wait_for_function("before => document.documentElement.dataset.theme !== before", arg=before)


@pytest.mark.slow
def test_a_hundred_thousand_spans_can_be_moved_and_zoomed(open_report, written, tmp_path):
    make_store(tmp_path / "large.duckdb", 100_000)
    with RunStore(tmp_path / "large.duckdb", create=True) as store:
        written(store, tmp_path / "large.html")
    page = open_report(tmp_path / "large.html", "?view=timeline")
    box = canvas_box(page)
    counts = "[...rlInsightTimeline.fine.blocks.count]"
    assert page.evaluate(f"{counts}.reduce((sum, count) => sum + count, 0)") >= 100_000
    assert page.evaluate(f"Math.max(...{counts})") > 1
    page.mouse.move(box["x"] + 500, box["y"] + 200)
    for _ in range(8):
        page.mouse.wheel(0, -1200)
    # Close enough that every span stands alone.
    page.wait_for_function(f"() => {counts}.length > 10 && {counts}.every(count => count === 1)")
    page.get_by_role("searchbox", name="Search spans").fill("toolcall")
    page.get_by_text("the newest 1,000 spans").wait_for()


def test_a_run_without_anything_has_a_report(open_report, written, tmp_path):
    with RunStore(tmp_path / "empty.duckdb", create=True) as store:
        written(store, tmp_path / "empty.html")
    page = open_report(tmp_path / "empty.html")
    for view in VIEWS:
        show(page, view)
        page.wait_for_function("name => document.title.startsWith(name)", arg=view)


def test_damaged_data_is_said(browser, report, tmp_path):
    text = report.read_text().replace('id="report-data">H4sI', 'id="report-data">AAAA')
    (tmp_path / "damaged.html").write_text(text)
    page = browser.new_page()
    page.goto(f"file://{tmp_path / 'damaged.html'}")
    page.get_by_text("Cannot read this report").wait_for()
    page.close()
