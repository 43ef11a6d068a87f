from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_insight.schema import frame
from rl_insight.transport.spool import RECENT_MAX_BYTES, Spool, adopt_orphans

SIZE = len(frame(b"x" * 100))


def payload(sequence):
    return b"%0100d" % sequence


def waiting(spool, max_batches=1000, max_bytes=10**9):
    peeked = spool.peek(max_batches, max_bytes)
    spool.release(item.number for item in peeked.waiting)
    return [item.number for item in peeked.waiting]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "spools" / "p"


def test_batches_come_back_oldest_first_as_frames(folder):
    spool = Spool(folder, 10**6)
    for sequence in (9, 10, 11):
        spool.put(payload(sequence))
    peeked = spool.peek(2, 10**6)
    assert [item.frame for item in peeked.waiting] == [frame(payload(9)), frame(payload(10))]
    assert len(spool) == 3
    assert spool.size_bytes == 3 * SIZE


def test_peek_stays_below_the_byte_limit_but_returns_at_least_one(folder):
    spool = Spool(folder, 10**6)
    for sequence in (1, 2, 3):
        spool.put(payload(sequence))
    assert waiting(spool, max_bytes=2 * SIZE) == [1, 2]
    assert waiting(spool, max_bytes=1) == [1]


def test_removed_batches_are_gone_from_the_disk(folder):
    spool = Spool(folder, 10**6)
    for sequence in (1, 2):
        spool.put(payload(sequence))
    assert spool.remove([1, 7]) == 1
    assert [path.name for path in folder.glob("*.rli")] == ["0000000000000002.rli"]
    assert waiting(spool) == [2]


def test_oldest_go_past_the_bound_and_are_counted(folder):
    spool = Spool(folder, 3 * SIZE)
    dropped = [spool.put(payload(sequence)) for sequence in range(1, 6)]
    assert dropped == [0] * 3 + [1] * 2
    assert waiting(spool) == [3, 4, 5]
    assert len(list(folder.glob("*.rli"))) == 3


def test_batch_larger_than_the_whole_spool_is_dropped_alone(folder):
    spool = Spool(folder, 3 * SIZE)
    spool.put(payload(1))
    assert spool.put(b"x" * 10_000) == 1
    assert waiting(spool) == [1]


def test_batches_being_sent_are_not_dropped_meanwhile(folder):
    spool = Spool(folder, 3 * SIZE)
    for sequence in (1, 2, 3):
        spool.put(payload(sequence))
    held = spool.peek(1, 10**6).waiting
    assert spool.put(payload(4)) == 1
    assert waiting(spool) == [1, 3, 4]
    spool.release(item.number for item in held)
    spool.put(payload(5))
    assert waiting(spool) == [3, 4, 5]


def test_folder_and_files_are_for_their_owner_only(folder):
    spool = Spool(folder, 10**6)
    spool.put(payload(1))
    assert folder.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())


def test_empty_spool_removes_its_folder_when_closed(folder):
    spool = Spool(folder, 10**6)
    spool.put(payload(1))
    spool.remove([1])
    spool.close()
    spool.close()
    assert not folder.exists()


def test_closed_spool_is_found_again_and_nothing_in_it_is_overwritten(folder):
    spool = Spool(folder, 10**6)
    for sequence in range(1, 12):
        spool.put(payload(sequence))
    spool.remove([1])
    spool.close()
    assert spool.put(payload(99)) == 1
    second_life = Spool(folder, 10**6)
    second_life.put(payload(1))
    frames = [item.frame for item in second_life.peek(100, 10**6).waiting]
    assert frames == [frame(payload(n)) for n in (*range(2, 12), 1)]


def test_leftover_temporary_file_is_not_a_batch(folder):
    folder.mkdir(parents=True)
    (folder / "0000000000000001.tmp").write_bytes(b"half")
    (folder / "notes.txt").write_text("not ours")
    spool = Spool(folder, 10**6)
    assert len(spool) == 0
    assert not (folder / "0000000000000001.tmp").exists()
    assert (folder / "notes.txt").exists()


