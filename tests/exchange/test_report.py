"""The report: its data, and its file. tests/web covers it in a browser."""

import base64
import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rl_insight.exchange.errors import ExchangeError
from rl_insight.exchange.report import build_document, render, write_report
from rl_insight.exchange.report import document as document_module
from rl_insight.exchange.report.metrics import POINTS, ROUND_NS, SHARES, merging_width, round_width
from rl_insight.exchange.report.model import VERSION, SpanColumns, StringColumn
from rl_insight.exchange.report.page import load_bundle
from rl_insight.exchange.report.sessions import session_report
from rl_insight.exchange.report.spans import span_blocks, span_columns
from rl_insight.schema import BatchBuilder, Process
from rl_insight.store import queries
from rl_insight.store.queries import Lane, Scope
from rl_insight.store.queries.spans import StoredSpan

HOSTILE = "</script><script>document.title='broken'</script><img src=x onerror=alert(1)>"
SECOND = 10**9


def rows_of(spans, *fields):
    """Return the spans of a report as tuples, with references resolved."""

    def value(field, row):
        column = getattr(spans, field)
        if not isinstance(column, StringColumn):
            return column[row]
        return column.values[column.rows[row]] if column.rows[row] >= 0 else None

    return [tuple(value(field, row) for field in fields) for row in range(len(spans.span_id))]


def test_the_document_holds_every_part(recorded):
    document = build_document(recorded)
    assert (document.scope, document.step) == ("the whole run", None)
    by_name = {spot.name: spot for spot in document.hotspots}
    assert (by_name["generate"].count, by_name["update"].errors, by_name["toolcall"].open) == (6, 3, 1)
    assert by_name["generate"].wall_ns == 3 * 4 * SECOND  # overlapping ones are not added up
    assert {spot.role for spot in document.hotspots_by["role"]} == {"trainer", "rollout"}
    assert [step.step for step in document.steps] == [0, 1, 2]
    assert document.breakdowns[""].role == "trainer"
    assert {phase.name for step in document.breakdowns[""].steps for phase in step.phases} == {"train_step"}
    assert {metric.name for metric in document.step_metrics} == {"reward_mean"}
    assert [metric.name for metric in document.metrics] == ["latency_s", "reward_mean", "samples"]
    assert [lines.name for lines in document.lines] == ["latency_s", "reward_mean", "samples"]
    assert [work.name for work in document.open_work] == []  # nothing of an import is in flight
    assert [line.message for line in document.logs] == ["bad </script> line"]
    assert [event.name for event in document.events] == ["weights"]


def test_sessions_come_with_their_phases_and_the_distribution_of_each_step(recorded):
    report = build_document(recorded).sessions
    assert report.total == 3
    assert [(one.session_id, one.status, one.total_s) for one in report.sessions] == [
        ("s0", "accepted", 6.0), ("s1", "accepted", 6.0), ("s2", "accepted", 6.0)
    ]  # fmt: skip
    assert {name for one in report.sessions for name in one.phases} == {"generate"}
    assert [(one.step, one.p50_s, one.p95_s, one.max_s) for one in report.steps] == [
        (step, 6.0, 6.0, 6.0) for step in range(3)
    ]


def test_spans_stand_in_columns_by_lane_depth_and_start(recorded):
    document = build_document(recorded)
    rows = rows_of(document.spans, "name", "status", "session_id", "step", "start_ns", "duration_ns")
    assert rows[:3] == [
        ("train_step", "ok", None, 0, 0, 9 * SECOND),
        ("train_step", "ok", None, 1, 10 * SECOND, 9 * SECOND),
        ("train_step", "ok", None, 2, 20 * SECOND, 9 * SECOND),
    ]
    assert ("generate", "ok", "s1", 1, 11 * SECOND, 3 * SECOND) in rows
    assert ("toolcall", "open", None, None, 25 * SECOND, -1) in rows
    spans = document.spans
    names = dict(rows_of(spans, "span_id", "name"))
    updates = [
        (parent, error) for name, parent, error in rows_of(spans, "name", "parent_id", "error") if name == "update"
    ]
    assert [(names[parent], error) for parent, error in updates] == [("train_step", "ValueError")] * 3
    assert rows_of(spans, "name", "attributes")[0] == ("train_step", '{"loss":0.5}')


