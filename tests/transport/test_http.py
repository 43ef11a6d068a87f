from __future__ import annotations

import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import warnings
from pathlib import Path

import msgspec
import pytest

from rl_insight.config.paths import STATE_FILE, ServerState
from rl_insight.errors import ConfigError
from rl_insight.transport import HttpTransport
from rl_insight.transport.http import MAX_REQUEST_BATCHES
from rl_insight.transport.spool import adopt_orphans
from tests.waiting import wait_until


def send(transport, helpers, sequences, **batch):
    for sequence in sequences:
        transport.send(helpers.make_batch(sequence, **batch))


def spool_files(tmp_path):
    return sorted((tmp_path / "spool").rglob("*.rli"))


def is_open(descriptor):
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_request_is_what_the_ingest_route_expects(make_transport, receiver, helpers):
    transport = make_transport(token="secret-token\n", url=receiver.url + "/prefix/")
    send(transport, helpers, [1])
    assert transport.flush(20)
    (request,) = receiver.requests
    assert request.path == "/prefix/api/v1/ingest"
    assert request.content_type == "application/vnd.rl-insight.frames"
    assert request.authorization == "Bearer secret-token"
    assert request.encoding is None
    assert "secret-token" not in str(transport.get_status())


def test_spool_is_emptied_only_by_delivery(make_transport, receiver, helpers, tmp_path):
    receiver.stop()
    transport = make_transport()
    send(transport, helpers, range(1, 6))
    wait_until(lambda: transport.get_status()["retries"] >= 2)
    assert len(spool_files(tmp_path)) == 5
    receiver.start()
    assert transport.flush(20)
    assert receiver.sequences == [1, 2, 3, 4, 5]
    assert spool_files(tmp_path) == []


def test_backlog_travels_in_few_requests(make_transport, receiver, helpers):
    receiver.stop()
    transport = make_transport()
    send(transport, helpers, range(1, 101))
    receiver.start()
    assert transport.flush(20)
    assert receiver.sequences == list(range(1, 101))
    assert max(len(request.sequences) for request in receiver.requests) == MAX_REQUEST_BATCHES
    assert len(receiver.requests) <= 10


def test_restarted_receiver_gets_everything(make_transport, receiver, helpers):
    transport = make_transport()
    send(transport, helpers, range(1, 4))
    assert transport.flush(20)
    receiver.stop()
    send(transport, helpers, range(4, 8))
    assert not transport.flush(0.05)
    receiver.start()
    send(transport, helpers, range(8, 10))
    assert transport.flush(20)
    assert receiver.sequences == list(range(1, 10))
    assert transport.losses == []


def test_outage_is_warned_of_once_and_its_end_reported(make_transport, receiver, helpers, caplog):
    caplog.set_level("INFO", "rl_insight")
    receiver.stop()
    transport = make_transport()
    send(transport, helpers, [1])
    wait_until(lambda: transport.get_status()["retries"] >= 3)
    receiver.start()
    assert transport.flush(20)
    assert caplog.text.count("RL-Insight cannot deliver to") == 1
    assert caplog.text.count("is back; ") == 1


def test_idle_connection_closed_by_the_server_is_not_an_outage(make_transport, receiver, helpers, caplog):
    receiver.answers = ["close after"]
    transport = make_transport()
    send(transport, helpers, [1])
    assert transport.flush(20)
    send(transport, helpers, [2])
    assert transport.flush(20)
    assert receiver.sequences == [1, 2]
    assert transport.get_status()["retries"] == 0
    assert caplog.records == []


def test_answer_lost_on_the_way_counts_nothing_twice(make_transport, receiver, helpers):
    receiver.answers = ["drop", "drop"]
    transport = make_transport()
    send(transport, helpers, [1, 2])
    assert transport.flush(20)
    assert receiver.sequences == [1, 2]
    assert receiver.duplicates >= 1
    assert transport.get_status()["delivered_batches"] == 2


