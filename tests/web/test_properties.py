"""Properties of the page that no other test covers, and the list of all of them."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from rl_insight.schema import BatchBuilder, Process
from rl_insight.schema.batch import Loss
from tests.web.conftest import Server
from tests.web.sending import send_batches

pytestmark = pytest.mark.xdist_group("web")

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("properties.md")
SECOND = 1_000_000_000
STEPS = 40
STEP_S = 10
NODES, GPUS = 4, 8
BURST = 30
LONG_RUN = "async_grpo-20261116-161616-18958"


def rows():
    """Return the number of each property and the tests that cover it."""
    table = re.findall(r"^\| (\d+) \| [^|]+ \| (.+) \|$", LIST.read_text("utf-8"), re.MULTILINE)
    return [(int(number), re.findall(r"`([^`]+)`", tests)) for number, tests in table]


def exists(test):
    """Return whether a test exists: `file.py::function` of Python, `file.ts: title` of TypeScript."""
    if ".py::" in test:
        path, _, name = test.partition("::")
        return re.search(rf"^def {name}\(", (ROOT / "tests" / path).read_text("utf-8"), re.MULTILINE)
    path, _, title = test.partition(": ")
    return f'"{title}"' in (ROOT / "web" / "src" / path).read_text("utf-8")


def test_every_property_of_the_page_has_a_test():
    listed = rows()
    assert [number for number, _ in listed] == list(range(1, 37))
    assert [number for number, tests in listed if not tests] == []
    assert [test for _, tests in listed for test in tests if not exists(test)] == []


def test_lines_are_measured_against_the_surfaces_that_the_styles_have():
    styles = (ROOT / "web/src/styles.css").read_text("utf-8")
    colors = (ROOT / "web/src/colors.ts").read_text("utf-8")
    light, dark = re.findall(r"--surface: (#[0-9a-f]{6});", styles)
    assert f'SURFACES: Readonly<Record<Theme, string>> = {{ light: "{light}", dark: "{dark}" }}' in colors


def send(server, builder, *, run, role="trainer", sequence=1, **fields):
    process = Process(
        process_id=f"{run}-{role}-0", run_id=run, host="node-0", pid=1, project="math", experiment_name="page",
        role=role, rank=0, heartbeat_s=30.0,
    )  # fmt: skip
    send_batches(server.url, builder.build(process, sequence=sequence, sent_ns=time.time_ns(), **fields))


def record_stalled(server):
    """Record 40 steps of ten seconds, then one that has been running for an hour; losses, sessions and 32 GPUs."""
    builder = BatchBuilder()
    begin = time.time_ns() - 3600 * SECOND - STEPS * STEP_S * SECOND
    for step in range(STEPS + 1):
        start = begin + step * STEP_S * SECOND
        is_last = step == STEPS
        builder.add_span(
            span_id=step + 1, trace=(1, 1), name="update", start_ns=start, step=step, segment="state_interval",
            duration_ns=-1 if is_last else 9 * SECOND, status="open" if is_last else "ok",
        )  # fmt: skip
        record = {"step": step, "reward": step / STEPS, "submit_ts": start / 1e9, "finalized_ts": start / 1e9 + 3}
        builder.add_session(
            session_id=f"s-{step}", status="accepted", time_ns=start, record=json.dumps(record), task_id="gsm8k-1"
        )
        for name, value in (("reward_mean", step / STEPS), ("gpu_memory_total_bytes", 80 * 2**30)):
            builder.add_sample(
                builder.add_series(name, "gauge", "", "{}"), time_ns=start, value=value, step=None if is_last else step
            )
        for gpu in range(NODES * GPUS):
            labels = {"source": "nvml", "node": f"node-{gpu // GPUS}", "host": f"node-{gpu // GPUS}", "gpu": gpu % GPUS}
            text = json.dumps({key: str(value) for key, value in labels.items()})
            for name, value in (("gpu_utilization_ratio", 0.5), ("gpu_power_watts", 300.0)):
                builder.add_sample(builder.add_series(name, "gauge", "", text), time_ns=start, value=value, step=step)
    losses = [Loss(kind="spans", reason="buffer_full", count=1234)]
    send(server, builder, run="stalled", losses=losses)
    ahead = BatchBuilder()  # rollouts are a step ahead of the trainer
    ahead.add_span(
        span_id=9_001, trace=(1, 1), name="generate", start_ns=start, step=STEPS + 1, segment="state_interval",
        duration_ns=SECOND, status="ok",
    )  # fmt: skip
    send(server, ahead, run="stalled", role="rollout")


def record_short(server):
    """Record a run named like those of the example's launcher: a burst of one message, and another line."""
    builder = BatchBuilder()
    for number in range(BURST):
        builder.add_log(time_ns=time.time_ns(), level=30, message=f"no answer, attempt {number}")
    builder.add_log(time_ns=time.time_ns(), level=40, message="gave up")
    builder.add_sample(builder.add_series("loss", "gauge", "", "{}"), time_ns=time.time_ns(), value=1.0, step=1)
    send(server, builder, run=LONG_RUN, final=True)