@pytest.mark.parametrize("content", [b"", b"garbage", frame(b"x" * 50)[:-1]], ids=["empty", "garbage", "cut short"])
def test_damaged_file_is_counted_and_passed_over(folder, content):
    spool = Spool(folder, 10**6)
    for sequence in (1, 2):
        spool.put(payload(sequence))
    spool.close()
    (folder / "0000000000000001.rli").write_bytes(content)
    spool = Spool(folder, 10**6)
    peeked = spool.peek(10, 10**6)
    assert [item.number for item in peeked.waiting] == [2]
    assert peeked.unreadable == 1
    assert len(spool) == 1


def test_live_spool_is_not_adopted(folder):
    spool = Spool(folder, 10**6)
    spool.put(payload(1))
    assert adopt_orphans(folder.parent, 10**6) == []
    assert waiting(spool) == [1]


def test_closed_spool_is_adopted_by_one_only(folder):
    spool = Spool(folder, 10**6)
    spool.put(payload(1))
    spool.close()
    (adopted,) = adopt_orphans(folder.parent, 10**6)
    assert adopt_orphans(folder.parent, 10**6) == []
    assert waiting(adopted) == [1]
    adopted.remove([1])
    adopted.close()
    assert not folder.exists()


def test_empty_orphans_are_removed(tmp_path):
    (tmp_path / "begun").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "lock").touch()
    assert adopt_orphans(tmp_path, 10**6) == []
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_adopt_where_there_is_no_folder(tmp_path):
    assert adopt_orphans(tmp_path / "absent", 10**6) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from rl_insight.transport.spool import Spool
spool = Spool(Path(sys.argv[1]), 10**6)
for sequence in (1, 2, 3):
    spool.put(b"%0100d" % sequence)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_spool_of_a_killed_process_is_adopted_whole(folder):
    done = subprocess.run([sys.executable, "-c", KILLED, folder], check=False)
    assert done.returncode == -signal.SIGKILL
    (adopted,) = adopt_orphans(folder.parent, 10**6)
    assert [item.frame for item in adopted.peek(10, 10**6).waiting] == [frame(payload(n)) for n in (1, 2, 3)]


def test_second_spool_in_the_same_folder_waits_in_memory(folder, caplog):
    first = Spool(folder, 10**6)
    second = Spool(folder, 10**6)
    second.put(payload(1))
    assert "in use by another process" in second.get_status()["disk_error"]
    assert waiting(second) == [1]
    assert len(first) == 0
    assert caplog.text.count("are kept in memory instead") == 1


def test_refusing_disk_falls_back_to_bounded_memory(tmp_path):
    obstacle = tmp_path / "obstacle"
    obstacle.write_text("a file where a folder should be")
    spool = Spool(obstacle / "p", 10**6, memory_max_bytes=2 * SIZE)
    dropped = [spool.put(payload(sequence)) for sequence in (1, 2, 3)]
    assert dropped == [0, 0, 1]
    assert waiting(spool) == [2, 3]
    status = spool.get_status()
    assert status["memory_fallback_batches"] == 3
    assert status["memory_bytes"] == 2 * SIZE
    assert status["disk_error"]


def test_batch_larger_than_the_memory_bound_is_dropped_when_the_disk_refuses(tmp_path):
    (tmp_path / "obstacle").write_text("")
    spool = Spool(tmp_path / "obstacle" / "p", 10**6, memory_max_bytes=2 * SIZE)
    spool.put(payload(1))
    assert spool.put(b"x" * 1000) == 1
    assert waiting(spool) == [1]


def test_disk_is_used_again_when_it_recovers(tmp_path, caplog):
    caplog.set_level("INFO", "rl_insight")
    obstacle = tmp_path / "obstacle"
    obstacle.write_text("")
    spool = Spool(obstacle / "p", 10**6, disk_retry_s=0.0)
    spool.put(payload(1))
    obstacle.unlink()
    spool.put(payload(2))
    assert [path.name for path in (obstacle / "p").glob("*.rli")] == ["0000000000000002.rli"]
    assert waiting(spool) == [1, 2]
    assert spool.get_status()["disk_error"] is None
    assert "again" in caplog.text


