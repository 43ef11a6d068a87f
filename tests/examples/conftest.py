"""Runs the examples as a user does, and reads their records back."""

import os
import signal
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from rl_insight.schema.records import SpanRecord, records
from rl_insight.transport import read_batches

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # `examples` is not part of the installed package


@dataclass
class Recording:
    """Everything that a finished or running example has written so far."""

    roles: dict[str, tuple[str, int | None]]
    pids: dict[tuple[str, int | None], int]
    finals: set[str]
    records: list

    @classmethod
    def read(cls, directory):
        roles, pids, finals, found = {}, {}, set(), []
        for batch in read_batches(directory, on_problem=lambda path, error: None):
            roles[batch.process.process_id] = (batch.process.role, batch.process.rank)
            pids[batch.process.role, batch.process.rank] = batch.process.pid
            if batch.final:
                finals.add(batch.process.process_id)
            found.extend(records(batch))
        return cls(roles, pids, finals, found)

    def of(self, kind):
        return [record for record in self.records if isinstance(record, kind)]

    def spans(self, name=None):
        """Return the last state of every span, by id."""
        latest = {record.span_id: record for record in self.of(SpanRecord)}
        return {key: span for key, span in latest.items() if name is None or span.name == name}

    def role(self, record):
        return self.roles[record.process_id][0]


class Demo:
    """One running `python -m examples.async_grpo`."""

    def __init__(self, directory, arguments, *, data_dir=None):
        self.directory = directory / "events"
        self.data_dir = data_dir or directory / "data"
        self.output_path = directory / "output.txt"
        self.run_id = f"test-{uuid.uuid4().hex}"
        # Every descendant has the run id in its environment, which is how survivors are found.
        environ = {
            **os.environ,
            "RL_INSIGHT_RUN_ID": self.run_id,
            "RL_INSIGHT_DATA_DIR": str(self.data_dir),
            "TMPDIR": str(directory),  # where a killed run leaves undelivered batches for the next one
        }
        with self.output_path.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "examples.async_grpo", *arguments],
                cwd=ROOT,
                env=environ,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a process group of its own, as a terminal makes one
            )

    @property
    def output(self):
        return self.output_path.read_text()

    def recording(self):
        return Recording.read(self.directory)

    def press_ctrl_c(self):
        os.killpg(self.process.pid, signal.SIGINT)

    def descendants(self):
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("RL_INSIGHT_RUN_ID") == self.run_id:
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    def end(self):
        for process in self.descendants():
            try:
                process.kill()
            except psutil.Error:
                continue
        self.process.wait(30)


@pytest.fixture(scope="module")
def start_demo(tmp_path_factory):
    """Start the demo, recording to files unless a server is given; processes left by a failing test are stopped."""
    demos = []

    def start(*arguments, server=False, data_dir=None):
        directory = tmp_path_factory.mktemp("demo")
        place = () if server else ("--no-server", "--directory", str(directory / "events"))
        demos.append(Demo(directory, (*place, *arguments), data_dir=data_dir))
        return demos[-1]

    yield start
    for demo in demos:
        demo.end()
