import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_quickstart_shows_what_it_recorded(tmp_path):
    environ = {key: value for key, value in os.environ.items() if not key.startswith("RL_INSIGHT")}
    done = subprocess.run(
        [sys.executable, "-m", "examples.quickstart"],
        cwd=ROOT,
        env={**environ, "RL_INSIGHT_DATA_DIR": str(tmp_path)},  # where no server is
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    assert done.stderr == ""
    assert ["span", "generate", "12", "times,"] in [line[:4] for line in lines]
    assert ["span", "update_model", "3", "times,"] in [line[:4] for line in lines]
    assert ["metric", "rollouts", "counter,", "last", "value", "12.000"] in lines
    assert sum(line[:1] == ["log"] for line in lines) == 3
