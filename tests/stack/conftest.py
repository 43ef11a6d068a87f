"""Fixtures of the stack's tests: a collector fed by a small run, real programs, and stand-ins for the rest."""

from __future__ import annotations

import json
import re
import shutil
import socket
import stat
import sys
import textwrap
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from rl_insight.collector import InProcessCollector
from rl_insight.collector.derived import DerivedMetrics
from rl_insight.collector.sinks.http_endpoint import MetricsEndpoint
from rl_insight.collector.sinks.prometheus import PrometheusRenderer
from rl_insight.schema import BatchBuilder, Process
from rl_insight.schema.histogram import bucket_code
from rl_insight.server.metrics import SERVER_NAMES
from rl_insight.stack import StackSettings

SECOND = 1_000_000_000


def _wait_until(predicate, timeout_s=30.0):
    deadline = time.monotonic() + timeout_s
    while not (result := predicate()):
        if time.monotonic() > deadline:
            pytest.fail(f"did not come true within {timeout_s} s")
        time.sleep(0.05)
    return result


@pytest.fixture(scope="session")
def wait_until():
    """Wait for a condition: `wait_until(predicate, timeout_s)` returns its first true result."""
    return _wait_until


def get_json(url, data=None, headers=None):
    request = urllib.request.Request(url, data=data, headers=headers or {})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20) as answer:
        return json.loads(answer.read())


@pytest.fixture(scope="session")
def api():
    """Read JSON from a URL."""
    return get_json


@pytest.fixture(scope="session")
def query():
    """Run an instant query: `query(prometheus_url, expression)` returns `[(labels, value)]`."""

    def run(url, expression):
        words = urllib.parse.urlencode({"query": expression})
        result = get_json(f"{url}/api/v1/query?{words}")["data"]["result"]
        return [(series["metric"], float(series["value"][1])) for series in result]

    return run


def make_settings(**changes):
    """Settings with free ports, short times, and Prometheus alone; `tempo__enabled=True` changes a nested one."""
    settings = StackSettings(mode="local", restart_delay_s=0.1, stop_timeout_s=10.0)
    settings.prometheus.port = settings.tempo.port = settings.grafana.port = 0
    settings.tempo.otlp_http_port = settings.tempo.otlp_grpc_port = 0
    settings.prometheus.scrape_interval_s = 0.5
    settings.prometheus.ray_discovery_file = None
    settings.tempo.enabled = settings.grafana.enabled = False
    for key, value in changes.items():
        section, _, name = key.rpartition("__")
        setattr(getattr(settings, section) if section else settings, name, value)
    return settings


@pytest.fixture(scope="session")
def settings():
    """Make settings for tests."""
    return make_settings


@pytest.fixture(scope="session")
def prometheus_program():
    """The path of a real Prometheus."""
    path = shutil.which("prometheus")
    if path is None:
        pytest.skip("the program prometheus is not installed")
    return path


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch):
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    # Two cores are shared by all tests.
    monkeypatch.setenv("GOMAXPROCS", "1")


def _alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@pytest.fixture(scope="session")
def alive():
    """Tell whether a process runs."""
    return _alive


STAND_IN = '''\
#!{python}
"""Behaves as {title} does towards whoever starts it."""
import http.server, os, re, signal, sys
if "--version" in sys.argv:
    print("{version_line}")
    sys.exit(0)
config = next(word.partition("=")[2] for word in sys.argv[1:] if word.startswith(("-config", "--config")))
text = open(config).read()
port = int(re.search(r"{port_pattern}", text).group(1))
if os.path.exists(os.path.join(os.path.dirname(__file__), "{name}-crashes")):
    print("{title} cannot go on: no space left", flush=True)
    sys.exit(3)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        ready = self.path == "{ready}"
        self.send_response(200 if ready else 404)
        self.end_headers()
    def log_message(self, *words):
        pass
def end(*_):
    print("{title} ends", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, {on_term})
print("{title} starts", flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
'''


