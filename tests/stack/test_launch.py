"""The stack as local processes: a real Prometheus, and stand-ins for Tempo and Grafana."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rl_insight.errors import ConfigError
from rl_insight.stack import (
    MetricsEndpointOfServer,
    MissingProgramError,
    StackError,
    stack_status,
    start_stack,
    stop_stack,
)
from rl_insight.stack.render import MARK, Layout

NOWHERE = MetricsEndpointOfServer("http://127.0.0.1:9")


@contextlib.contextmanager
def running_host(host_program, directory, server_url="http://127.0.0.1:9", **environment):
    """The stack in a process of its own; ended when the block ends, whatever happened."""
    child = subprocess.Popen(
        [*host_program, str(directory), server_url],
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
        child.communicate()
        stop_stack(directory)


def pids_of(directory):
    return {service.name: service.pid for service in stack_status(directory).services}


def test_prometheus_scrapes_the_server_and_answers(
    tmp_path, settings, live_collector, query, wait_until, prometheus_program
):
    with start_stack(settings(), tmp_path, MetricsEndpointOfServer(live_collector.url)) as stack:
        status = stack_status(tmp_path)
        assert status.running
        ((service),) = status.services
        assert (service.name, service.state, service.ready) == ("prometheus", "running", True)
        assert service.url == stack.urls["prometheus"]
        expression = 'rl_insight_monitor_steps_total{run_id="demo-1"}'
        assert wait_until(lambda: query(stack.urls["prometheus"], expression))
    assert not stack_status(tmp_path).running


def test_a_server_that_asks_for_a_token_is_scraped_with_it(tmp_path, settings, query, wait_until, prometheus_program):
    import http.server
    import threading

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            allowed = self.headers.get("Authorization") == "Bearer a-secret-token"
            self.send_response(200 if allowed else 401)
            self.end_headers()
            self.wfile.write(b"guarded 1\n" if allowed else b"")

        def log_message(self, *words):
            pass

    guarded = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=guarded.serve_forever, args=(0.05,))
    thread.start()
    server = MetricsEndpointOfServer(f"http://127.0.0.1:{guarded.server_address[1]}", token="a-secret-token")
    try:
        with start_stack(settings(), tmp_path, server) as stack:
            assert wait_until(lambda: query(stack.urls["prometheus"], "guarded"))
            assert "a-secret-token" not in Layout(tmp_path).config("prometheus").read_text()
            assert (tmp_path / "stack" / "prometheus" / "server-token").stat().st_mode & 0o777 == 0o600
    finally:
        guarded.shutdown()
        guarded.server_close()
        thread.join()


def test_targets_come_and_go_while_prometheus_runs(
    tmp_path, settings, engine_exporter, query, wait_until, prometheus_program
):
    def register(*targets):
        partial = tmp_path / "targets.json.partial"
        partial.write_text(json.dumps({"version": 1, "targets": list(targets)}))
        partial.replace(tmp_path / "targets.json")

    target = {
        "url": f"http://{engine_exporter.address}/custom?format=text",
        "job_name": "vllm",
        "labels": {"role": "rollout"},
        "run_id": "r7",
        "added_ns": 5,
    }
    with start_stack(settings(), tmp_path, NOWHERE) as stack:
        url = stack.urls["prometheus"]
        register(target)
        ((labels, _),) = wait_until(lambda: query(url, "vllm:num_requests_running"))
        assert labels["job"] == "vllm"
        assert (labels["run_id"], labels["role"], labels["instance"]) == ("r7", "rollout", engine_exporter.address)
        register()
        wait_until(lambda: not query(url, 'up{job="vllm"}'))
        register(target)
        wait_until(lambda: query(url, 'up{job="vllm"}'))
    with start_stack(settings(), tmp_path, NOWHERE) as stack:
        assert wait_until(lambda: query(stack.urls["prometheus"], 'up{job="vllm"}')), "kept across restarts"


def test_rays_own_discovery_file_is_read(tmp_path, settings, engine_exporter, query, wait_until, prometheus_program):
    ray_file = tmp_path / "ray" / "prom_metrics_service_discovery.json"
    ray_file.parent.mkdir()
    content = json.dumps([{"labels": {"job": "ray"}, "targets": [engine_exporter.address]}])
    ray_file.write_text(content)
    chosen = settings(prometheus__ray_discovery_file=str(ray_file))
    with start_stack(chosen, tmp_path / "data", NOWHERE) as stack:
        assert wait_until(lambda: query(stack.urls["prometheus"], 'up{job="ray"} == 1'))
    assert ray_file.read_text() == content


def test_samples_are_sent_on_to_victoria_metrics(
    tmp_path, settings, live_collector, query, wait_until, free_port, prometheus_program
):
    import shutil

    program = shutil.which("victoria-metrics")
    if program is None:
        pytest.skip("the program victoria-metrics is not installed")
    with (tmp_path / "victoria.log").open("wb") as log:
        victoria = subprocess.Popen(
            [
                program,
                f"-storageDataPath={tmp_path / 'victoria'}",
                f"-httpListenAddr=127.0.0.1:{free_port}",
                "-search.latencyOffset=0s",
            ],
            stdout=log,
            stderr=log,
        )
    url = f"http://127.0.0.1:{free_port}"
    try:
        chosen = settings(prometheus__remote_write_urls=[f"{url}/api/v1/write"])
        with start_stack(chosen, tmp_path / "data", MetricsEndpointOfServer(live_collector.url)):

            def arrived():
                try:
                    return query(url, 'last_over_time(rl_insight_monitor_steps_total{run_id="demo-1"}[5m])')
                except OSError:
                    return None

            assert wait_until(arrived, 60.0)
    finally:
        victoria.terminate()
        victoria.wait(30)


def test_services_start_in_order_and_end_in_reverse(tmp_path, settings, stand_in, prometheus_program):
    chosen = settings(
        tempo__enabled=True,
        tempo__binary_path=str(stand_in(tmp_path / "tempo", "tempo", "3.0.3")),
        grafana__enabled=True,
        grafana__binary_path=str(stand_in(tmp_path / "grafana", "grafana", "13.0.1")),
    )
    with start_stack(chosen, tmp_path / "data", NOWHERE) as stack:
        services = stack_status(tmp_path / "data").services
        assert [service.name for service in services] == ["prometheus", "tempo", "grafana"]
        assert [service.version for service in services][1:] == ["3.0.3", "13.0.1"]
        assert all(service.ready for service in services)
        created = [psutil.Process(service.pid).create_time() for service in services]
        assert created == sorted(created)
        (sink,) = stack.sinks()
        assert sink.get_status()["endpoint"] == stack.otlp_endpoint
        assert stack.otlp_endpoint == f"http://127.0.0.1:{stack.ports.tempo_otlp_http}/v1/traces"
    logs = {name: Layout(tmp_path / "data").log(name) for name in ("tempo", "grafana")}
    for name, path in logs.items():
        assert path.read_text().splitlines()[-1] == f"{name.title()} ends"
    assert logs["grafana"].stat().st_mtime_ns <= logs["tempo"].stat().st_mtime_ns


def test_a_crashed_prometheus_comes_back(
    tmp_path, settings, live_collector, query, wait_until, alive, prometheus_program
):
    with start_stack(settings(), tmp_path, MetricsEndpointOfServer(live_collector.url)) as stack:
        url = stack.urls["prometheus"]
        wait_until(lambda: query(url, "rl_insight_monitor_steps_total"))
        first = pids_of(tmp_path)["prometheus"]
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: pids_of(tmp_path)["prometheus"] not in {None, first})
        wait_until(lambda: stack_status(tmp_path).services[0].ready)
        (service,) = stack_status(tmp_path).services
        assert (service.restarts, service.last_exit) == (1, "signal SIGKILL")
        before = time.time()
        wait_until(lambda: query(url, f"timestamp(rl_insight_monitor_steps_total) > {before}"))
        last = service.pid
    assert not alive(last)


def test_the_pause_before_a_restart_doubles(tmp_path, settings, stand_in, wait_until):
    program = stand_in(tmp_path / "tempo", "tempo", "2.10.7")
    chosen = settings(
        prometheus__enabled=False,
        tempo__enabled=True,
        tempo__binary_path=str(program),
        restart_delay_s=0.05,
        restart_delay_max_s=0.4,
    )
    with start_stack(chosen, tmp_path / "data", NOWHERE):
        (tmp_path / "tempo" / "tempo-crashes").touch()
        os.kill(pids_of(tmp_path / "data")["tempo"], signal.SIGKILL)
        wait_until(lambda: stack_status(tmp_path / "data").services[0].restarts >= 4)
        (service,) = stack_status(tmp_path / "data").services
        assert service.last_exit == "exit code 3"
        (tmp_path / "tempo" / "tempo-crashes").unlink()
        wait_until(lambda: stack_status(tmp_path / "data").services[0].ready)


def test_a_service_that_ends_at_once_is_told_with_its_log_and_nothing_is_left(
    tmp_path, settings, stand_in, prometheus_program, alive
):
    program = stand_in(tmp_path / "tempo", "tempo", "3.0.3")
    (tmp_path / "tempo" / "tempo-crashes").touch()
    chosen = settings(tempo__enabled=True, tempo__binary_path=str(program))
    with pytest.raises(
        StackError, match=r"(?s)Tempo did not start: it ended with exit code 3.*no space left"
    ) as caught:
        start_stack(chosen, tmp_path / "data", NOWHERE)
    assert str(Layout(tmp_path / "data").log("tempo")) in str(caught.value)
    assert not stack_status(tmp_path / "data").services
    left = [child for child in psutil.Process().children() if child.name() == "prometheus"]
    assert not left


def test_a_service_that_never_gets_ready_is_given_up(tmp_path, settings, stand_in):
    program = stand_in(tmp_path / "tempo", "tempo", "3.0.3")
    program.write_text(program.read_text().replace('"/ready"', '"/never"'))
    chosen = settings(
        prometheus__enabled=False, tempo__enabled=True, tempo__binary_path=str(program), ready_timeout_s=1.5
    )
    with pytest.raises(StackError, match=r"did not become ready: .*/ready did not answer 200"):
        start_stack(chosen, tmp_path / "data", NOWHERE)


def test_a_service_that_will_not_end_is_killed(tmp_path, settings, stand_in, alive):
    program = stand_in(tmp_path / "tempo", "tempo", "3.0.3", stubborn=True)
    chosen = settings(
        prometheus__enabled=False, tempo__enabled=True, tempo__binary_path=str(program), stop_timeout_s=0.5
    )
    stack = start_stack(chosen, tmp_path / "data", NOWHERE)
    pid = pids_of(tmp_path / "data")["tempo"]
    stack.stop()
    stack.stop()
    assert not alive(pid)


def test_another_process_can_stop_the_stack(tmp_path, host_program, stand_in, wait_until, alive, prometheus_program):
    tempo = stand_in(tmp_path / "tempo", "tempo", "3.0.3")
    with running_host(host_program, tmp_path / "data", STAND_IN_TEMPO=str(tempo)) as host:
        pids = pids_of(tmp_path / "data")
        assert all(map(alive, pids.values()))
        assert stop_stack(tmp_path / "data")
        assert not any(map(alive, pids.values()))
        assert not stop_stack(tmp_path / "data")
        assert host.poll() is None, "whoever started it goes on"
        assert not stack_status(tmp_path / "data").running


def test_ctrl_c_ends_everything(tmp_path, host_program, stand_in, alive, prometheus_program):
    grafana = stand_in(tmp_path / "grafana", "grafana", "12.0.0")
    with running_host(host_program, tmp_path / "data", STAND_IN_GRAFANA=str(grafana)) as host:
        pids = pids_of(tmp_path / "data")
        host.send_signal(signal.SIGINT)
        assert host.wait(30) == 130
        assert not any(map(alive, pids.values()))
        assert not stack_status(tmp_path / "data").running


def test_what_a_killed_owner_left_is_ended_by_the_next(tmp_path, host_program, settings, alive, prometheus_program):
    with running_host(host_program, tmp_path) as host:
        orphan = pids_of(tmp_path)["prometheus"]
        host.kill()
        host.wait(30)
        assert alive(orphan)
        assert not stack_status(tmp_path).running
        with start_stack(settings(), tmp_path, NOWHERE):
            assert not alive(orphan)
            assert stack_status(tmp_path).running


def test_two_data_directories_do_not_disturb_each_other(tmp_path, settings, alive, prometheus_program):
    first = start_stack(settings(), tmp_path / "a", NOWHERE)
    with start_stack(settings(), tmp_path / "b", NOWHERE) as second:
        assert first.urls != second.urls
        other = pids_of(tmp_path / "b")["prometheus"]
        first.stop()
        assert alive(other)
        assert stack_status(tmp_path / "b").services[0].ready
    assert not alive(other)


def test_one_data_directory_has_one_stack(tmp_path, settings, prometheus_program):
    with start_stack(settings(), tmp_path, NOWHERE):
        with pytest.raises(StackError, match="another process runs the stack"):
            start_stack(settings(), tmp_path, NOWHERE)
        assert stack_status(tmp_path).running


def test_ports_that_are_taken_are_named_with_their_keys(tmp_path, settings, prometheus_program):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        with pytest.raises(StackError, match=rf"{port} for Prometheus \(stack.prometheus.port\)"):
            start_stack(settings(prometheus__port=port), tmp_path, NOWHERE)


def test_everything_that_is_missing_is_told_at_once(tmp_path, settings, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    chosen = settings(tempo__enabled=True, grafana__enabled=True)
    with pytest.raises(MissingProgramError) as caught:
        start_stack(chosen, tmp_path, NOWHERE)
    text = str(caught.value)
    assert isinstance(caught.value, ConfigError), "so that the command line ends with exit code 2"
    for word in ("Prometheus 2.30.0", "Tempo 2.0.0", "Grafana 10.0.0", "--local-archive", "binary_path"):
        assert word in text


def test_a_file_of_the_users_is_left_alone(tmp_path, settings, prometheus_program):
    path = Layout(tmp_path).config("prometheus")
    path.parent.mkdir(parents=True)
    path.write_text("scrape_configs: []\n")
    with pytest.raises(StackError, match="was not written by rl-insight"):
        start_stack(settings(), tmp_path, NOWHERE)
    assert path.read_text() == "scrape_configs: []\n"
    path.unlink()
    with start_stack(settings(), tmp_path, NOWHERE):
        assert MARK in path.read_text()


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"mode": "kubernetes"}, "stack.mode"),
        ({"ready_timeout_s": 0.0}, "stack.ready_timeout_s"),
        ({"prometheus__port": 70_000}, "stack.prometheus.port"),
        ({"grafana__port": -1}, "stack.grafana.port"),
        ({"restart_delay_s": float("nan")}, "stack.restart_delay_s"),
    ],
)
def test_settings_out_of_range_are_refused(tmp_path, settings, changes, key):
    with pytest.raises(ConfigError, match=key):
        start_stack(settings(**changes), tmp_path, NOWHERE)


@pytest.mark.parametrize(
    ("version", "present", "absent"),
    [("3.0.3", "live_store:", "ingester:"), ("2.10.7", "ingester:", "live_store:")],
)
def test_tempo_gets_the_configuration_of_its_version(tmp_path, settings, stand_in, version, present, absent):
    program = stand_in(tmp_path / "tempo", "tempo", version)
    chosen = settings(prometheus__enabled=False, tempo__enabled=True, tempo__binary_path=str(program))
    with start_stack(chosen, tmp_path / "data", NOWHERE):
        text = Layout(tmp_path / "data").config("tempo").read_text()
    assert present in text
    assert absent not in text


def test_the_state_of_a_stack_is_no_state_when_it_cannot_be_read(tmp_path):
    (tmp_path / "stack").mkdir()
    (tmp_path / "stack" / "state.json").write_text("{")
    assert not stack_status(tmp_path).running
    assert not stop_stack(tmp_path)


def test_a_pid_that_means_another_process_by_now_is_not_ended(tmp_path):
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        root = tmp_path / "stack"
        root.mkdir()
        service = {
            "name": "prometheus", "title": "Prometheus", "state": "running", "url": "http://127.0.0.1:9",
            "pid": bystander.pid, "created": 12345.0,
        }  # fmt: skip
        state = {"mode": "local", "owner_pid": 1, "owner_created": 1.0, "services": [service]}
        (root / "state.json").write_text(json.dumps(state))
        assert not stack_status(tmp_path).running
        assert stop_stack(tmp_path)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_configuration_survives_odd_paths(tmp_path, settings, prometheus_program):
    directory = Path(tmp_path) / 'odd "name" $HOME: #1'
    with start_stack(settings(), directory, NOWHERE):
        assert stack_status(directory).services[0].ready
