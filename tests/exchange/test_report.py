"""The report: its data, the page around it, and the page in a real browser."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from rl_insight.exchange.report import build_document, render, write_report
from rl_insight.schema import BatchBuilder, Process
from rl_insight.store.queries import Scope

HOSTILE = "</script><script>document.title='broken'</script><img src=x onerror=alert(1)>"


def test_the_document_holds_every_part(recorded):
    document = build_document(recorded)
    assert document.scope == "the whole run"
    by_name = {spot.name: spot for spot in document.hotspots}
    assert (by_name["generate"].count, by_name["update"].errors, by_name["toolcall"].open) == (6, 3, 1)
    assert by_name["generate"].wall_ns == 3 * 4_000_000_000  # overlapping ones are not added up
    assert [step.step for step in document.steps] == [0, 1, 2]
    assert document.timeline is not None
    assert {scatter.name for scatter in document.latency} == {"train_step", "update", "generate"}
    assert [chart.name for chart in document.metrics] == ["latency_s", "reward_mean", "samples"]
    sessions = document.sessions
    assert (sessions.total, sessions.by_status) == (3, {"accepted": 3})
    assert sessions.durations.p50 == 6.0
    assert [(step.step, step.count, step.max) for step in sessions.steps] == [(0, 1, 6.0), (1, 1, 6.0), (2, 1, 6.0)]
    assert {bar.name for row in sessions.gantt for bar in row.bars} == {"generate"}


@pytest.mark.parametrize(
    ("scope", "words", "steps"),
    [(Scope(last_steps=1), "step 2", {2}), (Scope(step=1), "step 1", {1}), (Scope(), "the whole run", {0, 1, 2})],
)
def test_scopes(scope, words, steps, recorded):
    document = build_document(recorded, scope)
    assert document.scope == words
    assert {row.step for row in document.sessions.gantt} == steps
    assert {spot.name: spot.count for spot in document.hotspots}["train_step"] == len(steps)
    assert len(document.steps) == 3
    assert len(document.sessions.steps) == 3


def test_an_empty_run_has_a_report(runs, tmp_path):
    with runs.open("empty", create=True) as store:
        write_report(store, tmp_path / "empty.html")
    assert b"report-data" in (tmp_path / "empty.html").read_bytes()


class _Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags = []
        self.links = []
        self.scripts = []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in {"src", "href"}]

    def handle_data(self, data):
        if self.tags and self.tags[-1] == "script":
            self.scripts.append(data)


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
        store.commit([builder.build(process, sequence=1, sent_ns=1)], live=False)
        yield store


def test_hostile_names_cannot_break_out(hostile):
    page = _Page()
    page.feed(render(build_document(hostile)).decode())
    assert page.tags.count("script") == 2
    assert "img" not in page.tags
    assert page.links == []
    data = json.loads(page.scripts[0])
    assert data["run"]["run_id"] == HOSTILE


def test_nothing_is_fetched(recorded):
    page = render(build_document(recorded)).decode()
    assert "default-src 'none'" in page
    assert not re.search(r"https?://", page.replace("http://www.w3.org", ""))


@pytest.fixture(scope="module")
def chromium():
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium is installed")

    def dump(path, directory):
        done = subprocess.run(
            [
                program, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000",
                f"--user-data-dir={directory}", "--dump-dom", f"file://{path}",
            ],
            capture_output=True, text=True, timeout=90, check=False,
        )  # fmt: skip
        return done.stdout

    return dump


def _drawn(path, tmp_path, chromium):
    dom = chromium(path, tmp_path / "profile")
    assert 'data-ready="true"' in dom, "the script did not come to its end"
    return dom


def test_the_report_draws_itself_in_a_browser(tmp_path, recorded, chromium):
    file = tmp_path / "report.html"
    write_report(recorded, file)
    dom = _drawn(file, tmp_path, chromium)
    for part in ("overview", "hotspots", "timeline", "sessions", "lifecycle", "latency", "metrics"):
        assert f'<section id="{part}"' in dom
    assert "train_step" in re.sub(r"<script.*?</script>", "", dom, flags=re.DOTALL)


def test_a_browser_runs_nothing_of_a_hostile_run(tmp_path, hostile, chromium):
    file = tmp_path / "report.html"
    write_report(hostile, file)
    dom = _drawn(file, tmp_path, chromium)
    assert "<title>broken" not in dom
    assert "<img" not in dom
    assert "&lt;/script&gt;" in dom


def test_an_empty_report_draws_too(tmp_path, runs, chromium):
    with runs.open("empty", create=True) as store:
        write_report(store, tmp_path / "empty.html")
    _drawn(tmp_path / "empty.html", tmp_path, chromium)
