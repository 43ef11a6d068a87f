"""Runs programs in separate processes: once with an original, once with ours.

COVERAGE.md lists what is compatible and where it is tested.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ORIGINALS = ROOT / ".originals"
PROGRAMS = Path(__file__).parent / "programs"


@dataclass
class Programs:
    """Starts the programs of tests/compat/programs."""

    home: Path

    def original(self, name: str) -> Path:
        """Return the folder of an original; skip the test if it is not installed."""
        folder = ORIGINALS / name
        if not folder.exists():
            reason = ORIGINALS / f"{name}.reason"
            pytest.skip(f"{name}: {reason.read_text() if reason.exists() else 'not installed: run `make originals`'}")
        return folder

    def python(self, *words: object, paths: tuple[Path, ...] = (), expect: int = 0, **variables: str) -> str:
        """Run Python with folders prepended to its path; returns its output."""
        known = {name: os.environ[name] for name in ("PATH", "LANG", "LOGNAME", "USER") if name in os.environ}
        environment = {
            **known,
            "HOME": str(self.home),
            "RL_INSIGHT_DATA_DIR": str(self.home / "none"),
            "PYTHONPATH": os.pathsep.join(map(str, (*paths, PROGRAMS))),
            "PYTHONDONTWRITEBYTECODE": "1",
            **variables,
        }
        done = subprocess.run(
            [sys.executable, *map(str, words)],
            env=environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == expect, done.stdout + done.stderr
        return done.stdout

    def run(self, program: str, which: str, *words: object, original: str, **variables: str) -> dict:
        """Run a program with the original or with ours; returns the last JSON object that it printed."""
        paths = (self.original(original),) if which == "original" else ()
        printed = self.python(PROGRAMS / program, which, *words, paths=paths, **variables)
        return json.loads(printed.splitlines()[-1])


@pytest.fixture
def programs(tmp_path_factory) -> Programs:
    return Programs(tmp_path_factory.mktemp("home"))