def test_hanging_server_does_not_hold_send_flush_or_close(make_transport, receiver, helpers, tmp_path):
    receiver.answers = ["hang"]
    transport = make_transport(timeout_s=3600.0)
    send(transport, helpers, [1])
    assert receiver.hanging.wait(20)
    send(transport, helpers, range(2, 20))
    assert not transport.flush(0.01)
    closing = threading.Thread(target=transport.close)
    closing.start()
    closing.join(20)
    assert not closing.is_alive()
    assert not receiver.resume.is_set()
    assert len(spool_files(tmp_path)) == 19
    wait_until(lambda: not transport._thread.is_alive())


def test_timeout_is_a_failure_that_is_tried_again(make_transport, receiver, helpers):
    receiver.answers = ["hang"]
    transport = make_transport(timeout_s=0.05)
    send(transport, helpers, [1])
    assert transport.flush(20)
    assert receiver.sequences == [1]
    assert transport.get_status()["retries"] >= 1


@pytest.mark.parametrize("status", [429, 503])
def test_busy_server_is_asked_again_when_it_said(make_transport, receiver, helpers, status):
    receiver.answers = [helpers.Refusal(status, retry_after="0")]
    transport = make_transport()
    send(transport, helpers, [1])
    assert transport.flush(20)
    assert receiver.sequences == [1]
    assert transport.losses == []


def test_retry_after_is_honored_even_by_flush(make_transport, receiver, helpers):
    receiver.answers = [helpers.Refusal(429, retry_after="250")]
    transport = make_transport()
    send(transport, helpers, [1])
    wait_until(lambda: transport.get_status()["retries"] == 1)
    assert not transport.flush(0.2)
    assert len(receiver.requests) == 1


def test_flush_cuts_a_long_pause_short(make_transport, receiver, helpers):
    receiver.answers = [helpers.Refusal(500)]
    transport = make_transport(retry_initial_s=3600.0, retry_max_s=3600.0)
    send(transport, helpers, [1])
    wait_until(lambda: transport.get_status()["retries"] == 1)
    assert transport.flush(20)
    assert receiver.sequences == [1]


def test_poison_batch_is_dropped_alone_and_counted(make_transport, receiver, helpers, caplog):
    receiver.poison = {3, 5}
    receiver.stop()
    transport = make_transport()
    send(transport, helpers, range(1, 7))
    receiver.start()
    assert transport.flush(20)
    assert receiver.sequences == [1, 2, 4, 6]
    assert transport.losses == [("batches", "refused", 1)] * 2
    assert caplog.text.count("column spans.name holds 3 bytes") == 1


def test_a_relay_sends_what_waits_together_as_one_bundle(make_transport, receiver, helpers):
    receiver.answers = ["hang"]
    relay = make_transport(bundles=True)
    send(relay, helpers, [1], process_id="p1")
    assert receiver.hanging.wait(20)
    send(relay, helpers, [2, 3], process_id="p1")
    send(relay, helpers, [1, 2, 3], process_id="p2")
    receiver.resume.set()
    assert relay.flush(20)
    assert sorted(receiver.batches) == [(process_id, number) for process_id in ("p1", "p2") for number in (1, 2, 3)]
    assert {batch.text(batch.logs.column("message")[0]) for batch in receiver.batches.values()} == {"hello"}
    assert (receiver.bundles, receiver.duplicates, relay.losses) == (1, 0, [])


def test_a_server_that_does_not_know_bundles_gets_batches(make_transport, receiver, helpers):
    receiver.knows_bundles = False
    receiver.stop()
    relay = make_transport(bundles=True)
    send(relay, helpers, range(1, 4))
    receiver.start()
    assert relay.flush(20)
    receiver.stop()
    send(relay, helpers, range(4, 7))
    receiver.start()
    assert relay.flush(20)
    assert receiver.sequences == [1, 2, 3, 4, 5, 6]
    assert (receiver.bundles, relay.losses) == (1, [])


def test_a_poison_batch_in_a_bundle_is_dropped_alone(make_transport, receiver, helpers):
    receiver.poison = {2}
    receiver.stop()
    relay = make_transport(bundles=True)
    send(relay, helpers, range(1, 4))
    receiver.start()
    assert relay.flush(20)
    assert receiver.sequences == [1, 3]
    assert relay.losses == [("batches", "refused", 1)]


