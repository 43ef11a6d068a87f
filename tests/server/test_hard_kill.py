"""kill -9 of the server under load: acknowledged data is stored exactly once after every restart."""

import array
import http.client
import json
import random
import signal
import subprocess
import sys
import threading
import time
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec
import pytest

from rl_insight.schema import BatchBuilder, Process, encode, frame
from rl_insight.transport.ingest_client import CONTENT_TYPE

SENDERS = 4
SPANS = 2_000
"""In a batch: the recorder makes one as soon as so many wait."""
LOAD_PER_S = 55_000
"""Spans that all senders together have to deliver; above 50,000, so that what waits for an answer is not missed."""
MAX_REQUEST_BATCHES = 32

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
    """Sends numbered batches as one process at a fixed pace, and records which were acknowledged."""

    def __init__(self, rank):
        self._process = Process(process_id=f"p{rank}", run_id="r1", host="node", pid=rank, rank=rank)
        builder = BatchBuilder()
        attributes = '{"tokens":512,"model":"policy","turn":3}'
        for _ in range(SPANS):
            builder.add_span(
                span_id=1, trace=(1, 2), name="work", start_ns=time.time_ns(), duration_ns=1000, attributes=attributes
            )
        self._template = builder.build(self._process, sequence=1, sent_ns=time.time_ns())
        self.acknowledged = set()
        self.under_way = range(0)
        """What was sent and not answered: it may be stored or not, and is sent again."""
        self.made = 0
        """The last batch that was sent at all."""

    def body(self, sequence):
        ids = array.array("Q", range(sequence * 10_000, sequence * 10_000 + SPANS)).tobytes()
        spans = msgspec.structs.replace(self._template.spans, span_id=ids)
        return frame(encode(msgspec.structs.replace(self._template, sequence=sequence, spans=spans)))

    def send_until_dead(self, url):
        """Send batches on schedule until the server is gone; batches in flight are resent next time, as by clients."""
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
        begun, sent_before = time.monotonic(), self.made
        try:
            while True:
                if not self.under_way:
                    due = sent_before + int((time.monotonic() - begun) * LOAD_PER_S / SENDERS / SPANS)
                    if due <= self.made:
                        time.sleep(0.005)
                        continue
                    self.under_way = range(self.made + 1, min(due, self.made + MAX_REQUEST_BATCHES) + 1)
                self._send(connection)
        except (OSError, http.client.HTTPException):
            return
        finally:
            connection.close()

    def _send(self, connection):
        body = b"".join(map(self.body, self.under_way))
        self.made = self.under_way[-1]
        connection.request("POST", "/api/v1/ingest", body, {"Content-Type": CONTENT_TYPE})
        answer = connection.getresponse()
        counts = json.loads(answer.read())
        if answer.status == 200:
            assert counts["accepted"] + counts["duplicates"] == len(self.under_way)
            self.acknowledged.update(self.under_way)
            self.under_way = range(0)


def ask_sql(url, sql):
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    connection.request("POST", "/api/v1/sql?run=r1", json.dumps({"sql": sql}), {"Content-Type": "application/json"})
    answer = json.loads(connection.getresponse().read())
    connection.close()
    assert "rows" in answer, answer
    return answer["rows"]


def check_everything_is_there_once(url, senders):
    for rank, sender in enumerate(senders):
        rows = ask_sql(
            url,
            "SELECT span_id // 10000, count(*), count(DISTINCT span_id) "
            f"FROM span_data JOIN lanes USING (lane_id) JOIN processes USING (process) WHERE rank = {rank} GROUP BY 1",
        )
        assert {(found, distinct) for _, found, distinct in rows} <= {(SPANS, SPANS)}
        stored = {sequence for sequence, *_ in rows}
        assert sender.acknowledged <= stored
        # Beyond those only what was under way when the server died.
        assert stored - sender.acknowledged <= set(sender.under_way)


class Load(NamedTuple):
    """Spans for each second of load, over all rounds."""

    sent_per_s: float
    acknowledged_per_s: float


def kill_under_load(start_server, wait_until, *, seed, batches, kills=10):
    """Kill the server several times, each time after more batches were acknowledged; returns the load."""
    moments = random.Random(seed)
    senders = [Sender(rank) for rank in range(SENDERS)]
    seconds = 0.0
    for _ in range(kills):
        server = start_server("sql.enabled=true")
        if any(sender.acknowledged for sender in senders):
            check_everything_is_there_once(server.url, senders)
        threads = [
            threading.Thread(target=sender.send_until_dead, args=(server.url,), daemon=True) for sender in senders
        ]
        enough = sum(len(sender.acknowledged) for sender in senders) + moments.choice(batches)
        begun = time.monotonic()
        for thread in threads:
            thread.start()
        wait_until(lambda enough=enough: sum(len(sender.acknowledged) for sender in senders) >= enough, 120)
        server.signal(signal.SIGKILL)
        seconds += time.monotonic() - begun
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
    check_everything_is_there_once(start_server("sql.enabled=true").url, senders)
    sent, acknowledged = (sum(sender.made for sender in senders), sum(len(sender.acknowledged) for sender in senders))
    load = Load(sent * SPANS / seconds, acknowledged * SPANS / seconds)
    print(f"{load.sent_per_s:,.0f} spans/s sent and {load.acknowledged_per_s:,.0f} acknowledged for {seconds:.1f} s")
    return load


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_what_was_acknowledged_to_many_senders_survives_kill_9(start_server, wait_until, record_property, kills):
    load = kill_under_load(start_server, wait_until, seed=1, batches=range(15, 40), kills=kills)
    record_property("spans_sent_per_s", round(load.sent_per_s))
    record_property("spans_acknowledged_per_s", round(load.acknowledged_per_s))


@pytest.mark.slow
def test_what_was_acknowledged_to_many_senders_survives_kill_9_in_the_middle_of_50_000_spans_per_second(
    start_server, wait_until
):
    load = kill_under_load(start_server, wait_until, seed=2, batches=range(100, 300))
    assert load.sent_per_s >= 50_000


def record_while_the_server_dies(start_server, wait_until, tmp_path, monkeypatch, kills):
    server = start_server("sql.enabled=true")
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
        server = start_server(f"port={port}", "sql.enabled=true")
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