def test_spans_have_every_field_of_the_servers_spans():
    """The fields of a lane are in the list of lanes."""
    of_lane = set(Lane.__struct_fields__) - {"lane_id"}
    assert set(StoredSpan.__struct_fields__) - set(SpanColumns.__struct_fields__) == of_lane & set(
        StoredSpan.__struct_fields__
    )


@pytest.mark.parametrize(
    ("scope", "words", "steps"),
    [(Scope(last_steps=1), "step 2", {2}), (Scope(step=1), "step 1", {1}), (Scope(), "the whole run", {0, 1, 2})],
)
def test_scopes(scope, words, steps, recorded):
    document = build_document(recorded, scope)
    assert document.scope == words
    assert {one.step for one in document.sessions.sessions} == steps
    assert {spot.name: spot.count for spot in document.hotspots}["train_step"] == len(steps)
    assert {step for name, step in rows_of(document.spans, "name", "step") if name == "train_step"} == steps
    # A step lasts until the next one begins, the last one until the trainer's last record.
    length = (10 * len(steps) - (2 in steps)) * SECOND
    assert document.end_ns - document.start_ns in {length, length + 1}
    assert len(document.steps) == 3
    assert {one.step for one in document.sessions.steps} == steps


def test_a_scope_without_spans_is_said_and_empty(recorded):
    document = build_document(recorded, Scope(step=77))
    assert document.scope == "step 77"
    assert document.hotspots == []
    assert document.sessions.sessions == []


def test_too_many_spans_leave_the_longest_and_blocks_of_all(recorded, monkeypatch):
    with recorded.reader() as cursor:
        document = build_document(recorded)
        window = (document.start_ns, document.end_ns, document.origin_ns, document.now_ns)
        few = span_columns(cursor, *window, most=4)
        assert few.total == len(document.spans.span_id)
        assert sorted(rows_of(few, "name")) == [("toolcall",), *[("train_step",)] * 3]
        levels = span_blocks(cursor, *window)
    assert {sum(level.count) for level in levels} == {few.total}
    assert {min(level.block_start_ns) for level in levels} == {0}
    monkeypatch.setattr(document_module, "span_columns", lambda *given: span_columns(*given, most=4))
    assert build_document(recorded).timelines == levels


def test_timeline_is_what_the_server_answers_at_each_resolution(runs):
    """Spans of a tenth of a pixel are merged in the coarsest level, and each has a block in the finest one."""
    with runs.open("dense", create=True) as store:
        process = Process(process_id="p", run_id="dense", host="h", pid=1)
        builder = BatchBuilder()
        for number in range(2_000):
            start_ns = SECOND + number * 50_000_000
            builder.add_span(span_id=number + 1, trace=(1, 1), name="op", start_ns=start_ns, duration_ns=5_000_000)
        store.commit([builder.build(process, sequence=1, sent_ns=SECOND)])
        document = build_document(store)
        with store.reader() as cursor:
            window = {"start_ns": document.start_ns, "end_ns": document.end_ns, "now_ns": document.end_ns}
            live = queries.timeline(cursor, **window, pixels=1_024)
    coarse, *_, fine = document.timelines
    assert (coarse.count, coarse.pixel_ns) == (live.count, live.pixel_ns)
    assert max(coarse.count) > 1
    assert fine.count == [1] * 2_000


@pytest.mark.parametrize("is_live", [True, False])
def test_a_report_has_one_now(is_live, runs, monkeypatch):
    """Step 1 begins at 10 s, and nothing is recorded after that; the trainer is last seen at 500 s."""
    begin_ns = 1_760_000_000 * SECOND
    seen_ns = begin_ns + 500 * SECOND
    now_ns = seen_ns + (2 if is_live else 100) * SECOND
    process = Process(process_id="t", run_id="live", host="h", pid=1, role="trainer", heartbeat_s=5.0)
    builder = BatchBuilder()
    for step, duration_ns in ((0, 9 * SECOND), (1, -1)):
        builder.add_span(
            span_id=step + 1, trace=(1, 1), name="update", start_ns=begin_ns + 10 * step * SECOND, step=step,
            duration_ns=duration_ns, segment="state_interval", status="ok" if duration_ns > 0 else "open",
        )  # fmt: skip
    with runs.open("live", create=True) as store:
        store.commit([builder.build(process, sequence=1, sent_ns=seen_ns)], received_ns=[seen_ns])
        monkeypatch.setattr("time.time_ns", lambda: now_ns)
        document = build_document(store)
    end_ns = now_ns if is_live else seen_ns
    assert document.generated_s == now_ns / SECOND
    assert document.now_ns == end_ns
    assert set(document.spans.until_ns.values()) == {end_ns - document.origin_ns}
    assert max(document.timelines[-1].block_end_ns) == end_ns - document.origin_ns
    assert document.timelines[-1].open == [False, is_live]
    assert document.end_ns == end_ns + 1
    assert [process.state for process in document.processes] == ["live" if is_live else "silent"]
    assert [work.oldest_age_s for work in document.open_work] == ([492.0] if is_live else [])
    running = document.pace.running
    assert (None if running is None else running.age_s) == (492.0 if is_live else None)


