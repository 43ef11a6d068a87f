from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from rl_insight.monitor import INHERIT_VARIABLE
from rl_insight.schema.records import records
from rl_insight.transport import read_batches


@pytest.fixture
def monitor(monkeypatch):
    """A real monitor with its own flusher thread, finished after the test."""
    from rl_insight.monitor import Monitor

    for name in [name for name in os.environ if name.startswith("RL_INSIGHT_")]:
        monkeypatch.delenv(name)
    made = Monitor()
    yield made
    made.finish()


class Program:
    """Runs a Python program that records to files, and reads the files back."""

    def __init__(self, folder):
        self.folder = folder
        self.events = folder / "events"

    def run(self, source, *, expect=0, env=None):
        path = self.folder / "program.py"
        path.write_text(PREAMBLE + textwrap.dedent(source))
        environ = {k: v for k, v in os.environ.items() if not k.startswith("RL_INSIGHT_") and k != INHERIT_VARIABLE}
        environ |= {"EVENTS": str(self.events), **(env or {})}
        done = subprocess.run(
            [sys.executable, str(path)], env=environ, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == expect, done.stderr
        return done

    def batches(self):
        problems = []
        found = list(read_batches(self.events, on_problem=lambda *problem: problems.append(problem)))
        assert problems == []
        return found

    def records(self):
        return [record for batch in self.batches() for record in records(batch)]

    def processes(self):
        return {batch.process.process_id: batch.process for batch in self.batches()}

    def names(self):
        return sorted(record.name for record in self.records() if hasattr(record, "name"))


PREAMBLE = """
import os
import sys
import warnings

import rl_insight as insight

FILE = {"server": {"backend": "file"}, "file": {"directory": os.environ["EVENTS"]}}
"""


@pytest.fixture
def program(tmp_path):
    return Program(tmp_path)
