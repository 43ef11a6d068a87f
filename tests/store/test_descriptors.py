"""A process that is out of file descriptors: a healthy run file is never taken for a damaged one."""

from __future__ import annotations

import subprocess
import sys
import textwrap

_SCRIPT = """
import os, resource, sys
from pathlib import Path
from rl_insight.schema import BatchBuilder, Process
from rl_insight.store import RunDirectory, StoreBusyError

directory = RunDirectory(Path(sys.argv[1]), min_free_bytes=0)
for number in range(3):
    process = Process(process_id="p", run_id=f"run{number}", host="h", pid=1)
    with directory.open(f"run{number}", create=True) as store:
        store.commit([BatchBuilder().build(process, sequence=1, sent_ns=1)])
directory.close_idle(0.0)
directory._index._entries.clear()

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
for spare in range(10):
    for number in range(3):
        try:
            with directory.open(f"run{number}"):
                pass
        except StoreBusyError as error:
            assert "too many files" in str(error), error
    directory.close_idle(0.0)
    if spare == 2:
        assert all("too many files" in info.problem for info in directory.list_runs())
    os.close(held.pop())
for descriptor in held:
    os.close(descriptor)
assert sorted(info.run_id for info in directory.list_runs() if not info.problem) == ["run0", "run1", "run2"]
assert not list(directory.path.glob("*.corrupt-*"))
print("well")
"""


def test_runs_survive_a_lack_of_file_descriptors_and_open_again_afterwards(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_SCRIPT), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "well"), done.stderr[-2000:]