def test_closing_saves_what_waited_in_memory_if_the_disk_takes_it(tmp_path):
    obstacle = tmp_path / "obstacle"
    obstacle.write_text("")
    spool = Spool(obstacle / "p", 10**6, disk_retry_s=3600.0)
    spool.put(payload(1))
    obstacle.unlink()
    assert spool.close() == 0
    (adopted,) = adopt_orphans(obstacle, 10**6)
    assert waiting(adopted) == [1]


def test_closing_counts_what_finds_no_place(tmp_path):
    (tmp_path / "obstacle").write_text("")
    spool = Spool(tmp_path / "obstacle" / "p", 10**6)
    spool.put(payload(1))
    assert spool.close() == 1


def test_full_disk_leaves_no_half_batch_and_keeps_the_spool_locked(folder):
    spool = Spool(folder, 10**6)
    spool.put(payload(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE // 2, hard))
    try:
        spool.put(payload(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert {path.name for path in folder.iterdir()} == {"lock", "0000000000000001.rli"}
    assert adopt_orphans(folder.parent, 10**6) == []
    assert waiting(spool) == [1, 2]


def test_folder_that_is_deleted_under_a_spool_is_begun_again(folder):
    spool = Spool(folder, 10**6, disk_retry_s=0.0)
    spool.put(payload(1))
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    spool.put(payload(2))
    spool.put(payload(3))
    peeked = spool.peek(10, 10**6)
    assert [item.number for item in peeked.waiting] == [1, 2, 3]  # what is young is in memory too
    assert peeked.unreadable == 0
    assert (folder / "0000000000000003.rli").exists()


def test_old_batches_are_read_back_from_disk(folder):
    """The queue is longer than the part kept in memory."""
    spool = Spool(folder, 10**9)
    count = RECENT_MAX_BYTES // 2**20 + 3
    payloads = [bytes([number]) * 2**20 for number in range(count)]
    for one in payloads:
        spool.put(one)
    (folder / "0000000000000002.rli").unlink()
    peeked = spool.peek(count, 10**9)
    assert peeked.unreadable == 1
    assert [item.frame for item in peeked.waiting] == [frame(one) for number, one in enumerate(payloads) if number != 1]
    assert spool.remove(item.number for item in peeked.waiting) == count - 1
    assert (len(spool), spool.size_bytes) == (0, 0)


def test_abandon_in_a_child_leaves_the_parents_lock_and_files(folder):
    spool = Spool(folder, 10**6)
    spool.put(payload(1))
    with warnings.catch_warnings():
        # Threads of other tests may still be ending; the child uses none.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        spool.abandon()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert adopt_orphans(folder.parent, 10**6) == []
    spool.put(payload(2))
    assert waiting(spool) == [1, 2]


@given(
    st.lists(
        st.one_of(st.tuples(st.just("put"), st.integers(1, 400)), st.tuples(st.just("take"), st.integers(1, 5))),
        max_size=40,
    )
)
def test_every_batch_is_delivered_dropped_or_waiting(operations):
    spool = Spool(None, 2000, memory_max_bytes=1500)
    put = delivered = dropped = 0
    for operation, number in operations:
        if operation == "put":
            put += 1
            dropped += spool.put(b"x" * number)
        else:
            taken = [item.number for item in spool.peek(number, 10**6).waiting]
            assert taken == sorted(taken)
            delivered += spool.remove(taken)
        assert put == delivered + dropped + len(spool)
        assert spool.size_bytes <= 1500


def test_a_disk_that_does_not_answer_never_keeps_a_process_from_ending(folder):
    spool = Spool(folder, 10**6)
    spool.put(payload(1))
    os.mkfifo(folder / "0000000000000002.tmp")  # opening it blocks until a reader comes, which none does
    writer = threading.Thread(target=spool.put, args=(payload(2),), daemon=True)
    writer.start()
    time.sleep(0.2)
    begun = time.monotonic()
    spool.close(timeout_s=0.3)
    assert time.monotonic() - begun < 5
    assert writer.is_alive()
    with (folder / "0000000000000002.tmp").open("rb"):
        writer.join(10)
    assert (folder / "0000000000000001.rli").is_file()