def test_attributes_without_room_are_left_out_and_counted(recorded):
    with recorded.reader() as cursor:
        document = build_document(recorded)
        window = (document.start_ns, document.end_ns, document.origin_ns, document.now_ns)
        kept = span_columns(cursor, *window, most_text=len('{"loss":0.5}'))
        none = span_columns(cursor, *window, most_text=5)
    assert (kept.attributes.values, kept.texts_left_out) == (['{"loss":0.5}'], 0)  # equal ones are kept once
    assert (none.attributes.values, none.texts_left_out) == ([], 3)


def test_too_many_sessions_leave_a_sample(recorded):
    with recorded.reader() as cursor:
        report = session_report(cursor, Scope(), most=1, slowest=1)
    assert report.total == 3
    assert [one.session_id for one in report.sessions] == ["s0", "s2"]  # the slowest by id, and every third


def test_metrics_are_of_every_series_on_both_axes(recorded):
    lines = {one.name: one for one in build_document(recorded).lines}
    gauge = lines["reward_mean"]
    assert [line.labels for line in gauge.time] == [{"task": "gsm8k"}]
    assert [line.process for line in gauge.time] == [{"process_id": "t", "role": "trainer", "rank": "0", "host": "n0"}]
    assert [line.x for line in gauge.steps] == [[0, 1, 2]]
    assert lines["samples"].steps[0].sum == [0.0, 10.0, 10.0]
    assert {line.labels["quantile"] for line in lines["latency_s"].time_quantiles} >= {"0.5", "0.95", "0.99"}
    assert sum(map(sum, lines["latency_s"].time_spread.counts)) == 3


@pytest.mark.parametrize("series", [3, 600, 1_100])
def test_gauges_are_kept_as_sums_counts_and_extremes(series, runs):
    """Six hundred series are more than a query answers at once; beyond a thousand, they are one line."""
    builder = BatchBuilder()
    for number in range(series):
        one = builder.add_series("busy", "gauge", "", json.dumps({"gpu": str(number)}))
        for at, value in enumerate((0.25, 1.0, number)):
            builder.add_sample(one, time_ns=10**18 + at, value=float(value))
    with runs.open("gpus", create=True) as store:
        process = Process(process_id="p", run_id="gpus", host="h", pid=1)
        store.commit([builder.build(process, sequence=1, sent_ns=10**18)])
        (busy,) = build_document(store).lines
    assert busy.is_apart == (series <= 1_000)
    assert len(busy.time) == (series if busy.is_apart else 1)
    if busy.is_apart:
        last = next(line for line in busy.time if line.labels == {"gpu": "2"})
        assert (last.sum, last.count, last.min, last.max) == ([3.25], [3], [0.25], [2.0])
    else:
        (one,) = busy.time
        assert (one.count, one.min, one.max) == ([3 * series], [0.0], [series - 1.0])
        assert one.sum == [pytest.approx(1.25 * series + series * (series - 1) / 2)]


def test_values_that_json_lacks_are_spelled_as_the_server_spells_them(runs):
    with runs.open("diverged", create=True) as store:
        builder = BatchBuilder()
        series = builder.add_series("loss", "gauge", "", "{}")
        for at, value in enumerate((0.5, float("nan"), float("inf"))):
            builder.add_sample(series, time_ns=SECOND * (at + 1), step=at, value=value)
        process = Process(process_id="p", run_id="diverged", host="h", pid=1)
        store.commit([builder.build(process, sequence=1, sent_ns=SECOND)])
        (loss,) = build_document(store).lines
    assert loss.steps[0].sum == [0.5, "NaN", "Infinity"]


@pytest.mark.parametrize(
    ("seconds", "width"), [(0.001, 0.1), (24, 0.1), (25, 0.2), (3600, 15), (86_400, 600), (86_400 * 400, 172_800)]
)
def test_intervals_are_round(seconds, width):
    assert round_width(int(seconds * SECOND)) == int(width * SECOND)


