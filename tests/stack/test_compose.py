"""The stack as containers: the Compose file, and the calls to `docker compose`."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rl_insight.stack import (
    MetricsEndpointOfServer,
    MissingProgramError,
    StackError,
    stack_status,
    start_stack,
    stop_stack,
)
from rl_insight.stack.compose import container_user, engine_answers, project_name
from rl_insight.stack.render import Layout

NOWHERE = MetricsEndpointOfServer("http://127.0.0.1:9")

DOCKER = """\
#!{python}
import json, os, sys, time
here = os.path.dirname(os.path.abspath(__file__))
words = sys.argv[1:]
with open(os.path.join(here, "calls"), "a") as stream:
    stream.write(json.dumps(words) + "\\n")
if words[0] == "version" and not os.path.exists(os.path.join(here, "engine")):
    sys.exit("Cannot connect to the Docker daemon")
if "up" in words and os.path.exists(os.path.join(here, "broken")):
    sys.exit("container tempo is unhealthy")
running = os.path.join(here, "running")
if "up" in words:
    open(running, "w").close()
    if os.path.exists(os.path.join(here, "slow")):
        time.sleep(600)
if "down" in words:
    os.unlink(running)
if "ps" in words and os.path.exists(running):
    for name in ("prometheus", "tempo", "grafana"):
        print(json.dumps({{"Service": name, "State": "running"}}))