def record_metrics(server):
    """Record a minimal run: a few metrics by step, and nothing else; the run ended yesterday."""
    builder = BatchBuilder()
    begin = time.time_ns() - 86_400 * SECOND
    for step in range(STEPS):
        for name, value in (("reward_mean", step / STEPS), ("loss", 1 / (step + 1))):
            series = builder.add_series(name, "gauge", "", "{}")
            builder.add_sample(series, time_ns=begin + step * STEP_S * SECOND, value=value, step=step)
    send(server, builder, run="metrics-only", final=True)


@pytest.fixture(scope="module")
def server(built_page, tmp_path_factory, wait_until):
    started = Server(tmp_path_factory.mktemp("data"), built_page, wait_until, "sql.enabled=true").start()
    yield started
    started.kill()


@pytest.fixture(scope="module")
def runs(server):
    record_metrics(server)
    record_short(server)
    record_stalled(server)


def test_an_empty_server_shows_the_whole_first_line_and_the_demo(page, server):
    page.goto("/")
    page.get_by_text("insight.init(").wait_for()
    for snippet in page.locator("pre").all():
        assert snippet.evaluate("box => box.scrollWidth <= box.clientWidth"), "a line is cut off"
    assert server.url in page.locator("pre").first.inner_text()
    page.get_by_text(f"rl-insight demo --server {server.url}").wait_for()
    assert page.get_by_role("button", name="Copy").count() == 2


def test_a_stalled_run_is_red(page, runs):
    page.goto("/?run=stalled")
    tile = page.locator(".tile", has_text="Running step")
    tile.wait_for()
    assert "× the typical time" in tile.inner_text()
    assert "bad" in tile.get_attribute("class")
    work = page.locator(".panel", has_text="Work in flight").locator(".bar-line", has_text="update")
    assert work.locator("b").get_attribute("class") == "bad"


def test_the_tile_of_telemetry_leads_to_who_lost_what_and_why(page, runs):
    page.goto("/?run=stalled")
    page.locator(".tile", has_text="1,234 lost").click()
    page.wait_for_url("**view=processes**")
    row = page.get_by_role("row").filter(has_text="trainer")
    row.get_by_text(re.compile("1,234.*spans.*buffer.full", re.IGNORECASE)).wait_for()


def test_the_reward_of_sessions_is_in_view_on_a_laptop(page, runs):
    page.set_viewport_size({"width": 1366, "height": 768})
    page.goto("/?view=sessions&run=stalled")
    head = page.get_by_role("columnheader", name=re.compile("Reward"))
    head.wait_for()
    box = head.bounding_box()
    assert box["x"] + box["width"] <= 1366
    assert page.get_by_role("columnheader", name="Runner").count() == 0


def test_a_run_of_metrics_alone_has_an_overview(page, runs):
    page.goto("/?run=metrics-only")
    for name in ("reward_mean by step", "loss by step"):
        page.get_by_role("figure", name=name).wait_for()
    page.locator(".tile", has_text="Step").filter(has_text="39").first.wait_for()


def test_a_chosen_step_has_one_value_of_a_metric(page, runs):
    page.goto("/?run=metrics-only&window=10-10")
    page.locator(".tile", has_text="reward_mean").get_by_text("0.25", exact=True).wait_for()
    page.locator(".panel header", has_text="reward_mean").get_by_text("0.25", exact=True).wait_for()


def test_an_ended_run_is_not_called_live(page, runs):
    page.goto("/?run=metrics-only")
    page.get_by_text("the run has ended").wait_for()
    page.locator(".tile", has_text="Step time").wait_for()
    assert page.locator(".tile", has_text="Running step").count() == 0
    page.goto("/?view=runs&run=metrics-only")
    page.get_by_role("row").filter(has_text="metrics-only").get_by_text("ended").wait_for()


def test_views_of_spans_say_that_a_run_of_metrics_has_none(page, runs):
    page.goto("/?view=ranks&run=metrics-only")
    page.get_by_text("Nothing to compare by rank").wait_for()
    page.goto("/?view=timeline&run=metrics-only")
    message = page.get_by_text("No lanes yet")
    message.wait_for()
    assert message.bounding_box()["y"] < page.viewport_size["height"] / 2


def test_the_step_of_a_run_is_that_of_the_leading_role(page, runs):
    page.goto("/?run=stalled")
    page.locator(".tile", has_text="Step").filter(has_text=str(STEPS)).first.wait_for()
    page.locator(".run-line").get_by_text(re.compile(rf"^step {STEPS} ")).wait_for()


