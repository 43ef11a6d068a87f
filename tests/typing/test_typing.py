from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_the_public_api_keeps_its_types_for_users(tmp_path):
    done = subprocess.run(
        [
            sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores", "--no-incremental", "--config-file", "",
            "--cache-dir", str(tmp_path), "--follow-imports", "silent", "--disable-error-code", "unused-coroutine",
            str(HERE / "user_code.py"),
        ],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_says_that_it_is_typed():
    import rl_insight

    assert (Path(rl_insight.__file__).parent / "py.typed").exists()
