"""The Python interpreters of this machine."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def interpreters():
    """Every CPython that can be found, as (version, path)."""
    found = {}
    for minor in range(10, 15):
        program = shutil.which(f"python3.{minor}")
        candidates = [Path(program)] if program else []
        candidates += sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"))
        for candidate in candidates:
            probe = subprocess.run([str(candidate), "-m", "venv", "--help"], capture_output=True, check=False)
            if probe.returncode == 0:
                found[f"3.{minor}"] = str(candidate)
                break
    return sorted(found.items())
