"""Fixtures of the stack's tests: real programs, a real training run, and fakes for missing programs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import threading
import time
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from rl_insight.collector import Collector
from rl_insight.metrics.endpoint import MetricsEndpoint
from rl_insight.schema import BatchBuilder, Process, encode
from rl_insight.server.state import read_record
from rl_insight.stack import StackSettings, stack_status, stop_stack

ROOT = Path(__file__).parents[2]


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
    """Return whether a process is running."""
    return _alive


STAND_IN = '''\
#!{python}
"""Behaves as {title} does towards whoever starts it."""
import http.server, os, re, signal, sys
if "--version" in sys.argv:
    print("{version_line}")
    sys.exit(0)
if "-help" in sys.argv:
    print("""Usage of {name}:
  -config.file string
    \\tConfiguration file to load
  -live-store.wal.path string
    \\tPath at which to store WAL blocks. (default "/var/tempo/live-store/traces")
  -backend-scheduler.local-work-path string
    \\tLocal path to store state. (default "/var/tempo")
  -server.path-prefix string
    \\tBase path. (default "/")""", file=sys.stderr)
    sys.exit(0)
config = next(word.partition("=")[2] for word in sys.argv[1:] if word.startswith(("-config", "--config")))
text = open(config).read()
port = int(re.search(r"{port_pattern}", text).group(1))
if os.path.exists(os.path.join(os.path.dirname(__file__), "{name}-crashes")):
    print("{title} cannot go on: no space left", flush=True)
    sys.exit(3)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        hangs = os.path.exists(os.path.join(os.path.dirname(__file__), "{name}-hangs"))
        ready = self.path == "{ready}" and not hangs
        self.send_response(200 if ready else 404)
        self.end_headers()
    def log_message(self, *words):
        pass
def end(*_):
    print("{title} ends", flush=True)
    os._exit(0)
def refuse(*_):
    print("{title} is asked to end", flush=True)
signal.signal(signal.SIGTERM, {on_term})
print("{title} starts", flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
'''


def write_stand_in(directory: Path, name: str, version: str, *, stubborn: bool = False) -> Path:
    """Write a program that behaves like Tempo or Grafana when started, queried and stopped."""
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
            on_term="refuse" if stubborn else "end",
        )
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def stand_in():
    """Write stand-ins for Tempo and Grafana: `stand_in(directory, "tempo", "3.0.3")` returns the program's path."""
    return write_stand_in


PAYLOADS = {path.stem: path.read_text() for path in (Path(__file__).parent / "payloads").iterdir()}
CUMULATIVE = re.compile(r"^(\S+(?:_total|_bucket|_count|_sum)(?:\{.*\})?) (\S+)$", re.MULTILINE)


def exporter_page(name, number):
    """An exporter's page at the n-th scrape: a recorded page whose counters grow."""
    return CUMULATIVE.sub(lambda match: f"{match[1]} {float(match[2]) * number}", PAYLOADS[name]).encode()


class Exporter:
    """Serves the recorded pages, `/vllm`, `/sglang`, `/tq`, `/gpus` and `/node`; any other path is vLLM's."""

    def __init__(self):
        self.readings = 0
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                exporter.readings += 1
                name = self.path.lstrip("/")
                body = exporter_page(name if name in PAYLOADS else "vllm", exporter.readings)
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
    """An endpoint with recorded pages of engines and hardware."""
    exporter = Exporter()
    yield exporter
    exporter.close()


class LiveCollector:
    """A collector with its endpoint, fed by one process that counts steps, until it is closed."""

    def __init__(self):
        self.collector = Collector()
        self.endpoint = MetricsEndpoint(self.collector.metrics_page)
        self.url = f"http://{self.endpoint.address}"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._feed)
        self._thread.start()

    def _feed(self):
        process = Process(process_id="p1", run_id="demo-1", host="node0", pid=1)
        sequence = 0
        while not self._stop.wait(0.3):
            sequence += 1
            builder = BatchBuilder()
            builder.add_sample(
                builder.add_series("steps", "counter", "Steps.", "{}"), time_ns=time.time_ns(), value=sequence
            )
            self.collector.ingest(encode(builder.build(process, sequence=sequence, sent_ns=time.time_ns())))

    def close(self):
        self._stop.set()
        self._thread.join()
        self.endpoint.close()
        self.collector.close()