def write_stand_in(directory: Path, name: str, version: str, *, stubborn: bool = False) -> Path:
    """Write a program that behaves as Tempo or Grafana do when they are started, asked and ended."""
    titles = {"tempo": "Tempo", "grafana": "Grafana"}
    home = directory / "bin" if name == "grafana" else directory
    home.mkdir(parents=True, exist_ok=True)
    if name == "grafana":
        (directory / "conf").mkdir(exist_ok=True)
        (directory / "conf" / "defaults.ini").write_text("")
    path = home / name
    path.write_text(
        STAND_IN.format(
            python=sys.executable,
            name=name,
            title=titles[name],
            version_line=f"{name}, version {version} (branch: HEAD)",
            port_pattern=r"http_port = (\d+)" if name == "grafana" else r"http_listen_port: (\d+)",
            ready="/api/health" if name == "grafana" else "/ready",
            on_term="signal.SIG_IGN" if stubborn else "end",
        )
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def stand_in():
    """Write stand-ins for Tempo and Grafana: `stand_in(directory, "tempo", "3.0.3")` returns the program's path."""
    return write_stand_in


class FakeRun:
    """A small asynchronous GRPO run: a trainer, two rollout workers, a tool, hardware. `tick` is one flush of each."""

    LABELS = {"project": "examples", "experiment_name": "async_grpo", "run_id": "demo-1"}

    def __init__(self):
        self.ticks = 0
        self.totals = {}
        self.observed = {}
        self.trainer = self._process("trainer", 0)
        self.workers = [self._process("rollout", rank) for rank in (0, 1)]
        self.tool = self._process("tool", 0)
        self.span_id = 100

    def _process(self, role, rank):
        return Process(
            process_id=f"{role}-{rank}",
            host="node0",
            pid=100 + rank,
            role=role,
            rank=rank,
            started_ns=time.time_ns(),
            **self.LABELS,
        )

    def tick(self):
        """Return the next batches of all processes."""
        self.ticks += 1
        return [self._trainer_batch(), *(self._worker_batch(worker) for worker in self.workers), self._tool_batch()]

    def _build(self, builder, process, losses=()):
        from rl_insight.schema import Loss

        found = [Loss(*loss) for loss in losses]
        return builder.build(process, sequence=self.ticks, sent_ns=time.time_ns(), losses=found)

    def _gauge(self, builder, name, value, step=None, **labels):
        series = builder.add_series(name, "gauge", f"The {name} of the run.", json.dumps(labels))
        builder.add_sample(series, time_ns=time.time_ns(), value=value, step=step)

    def _count(self, builder, process, name, amount, **labels):
        key = (process.process_id, name, json.dumps(labels))
        self.totals[key] = self.totals.get(key, 0.0) + amount
        series = builder.add_series(name, "counter", f"The {name} of the run.", json.dumps(labels))
        builder.add_sample(series, time_ns=time.time_ns(), value=self.totals[key])

    def _observe(self, builder, process, name, values, **labels):
        seen = self.observed.setdefault((process.process_id, name, json.dumps(labels)), [])
        seen.extend(values)
        buckets = {}
        for value in seen:
            buckets[bucket_code(value)] = buckets.get(bucket_code(value), 0) + 1
        series = builder.add_series(name, "histogram", f"The {name} of the run.", json.dumps(labels))
        fields = {"count": len(seen), "total": sum(seen), "minimum": min(seen), "maximum": max(seen)}
        builder.add_histogram(series, time_ns=time.time_ns(), buckets=buckets, **fields)

    def _span(self, builder, name, seconds, segment="duration", **fields):
        self.span_id += 1
        duration_ns = int(seconds * SECOND) if seconds >= 0 else -1
        span_id = fields.pop("span_id", self.span_id)
        start_ns = fields.pop("start_ns", time.time_ns() - max(duration_ns, 0))
        builder.add_span(
            span_id=span_id, trace=(7, span_id), name=name, start_ns=start_ns, duration_ns=duration_ns, segment=segment,
            **fields,
        )  # fmt: skip

    def _session(self, builder, session_id, status):
        builder.add_session(
            session_id=session_id, task_id="t", status=status, time_ns=time.time_ns(), record="{}"
        )  # fmt: skip

    def _trainer_batch(self):
        builder = BatchBuilder()
        step = self.ticks
        for name, value in (
            ("reward_mean", 0.5),
            ("step_time_seconds", 1.5),
            ("throughput_tokens_per_second", 900.0),
            ("staleness_mean", 1.0),
            ("staleness_max", 2.0),
            ("queue_depth", 3.0),
            ("weight_version", step),
        ):
            self._gauge(builder, name, value, step=step)
        self._count(builder, self.trainer, "steps", 1)
        self._span(builder, "train_step", 1.5, step=step, lane="trainer")
        for state in ("wait_for_samples", "update", "sync_weights"):
            self._span(builder, state, 0.4, "state_interval", step=step, lane="trainer")
        self._hardware(builder)
        return self._build(builder, self.trainer, [("spans", "full", self.ticks)])

    def _worker_batch(self, worker):
        builder = BatchBuilder()
        rank = str(worker.rank)
        for state, seconds in (("generate", 0.3), ("tool_call", 0.1), ("reward", 0.02), ("idle", 0.05)):
            self._span(builder, state, seconds, "state_interval", lane=f"rollout_{rank}/slot_0", step=self.ticks)
        self._span(builder, "rollout.sample", 0.5, lane=f"rollout_{rank}/slot_0")
        self._span(builder, "session", 0.5, "session", session_id=f"s{self.ticks}", status="ok")
        self._span(builder, "generate", 0.3, "phase", session_id=f"s{self.ticks}", lane=f"rollout_{rank}/slot_1")
        self._session(builder, f"{rank}-{self.ticks}", "accepted")
        self._session(builder, f"{rank}-{self.ticks}-open", "pending")
        self._span(builder, "session", 0.7, "session", status="error", error="ToolError")
        if self.ticks == 1:
            long_ago = time.time_ns() - 60 * SECOND
            self._span(builder, "tool_call", -1, "state_interval", span_id=worker.rank + 1, start_ns=long_ago)
            self._span(builder, "session", -1, "session", span_id=worker.rank + 11, start_ns=long_ago)
        self._gauge(builder, "running_samples", 4, rank=rank)
        self._gauge(builder, "agent_loop_session_info", 1, sample="1", session=rank)
        self._count(builder, worker, "samples", 2, rank=rank, task="sum")
        self._count(builder, worker, "generated_tokens", 300, rank=rank)
        self._count(builder, worker, "tool_errors", 1, tool="calculator", type="timeout")
        self._observe(builder, worker, "sample_latency_seconds", [0.4, 0.6], rank=rank)
        self._observe(builder, worker, "response_length", [120, 180], task="sum")
        self._observe(builder, worker, "tool_latency_seconds", [0.05, 0.08], tool="calculator")
        return self._build(builder, worker)

    def _tool_batch(self):
        builder = BatchBuilder()
        self._span(builder, "tool.evaluate", 0.05)
        self._count(builder, self.tool, "tool_requests", 1, tool="calculator")
        return self._build(builder, self.tool)

    def _hardware(self, builder):
        for gpu in ("0", "1"):
            labels = {"source": "nvml", "node": "0", "host": "node0", "gpu": gpu}
            for name, value in (
                ("gpu_utilization_ratio", 0.6),
                ("gpu_memory_used_bytes", 6e10),
                ("gpu_memory_total_bytes", 8e10),
                ("gpu_power_watts", 500.0),
                ("gpu_temperature_celsius", 60.0),
            ):
                self._gauge(builder, name, value, **labels)
        labels = {"source": "host", "node": "0", "host": "node0"}
        for name, value in (
            ("node_up", 1.0),
            ("node_cpu_utilization_ratio", 0.3),
            ("node_memory_used_bytes", 1e11),
            ("node_memory_total_bytes", 2e11),
            ("node_disk_used_bytes", 1e12),
            ("node_disk_total_bytes", 2e12),
        ):
            self._gauge(builder, name, value, **labels)
        for name in ("node_network_received_bytes", "node_network_sent_bytes"):
            self._count(builder, self.trainer, name, 1e6, **labels)


@pytest.fixture(scope="session")
def fake_run():
    """Make a run: `fake_run().tick()` returns the batches of one flush of all its processes."""
    return FakeRun


ENGINE_HISTOGRAMS = (
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "sglang:time_to_first_token_seconds",
    "sglang:inter_token_latency_seconds",
    "sglang:e2e_request_latency_seconds",
)
ENGINE_GAUGES = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "sglang:token_usage",
    "sglang:cache_hit_rate",
    "sglang:gen_throughput",
    "sglang:num_used_tokens",
)
ENGINE_COUNTERS = (
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    "vllm:num_preemptions_total",
    "vllm:prefix_cache_hits_total",
    "vllm:prefix_cache_queries_total",
    'vllm:request_success_total{finished_reason="stop"}',
    "sglang:generation_tokens_total",
    "sglang:prompt_tokens_total",
    "sglang:num_requests_total",
)


