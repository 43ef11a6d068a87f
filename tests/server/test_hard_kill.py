"""kill -9 of the server under load: what it acknowledged is there, exactly once, after every restart."""

import array
import http.client
import json
import random
import signal
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit

import msgspec
import pytest

from rl_insight.schema import BatchBuilder, Process, encode, frame
from rl_insight.transport._http_client import CONTENT_TYPE

SENDERS = 4
SPANS = 2_500
"""In a batch; the four senders together reach well over 50,000 spans/s."""

PRODUCER = """
import sys, time
import rl_insight as insight
insight.init("hard", "kill", {"http": {"spool_dir": sys.argv[1]}, "recorder": {"finish_timeout_s": 60}}, run_id="r1")
print("ready", flush=True)
begun = time.monotonic()
for burst in range(1, int(sys.argv[2]) + 1):
    for _ in range(100):
        with insight.trace_span("work", {"tokens": 3}):
            pass
    time.sleep(max(0.0, begun + burst * 0.01 - time.monotonic()))
insight.finish()
"""


class Sender:
    """Sends numbered batches as one process, and remembers which were acknowledged."""

    def __init__(self, rank):
        self._process = Process(process_id=f"p{rank}", run_id="r1", host="node", pid=rank, rank=rank)
        builder = BatchBuilder()
        for _ in range(SPANS):
            builder.add_span(span_id=1, trace=(1, 2), name="work", start_ns=time.time_ns(), duration_ns=1000)
        self._template = builder.build(self._process, sequence=1, sent_ns=time.time_ns())
        self.acknowledged = set()
        self._next = 1

    def body(self, sequence):
        ids = array.array("Q", range(sequence * 10_000, sequence * 10_000 + SPANS)).tobytes()
        spans = msgspec.structs.replace(self._template.spans, span_id=ids)
        return frame(encode(msgspec.structs.replace(self._template, sequence=sequence, spans=spans)))

    def send_until_dead(self, url):
        """Send until the server is gone; the batch that was under way is sent again the next time, as clients do."""
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
        try:
            while True:
                connection.request("POST", "/api/v1/ingest", self.body(self._next), {"Content-Type": CONTENT_TYPE})
                answer = connection.getresponse()
                answer.read()
                if answer.status == 200:
                    self.acknowledged.add(self._next)
                    self._next += 1
        except (OSError, http.client.HTTPException):
            return
        finally:
            connection.close()


def ask_sql(url, sql):
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    connection.request("POST", "/api/v1/sql?run=r1", json.dumps({"sql": sql}), {"Content-Type": "application/json"})
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer["rows"]


def check_everything_is_there_once(url, senders):
    rows = ask_sql(
        url,
        "SELECT process_id, span_id // 10000, count(*), count(DISTINCT span_id) "
        "FROM span_data JOIN lanes USING (lane_id) JOIN processes USING (process) GROUP BY 1, 2",
    )
    assert {(found, distinct) for *_, found, distinct in rows} == {(SPANS, SPANS)}
    stored = {(process_id, sequence) for process_id, sequence, *_ in rows}
    acknowledged = {(f"p{rank}", one) for rank, sender in enumerate(senders) for one in sender.acknowledged}
    assert acknowledged <= stored
    # Beyond those only what was under way when the server died: one batch of each sender.
    assert len(stored - acknowledged) <= len(senders)


def kill_under_load(start_server, wait_until, rounds, seed):
    moments = random.Random(seed)
    senders = [Sender(rank) for rank in range(SENDERS)]
    for _ in range(rounds):
        server = start_server()
        if any(sender.acknowledged for sender in senders):
            check_everything_is_there_once(server.url, senders)
        threads = [
            threading.Thread(target=sender.send_until_dead, args=(server.url,), daemon=True) for sender in senders
        ]
        enough = sum(len(sender.acknowledged) for sender in senders) + moments.randrange(20, 80)
        for thread in threads:
            thread.start()
        wait_until(lambda enough=enough: sum(len(sender.acknowledged) for sender in senders) >= enough, 60)
        server.signal(signal.SIGKILL)
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
    check_everything_is_there_once(start_server().url, senders)


def test_what_many_senders_were_told_survives_kill_9_exactly_once(start_server, wait_until):
    kill_under_load(start_server, wait_until, rounds=2, seed=1)


@pytest.mark.slow
def test_what_many_senders_were_told_survives_kill_9_ten_times_over(start_server, wait_until):
    kill_under_load(start_server, wait_until, rounds=10, seed=2)


def record_while_the_server_dies(start_server, wait_until, tmp_path, monkeypatch, kills):
    server = start_server()
    port = urlsplit(server.url).port
    monkeypatch.setenv("RL_INSIGHT_SERVER_URL", server.url)
    bursts = 200 * kills
    command = [sys.executable, "-c", PRODUCER, str(tmp_path / "spool"), str(bursts)]
    producers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
    for producer in producers:
        assert producer.stdout.readline() == b"ready\n"
    for _ in range(kills):
        before = server.data_dir / "runs" / "r1.duckdb"
        wait_until(before.exists)
        wait_until(lambda url=server.url: ask_sql(url, "SELECT count(*) FROM span_data")[0][0] > 0)
        server.signal(signal.SIGKILL)
        server = start_server(f"port={port}")
    for producer in producers:
        assert producer.wait(120) == 0
        producer.stdout.close()
    rows = ask_sql(
        server.url,
        "SELECT count(*), count(DISTINCT (process, span_id)), count(DISTINCT process) "
        "FROM span_data JOIN lanes USING (lane_id)",
    )
    assert rows == [[3 * bursts * 100, 3 * bursts * 100, 3]]
    assert ask_sql(server.url, "SELECT count(*) FROM losses") == [[0]]


def test_producers_lose_nothing_when_the_server_is_killed_and_started_again(
    start_server, wait_until, tmp_path, monkeypatch
):
    record_while_the_server_dies(start_server, wait_until, tmp_path, monkeypatch, kills=1)


@pytest.mark.slow
def test_producers_lose_nothing_when_the_server_is_killed_again_and_again(
    start_server, wait_until, tmp_path, monkeypatch
):
    record_while_the_server_dies(start_server, wait_until, tmp_path, monkeypatch, kills=4)