def test_intervals_can_be_merged_into_all_wider_ones_of_the_page():
    for width in ROUND_NS:
        narrow = merging_width(width)
        assert narrow <= width <= 2 * narrow
        assert all(wider % narrow == 0 for wider in ROUND_NS if wider >= width)


def constant(path, name):
    """Return the value of a constant in the page's sources."""
    text = (Path(__file__).parents[2] / "web" / "src" / path).read_text()
    (found,) = re.findall(rf"^const {name}\b[^=]*= ([^;]+);", text, re.MULTILINE)
    return json.loads(re.sub(r",\s*([\]}])", r"\1", re.sub(r"(\w+):", r'"\1":', found.replace("_", ""))))


def test_constants_are_those_of_the_page():
    page = [round(seconds * SECOND) for seconds in constant("views/metrics/range.ts", "ROUND_S")]
    assert [width for width in page if width >= ROUND_NS[0]] == [*ROUND_NS, 86_400 * SECOND]
    assert constant("views/metrics.tsx", "POINTS") == POINTS
    offered = {share for some in constant("views/metrics.tsx", "SHARES").values() for share in some}
    assert offered <= set(SHARES)
    assert constant("views/overview.tsx", "SHOWN_STEPS") == document_module.SHOWN_STEPS
    assert constant("overview/WhoIsSlow.tsx", "RECENT_STEPS") == document_module.IDLE_STEPS
    assert constant("report/main.tsx", "VERSION") == VERSION


class _Page(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags = []
        self.links = []
        self.scripts = []
        self.feed(page.decode())

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in {"src", "href"}]

    def handle_data(self, data):
        if self.tags and self.tags[-1] == "script":
            self.scripts.append(data)

    def data(self):
        """Return the data inside, as the page reads it."""
        return json.loads(gzip.decompress(base64.b64decode(self.scripts[0])))


@pytest.fixture
def hostile(runs):
    builder = BatchBuilder()
    for number in range(1, 5):
        builder.add_span(
            span_id=number, trace=(1, 1), name=HOSTILE, start_ns=10**18 + number * 10**9, duration_ns=10**9 * number,
            lane=HOSTILE, session_id=HOSTILE, segment="phase", step=number, error=HOSTILE,
            attributes=json.dumps({HOSTILE: 1}),
        )  # fmt: skip
    series = builder.add_series("m", "gauge", HOSTILE, json.dumps({"label": HOSTILE}))
    builder.add_sample(series, time_ns=10**18, value=1.0)
    process = Process(process_id="p", run_id=HOSTILE, host=HOSTILE, pid=1, role=HOSTILE)
    with runs.open("hostile", create=True) as store:
        store.commit([builder.build(process, sequence=1, sent_ns=0)])
        yield store


def test_hostile_names_cannot_break_out(hostile, report_bundle):
    page = _Page(render(build_document(hostile)))
    assert page.tags.count("script") == 2
    assert "img" not in page.tags
    assert page.links == []
    assert page.data()["run"]["run_id"] == HOSTILE


def test_the_policy_names_the_one_script_and_style(recorded, report_bundle):
    page = render(build_document(recorded)).decode()
    assert len(re.findall("<script", page.partition('<script type="module">')[0])) == 1
    policy = re.search('http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1]
    assert re.fullmatch(r"default-src 'none'; script-src 'sha256-[\w+/]{43}='; style-src 'sha256-[\w+/]{43}='", policy)


def test_an_empty_run_has_a_report(runs, tmp_path, report_bundle):
    with runs.open("empty", create=True) as store:
        write_report(store, tmp_path / "empty.html")
    data = _Page((tmp_path / "empty.html").read_bytes()).data()
    assert (data["version"], data["spans"]["total"], data["sessions"]["total"]) == (VERSION, 0, 0)


def test_a_package_without_the_page_says_how_to_build_it(tmp_path):
    with pytest.raises(ExchangeError, match=r"without the report page.*make web"):
        load_bundle(tmp_path)


def test_a_script_cannot_end_its_own_element(tmp_path):
    (tmp_path / "report.js").write_text("const end = '</script>', note = '<!-- x';")
    (tmp_path / "report.css").write_text("")
    assert load_bundle(tmp_path).script == "const end = '<\\/script>', note = '<\\!-- x';"
