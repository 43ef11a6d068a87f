"""A fresh environment, three commands, and the first span appears; the disk space that it takes."""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.packaging.interpreters import interpreters, run_program

ROOT = Path(__file__).parents[2]
MEGABYTE = 1_000_000
pytestmark = pytest.mark.slow

_TRAIN = """
import rl_insight as insight
insight.init("math", "first")
with insight.step(1), insight.trace_state("rollout"):
    pass
insight.finish()
"""


def _installed_bytes(environment):
    (packages,) = environment.glob("lib/python*/site-packages")
    not_ours = {"pip", "setuptools", "pkg_resources", "_distutils_hack"}
    files = [file for file in packages.rglob("*") if file.is_file()]
    return sum(
        file.stat().st_size for file in files if file.relative_to(packages).parts[0].split("-")[0] not in not_ours
    )


@pytest.mark.usefixtures("report_bundle")
@pytest.mark.parametrize(("version", "program"), [one for one in interpreters() if one[0] != "3.10"])
def test_three_commands_lead_from_a_fresh_environment_to_the_first_span(tmp_path, version, program):
    environment, data = tmp_path / "environment", tmp_path / "data"
    run_program(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    run_program(program, "-m", "venv", environment)
    programs = environment / "bin"
    run_program(programs / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", f"{wheel}[server]")
    assert _installed_bytes(environment) <= 200 * MEGABYTE
    run_program(
        programs / "rl-insight", "server", "start", "--detach", f"--data-dir={data}", "port=0", "otlp_http_port=0"
    )
    try:
        script = tmp_path / "train.py"
        script.write_text(_TRAIN)
        run_program(programs / "python", script, RL_INSIGHT_DATA_DIR=str(data))
        url = json.loads((data / "server.json").read_text())["url"]
        deadline = time.monotonic() + 60
        while '"rollout"' not in _get(f"{url}/api/v1/spans") and time.monotonic() < deadline:
            time.sleep(0.1)
        assert '"rollout"' in _get(f"{url}/api/v1/spans")
        assert '<div id="root">' in _get(url)
    finally:
        run_program(programs / "rl-insight", "server", "stop", f"--data-dir={data}")


def _get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()
