"""Services are stopped, whichever process started them and however it ended."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import psutil
import pytest

from rl_insight.stack import MetricsEndpointOfServer, stack_status, start_stack, stop_stack
from rl_insight.stack.render import Layout
from rl_insight.stack.service import end_group
from rl_insight.stack.state import remove_state

NOWHERE = MetricsEndpointOfServer("http://127.0.0.1:9")


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
        assert stack.otlp_endpoint == f"http://127.0.0.1:{stack.settings.tempo.otlp_http_port}/v1/traces"
    logs = {name: Layout(tmp_path / "data").log(name) for name in ("tempo", "grafana")}
    for name, path in logs.items():
        assert path.read_text().splitlines()[-1] == f"{name.title()} ends"
    assert logs["grafana"].stat().st_mtime_ns <= logs["tempo"].stat().st_mtime_ns


def test_a_service_that_will_not_end_is_killed_and_the_log_says_so(
    tmp_path, settings, stand_in, alive, pids_of, caplog
):
    program = stand_in(tmp_path / "tempo", "tempo", "3.0.3", stubborn=True)
    chosen = settings(
        prometheus__enabled=False, tempo__enabled=True, tempo__binary_path=str(program), stop_timeout_s=0.5
    )
    stack = start_stack(chosen, tmp_path / "data", NOWHERE)
    pid = pids_of(tmp_path / "data")["tempo"]
    stack.stop()
    stack.stop()
    assert not alive(pid)
    assert f"process {pid} has not ended after 0.5 s: killing it." in caplog.text


def test_another_process_can_stop_the_stack(
    tmp_path, running_host, stand_in, wait_until, alive, prometheus_program, pids_of
):
    tempo = stand_in(tmp_path / "tempo", "tempo", "3.0.3")
    with running_host(tmp_path / "data", STAND_IN_TEMPO=str(tempo)) as host:
        pids = pids_of(tmp_path / "data")
        assert all(map(alive, pids.values()))
        assert stop_stack(tmp_path / "data")
        assert not any(map(alive, pids.values()))
        assert not stop_stack(tmp_path / "data")
        assert host.poll() is None, "whoever started it goes on"
        assert not stack_status(tmp_path / "data").running


def test_ctrl_c_ends_everything(tmp_path, running_host, stand_in, alive, prometheus_program, pids_of):
    grafana = stand_in(tmp_path / "grafana", "grafana", "12.0.0")
    with running_host(tmp_path / "data", STAND_IN_GRAFANA=str(grafana)) as host:
        pids = pids_of(tmp_path / "data")
        host.send_signal(signal.SIGINT)
        assert host.wait(30) == 130
        assert not any(map(alive, pids.values()))
        assert not stack_status(tmp_path / "data").running


def test_what_a_killed_owner_left_is_ended_by_the_next(
    tmp_path, running_host, settings, alive, prometheus_program, pids_of
):
    with running_host(tmp_path) as host:
        orphan = pids_of(tmp_path)["prometheus"]
        host.kill()
        host.wait(30)
        assert alive(orphan)
        assert not stack_status(tmp_path).running
        with start_stack(settings(), tmp_path, NOWHERE):
            assert not alive(orphan)
            assert stack_status(tmp_path).running


@pytest.fixture
def starting_server(request, tmp_path, stand_in, wait_until, prometheus_program):
    """A server whose Prometheus runs and whose Tempo never becomes ready: its process, and the services' pids."""
    tempo = stand_in(tmp_path / "tempo", "tempo", "3.0.3")
    tempo.write_text(tempo.read_text().replace('"/ready"', '"/never"'))
    data = tmp_path / "data"
    words = [
        "--data-dir", str(data), "--stack", "local", "port=0", "otlp_http_port=0", "otlp_grpc_port=0",
        "stack.prometheus.port=0", "stack.tempo.port=0", "stack.tempo.otlp_http_port=0",
        "stack.tempo.otlp_grpc_port=0", f"stack.tempo.binary_path={tempo}", "stack.grafana.enabled=false",
    ]  # fmt: skip
    with (tmp_path / "server.txt").open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "rl_insight.cli", "server", "start", *getattr(request, "param", []), *words],
            stdout=output,
            stderr=output,
        )
    try:
        pids = wait_until(lambda: pids if len(pids := running_pids(data)) == 2 else None)
        yield server, pids
    finally:
        if server.poll() is None:
            server.kill()
        server.wait()
        stop_stack(data)


