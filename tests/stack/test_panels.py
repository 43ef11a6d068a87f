"""Panels, rendered by Grafana's own transformation code from the responses of the data sources."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
from pathlib import Path

import pytest

from rl_insight.stack.render import dashboard_files

HERE = Path(__file__).parent / "grafana"
BEGIN_MS = 1_760_000_000_000
PANELS = {
    panel["title"]: panel
    for text in dashboard_files().values()
    for panel in json.loads(text)["panels"]
    if panel["type"] == "state-timeline"
}


@pytest.fixture(scope="session")
def draw():
    """Draw panels: `draw((panel, frames), ...)` returns the frames that Grafana shows, for each panel."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None or not (HERE / "node_modules" / "@grafana" / "data").is_dir():
        pytest.skip("Grafana's transformation code is not installed: `make panels` installs it, where npm is")
    subprocess.run([npm, "--prefix", str(HERE), "run", "--silent", "build"], check=True)

    def run(*panels):
        content = [{"panel": panel, "frames": frames} for panel, frames in panels]
        done = subprocess.run(
            [node, str(HERE / "node_modules" / "panel.bundle.mjs")],
            input=json.dumps(content), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    return run


def tempo_answer(query, spans):
    """Tempo's response to a search: a span has its name and attributes only if the query mentions them."""
    mentioned = query.partition("select(")[2]
    found = []
    for number, (name, start_ms, duration_ms, attributes) in enumerate(spans):
        span = {
            "spanID": f"{number + 1:016x}",
            "startTimeUnixNano": str((BEGIN_MS + start_ms) * 1_000_000),
            "durationNanos": str(duration_ms * 1_000_000),
            "attributes": [
                {"key": key, "value": {"stringValue": value}}
                for key, value in attributes.items()
                if re.search(rf"span\.{re.escape(key)}\b", query)
            ],
        }
        if re.search(r"(?<![.\w])name\b", mentioned):
            span["name"] = name
        found.append({"traceID": f"{number + 1:032x}", "spanSets": [{"spans": [span], "matched": 1}]})
    return {"traces": found}


def spans_frame(answer, *, display_names):
    """The table of spans that Grafana's Tempo data source creates from a response; newer versions have plain names."""
    spans = [span for trace in answer["traces"] for span_set in trace["spanSets"] for span in span_set["spans"]]
    keys = sorted({one["key"] for span in spans for one in span["attributes"]})

    def field(name, title, kind, values):
        config = {"displayNameFromDS": title} if display_names else {}
        return {"name": name, "type": kind, "config": config, "values": values}

    attributes = [{one["key"]: one["value"]["stringValue"] for one in span["attributes"]} for span in spans]
    return {
        "name": "Spans",
        "fields": [
            field("traceIdHidden", "Trace ID", "string", [trace["traceID"] for trace in answer["traces"]]),
            field("spanID", "Span ID", "string", [span["spanID"] for span in spans]),
            field("time", "Start time", "time", [int(span["startTimeUnixNano"]) / 1e6 for span in spans]),
            field("name", "Name", "string", [span.get("name") for span in spans]),
            *(field(key, key, "string", [one.get(key) for one in attributes]) for key in keys),
            field("duration", "Duration", "number", [int(span["durationNanos"]) for span in spans]),
        ],
    }


STATES = [
    ("rollout", 0, 1000, {"state_lane_id": "rank_2", "state_name": "rollout"}),
    ("wait", 1000, 30, {"state_lane_id": "rank_2", "state_name": "wait"}),
    ("rollout", 2000, 500, {"state_lane_id": "rank_2", "state_name": "rollout"}),
    ("update", 3000, 700, {"state_lane_id": "rank_10", "state_name": "update"}),
    ("rollout", 100, 50, {"state_lane_id": "rank_10", "state_name": "rollout"}),
    ("zigzag", 5000, 10, {"state_lane_id": "rank_10", "state_name": "zigzag"}),
]
PHASES = [
    ("generate", 0, 400, {"state_lane_id": "s-1", "monitor.trace_segment": "phase"}),
    ("tool", 400, 100, {"state_lane_id": "s-1", "monitor.trace_segment": "phase"}),
    ("generate", 0, 900, {"state_lane_id": "s-2", "monitor.trace_segment": "phase"}),
]


def drawn_intervals(frames):
    """Each lane's intervals as `(state, start, end, color)`, in milliseconds; a state timeline takes two times."""
    lanes = {}
    for frame in frames:
        times = [one for one in frame["fields"] if one["type"] == "time"]
        (state,) = [one for one in frame["fields"] if one["type"] == "string"]
        assert [one["name"] for one in times] == ["time", "End time"]
        starts, ends = ([value - BEGIN_MS for value in one["values"]] for one in times)
        lanes[state["title"]] = list(zip(state["texts"], starts, ends, state["colors"], strict=True))
    return lanes


@pytest.mark.parametrize("display_names", [True, False], ids=["with display names", "plain"])
@pytest.mark.parametrize(
    ("title", "spans"), [("States by lane", STATES), ("Session phases by lane", PHASES)], ids=["states", "phases"]
)
def test_lanes_show_names_true_ends_and_one_color_per_state(draw, title, spans, display_names):
    panel = PANELS[title]
    answer = tempo_answer(panel["targets"][0]["query"], spans)
    (frames,) = draw((panel, [spans_frame(answer, display_names=display_names)]))
    lanes = drawn_intervals(frames)
    expected = {}
    for name, start, duration, attributes in sorted(spans, key=lambda span: span[1]):
        expected.setdefault(attributes["state_lane_id"], []).append((name, start, start + duration))
    assert {lane: [one[:3] for one in found] for lane, found in lanes.items()} == expected
    colors = {}
    for found in lanes.values():
        for name, _, _, color in found:
            colors.setdefault(name, set()).add(color)
    assert all(len(one) == 1 for one in colors.values()), "a state has one color on all lanes"
    assert len(set.union(*colors.values())) == len(colors), "these kinds of states have different colors"


def test_every_search_asks_for_the_newest():
    for text in dashboard_files().values():
        for panel in json.loads(text)["panels"]:
            for target in panel["targets"]:
                if "query" in target:
                    assert target["query"].endswith(" with (most_recent=true)"), panel["title"]


PAGE = {
    "vllm": 'vllm:num_requests_running{engine="0"} 24\nvllm:num_requests_running{engine="1"} 6\n',
    "ray": 'ray_vllm_num_requests_running{engine="0",ReplicaId="a"} 3\n',
    "sglang": "".join(
        f'sglang:num_running_reqs{{pp_rank="{stage}",tp_rank="{rank}",dp_rank="{data}",priority="{priority}"}} '
        f"{value}\n"
        for stage in (0, 1) for rank in (0, 1) for data in (0, 1)
        for priority, value in (("", 30 + data), ("0", 20), ("1", 10 + data))
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def engines(tmp_path_factory, settings, prometheus_program):
    """A real Prometheus that scrapes engines with several ranks, priorities and names."""
    import threading
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    from rl_insight.stack import MetricsEndpointOfServer, start_stack

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = "".join(PAGE.values()).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    directory = tmp_path_factory.mktemp("engines")
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        with start_stack(settings(), directory, MetricsEndpointOfServer(url)) as stack:
            yield stack.urls["prometheus"]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(("board", "running"), [("rl-insight-sglang.json", 61.0), ("rl-insight-vllm.json", 33.0)])
def test_engines_count_each_request_once(draw, engines, api, filled_in, wait_until, board, running):
    panels = {panel["title"]: panel for panel in json.loads(dashboard_files()[board])["panels"]}
    frames = range_frames(api, engines, filled_in(panels["Running"]["targets"][0]["expr"]), wait_until)
    (shown,) = draw((panels["Running"], frames))
    values = [field for frame in shown for field in frame["fields"] if field["type"] == "number"]
    assert [field["values"][-1] for field in values] == [running]


def range_frames(api, url, expression, wait_until):
    """The frames that Grafana's Prometheus data source creates from the response to a range query."""

    def ask():
        now = api(f"{url}/api/v1/query?query=time()")["data"]["result"][1]
        words = {"query": expression, "start": float(now) - 4, "end": now, "step": 1}
        return api(f"{url}/api/v1/query_range?{urllib.parse.urlencode(words)}")["data"]["result"]

    return [
        {
            "fields": [
                {"name": "Time", "type": "time", "values": [moment * 1000 for moment, _ in series["values"]]},
                {
                    "name": "Value", "type": "number", "labels": series["metric"],
                    "values": [float(value) for _, value in series["values"]],
                },
            ]
        }
        for series in wait_until(ask)
    ]  # fmt: skip