"""


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """A fake `docker` with a responsive engine; its folder records the calls."""
    home = tmp_path / "docker-bin"
    home.mkdir()
    path = home / "docker"
    path.write_text(DOCKER.format(python=sys.executable))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    (home / "engine").touch()
    monkeypatch.setenv("PATH", f"{home}:{os.environ['PATH']}")
    return home


@pytest.fixture
def chosen(settings):
    return settings(mode="compose", tempo__enabled=True, grafana__enabled=True)


def calls(docker):
    return [json.loads(line) for line in (docker / "calls").read_text().splitlines()]


def test_containers_are_started_described_and_removed(tmp_path, docker, chosen):
    data = tmp_path / "data"
    with start_stack(chosen, data, NOWHERE) as stack:
        assert stack.mode == "compose"
        assert set(stack.urls) == {"prometheus", "tempo", "grafana"}
        status = stack_status(data)
        assert status.running
        assert [(one.name, one.state) for one in status.services] == [
            ("prometheus", "running"), ("tempo", "running"), ("grafana", "running")
        ]  # fmt: skip
        assert stack.otlp_endpoint
    assert not stack_status(data).running
    name, file = project_name(data / "stack"), str(Layout(data).compose_file)
    up, down = [call for call in calls(docker) if call[0] == "compose" and call[-1] != "version" and "ps" not in call]
    common = ["compose", "--project-name", name, "--file", file]
    assert up[:5] == down[:5] == common
    assert up[5:8] == ["up", "--detach", "--wait"]
    assert down[5] == "down"
    assert "--volumes" not in down, "what was stored stays"


def test_another_process_can_stop_the_containers(tmp_path, docker, chosen):
    stack = start_stack(chosen, tmp_path / "data", NOWHERE)
    code = "import sys, pathlib, rl_insight.stack as s; print(s.stop_stack(pathlib.Path(sys.argv[1])))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "data")], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n"
    assert not (docker / "running").exists()
    stack.stop()


def test_auto_takes_containers_where_an_engine_answers_and_else_processes(
    tmp_path, docker, settings, prometheus_program
):
    assert engine_answers()
    (docker / "engine").unlink()
    assert not engine_answers()
    with start_stack(settings(mode="auto"), tmp_path / "data", NOWHERE) as stack:
        assert stack.mode == "local"
    (docker / "engine").touch()
    with start_stack(settings(mode="auto"), tmp_path / "data", NOWHERE) as stack:
        assert stack.mode == "compose"


def test_without_an_engine_containers_are_refused(tmp_path, docker, chosen):
    (docker / "engine").unlink()
    with pytest.raises(MissingProgramError, match=r"no container engine answers.*stack.mode=local"):
        start_stack(chosen, tmp_path / "data", NOWHERE)


def test_containers_that_do_not_become_healthy_are_removed(tmp_path, docker, chosen):
    (docker / "broken").touch()
    with pytest.raises(StackError, match="`docker compose up` failed: container tempo is unhealthy"):
        start_stack(chosen, tmp_path / "data", NOWHERE)
    assert "down" in calls(docker)[-1]
    assert not stack_status(tmp_path / "data").running
    assert not stop_stack(tmp_path / "data")


def test_a_server_that_is_ended_while_its_containers_start_removes_them(tmp_path, docker, wait_until):
    (docker / "slow").touch()
    words = [
        "--data-dir", str(tmp_path / "data"), "--stack", "compose", "port=0", "otlp_http_port=0", "otlp_grpc_port=0",
        "stack.prometheus.port=0", "stack.tempo.enabled=false", "stack.grafana.enabled=false",
    ]  # fmt: skip
    server = subprocess.Popen([sys.executable, "-m", "rl_insight.cli", "server", "start", *words])
    try:
        wait_until((docker / "running").exists)
        server.terminate()
        assert server.wait(30) == 143
    finally:
        server.kill()
        server.wait()
    assert "down" in calls(docker)[-1]
    assert not stack_status(tmp_path / "data").running


@pytest.fixture
def compose_file(tmp_path, docker, chosen):
    with start_stack(chosen, tmp_path / "data", NOWHERE):
        pass
    return Layout(tmp_path / "data").compose_file


def test_the_compose_file_is_pinned_healthy_and_without_root(compose_file):
    content = yaml.safe_load(compose_file.read_text())
    assert re.fullmatch(r"[a-z0-9][a-z0-9_-]*", content["name"])
    services = content["services"]
    assert set(services) == {"prometheus", "tempo", "grafana"}
    for service in services.values():
        assert re.fullmatch(r"[\w/.-]+:v?\d+\.\d+\.\d+", service["image"])
        assert service["user"] == container_user()
        assert not service["user"].startswith("0:")
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        for volume in service["volumes"]:
            assert Path(volume["source"]).is_dir()
        for name, condition in service["depends_on"].items():
            assert name in services
            assert condition["condition"] in {"service_healthy", "service_started"}
    for name in ("prometheus", "tempo", "grafana"):
        assert services[name]["healthcheck"]["test"][0] == "CMD"
        assert "http://127.0.0.1:" in services[name]["healthcheck"]["test"][-1]
    # Tempo's image has neither a shell nor wget.
    assert services["tempo"]["healthcheck"]["test"][1:3] == ["/tempo", "-health"]
    assert services["grafana"]["depends_on"] == {
        "prometheus": {"condition": "service_healthy"}, "tempo": {"condition": "service_healthy"}
    }  # fmt: skip


def test_containers_find_their_files_at_a_path_that_any_user_can_reach(compose_file):
    """A container that does not run as root has no access below /root."""
    root = compose_file.parent
    services = yaml.safe_load(compose_file.read_text())["services"]
    for name in ("prometheus", "tempo", "grafana"):
        volume = services[name]["volumes"][0]
        assert (volume["source"], volume["target"]) == (str(root), "/rl-insight-stack")
        words = [word for word in services[name]["command"] if str(root) in word]
        assert words == []
        config = next(word.partition("=")[2] for word in services[name]["command"] if "config" in word)
        text = (root / Path(config).relative_to("/rl-insight-stack")).read_text()
        assert "/rl-insight-stack/" in text
        assert str(root) not in text
    for path in (root / "grafana" / "provisioning").rglob("*.yml"):
        assert str(root) not in path.read_text()


def test_own_dashboards_are_mounted(tmp_path, docker, chosen):
    chosen.grafana.dashboards_dir = str(tmp_path / "mine")
    with pytest.raises(StackError, match="does not exist"):
        start_stack(chosen, tmp_path / "data", NOWHERE)
    (tmp_path / "mine").mkdir()
    with start_stack(chosen, tmp_path / "data", NOWHERE):
        services = yaml.safe_load(Layout(tmp_path / "data").compose_file.read_text())["services"]
        provisioning = Layout(tmp_path / "data").root / "grafana" / "provisioning" / "dashboards" / "rl-insight.yml"
        providers = yaml.safe_load(provisioning.read_text())["providers"]
    mine = str(tmp_path / "mine")
    assert {"type": "bind", "source": mine, "target": mine, "read_only": True} in services["grafana"]["volumes"]
    assert [provider["options"]["path"] for provider in providers] == ["/rl-insight-stack/grafana/dashboards", mine]


def test_tempo_may_write_to_its_default_directories(compose_file):
    services = yaml.safe_load(compose_file.read_text())["services"]
    assert {
        "type": "bind", "source": str(compose_file.parent / "tempo" / "data"), "target": "/var/tempo"
    } in services["tempo"]["volumes"]  # fmt: skip


def test_the_image_of_grafana_cannot_send_it_elsewhere(compose_file):
    environment = yaml.safe_load(compose_file.read_text())["services"]["grafana"]["environment"]
    assert set(environment) == {f"GF_PATHS_{name}" for name in ("DATA", "LOGS", "PLUGINS", "PROVISIONING")}
    root = compose_file.parent
    assert all((root / Path(path).relative_to("/rl-insight-stack")).is_dir() for path in environment.values())


@pytest.fixture
def compose_client(monkeypatch):
    """A real client of Compose, and its version; `config` needs no engine."""
    monkeypatch.setenv("PATH", os.environ["PATH"].partition(":")[2])  # without the stand-in
    for words in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(words[0]) is None:
            continue
        done = subprocess.run([*words, "version", "--short"], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return words, done.stdout.strip().removeprefix("v")
    return pytest.skip("no client of Docker Compose is installed")


def test_compose_itself_accepts_the_file(compose_file, compose_client):
    words, version = compose_client
    text = compose_file.read_text()
    if version.startswith("1."):
        # The old client takes the project's name from the command line only.
        text = re.sub(r"^name: .*\n", "", text, flags=re.MULTILINE)
    checked = compose_file.with_name("checked.yaml")
    checked.write_text(text)
    done = subprocess.run(
        [*words, "--project-name", "rl-insight-test", "--file", str(checked), "config"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    own = yaml.safe_load(compose_file.read_text())["services"]
    assert {name: service["image"] for name, service in services.items()} == {
        name: service["image"] for name, service in own.items()
    }


def test_two_data_directories_are_two_projects(tmp_path):
    assert project_name(tmp_path / "a") != project_name(tmp_path / "b")


def test_a_dollar_sign_in_a_path_is_not_a_variable(tmp_path, docker, chosen):
    with start_stack(chosen, tmp_path / "a$HOME", NOWHERE):
        text = Layout(tmp_path / "a$HOME").compose_file.read_text()
    assert "a$$HOME" in text
    assert not re.search(r"(?<!\$)\$(?!\$)", text)