def running_pids(directory):
    return [service.pid for service in stack_status(directory).services if service.pid is not None]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["term", "ctrl-c"])
def test_a_server_that_is_ended_while_its_stack_starts_leaves_nothing(starting_server, alive, tmp_path, number, code):
    server, pids = starting_server
    assert all(map(alive, pids))
    server.send_signal(number)
    assert server.wait(30) == code, (tmp_path / "server.txt").read_text()
    assert not any(map(alive, pids))
    assert not stack_status(tmp_path / "data").services


@pytest.mark.parametrize("starting_server", [["--detach"]], indirect=True, ids=["detached"])
def test_ctrl_c_also_ends_a_start_in_the_background(starting_server, alive, wait_until):
    command, pids = starting_server
    assert all(map(alive, pids))
    command.send_signal(signal.SIGINT)
    assert command.wait(30) == 130
    wait_until(lambda: not any(map(alive, pids)))


def test_status_names_what_a_killed_server_left(starting_server, tmp_path):
    server, pids = starting_server
    server.kill()
    server.wait()
    words = [sys.executable, "-m", "rl_insight.cli", "server", "status", "--data-dir", str(tmp_path / "data")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    for title, pid in zip(("Prometheus", "Tempo"), pids, strict=True):
        assert f"{title} (pid {pid})" in said
    assert "`rl-insight server stop` stops them" in said
    stop_stack(tmp_path / "data")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "Still running" not in done.stdout


def test_the_next_stop_ends_what_a_server_killed_while_starting_has_left(starting_server, alive, tmp_path):
    server, pids = starting_server
    server.kill()
    server.wait()
    assert all(map(alive, pids))
    assert stop_stack(tmp_path / "data")
    assert not any(map(alive, pids))
    assert not stop_stack(tmp_path / "data")


def test_services_without_a_state_are_found_and_stopped(
    tmp_path, running_host, settings, alive, prometheus_program, pids_of
):
    with running_host(tmp_path / "data") as host, running_host(tmp_path / "other") as other:
        orphan, bystander = pids_of(tmp_path / "data")["prometheus"], pids_of(tmp_path / "other")["prometheus"]
        host.kill()
        host.wait(30)
        (tmp_path / "data" / "stack" / "state.json").unlink()
        with start_stack(settings(), tmp_path / "data", NOWHERE):
            assert not alive(orphan)
        assert alive(bystander)
        assert other.poll() is None


@pytest.fixture
def stubborn_host(tmp_path, running_host, stand_in, prometheus_program, pids_of):
    """A process whose stack has a stop timeout of an hour and a Tempo that does not stop; and the services' pids."""
    tempo = stand_in(tmp_path / "tempo", "tempo", "3.0.3", stubborn=True)
    with running_host(tmp_path / "data", STAND_IN_TEMPO=str(tempo), STOP_TIMEOUT_S="3600") as host:
        yield host, pids_of(tmp_path / "data").values()


def is_asked_to_end(directory):
    return "Tempo is asked to end" in Layout(directory).log("tempo").read_text()


def test_a_second_ctrl_c_does_not_wait_for_a_service_that_will_not_end(stubborn_host, tmp_path, alive, wait_until):
    host, pids = stubborn_host
    host.send_signal(signal.SIGINT)
    wait_until(lambda: is_asked_to_end(tmp_path / "data"))
    host.send_signal(signal.SIGINT)
    assert host.wait(60) == 130
    assert not any(map(alive, pids))


def test_ctrl_c_pressed_again_and_again_ends_a_stack_that_was_ordered_to_stop(
    stubborn_host, tmp_path, alive, wait_until
):
    host, pids = stubborn_host
    remove_state(Layout(tmp_path / "data").root)
    wait_until(lambda: is_asked_to_end(tmp_path / "data"))

    def press():
        host.send_signal(signal.SIGINT)
        return host.poll() is not None

    wait_until(press)
    wait_until(lambda: not any(map(alive, pids)))


def test_a_service_that_survives_being_killed_is_not_waited_for(monkeypatch, caplog):
    monkeypatch.setattr("rl_insight.stack.service._KILL_TIMEOUT_S", 0.1)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as process:
        end_group(process.pid, lambda: False, 0.0)
    assert "has not ended" in caplog.text


def test_an_unreadable_state_of_a_stack_counts_as_none(tmp_path):
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