def exporter_page(number):
    """What engines and a server's own health show at their n-th reading."""
    lines = [f"{name} {number % 7 + 1}" for name in ENGINE_GAUGES]
    lines += [f"{name} {number * 100}" for name in ENGINE_COUNTERS]
    for name in ENGINE_HISTOGRAMS:
        lines += [
            f'{name}_bucket{{le="{bound}"}} {number * share}' for bound, share in ((0.1, 5), (1, 9), ("+Inf", 10))
        ]
        lines += [f"{name}_sum {number}", f"{name}_count {number * 10}"]
    lines += [f"rl_insight_monitor_{name} {number * 2}" for name in SERVER_NAMES]
    return "\n".join([*lines, ""]).encode()


class Exporter:
    """A small HTTP server that shows the metrics of engines."""

    def __init__(self):
        self.readings = 0
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                exporter.readings += 1
                body = exporter_page(exporter.readings)
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *words):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture(scope="session")
def engine_exporter():
    """An endpoint with the metrics of vLLM and SGLang."""
    exporter = Exporter()
    yield exporter
    exporter.close()


class LiveCollector:
    """A collector with its endpoint, fed by a run several times a second until it is closed."""

    def __init__(self, sinks=()):
        self.derived = DerivedMetrics()
        self.collector = InProcessCollector([self.derived, *sinks])
        self.endpoint = MetricsEndpoint(PrometheusRenderer(self.collector, self.derived).render)
        self.url = f"http://{self.endpoint.address}"
        self._run = FakeRun()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._feed)
        self._thread.start()

    def _feed(self):
        while True:
            for batch in self._run.tick():
                self.collector.accept(batch, 1000)
            if self._stop.wait(0.3):
                return

    def close(self):
        self._stop.set()
        self._thread.join()
        self.endpoint.close()
        self.collector.close()


