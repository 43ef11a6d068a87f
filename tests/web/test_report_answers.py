"""A report answers from its data as the server does from the run: both are asked the same questions."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess

import msgspec
import pytest
import requests

from rl_insight.exchange.report import build_document, render
from rl_insight.exchange.report.page import load_bundle
from rl_insight.schema import BatchBuilder, Process
from rl_insight.store import RunDirectory
from tests.web.conftest import WEB, Server

pytestmark = pytest.mark.xdist_group("web")

# Multiples of 100 ms, which JavaScript's numbers hold exactly.
BEGIN_NS = 1_767_225_600_000_000_000
SECOND = 10**9
STEPS = 4
STEP_S = 10
BUILD = """
import { build } from "vite";
await build({
  configFile: false, publicDir: false, logLevel: "error",
  build: { ssr: "src/report/source.ts", outDir: process.argv[1], emptyOutDir: true },
});
"""
ASK = """
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
const [module, asked] = process.argv.slice(1);
const { sourceOf } = await import(pathToFileURL(module));
const { document, questions } = JSON.parse(readFileSync(asked, "utf8"));
const source = sourceOf(document);
const plain = (_, value) => (typeof value === "number" && !Number.isFinite(value) ? String(value) : value);
const answers = [];
for (const [route, query] of questions)
  answers.push(await source.get(route, query).catch((error) => ({ error: error.message })));