@pytest.mark.parametrize("status", [400, 413, 415, 422])
def test_refusal_of_a_single_batch_is_final(make_transport, receiver, helpers, status):
    receiver.answers = [helpers.Refusal(status)]
    transport = make_transport()
    send(transport, helpers, [1])
    assert transport.flush(20)
    assert transport.losses == [("batches", "refused", 1)]
    send(transport, helpers, [2])
    assert transport.flush(20)
    assert receiver.sequences == [2]


@pytest.mark.parametrize(
    ("status", "body", "advice"),
    [
        (401, '{"detail": "a token is needed"}', "server.token"),
        (403, '{"detail": "wrong token"}', "server.token"),
        (404, "not found", "server.url"),
        (302, "", "server.url"),
        (200, "<html>some other page</html>", "server.url"),
    ],
)
def test_wrong_address_or_token_keeps_the_batches(make_transport, receiver, helpers, caplog, status, body, advice):
    receiver.standing = helpers.Refusal(status, body)
    transport = make_transport()
    send(transport, helpers, [1])
    wait_until(lambda: transport.get_status()["retries"] >= 2)
    (record,) = caplog.records
    assert advice in record.getMessage()
    assert str(status) in record.getMessage()
    receiver.standing = None
    assert transport.flush(20)
    assert receiver.sequences == [1]
    assert transport.losses == []


def test_bounded_spool_drops_the_oldest_and_counts_them(make_transport, receiver, helpers):
    receiver.stop()
    size = len(helpers.make_batch(1)) + 12
    transport = make_transport(spool_max_bytes=5 * size, retry_initial_s=600.0)
    send(transport, helpers, [1])
    # While a request is under way its batches are not dropped: they would be past the bound.
    wait_until(lambda: transport.get_status()["retries"])
    send(transport, helpers, range(2, 9))
    receiver.start()
    assert transport.flush(20)
    lost = sum(count for _, reason, count in transport.losses if reason == "spool_full")
    assert lost == 3
    assert len(receiver.sequences) == 5
    assert receiver.sequences[-1] == 8


@pytest.mark.parametrize("compression", ["gzip", "zstd", "none"])
def test_large_bodies_are_compressed_as_asked(make_transport, receiver, helpers, compression):
    transport = make_transport(compression=compression)
    send(transport, helpers, [1], text="x" * 100_000)
    assert transport.flush(20)
    send(transport, helpers, [2])
    assert transport.flush(20)
    expected = None if compression == "none" else compression
    assert [request.encoding for request in receiver.requests] == [expected, None]
    assert receiver.sequences == [1, 2]


def test_loopback_is_not_compressed_by_default(make_transport, receiver, helpers):
    transport = make_transport()
    send(transport, helpers, [1], text="x" * 100_000)
    assert transport.flush(20)
    assert receiver.requests[0].encoding is None


def test_server_that_cannot_decompress_gets_plain_bodies(make_transport, receiver, helpers):
    receiver.answers = [helpers.Refusal(415)]
    transport = make_transport(compression="zstd")
    send(transport, helpers, [1], text="x" * 100_000)
    assert transport.flush(20)
    assert [request.encoding for request in receiver.requests] == ["zstd", None]
    assert transport.losses == []


@pytest.mark.parametrize("url", ["", "127.0.0.1:18080", "ftp://host", "http://", "http://host:port", "http://[::1"])
def test_unusable_url_is_a_clear_error(url, tmp_path):
    with pytest.raises(ConfigError, match="is not the address of a server"):
        HttpTransport(url, process_id="p", spool_dir=tmp_path)


def test_unknown_compression_is_a_clear_error(tmp_path):
    with pytest.raises(ConfigError, match="auto, none, gzip, zstd"):
        HttpTransport("http://127.0.0.1:1", process_id="p", spool_dir=tmp_path, compression="lzma")


