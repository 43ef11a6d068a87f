"""The stack as local processes: a real Prometheus, and fakes for Tempo and Grafana."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request

import psutil
import pytest

from rl_insight.errors import ConfigError
from rl_insight.stack import MetricsEndpointOfServer, MissingProgramError, StackError, stack_status, start_stack
from rl_insight.stack.render import Layout

NOWHERE = MetricsEndpointOfServer("http://127.0.0.1:9")


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
            self.send_header("Content-Type", "text/plain; version=0.0.4")
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
                    urllib.request.urlopen(f"{url}/internal/force_flush", timeout=10).close()  # shows what came at once
                    return query(url, 'last_over_time(rl_insight_monitor_steps_total{run_id="demo-1"}[5m])')
                except OSError:
                    return None

            assert wait_until(arrived, 60.0)
    finally:
        victoria.terminate()
        victoria.wait(30)


def test_a_crashed_prometheus_comes_back(
    tmp_path, settings, live_collector, query, wait_until, alive, prometheus_program, pids_of
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


def test_the_pause_before_a_restart_doubles(tmp_path, settings, stand_in, wait_until, pids_of):
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


def test_a_service_that_ends_at_once_is_reported_with_its_log_and_nothing_is_left(
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


def test_a_service_that_never_gets_ready_is_abandoned(tmp_path, settings, stand_in):
    program = stand_in(tmp_path / "tempo", "tempo", "3.0.3")
    program.write_text(program.read_text().replace('"/ready"', '"/never"'))
    chosen = settings(
        prometheus__enabled=False, tempo__enabled=True, tempo__binary_path=str(program), ready_timeout_s=1.5
    )
    with pytest.raises(StackError, match=r"did not become ready: .*/ready did not respond with 200"):
        start_stack(chosen, tmp_path / "data", NOWHERE)


def test_two_data_directories_do_not_disturb_each_other(tmp_path, settings, alive, prometheus_program, pids_of):
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


def test_everything_that_is_missing_is_reported_at_once(tmp_path, settings, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    chosen = settings(tempo__enabled=True, grafana__enabled=True)
    with pytest.raises(MissingProgramError) as caught:
        start_stack(chosen, tmp_path, NOWHERE)
    text = str(caught.value)
    assert isinstance(caught.value, ConfigError), "so that the command line ends with exit code 2"
    for word in (
        "Prometheus 2.30.0",
        "Tempo 2.4.0",
        "Grafana 10.0.0",
        "--local-archive",
        "binary_path",
        "stack.grafana.enabled=false",
    ):
        assert word in text


def test_a_program_may_be_named_by_a_relative_path(tmp_path, settings, stand_in, monkeypatch):
    stand_in(tmp_path / "tempo", "tempo", "3.0.3")
    monkeypatch.chdir(tmp_path)
    chosen = settings(prometheus__enabled=False, tempo__enabled=True, tempo__binary_path="tempo/tempo")
    with start_stack(chosen, tmp_path / "data", NOWHERE):
        assert stack_status(tmp_path / "data").services[0].ready


def test_a_service_that_is_alive_and_not_ready_is_restarted(tmp_path, settings, stand_in, pids_of, wait_until):
    program = stand_in(tmp_path / "tempo", "tempo", "3.0.3")
    chosen = settings(
        prometheus__enabled=False, tempo__enabled=True, tempo__binary_path=str(program), ready_timeout_s=4.0
    )
    with start_stack(chosen, tmp_path / "data", NOWHERE):
        first = pids_of(tmp_path / "data")["tempo"]
        (program.parent / "tempo-hangs").touch()
        wait_until(lambda: stack_status(tmp_path / "data").services[0].restarts == 1)
        (program.parent / "tempo-hangs").unlink()
        wait_until(lambda: stack_status(tmp_path / "data").services[0].ready)
        (service,) = stack_status(tmp_path / "data").services
    assert service.pid != first
    assert service.last_exit == "no response for 4 s"