console.log(JSON.stringify(answers, plain));
"""
ATTRIBUTES = [
    '{"loss":0.5,"tool":"Search"}',
    '{"loss": 1.0, "tool": "b=c"}',
    '{"tool":{"name":"x"},"tags":["a","b"]}',
    '{"tool":null,"is_cached":true,"unreadable":"yes"}',
    '{"tool":"\\u00e9t\\u00e9 100%"}',
    '["no object"]',
    "not JSON",
    "{}",
    None,
]


def trainer(builder):
    """Record a training without steps on its spans; a gauge counts them."""
    attributes = iter(ATTRIBUTES * STEPS)
    losses = [builder.add_series("loss", "gauge", "", json.dumps({"task": task})) for task in ("add", "mul", "")]
    counter = builder.add_series("tokens", "counter", "", "{}")
    spread = builder.add_series("latency_s", "histogram", "", "{}")
    counted = builder.add_series("training/global_step", "gauge", "", "{}")
    for step in range(STEPS):
        at = BEGIN_NS + step * STEP_S * SECOND
        base = 100 * (step + 1)
        builder.add_span(span_id=base, trace=(7, step), name="train_step", start_ns=at, duration_ns=9 * SECOND)
        for place in range(8):
            builder.add_span(
                span_id=base + place + 1, trace=(7, step), parent_id=base if place else 12345,
                name=f"Update_{place % 3}", lane=f"lane {place % 2}",
                start_ns=at + place * SECOND, duration_ns=(place + step) * SECOND // 10,
                status="error" if place == 3 else "ok", error="ValueError: 50%" if place == 3 else None,
                session_id=f"s{step}-{place}" if place < 5 else None, attributes=next(attributes),
            )  # fmt: skip
            builder.add_log(
                time_ns=at + place * SECOND, level=10 * (place % 5), message=f"Message {place}", logger="app",
                span_id=base + place, lane=f"lane {place % 2}", session_id=f"s{step}-{place}",
                attributes=ATTRIBUTES[(place + step) % len(ATTRIBUTES)],
            )  # fmt: skip
            builder.add_event(
                time_ns=at + place * SECOND, name=f"event_{place}", span_id=base + place, lane=f"lane {place % 2}",
                step=99 if place == 0 else None, attributes=ATTRIBUTES[place],
            )  # fmt: skip
            for series, loss in enumerate(losses):
                value = math.nan if (step, place, series) == (2, 2, 0) else step + place * 0.25 - series
                builder.add_sample(loss, time_ns=at + place * SECOND + series * SECOND // 10, value=value)
            builder.add_sample(counter, time_ns=at + place * SECOND, value=float(100 * step + place))
        builder.add_histogram(
            spread, time_ns=at, count=step + 1, total=1.0, minimum=0.1, maximum=2.0, buckets={100: step + 1}
        )
        builder.add_sample(counted, time_ns=at + STEP_S * SECOND, value=float(step + 1))
    builder.add_span(
        span_id=999, trace=(7, 9), name="stuck", start_ns=BEGIN_NS + 35 * SECOND, duration_ns=-1, status="open"
    )


def rollout(builder, rank):
    """Record sessions, with and without steps, and the gauges of a GPU."""
    busy = builder.add_series("gpu_utilization_ratio", "gauge", "", json.dumps({"gpu": str(rank)}))
    for step in range(STEPS):
        at = BEGIN_NS + step * STEP_S * SECOND
        for place in range(6):
            record = {
                "submit_ts": at / SECOND + place, "finalized_ts": at / SECOND + 2 * place + rank + 1,
                "step": step + 1 if place % 2 else None, "reward": place / 4,
                "reason": "Timed out 50%" if place == 5 else None,
                "model_version": str(step), "counters": {"turns": place}, "role": "rollout", "rank": rank,
            }  # fmt: skip
            if place == 4:
                record.pop("finalized_ts")
            builder.add_session(
                session_id=f"r{rank}-{step}-{place}", task_id=f"Task {place % 3}",
                status=("accepted", "failed", "rejected", "accepted", "pending", "failed")[place],
                time_ns=at + 9 * SECOND, record=json.dumps(record),
            )  # fmt: skip
        for tick in range(0, 10 * STEP_S, 3 + rank):
            builder.add_sample(busy, time_ns=at + tick * SECOND // 10, value=(tick + 7 * rank) % 100 / 100)
        builder.add_log(time_ns=at + SECOND // 2 + rank * SECOND // 10, level=30, message="slow engine", step=step)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    directory = RunDirectory(folder, min_free_bytes=0)
    with directory.open("run", create=True) as store:
        batches = []
        for process_id, role, rank in (("t", "trainer", None), ("r0", "rollout", 0), ("r1", "rollout", 1)):
            builder = BatchBuilder()
            trainer(builder) if rank is None else rollout(builder, rank)
            process = Process(
                process_id=process_id, run_id="run", host=f"node-{rank or 0}", pid=1, role=role, rank=rank
            )
            batches.append(builder.build(process, sequence=1, sent_ns=0))
        store.commit(batches)
    directory.close()
    return folder


@pytest.fixture(scope="module")
def built(data_dir):
    directory = RunDirectory(data_dir, min_free_bytes=0)
    with directory.open("run") as store:
        found = build_document(store)
    directory.close()
    return found


@pytest.fixture(scope="module")
def document(built):
    return json.loads(msgspec.json.encode(built))


@pytest.fixture(scope="module")
def url(data_dir, built_page, built, wait_until):
    started = Server(data_dir, built_page, wait_until).start()
    yield started.url
    started.kill()


@pytest.fixture(scope="module")
def live(url):
    def ask(route, query):
        response = requests.get(f"{url}/api/v1/{route}", params={"run": "run", **query}, timeout=20)
        assert response.status_code == 200, response.text
        return response.json()

    return ask


@pytest.fixture(scope="module")
def report_module(tmp_path_factory):
    if shutil.which("node") is None or not (WEB / "node_modules").is_dir():
        pytest.skip("Node.js or the tools of the page are not installed")
    folder = tmp_path_factory.mktemp("module")
    subprocess.run(["node", "--input-type=module", "-e", BUILD, str(folder)], cwd=WEB, check=True)
    return folder / "source.js"


@pytest.fixture(scope="module")
def stored(document, report_module, tmp_path_factory):
    """Ask the module of the report: `stored(questions)` returns an answer for each."""

    def ask(questions):
        asked = tmp_path_factory.mktemp("asked") / "asked.json"
        asked.write_text(json.dumps({"document": document, "questions": questions}))
        words = ["node", "--input-type=module", "-e", ASK, str(report_module), str(asked)]
        return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)

    return ask


def same(value):
    """Return an answer in a form that can be compared: sums may be rounded in another order."""
    if isinstance(value, float):
        return pytest.approx(value, rel=1e-13, abs=1e-13)
    if isinstance(value, dict):
        return {key: same(inner) for key, inner in value.items()}
    return [same(inner) for inner in value] if isinstance(value, list) else value


def by_labels(lines):
    return sorted(lines, key=lambda line: sorted(line["labels"].items()))


def agree(live, stored, route, queries, order=lambda answer: answer):
    """Compare all answers; return the server's."""
    found = []
    for query, answer in zip(queries, stored([(route, query) for query in queries]), strict=True):
        wanted = order(live(route, query))
        assert order(answer) == same(wanted), query
        found.append(wanted)
    return found


