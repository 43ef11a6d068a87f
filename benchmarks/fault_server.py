"""A server that can be killed and restarted on the same address, and real producers that record to it."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb
import psutil

from rl_insight.transport._disk import SUFFIX

RUN_ID = "faults"
_READY_S = 60.0

PRODUCER = """
import signal, sys, time
wanted = []
signal.signal(signal.SIGUSR1, lambda *_: wanted.append("end"))
import rl_insight as insight
spool, rank, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
config = {"server": {"backend": "http", "url": sys.argv[4]}, "http": {"spool_dir": spool},
          "recorder": {"finish_timeout_s": 60}}
insight.init("benchmarks", "faults", config, run_id="faults", role="worker", rank=rank)
print("ready", flush=True)
started, made, slowest = time.monotonic(), 0, 0.0
while time.monotonic() < started + seconds and not wanted:
    begun = time.perf_counter()
    for _ in range(20):
        with insight.trace_span("work", {"tokens": 3}):
            pass
    slowest = max(slowest, time.perf_counter() - begun)
    made += 20
    print(made, slowest, flush=True)
    time.sleep(max(0.001, started + made / 1_000 - time.monotonic()))
print("lost", sum(insight.get_status()["losses"].values()), flush=True)
insight.finish()
"""


class Place:
    """A data directory, an address and a folder for spools, for as long as a scenario lasts."""

    def __init__(self, root: Path, words: Sequence[str] = ()) -> None:
        self.data, self.spool = root / "data", root / "spool"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._words = words
        self._log = root / "server.out"
        self.server: subprocess.Popen[bytes] | None = None
        self._producers: list[Producer] = []

    def start_server(self, limits: Sequence[str] = ()) -> None:
        """Start the server and wait until it is ready; `limits` are options of `prlimit`."""
        prefix = ["prlimit", *limits] if limits else []
        command = [*prefix, sys.executable, "-m", "rl_insight.cli", "server", "start", "--data-dir", str(self.data)]
        words = [f"port={self.port}", "otlp_http_port=null", "otlp_grpc_port=null", *self._words]
        with self._log.open("ab") as log:
            self.server = subprocess.Popen([*command, *words], stdout=log, stderr=log)
        until = time.monotonic() + _READY_S
        while self.status("/readyz") != 200:
            if self.server.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the server did not start: {self._log.read_text()[-500:]}")
            time.sleep(0.05)

    def status(self, path: str, timeout_s: float = 10.0) -> int:
        """Return the HTTP status of a GET; 0 if there was no response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def kill_server(self) -> None:
        """End the server with SIGKILL."""
        assert self.server is not None
        self.server.kill()
        self.server.wait()

    def signal_server(self, number: int) -> None:
        """Send a signal to the server."""
        assert self.server is not None
        os.kill(self.server.pid, number)

    def memory_bytes(self) -> int:
        """Return the server's memory."""
        assert self.server is not None
        return int(psutil.Process(self.server.pid).memory_info().rss)

    def descriptors(self) -> int:
        """Return how many files and sockets the server has open."""
        assert self.server is not None
        return psutil.Process(self.server.pid).num_fds()

    def waiting_batches(self) -> int:
        """Return the number of batches in the spools of all producers, including killed ones."""
        return sum(1 for _ in self.spool.rglob(f"*{SUFFIX}"))

    def filled_spools(self) -> set[Path]:
        """Return the spools that contain batches."""
        return {path.parent for path in self.spool.rglob(f"*{SUFFIX}")}

    def counted_losses(self) -> int:
        """Return the number of dropped events reported by producers that exited cleanly."""
        return sum(producer.losses for producer in self._producers)

    def start_producer(self, rank: int, seconds: float) -> Producer:
        """Start a process that records 1,000 spans per second."""
        producer = Producer(self, rank, seconds)
        self._producers.append(producer)
        return producer

    def stop(self) -> None:
        """Stop everything that still runs; the server shuts down cleanly."""
        for producer in self._producers:
            producer.kill()
        if self.server is not None and self.server.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.signal_server(signal.SIGCONT)
            self.server.terminate()
            try:
                self.server.wait(20)
            except subprocess.TimeoutExpired:
                self.kill_server()

    def stored(self) -> tuple[int, int]:
        """Return the number of spans in the run file, and of distinct ones; for a stopped server."""
        with duckdb.connect(str(self.data / "runs" / f"{RUN_ID}.duckdb")) as connection:
            sql = "SELECT count(*), count(DISTINCT (process, span_id)) FROM span_data JOIN lanes USING (lane_id)"
            ((rows, distinct),) = connection.execute(sql).fetchall()
            return int(rows), int(distinct)


class Producer:
    """A process with a real recorder, which reports the number of spans it has made after each burst."""

    def __init__(self, place: Place, rank: int, seconds: float) -> None:
        arguments = [str(place.spool), str(rank), str(seconds), place.url]
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the process)
        self.program = subprocess.Popen(
            [sys.executable, "-c", PRODUCER, *arguments], stdout=self._output, stderr=subprocess.DEVNULL
        )

    def wait(self, timeout_s: float = 180.0) -> None:
        """Wait for the end of the recording and of the delivery."""
        self.program.wait(timeout_s)

    def end(self) -> None:
        """Stop recording, and deliver the remaining events."""
        self.program.send_signal(signal.SIGUSR1)
        self.wait()

    def kill(self) -> None:
        """End the process with SIGKILL."""
        if self.program.poll() is None:
            self.program.kill()
            self.program.wait()

    @property
    def losses(self) -> int:
        """The events that the process dropped and counted; known at its end."""
        self._output.seek(0)
        lines = [line.split() for line in self._output.read().decode().splitlines()]
        return sum(int(line[1]) for line in lines if line[0] == "lost")

    @property
    def report(self) -> tuple[int, float]:
        """The spans made so far, and the longest burst in seconds."""
        self._output.seek(0)
        lines = [line.split() for line in self._output.read().decode().splitlines() if line[:1].isdigit()]
        complete = [line for line in lines if len(line) == 2]
        return (int(complete[-1][0]), float(complete[-1][1])) if complete else (0, 0.0)


@contextlib.contextmanager
def place(words: Sequence[str] = ()) -> Iterator[Place]:
    """Create a place for a `with` block; everything that runs in it is stopped afterward."""
    root = Path(tempfile.mkdtemp(prefix="rl-insight-faults-"))
    made = Place(root, words)
    try:
        yield made
    finally:
        made.stop()
        shutil.rmtree(root, ignore_errors=True)


def pause(chance: random.Random, shortest_s: float, longest_s: float) -> None:
    """Wait for a random time."""
    time.sleep(chance.uniform(shortest_s, longest_s))
