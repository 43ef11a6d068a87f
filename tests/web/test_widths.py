"""Tables fit common screens: durations, numbers and the ends of long names are never cut off."""

from __future__ import annotations

import json
import time

import pytest
from playwright.sync_api import expect

from rl_insight.schema import BatchBuilder, Process
from tests.web.sending import send_batches

pytestmark = pytest.mark.xdist_group("web")

SECOND = 1_000_000_000
RUN = "a-run-with-names-as-long-as-people-write-them"
SESSION = "agent-loop-7c1f2a34-5b6d-4e8f-9a0b-{:012d}"
TASK = "SWE-bench_Verified__django__django-{:05d}"
PHASE = "tool:python_sandbox_execution_with_network_access"
AGE_S = 701
CUT = """cells => cells.filter(cell => [cell, ...cell.querySelectorAll('*')].some(
    one => getComputedStyle(one).overflowX !== 'visible' && one.scrollWidth > one.clientWidth
)).map(cell => cell.innerText)"""


def add_session(builder, number, start_s, length_s, *, is_open):
    start_ns, session_id = int(start_s * SECOND), SESSION.format(number)
    for place, name in enumerate(("generate", "toolcall", PHASE)):
        is_running = is_open and name == PHASE
        builder.add_span(
            span_id=3 * number + place + 1, trace=(1, number + 1), name=name, segment="phase", start_ns=start_ns,
            duration_ns=-1 if is_running else int(length_s * SECOND), status="open" if is_running else "ok",
            step=1000 + number, session_id=session_id,
        )  # fmt: skip
    record = {"submit_ts": start_s, "enqueue_ts": start_s + length_s, "step": 1000 + number, "model_version": "1042"}
    record |= {"tokens": 123_456, "counters": {"turns": 99}}
    if not is_open:
        record |= {"finalized_ts": start_s + length_s, "reward": 0.123}
    builder.add_session(
        session_id=session_id, status="pending" if is_open else "accepted", time_ns=start_ns,
        record=json.dumps(record), task_id=TASK.format(number),
    )  # fmt: skip


@pytest.fixture(scope="module")
def _long_names(server):
    builder, now = BatchBuilder(), time.time()
    for number in range(20):
        add_session(builder, number, now - AGE_S, 95.0, is_open=number == 19)
    process = Process(
        process_id="p", run_id=RUN, host="ip-10-0-120-45.us-west-2.compute.internal", pid=123_456,
        role="megatron_policy_trainer", rank=127, heartbeat_s=3600.0,
    )  # fmt: skip
    batch = builder.build(process, sequence=1, sent_ns=time.time_ns())
    send_batches(server.url, batch)


def cut_off(table, *titles):
    """Return the texts in these columns, with their titles, that do not fit."""
    known = table.get_by_role("columnheader").all_inner_texts()
    places = [next(place for place, one in enumerate(known) if one.startswith(title)) for title in titles]
    heads, rows = table.get_by_role("columnheader"), table.get_by_role("row")
    found = []
    for place in places:
        found += heads.nth(place).evaluate_all(CUT)
        found += rows.locator(f"[role=cell]:nth-child({place + 1})").evaluate_all(CUT)
    return found


def scrolls(table):
    return table.evaluate("one => one.scrollWidth > one.clientWidth")


@pytest.mark.usefixtures("_long_names")
@pytest.mark.parametrize("width", [1440, 1280])
def test_sessions(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"/?view=sessions&run={RUN}")
    table = page.get_by_role("table", name="Sessions")
    expect(table.get_by_role("cell", name="11 min").first).to_be_visible()
    titles = ("Status", "Step", "Reward", "Total", "Queue", "Generate", "Tools", "Tokens", "Turns", "Rank", "Version")
    assert cut_off(table, *titles, "Submitted") == []
    expect(table.get_by_text("00019", exact=True)).to_have_count(2)  # of the session and of the task
    assert SESSION.format(19) in table.inner_text()  # copied as one word
    assert scrolls(table) == (width < 1440)
    work = page.get_by_role("table", name="Suspect open work")
    expect(work.get_by_text("11 min")).to_be_visible()
    assert cut_off(work, "Open", "Oldest") == []
    assert not scrolls(work)


@pytest.mark.usefixtures("_long_names")
@pytest.mark.parametrize("width", [1440, 1280])
def test_processes(page, width):
    def answer(route):
        route.fulfill(json=[one | {"silent_s": AGE_S, "lost": 12_345} for one in route.fetch().json()])

    page.route("**/api/v1/processes*", answer)
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"/?view=processes&run={RUN}")
    table = page.get_by_role("table", name="Processes")
    expect(table.get_by_text("11 min 41 s ago")).to_be_visible()
    assert (
        cut_off(table, "PID", "State", "Last report", "Clock offset", "Open spans", "Missing", "Lost", "Records") == []
    )
    expect(table.get_by_text("r 127", exact=True)).to_be_visible()
    assert not scrolls(table)


@pytest.mark.usefixtures("_long_names")
def test_a_table_that_scrolls_has_a_shadow_where_more_columns_are(page):
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(f"/?view=sessions&run={RUN}")
    table = page.get_by_role("table", name="Sessions")
    expect(table.get_by_role("cell", name="11 min").first).to_be_visible()
    page.add_style_tag(content=".cell { visibility: hidden }")
    box = table.bounding_box()
    edge = {"x": box["x"] + box["width"] - 8, "y": box["y"] + box["height"] - 20, "width": 6, "height": 10}
    shaded = page.screenshot(clip=edge)
    table.evaluate("one => { one.scrollLeft = one.scrollWidth }")
    page.wait_for_timeout(200)
    assert page.screenshot(clip=edge) != shaded