def test_a_point_of_a_chart_chooses_its_step_in_all_views(page, runs):
    page.goto("/?run=stalled")
    chart = page.get_by_role("figure", name="reward_mean by step").locator(".u-over")
    chart.click()
    page.wait_for_url(re.compile(r"window=\d+-\d+"))
    page.locator(".panel", has_text="typical step").first.wait_for()
    page.get_by_role("link", name="Metrics").first.click()
    page.wait_for_url(re.compile(r"view=metrics.*window=|window=.*view=metrics"))


def test_many_accelerators_are_rows_and_fold_by_node(page, runs):
    page.goto("/?view=hardware&run=stalled")
    page.get_by_text("node-3 · GPU 7").first.wait_for()
    assert page.locator("figcaption.legend > *").count() <= 4 * NODES


def test_what_is_on_the_way_does_not_look_empty(page, runs):
    def hold(_route):
        """Never respond to the request."""

    routes = {
        "findings": "**/api/v1/findings?*", "sessions": "**/api/v1/sessions?*", "logs": "**/api/v1/logs?*",
        "hotspots": "**/api/v1/hotspots?*", "processes": "**/api/v1/processes?*", "metrics": "**/api/v1/metrics?*",
        "ranks": "**/api/v1/steps/ranks?*", "changes": "**/api/v1/steps/changes?*", "timeline": "**/api/v1/lanes?*",
    }  # fmt: skip
    for pattern in routes.values():
        page.route(pattern, hold)
    for view in routes:
        page.goto(f"/?view={view}&run=stalled")
        page.locator("main .loading").first.wait_for()
        assert page.locator("main .empty").count() == 0, f"{view} says that there is nothing"
    page.unroute_all(behavior="ignoreErrors")


def test_the_sql_console_shows_rows(page, runs):
    page.goto("/?view=sql&run=stalled")
    page.get_by_role("button", name="Sessions by outcome").click()
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("cell", name="accepted").wait_for()
    page.locator("textarea").fill("SELECT 40 + 2 AS answer")
    page.locator("textarea").press("Control+Enter")
    page.get_by_role("cell", name="42").wait_for()
    page.locator("textarea").fill("DROP TABLE sessions")
    page.locator("textarea").press("Control+Enter")
    page.locator(".error-line").wait_for()


def test_a_view_whose_file_is_gone_offers_to_reload(page, built_page, runs):
    [file] = (built_page / "assets").glob("logs-*.js")
    index = built_page / "index.html"  # a build writes it last
    away = file.rename(file.with_suffix(".away"))
    index.touch()
    try:
        page.goto("/?run=stalled")
        page.get_by_role("navigation").get_by_role("link", name="Logs").click()
        reload = page.get_by_role("button", name="Reload the page")
        reload.wait_for()
        page.evaluate("window.isOldPage = true")
    finally:
        away.rename(file)
        index.touch()
    reload.click()
    page.get_by_text("No logs in this run").wait_for()
    assert page.evaluate("window.isOldPage") is None


def test_a_burst_of_one_message_folds_and_is_a_bar_over_time(page, runs):
    page.goto(f"/?view=logs&run={LONG_RUN}")
    table = page.get_by_role("table", name="Logs")
    burst = table.get_by_role("row").filter(has_text="no answer")
    burst.get_by_text(f"{BURST} ×").wait_for()
    assert burst.count() == 1
    table.get_by_text("gave up").wait_for()
    page.get_by_role("figure", name="Lines over time").wait_for()
    page.get_by_role("button", name="Fold repeats").click()
    table.get_by_text(f"attempt {BURST - 1}").wait_for()
    assert burst.count() > 1


def test_lines_stay_where_they_are_while_new_ones_arrive(page, server):
    def log(first, last, sequence):
        builder = BatchBuilder()
        for number in range(first, last):
            builder.add_log(time_ns=time.time_ns(), level=20, message=f"line {number} of {chr(97 + number % 26)}")
        send(server, builder, run="talking", sequence=sequence)

    log(0, 200, 1)
    page.goto("/?view=logs&run=talking&role=trainer&rank=0&fold=false")
    page.get_by_text("200 lines").wait_for()
    table = page.get_by_role("table", name="Logs")
    table.evaluate("box => { box.scrollTop = 50 * 28; }")
    row = table.get_by_role("row").filter(has_text="line 149 of")
    before = row.bounding_box()
    log(200, 230, 2)
    page.get_by_text("230 lines").wait_for()
    page.wait_for_function("() => document.querySelector('.table').scrollTop === 80 * 28")
    assert row.bounding_box() == before
    page.get_by_role("button", name="Remove the filter rank").click()
    assert "rank=" not in page.url


@pytest.mark.parametrize("width", [1440, 1360])
def test_whole_names_of_runs_are_in_view(page, runs, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.goto("/?view=runs&run=stalled")
    row = page.get_by_role("row").filter(has_text=LONG_RUN)
    row.wait_for()
    for cell in (row.locator(".cell", has_text=LONG_RUN), row.locator(".cell").filter(has_text=re.compile(":.*:"))):
        assert cell.evaluate("box => box.scrollWidth <= box.clientWidth"), "cut off"