SPANS = [
    {},
    *({"text": text} for text in ("update_1", "search", "50%", "S1-", "100%", "not json", "{}", "LOSS", "_", 'l":')),
    {"text": "loss", "step": 2, "limit": 3},
    {"name": "train_step"},
    {"name": "train"},
    {"name_contains": "TRAIN"},
    {"error": "valueerror: 50%"},
    {"error": ""},
    *({"attribute": f"tool={value}"} for value in ("Search", "search", "b=c", '{"name":"x"}', "null", "undefined")),
    *({"attribute": pair} for pair in ("loss=0.5", "loss=1", "loss=1.0", "is_cached=true", "other=undefined")),
    *({"attribute": pair} for pair in ('tags=["a","b"]', "unreadable=yes", "unreadable=not JSON", "tool=été 100%")),
    {"lane": [1, 2]},
    {"role": "trainer", "order": "oldest"},
    {"role": "rollout"},
    *({"status": status} for status in ("ok", "error", "open", "cancelled")),
    *({"step": step} for step in (0, 1, 4, 77)),
    {"session_id": "s1-1"},
    {"trace_id": f"{7:016x}{2:016x}"},
    {"trace_id": f"{7:016X}{9:016X}"},
    {"trace_id": "f" * 32},
    {"longer_than_ns": 7 * SECOND // 10, "order": "longest", "limit": 1000},
    {"order": "longest", "limit": 6},
    {"start_ns": BEGIN_NS + 13 * SECOND, "end_ns": BEGIN_NS + 15 * SECOND},
]  # fmt: skip


def by_time(spans):
    """Sort spans of the same start: no order is promised for them."""
    return sorted(spans, key=lambda span: (span["start_ns"], span["span_id"]))


def test_spans_are_searched_alike(live, stored):
    found = agree(live, stored, "spans", [query | {"limit": query.get("limit", 500)} for query in SPANS], by_time)
    assert sum(map(len, found)) > 300
    steps = {span["step"] for span in found[0]}
    assert steps == {1, 2, 3, 4}


def test_spans_have_the_same_details(live, stored):
    ids = [f"{number:x}" for number in (100, 101, 104, 203, 308, 999)]
    found = agree(live, stored, "span", [{"span_id": one} for one in ids])
    assert any(one["parents"] and one["logs"] and one["events"] for one in found)
    assert found[1]["span"]["parent_id"] == f"{12345:016x}"  # of a span that is not in the run


RECORDS = [
    {},
    *({"text": text} for text in ("MESSAGE 3", "EVENT_3", "search", "100%", "not json", "\\u00e9", '": "', "1.0")),
    {"text": "3 {"},
    {"process_id": "t"},
    {"session_id": "s2-2"},
    {"span_id": "66"},
    *({"step": step} for step in (1, 3, 99)),
    {"lane": [1]},
    {"lane": [2, 3]},
    {"start_ns": BEGIN_NS + 5 * SECOND, "end_ns": BEGIN_NS + 12 * SECOND},
    {"newest_first": False, "limit": 5},
]  # fmt: skip
LOGS = [
    {"level": 30},
    {"rank": 1},
    {"role": "rollout"},
    {"role": "rollout", "rank": 0, "level": 20},
    {"role": "trainer", "rank": 0},
]


def test_logs_and_events_are_searched_alike(live, stored):
    logs = agree(live, stored, "logs", RECORDS + LOGS)
    assert [len(found) for found in logs[-5:]] != [len(logs[0])] * 5
    events = agree(live, stored, "events", RECORDS)
    assert all(sum(map(bool, found)) > len(RECORDS) // 2 for found in (logs, events))


SESSIONS = [
    {},
    *({"text": text} for text in ("R1-2", "task 2", "timed OUT", "50%")),
    {"session_id": "r1-2-3"},
    {"task_id": "Task 1"},
    {"status": ["failed", "rejected"]},
    {"status": ["pending"]},
    {"role": "rollout", "rank": 1},
    {"first_step": 2},
    {"last_step": 2},
    {"first_step": 2, "last_step": 3},
    {"longer_than_s": 4.0},
    {"least_reward": 0.5, "most_reward": 1.0},
    {"least_turns": 3},
    {"most_turns": 1},
    {"group_id": "Task 2"},
    {"model_version": "2"},
    {"reason": "TIMED"},
    {"phase": "generate"},
]
ORDERS = [
    {"order": "total_s", "descending": descending, "limit": 7, "offset": offset}
    for descending in (True, False)
    for offset in (0, 7)
]


def test_sessions_are_searched_alike(live, stored):
    ordered = [query | {"order": "session_id", "limit": 500} for query in SESSIONS]
    found = agree(live, stored, "sessions", ordered + ORDERS)
    assert sum(0 < one["total"] < found[0]["total"] for one in found) > 15


def test_durations_by_part_are_the_same(live, stored):
    found = agree(live, stored, "sessions/durations", SESSIONS)
    assert found[0][0]["name"] == "total"
    assert len({json.dumps(one) for one in found}) > 6


def test_durations_by_step_are_the_same(live, stored):
    found = agree(live, stored, "sessions/steps", SESSIONS)
    assert [one["step"] for one in found[0]] == [1, 2, 3, 4]
    assert len({json.dumps(one) for one in found}) > 6


WINDOW = {"start_ns": BEGIN_NS, "end_ns": BEGIN_NS + 60 * SECOND}
WIDTHS = [SECOND // 5, SECOND // 2, SECOND, 2 * SECOND, 5 * SECOND, 15 * SECOND]
RANGES = [
    *({"metric": "loss", "width": width, "group_by": [""]} for width in WIDTHS),
    *({"metric": "tokens", "width": width} for width in WIDTHS),
    *(
        {"metric": "gpu_utilization_ratio", "width": 5 * SECOND, "group_by": [""], "aggregation": how}
        for how in ("avg", "min", "max", "count")
    ),
    {"metric": "tokens", "width": 5 * SECOND, "aggregation": "increase"},
    {"metric": "loss", "width": SECOND},
    {"metric": "loss", "width": SECOND, "group_by": ["*"], "match": ["task=~(add|m.l)"]},
    {"metric": "loss", "width": SECOND, "group_by": ["task", "host"], "match": ["role=trainer"]},
    {"metric": "gpu_utilization_ratio", "width": SECOND, "group_by": ["host", "gpu"]},
    {"metric": "gpu_utilization_ratio", "width": SECOND, "group_by": ["rank"], "match": ["rank=1"]},
    {"metric": "loss", "width": SECOND, "start_ns": BEGIN_NS + 10 * SECOND, "end_ns": BEGIN_NS + 20 * SECOND},
    {"metric": "loss", "width": 1, "axis": "step", "group_by": [""]},
    {"metric": "tokens", "width": 1, "axis": "step"},
    {"metric": "loss", "width": 2, "axis": "step", "aggregation": "max", "group_by": ["task"]},
    {"metric": "none", "width": SECOND},
]


def test_metrics_are_merged_to_the_servers_values(live, stored):
    found = agree(live, stored, "metrics/range", [WINDOW | query for query in RANGES], by_labels)
    assert all(found[:-1])
    least, most = found[13][0]["y"], found[14][0]["y"]
    assert all(low < high for low, high in zip(least, most, strict=True))


def test_labels_and_distributions_are_the_same(live, stored, document):
    labels = ["task", "gpu", "host", "role", "rank", "process_id", "other"]
    agree(live, stored, "metrics/labels", [{"label": one, "metric": "loss"} for one in labels])
    agree(live, stored, "metrics/labels", [{"label": one, "metric": "gpu_utilization_ratio"} for one in labels])
    (width,) = {one["width_ns"] for one in document["lines"] if one["name"] == "latency_s"}
    asked = WINDOW | {"metric": "latency_s", "width": width}
    assert agree(live, stored, "metrics/quantiles", [asked, asked | {"axis": "step", "width": 1}], by_labels)[0]
    assert agree(live, stored, "metrics/heatmap", [asked | {"width": 2 * width}])[0]["x"]


def test_the_page_and_the_report_show_the_same_durations_by_step(browser, url, built, built_page, tmp_path):
    (tmp_path / "report.html").write_bytes(render(built, load_bundle(built_page / "report")))
    for address in (f"{url}/?run=run&", f"file://{tmp_path}/report.html?"):
        page = browser.new_page()
        page.goto(f"{address}view=sessions&by=step&search=status:failed")
        chart = page.get_by_label("Total time of sessions by step")
        chart.locator("canvas").wait_for()
        # Failed in each step: 2 and 3 s, 6 and 7 s.
        assert re.sub(r"\s+", " ", chart.inner_text()).strip() == "max 7.00 s p95 6.85 s p50 4.50 s"
        page.close()


def test_steps_are_the_same(live, stored):
    every = {"first": 1, "last": STEPS}
    steps = live("steps", {})
    assert [one["step"] for one in steps] == list(range(1, STEPS + 1))
    agree(live, stored, "steps", [{}, {"limit": 2}, {"last": 3}])
    (whole, _) = agree(live, stored, "steps/breakdown", [every, every | {"first": 2}])
    agree(live, stored, "steps/breakdown", [every | {"role": role} for role in whole["roles"]])
    agree(live, stored, "steps/metrics", [every, every | {"first": 2, "last": 3}])
    ended = [one["step"] for one in steps if one["end_ns"] is not None]
    agree(live, stored, "steps/idle", [{"first": ended[0], "last": ended[-1]}])