@pytest.fixture
def live_collector():
    """A collector that a run feeds continuously."""
    collector = LiveCollector()
    yield collector
    collector.close()


VERL_METRICS = [
    "training/global_step", "timing_s/step", "timing_s/gen", "timing_s/update_actor", "perf/throughput",
    "perf/mfu/actor", "timing_per_token_ms/gen", "actor/pg_loss", "actor/kl_loss", "critic/vf_loss", "actor/entropy",
    "actor/grad_norm", "critic/grad_norm", "actor/ppo_kl", "actor/pg_clipfrac", "actor/lr", "critic/lr",
    "response_length/clip_ratio", "perf/max_memory_allocated_gb", "perf/max_memory_reserved_gb",
    "perf/cpu_memory_used_gb", "global_seqlen/balanced_max", "training/rollout_probs_diff_mean",
    "training/off_policy/trajectory_staleness/mean", "val/test_score/gsm8k",
    *(f"{name}/{end}" for name in ("critic/score", "critic/rewards", "critic/advantages", "response_length",
                                   "prompt_length", "num_turns") for end in ("min", "mean", "max")),
]  # fmt: skip

COMPANION = """
import sys
import rl_insight as insight
from rl_insight.hardware.exporter import AMD_GPU, ExporterMapping, ExporterSource, ExporterSeries
url, run_id, pages = sys.argv[1:]
insight.init(
    "examples", "async_grpo", {"server": {"backend": "http", "url": url}}, run_id=run_id, role="driver", rank=0
)
network = ExporterMapping(
    {
        "node_network_receive_bytes_total": ExporterSeries("network_received_bytes", kind="node"),
        "node_network_transmit_bytes_total": ExporterSeries("network_sent_bytes", kind="node"),
    }
)
sources = [ExporterSource(pages + "/gpus", AMD_GPU), ExporterSource(pages + "/node", network, name="node"), "host"]
hardware = insight.monitor_hardware(sources=sources, interval_s=1.0)
session = insight.agent_loop_session(experiment_name="async_grpo", sample=0, session=0, global_steps=1)
turn = {**session.identity, "monitor.trace_source": "gateway", "turn": 0, "type": "generate", "tools": "search",
        "prompt_tokens": 10, "completion_tokens": 20, "finish_reason": "stop", "status": "success"}
with insight.trace_span("gateway_generation", turn):
    pass
task = {**session.identity, "monitor.trace_source": "task", "task_name": "math", "status": "success", "reward": 1.0,
        "error": ""}
with insight.trace_span("agent_task", task):
    pass
with insight.session(task_id="whole") as sample:
    sample.finalize("accepted", reward=1)
session.finish(trajectories=[{"chain_id": 1, "reward_score": 1.0, "num_turns": 1}], status="success")
for name in sys.stdin.readline().split():  # what verl logs
    insight.metric_gauge(name, 0.5)
insight.set_step(1)
insight.metric_gauge("loss", float("nan"))  # diagnosis finds that
insight.metric_count("refused", -1)  # a counter cannot fall: counted as lost
sys.stdin.read()
hardware.stop()
insight.finish()
"""


