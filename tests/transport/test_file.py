from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys

import pytest

from rl_insight.schema import frame
from rl_insight.transport import FileTransport, read_batches


@pytest.fixture
def make_file_transport(tmp_path):
    def make(directory=None, process_id="node7-4711-9f3a2c1d", **settings):
        losses = []
        transport = FileTransport(directory or tmp_path / "events", process_id, **settings)
        transport.on_loss = lambda *loss: losses.append(loss)
        transport.losses = losses
        return transport

    return make


def sequences(path, problems=None):
    handler = None if problems is None else lambda path, error: problems.append((path.name, str(error)))
    return [batch.sequence for batch in read_batches(path, on_problem=handler)]


def test_one_process_writes_one_file_named_after_it(make_file_transport, helpers, tmp_path):
    transport = make_file_transport()
    transport.send(helpers.make_batch(1))
    transport.send(helpers.make_batch(2))
    transport.close()
    (file,) = (tmp_path / "events").iterdir()
    assert file.name == "node7-4711-9f3a2c1d.000001.rli"
    assert sequences(file) == [1, 2]


def test_files_rotate_by_size_and_a_frame_is_never_split(make_file_transport, helpers, tmp_path):
    size = len(frame(helpers.make_batch(1)))
    transport = make_file_transport(rotate_bytes=2 * size)
    for sequence in range(1, 6):
        transport.send(helpers.make_batch(sequence))
    transport.close()
    files = sorted((tmp_path / "events").iterdir())
    assert [sequences(file) for file in files] == [[1, 2], [3, 4], [5]]
    assert sequences(tmp_path / "events") == [1, 2, 3, 4, 5]


def test_batch_larger_than_the_rotation_size_gets_a_file_of_its_own(make_file_transport, helpers, tmp_path):
    transport = make_file_transport(rotate_bytes=10)
    for sequence in (1, 2):
        transport.send(helpers.make_batch(sequence))
    assert [sequences(file) for file in sorted((tmp_path / "events").iterdir())] == [[1], [2]]


def test_restart_under_the_same_name_never_appends_to_an_old_file(make_file_transport, helpers, tmp_path):
    for sequence in (1, 2):
        transport = make_file_transport()
        transport.send(helpers.make_batch(sequence))
        transport.close()
    assert len(list((tmp_path / "events").iterdir())) == 2
    assert sequences(tmp_path / "events") == [1, 2]


def test_process_id_cannot_leave_the_directory(make_file_transport, helpers, tmp_path):
    transport = make_file_transport(process_id="../../evil/../x")
    transport.send(helpers.make_batch(1))
    (file,) = (tmp_path / "events").iterdir()
    assert sequences(file) == [1]


@pytest.mark.parametrize("kept", [1, 11, 12, 30])
def test_broken_tail_is_reported_and_loses_nothing_before_it(make_file_transport, helpers, tmp_path, kept):
    transport = make_file_transport()
    transport.send(helpers.make_batch(1))
    transport.close()
    (file,) = (tmp_path / "events").iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole + frame(helpers.make_batch(2))[:kept])
    problems = []
    assert sequences(tmp_path / "events", problems) == [1]
    assert len(problems) == 1
    assert "truncated" in problems[0][1]


def test_broken_file_does_not_stop_the_next_one(make_file_transport, helpers, tmp_path):
    for process_id in ("a", "b"):
        transport = make_file_transport(process_id=process_id)
        transport.send(helpers.make_batch(1, process_id))
        transport.close()
    (tmp_path / "events" / "a.000001.rli").write_bytes(b"garbage, not frames")
    problems = []
    batches = read_batches(tmp_path / "events", on_problem=lambda *problem: problems.append(problem))
    assert [batch.process.process_id for batch in batches] == ["b"]
    assert len(problems) == 1


def test_unreadable_batch_in_a_whole_frame_is_passed_over(helpers, tmp_path):
    path = tmp_path / "x.rli"
    path.write_bytes(frame(b"no batch") + frame(helpers.make_batch(2)))
    problems = []
    assert sequences(path, problems) == [2]
    assert "not a batch" in problems[0][1]


def test_problems_are_logged_when_nobody_asks_for_them(tmp_path, caplog):
    (tmp_path / "x.rli").write_bytes(b"garbage, not frames")
    assert sequences(tmp_path) == []
    assert "x.rli is partly unreadable" in caplog.text


def test_missing_path_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        list(read_batches(tmp_path / "absent"))


def test_refusing_disk_is_counted_warned_once_and_tried_again(make_file_transport, helpers, tmp_path, caplog):
    obstacle = tmp_path / "obstacle"
    obstacle.write_text("a file where a folder should be")
    transport = make_file_transport(obstacle / "events", retry_initial_s=0.0)
    transport.send(helpers.make_batch(1))
    transport.send(helpers.make_batch(2))
    assert transport.losses == [("batches", "disk", 1)] * 2
    assert not transport.flush(0.0)
    assert caplog.text.count("cannot write to") == 1
    obstacle.unlink()
    transport.send(helpers.make_batch(3))
    assert transport.flush(0.0)
    assert sequences(obstacle / "events") == [3]
    assert transport.get_status()["lost_batches"] == 2


def test_refusing_disk_is_left_alone_for_a_while(make_file_transport, helpers, tmp_path):
    obstacle = tmp_path / "obstacle"
    obstacle.write_text("")
    transport = make_file_transport(obstacle / "events", retry_initial_s=3600.0, retry_max_s=3600.0)
    transport.send(helpers.make_batch(1))
    obstacle.unlink()
    transport.send(helpers.make_batch(2))
    assert not (obstacle / "events").exists()
    assert len(transport.losses) == 2


def test_half_written_frame_of_a_full_disk_is_cut_off(make_file_transport, helpers, tmp_path):
    transport = make_file_transport(retry_initial_s=0.0)
    transport.send(helpers.make_batch(1))
    file = tmp_path / "events" / "node7-4711-9f3a2c1d.000001.rli"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 20, hard))
    try:
        transport.send(helpers.make_batch(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    transport.send(helpers.make_batch(3))
    problems = []
    assert sequences(tmp_path / "events", problems) == [1, 3]
    assert problems == []
    assert transport.losses == [("batches", "disk", 1)]


KILLED = """
import os, signal, sys
from rl_insight.transport import FileTransport
transport = FileTransport(sys.argv[1], "p")
for sequence in range(1, 4):
    transport.send(bytes.fromhex(sys.argv[1 + sequence]))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_process_leaves_everything_it_sent(helpers, tmp_path):
    payloads = [helpers.make_batch(sequence).hex() for sequence in (1, 2, 3)]
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path, *payloads], check=False)
    assert done.returncode == -signal.SIGKILL
    assert sequences(tmp_path) == [1, 2, 3]


def test_reading_beside_a_writer_never_shows_half_a_batch(make_file_transport, helpers, tmp_path):
    transport = make_file_transport()
    for sequence in range(1, 20):
        transport.send(helpers.make_batch(sequence, text="x" * 1000))
        problems = []
        assert sequences(tmp_path / "events", problems) == list(range(1, sequence + 1))
        assert problems == []


def test_abandon_closes_only_the_inherited_descriptor(make_file_transport, helpers, tmp_path):
    transport = make_file_transport()
    transport.send(helpers.make_batch(1))
    before = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
    transport.abandon()
    after = set(os.listdir("/proc/self/fd")) if before else set()
    assert len(after) < len(before) or not before
    assert sequences(tmp_path / "events") == [1]