@pytest.fixture
def live_collector():
    """A collector that a run feeds all the time."""
    collector = LiveCollector()
    yield collector
    collector.close()


@pytest.fixture(scope="session")
def new_live_collector():
    """Make collectors that a run feeds; whoever makes one closes it."""
    return LiveCollector


HOST_PROGRAM = """
import os, signal, sys, threading
from pathlib import Path
import rl_insight.stack as stack
directory, server_url = Path(sys.argv[1]), sys.argv[2]
settings = stack.StackSettings(mode="local", restart_delay_s=0.1)
settings.prometheus.port = settings.tempo.port = settings.grafana.port = 0
settings.tempo.otlp_http_port = settings.tempo.otlp_grpc_port = 0
settings.prometheus.scrape_interval_s = 0.5
settings.prometheus.ray_discovery_file = None
for name in ("tempo", "grafana"):
    path = os.environ.get("STAND_IN_" + name.upper())
    getattr(settings, name).binary_path = path
    getattr(settings, name).enabled = path is not None
try:
    with stack.start_stack(settings, directory, stack.MetricsEndpointOfServer(server_url)):
        print("ready", flush=True)
        threading.Event().wait()
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.fixture(scope="session")
def host_program():
    """A program that runs a stack until Ctrl+C, as the server does: give it the data directory and the server's URL."""
    return [sys.executable, "-c", textwrap.dedent(HOST_PROGRAM)]


GRAFANA_VARIABLES = {
    r"\$__rate_interval": "10s",
    r"\$__range": "60s",
    r"\$(project|experiment|run|role|rank|lane|span|node|instance)\b": ".*",
}


@pytest.fixture(scope="session")
def filled_in():
    """Fill the variables of a dashboard's expression in, as Grafana does with everything chosen."""

    def fill(expression):
        for pattern, value in GRAFANA_VARIABLES.items():
            expression = re.sub(pattern, lambda _, value=value: value, expression)
        return expression

    return fill


@pytest.fixture
def free_port():
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