def test_password_in_a_url_is_never_shown(make_transport, receiver, helpers, caplog):
    receiver.stop()
    transport = make_transport(url=receiver.url.replace("//", "//me:hunter2@"))
    send(transport, helpers, [1])
    wait_until(lambda: transport.get_status()["retries"] >= 1)
    assert "hunter2" not in caplog.text + str(transport.get_status())


SENDER = """
import sys, time
from rl_insight.transport import HttpTransport
transport = HttpTransport(sys.argv[1], process_id="killed", spool_dir=sys.argv[2])
for sequence, payload in enumerate(sys.argv[3:], 1):
    transport.send(bytes.fromhex(payload))
print("sent", flush=True)
time.sleep(600)
"""


def kill_a_sender(receiver, helpers, tmp_path, count=5):
    payloads = [helpers.make_batch(sequence, "killed").hex() for sequence in range(1, count + 1)]
    sender = subprocess.Popen(
        [sys.executable, "-c", SENDER, receiver.url, tmp_path / "spool", *payloads],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with sender:
        assert sender.stdout.readline() == b"sent\n"
        sender.send_signal(signal.SIGKILL)


def test_batches_of_a_killed_process_are_delivered_by_the_next(make_transport, receiver, helpers, tmp_path):
    receiver.stop()
    kill_a_sender(receiver, helpers, tmp_path)
    assert len(spool_files(tmp_path)) == 5
    receiver.start()
    transport = make_transport("second")
    send(transport, helpers, [1], process_id="second")
    wait_until(lambda: len(receiver.batches) == 6)
    assert {process_id for process_id, _ in receiver.batches} == {"killed", "second"}
    folder = Path(transport.get_status()["spool"]["directory"]).with_name("killed")
    wait_until(lambda: not folder.exists())
    assert transport.get_status()["adopted_batches"] == 5


def test_process_that_dies_later_is_adopted_too(make_transport, receiver, helpers, tmp_path):
    transport = make_transport("survivor", adopt_interval_s=0.02)
    receiver.stop()
    kill_a_sender(receiver, helpers, tmp_path)
    receiver.start()
    wait_until(lambda: transport.get_status()["delivered_batches"] == 5)
    assert {process_id for process_id, _ in receiver.batches} == {"killed"}


def test_a_transport_delivers_what_was_left_for_its_other_urls(make_transport, receiver, helpers):
    other_url = receiver.url.replace("127.0.0.1", "localhost")
    receiver.stop()
    gone = make_transport("gone", url=other_url)
    send(gone, helpers, [1, 2], process_id="gone")
    gone.close()
    receiver.start()
    make_transport("server", adopts_from=[other_url], adopt_interval_s=0.02)
    wait_until(lambda: set(receiver.batches) == {("gone", 1), ("gone", 2)})


def test_spools_of_other_urls_and_of_live_processes_are_left_alone(make_transport, receiver, helpers, tmp_path):
    elsewhere = make_transport("elsewhere", url="http://127.0.0.1:9")
    send(elsewhere, helpers, [1], process_id="elsewhere")
    elsewhere.close()
    receiver.stop()
    alive = make_transport("alive", retry_initial_s=3600.0, retry_max_s=3600.0)
    send(alive, helpers, [1], process_id="alive")
    wait_until(lambda: alive.get_status()["retries"] == 1)
    receiver.start()
    other = make_transport("other")
    send(other, helpers, [1], process_id="other")
    assert other.flush(20)
    assert set(receiver.batches) == {("other", 1)}
    assert other.get_status()["adopted_batches"] == 0
    assert alive.get_status()["waiting_batches"] == 1
    assert len(spool_files(tmp_path)) == 2


def test_close_keeps_what_is_undelivered_for_the_next(make_transport, receiver, helpers):
    receiver.stop()
    first = make_transport("first")
    send(first, helpers, [1, 2], process_id="first")
    first.close()
    assert first.losses == []
    receiver.start()
    make_transport("second")
    wait_until(lambda: set(receiver.batches) == {("first", 1), ("first", 2)})


def test_refusing_disk_falls_back_to_memory(make_transport, receiver, helpers, tmp_path):
    (tmp_path / "obstacle").write_text("a file where a folder should be")
    receiver.stop()
    transport = make_transport(spool_dir=tmp_path / "obstacle")
    send(transport, helpers, [1, 2])
    assert transport.get_status()["spool"]["memory_bytes"] > 0
    receiver.start()
    assert transport.flush(20)
    assert receiver.sequences == [1, 2]
    assert transport.losses == []


def test_batches_only_in_memory_are_counted_when_closed(make_transport, receiver, helpers, tmp_path):
    (tmp_path / "obstacle").write_text("")
    receiver.stop()
    transport = make_transport(spool_dir=tmp_path / "obstacle")
    send(transport, helpers, [1, 2])
    transport.close()
    assert transport.losses == [("batches", "spool_unavailable", 2)]


def test_damaged_spool_file_is_counted_and_stops_nothing(make_transport, receiver, helpers, tmp_path):
    receiver.stop()
    transport = make_transport("first")
    send(transport, helpers, [1, 2])
    transport.close()
    spool_files(tmp_path)[0].write_bytes(b"broken")
    receiver.start()
    second = make_transport("second", adopt_interval_s=0.02)
    wait_until(lambda: second.get_status()["delivered_batches"] == 1)
    assert receiver.sequences == [2]


def test_default_spool_lies_in_a_private_folder(receiver, helpers, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    transport = HttpTransport(receiver.url, process_id="p")
    try:
        folder = Path(transport.get_status()["spool"]["directory"])
        home = tmp_path / f"rl-insight-{os.geteuid()}"
        assert folder.parent.parent == home / "spool"
        assert home.stat().st_mode & 0o077 == 0
        assert folder.stat().st_mode & 0o077 == 0
    finally:
        transport.close()


def test_default_folder_prepared_by_another_user_is_not_used(receiver, helpers, tmp_path, monkeypatch, caplog):
    (tmp_path / "trap").mkdir()
    (tmp_path / f"rl-insight-{os.geteuid()}").symlink_to(tmp_path / "trap")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    transport = HttpTransport(receiver.url, process_id="p")
    try:
        send(transport, helpers, [1])
        assert transport.flush(20)
    finally:
        transport.close()
    assert receiver.sequences == [1]
    assert list((tmp_path / "trap").iterdir()) == []
    assert "belongs to another user" in caplog.text


def test_proxy_of_the_environment_is_not_used_for_loopback(make_transport, receiver, helpers, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    transport = make_transport()
    send(transport, helpers, [1])
    assert transport.flush(20)
    assert receiver.sequences == [1]


def test_proxy_of_the_environment_is_used_for_other_hosts(make_transport, receiver, helpers, monkeypatch):
    monkeypatch.setenv("http_proxy", receiver.url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    transport = make_transport(url="http://insight.invalid:8080")
    send(transport, helpers, [1])
    assert transport.flush(20)
    assert receiver.requests[0].path == "http://insight.invalid:8080/api/v1/ingest"


def test_jitter_leaves_the_global_random_state_alone(make_transport, receiver, helpers):
    receiver.stop()
    random.seed(7)
    before = random.getstate()
    transport = make_transport()
    send(transport, helpers, [1])
    wait_until(lambda: transport.get_status()["retries"] >= 3)
    assert random.getstate() == before


def test_forked_child_lets_go_of_socket_and_lock_without_hurting_the_parent(make_transport, receiver, helpers):
    receiver.answers = ["hang"]
    transport = make_transport()
    send(transport, helpers, [1])
    assert receiver.hanging.wait(20)
    folder = Path(transport.get_status()["spool"]["directory"])
    kept = [transport._spool._folder.descriptor, transport._client._connection.sock.fileno()]
    with warnings.catch_warnings():
        # Forking a process that has threads is what this test is about.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        still_open = 99
        try:
            transport.abandon()
            transport.send(b"ignored")
            still_open = sum(is_open(descriptor) for descriptor in kept)
        finally:
            os._exit(still_open)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert all(is_open(descriptor) for descriptor in kept)
    assert adopt_orphans(folder.parent, 10**6) == []
    receiver.resume.set()
    send(transport, helpers, [3])
    assert transport.flush(20)
    assert receiver.sequences == [1, 3]
    assert transport.get_status()["retries"] == 0


def test_server_that_never_accepts_does_not_delay_close(make_transport, helpers):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(1)
        transport = make_transport(url=f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=3600.0)
        send(transport, helpers, [1])
        wait_until(lambda: transport._client._candidate is not None)
        transport.close()
        wait_until(lambda: not transport._thread.is_alive())


def test_token_saved_by_the_server_on_this_machine_is_used_with_its_url_too(
    make_transport, receiver, helpers, tmp_path
):
    def write(token):
        state = ServerState(pid=os.getpid(), url=receiver.url, token=token)
        (tmp_path / STATE_FILE).write_bytes(msgspec.json.encode(state))

    write("first")
    transport = make_transport(url=f"{receiver.url}/", data_dir=tmp_path)
    send(transport, helpers, [1])
    assert transport.flush(20)
    receiver.answers = [helpers.Refusal(401)]
    write("second")  # a restarted server has another token
    send(transport, helpers, [2])
    assert transport.flush(20)
    sent = [request.authorization for request in receiver.requests]
    assert sent == ["Bearer first", "Bearer first", "Bearer second"]


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    files = ["-keyout", folder / "key.pem", "-out", folder / "cert.pem", "-addext", "subjectAltName=IP:127.0.0.1"]
    try:
        subprocess.run([*command, *files], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("the program openssl makes the certificate for this test")
    return folder


@pytest.fixture
def tls_receiver(helpers, certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    receiver = helpers.Receiver(context)
    yield receiver
    receiver.stop()


def test_https_with_a_known_certificate(make_transport, tls_receiver, helpers, certificate):
    transport = make_transport(url=tls_receiver.url, ca_file=str(certificate / "cert.pem"))
    send(transport, helpers, [1])
    assert transport.flush(20)
    assert tls_receiver.sequences == [1]


def test_https_with_an_unknown_certificate_sends_nothing(make_transport, tls_receiver, helpers):
    transport = make_transport(url=tls_receiver.url, retry_initial_s=3600.0)
    send(transport, helpers, [1])
    wait_until(lambda: transport.get_status()["retries"] >= 1)
    assert "CERTIFICATE_VERIFY_FAILED" in transport.get_status()["last_error"]
    assert tls_receiver.requests == []


def test_hanging_https_server_does_not_hold_close(make_transport, tls_receiver, helpers, certificate):
    tls_receiver.answers = ["hang"]
    transport = make_transport(url=tls_receiver.url, ca_file=str(certificate / "cert.pem"), timeout_s=3600.0)
    send(transport, helpers, [1])
    assert tls_receiver.hanging.wait(20)
    transport.close()
    wait_until(lambda: not transport._thread.is_alive())


def test_the_interval_that_an_acknowledgment_asks_for_is_passed_on(receiver, make_transport, helpers, monkeypatch):
    wanted = []
    take = receiver.take
    monkeypatch.setattr(receiver, "take", lambda batches: take(batches) | {"flush_s": 4})
    transport = make_transport()
    transport.on_flush_interval = wanted.append
    transport.send(helpers.make_batch(1))
    assert transport.flush(20)
    monkeypatch.undo()
    transport.send(helpers.make_batch(2))
    assert transport.flush(20)
    assert wanted == [4.0, 0.0]


def test_requests_for_stacks_of_other_processes_are_passed_on(receiver, make_transport, helpers, monkeypatch):
    """A relay sends the batches of many processes, and the server addresses each of them by its id."""
    own, others = [], []
    take = receiver.take
    monkeypatch.setattr(receiver, "take", lambda batches: take(batches) | {"stacks": ["somewhere-else"]})
    transport = make_transport()
    transport.on_stacks_wanted = lambda: own.append(1)
    transport.on_stacks_of_others = others.extend
    transport.send(helpers.make_batch(1))
    assert transport.flush(20)
    assert (own, others) == ([], ["somewhere-else"])