class DemoStack:
    """A server with its stack and the example training, as a team runs them: each is a separate process.

    Hardware that this machine may lack is simulated with recorded pages: GPUs for the monitor, engines for Prometheus.
    """

    RUN_ID = "demo-1"

    def __init__(self, directory, exporter, *words):
        self.data = directory / "data"
        self._directory = directory
        self._children = []
        kept = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
        self._environment = {
            **{key: value for key, value in kept.items() if not key.startswith("RL_INSIGHT_")},
            "RL_INSIGHT_DATA_DIR": str(self.data),
            "RL_INSIGHT_RUN_ID": self.RUN_ID,
            "TMPDIR": str(directory),
            "GOMAXPROCS": "1",
        }
        ports = [f"{key}=0" for key in ("port", "otlp_http_port", "otlp_grpc_port", "stack.prometheus.port")]
        usual = ["stack.prometheus.scrape_interval_s=1", "stack.prometheus.ray_discovery_file=null"]
        try:
            self._insight("start", "--detach", "--stack", "local", *ports, *usual, *words)
            self.url = read_record(self.data).url
            self._insight("targets", "add", "--job", "engines", "--run", self.RUN_ID,
                          *(f"http://{exporter.address}/{name}" for name in ("vllm", "sglang", "tq")))  # fmt: skip
            options = ["--server", self.url, "--speed", "4", "--workers", "2", "--errors", "--hang"]
            self._start("-m", "examples.async_grpo", *options)
            self._start("-c", COMPANION, self.url, self.RUN_ID, f"http://{exporter.address}")
            self._children[-1].stdin.write(" ".join(VERL_METRICS).encode() + b"\n")
            self._children[-1].stdin.flush()
        except BaseException:
            self.close()
            raise

    @property
    def urls(self):
        """The addresses of the services by name."""
        return {service.name: service.url for service in stack_status(self.data).services}

    def metrics(self, accept="text/plain"):
        request = urllib.request.Request(f"{self.url}/metrics", headers={"Accept": accept})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20) as answer:
            return answer.read().decode()

    def _insight(self, *words):
        done = subprocess.run(
            [sys.executable, "-m", "rl_insight.cli", "server", *words],
            env=self._environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            pytest.fail(f"rl-insight server {words[0]}: {done.stdout}{done.stderr}")

    def _start(self, *words):
        with (self._directory / f"output-{len(self._children)}.txt").open("wb") as output:
            self._children.append(
                subprocess.Popen(
                    [sys.executable, *words], cwd=ROOT, env=self._environment,
                    stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True,
                )
            )  # fmt: skip

    def close(self):
        """Stop the training, the server and its stack."""
        for child in self._children:
            child.stdin.close()
            if child is self._children[0]:
                child.send_signal(signal.SIGINT)
        try:
            for child in self._children:
                child.wait(30)
        finally:
            for child in self._children:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
            self._insight("stop")


@pytest.fixture(scope="session")
def new_demo_stack(engine_exporter):
    """Start a server with its stack and the demo: `new_demo_stack(directory, "key=value")`; the caller closes it."""

    def start(directory, *words):
        return DemoStack(directory, engine_exporter, *words)

    return start


HOST_PROGRAM = """
import faulthandler, os, signal, sys, threading
faulthandler.dump_traceback_later(45)  # says where it hangs before a test gives up
from pathlib import Path
import rl_insight.stack as stack
directory, server_url = Path(sys.argv[1]), sys.argv[2]
settings = stack.StackSettings(mode="local", restart_delay_s=0.1)
settings.stop_timeout_s = float(os.environ.get("STOP_TIMEOUT_S", "10"))
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


@pytest.fixture
def running_host():
    """Run a stack in a separate process: `with running_host(directory, NAME=value) as process`; stopped afterward."""
    return _running_host


@contextlib.contextmanager
def _running_host(directory, **environment):
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOST_PROGRAM), str(directory), "http://127.0.0.1:9"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        line = child.stdout.readline()
        assert line == "ready\n", child.stderr.read()
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        print(child.communicate()[1])
        stop_stack(directory)


@pytest.fixture(scope="session")
def pids_of():
    """The pids of the services of a data directory, by name."""
    return lambda directory: {service.name: service.pid for service in stack_status(directory).services}


GRAFANA_VARIABLES = {
    r"\$__rate_interval": "10s",
    r"\$__range": "60s",
    r"\$(project|experiment|run|role|rank|lane|span|node|instance|step|sample|session|trajectory)\b": ".*",
}


@pytest.fixture(scope="session")
def filled_in():
    """Substitute the variables in a dashboard's expression, as Grafana does with All selected."""

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
