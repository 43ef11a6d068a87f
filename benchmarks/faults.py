"""Fault tolerance of the server and its producers: kills, stops, full disks, limits, hostile peers, long runs.

    python -m benchmarks faults --minutes 150

Each figure is a guarantee with its budget. Without `--minutes` every fault is tested briefly.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.fault_clients import HostileServer, fuzz, hold_connections, open_streams
from benchmarks.fault_server import RUN_ID, Place, Producer, pause, place
from benchmarks.harness import Figure, Options, SkipBenchmark, say

NAME = "faults"

_MEBIBYTE = 1024 * 1024
_PRODUCERS = 2
_AGES_S = 86_400.0
"""For a producer that records until it is stopped."""
_DRAIN_S = 120.0
_VIEW_EVERY_S = 5.0
_SOAK_CACHE = "192MB"
"""DuckDB's cache for the run: small enough to be full before the second half begins."""
_FULL_MINUTES = 150.0
"""The length at which the figures of a full run are reached: 100 kills, 1,000,000 requests, 500 streams, two hours."""


def run(options: Options) -> Iterator[Figure]:
    """Inject every fault; the duration scales how often and how long."""
    share = min(1.0, options.minutes / _FULL_MINUTES) if options.minutes else (0.01 if options.quick else 0.03)
    scenarios: list[Callable[[float], Iterator[Figure]]] = [
        _kill_server, _kill_producers, _kill_both, _stop_server, _full_disk, _read_only_disk, _deleted_run,
        _descriptors, _memory, _clock_jumps, _hostile_server, _slow_clients, _fuzzed, _streams, _soak,
    ]  # fmt: skip
    for scenario in scenarios:
        say(f"faults: {(scenario.__doc__ or '').rstrip('.').lower()}")
        try:
            yield from scenario(share)
        except SkipBenchmark as reason:
            say(f"faults: skipped. {reason}")


def _figures(here: Place, what: str, made: int, *, at_most: bool = False) -> Iterator[Figure]:
    """Stop the server and compare the recorded spans with the stored ones; `at_most` if some could not be sent."""
    here.stop()
    rows, distinct = here.stored()
    yield Figure(f"{what}: spans made", made, "spans")
    yield Figure(f"{what}: batches that still wait in spools", here.waiting_batches(), "batches", budget=0)
    yield Figure(f"{what}: spans that producers dropped and counted", here.counted_losses(), "spans", budget=0)
    if not at_most:
        yield Figure(f"{what}: spans lost", max(0, made - distinct), "spans", budget=0)
    yield Figure(f"{what}: spans stored twice", rows - distinct, "spans", budget=0)


def _alive(here: Place, what: str) -> Figure:
    return Figure(f"{what}: servers that do not answer", int(here.status("/healthz") != 200), "servers", budget=0)


def _drain(here: Place) -> int:
    """Let new processes send the spools that the others left; returns the number of spans they recorded themselves."""
    made = 0
    for rank in range(90, 100):
        left = here.filled_spools()
        if not left:
            break
        last = here.start_producer(rank, _AGES_S)
        until = time.monotonic() + _DRAIN_S
        while left & here.filled_spools() and time.monotonic() < until:
            time.sleep(0.5)
        last.end()
        made += last.report[0]
    return made


def _wait_for_spans(here: Place) -> None:
    while here.status(f"/api/v1/summary?run={RUN_ID}") != 200:
        time.sleep(0.2)


def _start(here: Place, seconds: float) -> list[Producer]:
    here.start_server()
    return [here.start_producer(rank, seconds) for rank in range(_PRODUCERS)]


def _kill_server(share: float) -> Iterator[Figure]:
    """Kill the server repeatedly while producers record."""
    kills, chance = max(2, round(100 * share)), random.Random(1)
    with place() as here:
        producers = _start(here, _AGES_S)
        for _ in range(kills):
            pause(chance, 0.3, 2.0)
            here.kill_server()
            here.start_server()
        for producer in producers:
            producer.end()
        yield Figure("kill -9 of the server: kills", kills, "kills")
        made = sum(producer.report[0] for producer in producers) + _drain(here)
        yield from _figures(here, "kill -9 of the server", made)


def _kill_producers(share: float) -> Iterator[Figure]:
    """Kill producers while they record; the next one sends their spools."""
    kills, chance = max(2, round(100 * share)), random.Random(2)
    with place() as here:
        here.start_server()
        made = 0
        for rank in range(kills):
            producer = here.start_producer(rank, _AGES_S)
            while not producer.report[0]:
                time.sleep(0.05)
            pause(chance, 0.2, 1.0)
            producer.kill()
            made += producer.report[0]
        made += _drain(here)
        yield Figure("kill -9 of producers: kills", kills, "kills")
        # Unflushed spans die with a killed process: only duplicates would be wrong.
        yield from _figures(here, "kill -9 of producers", made, at_most=True)
        yield Figure("kill -9 of producers: spans that died unsent", made - here.stored()[1], "spans")


def _kill_both(share: float) -> Iterator[Figure]:
    """Kill the server and a producer at the same time."""
    kills, chance = max(1, round(50 * share)), random.Random(3)
    with place() as here:
        steady = _start(here, _AGES_S)
        for number in range(kills):
            victim = here.start_producer(10 + number, _AGES_S)
            pause(chance, 1.0, 2.0)
            victim.kill()
            here.kill_server()
            here.start_server()
        for producer in steady:
            producer.end()
        yield Figure("kill -9 of both: kills", 2 * kills, "kills")
        made = sum(producer.report[0] for producer in steady) + _drain(here)
        yield from _figures(here, "kill -9 of both", made)


def _stop_server(share: float) -> Iterator[Figure]:
    """Stop the server with SIGSTOP, then let it continue."""
    seconds = max(3.0, 60 * share)
    with place() as here:
        producers = _start(here, seconds=seconds + 4.0)
        time.sleep(2.0)
        here.signal_server(signal.SIGSTOP)
        time.sleep(seconds)
        here.signal_server(signal.SIGCONT)
        for producer in producers:
            producer.wait()
        yield Figure("SIGSTOP: longest burst of 20 spans", max(one.report[1] for one in producers) * 1000, "ms")
        yield from _figures(here, f"SIGSTOP for {seconds:.0f} s", sum(producer.report[0] for producer in producers))


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[None]:
    """Mount a 160 MB disk at a folder for a `with` block."""
    folder.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160m", "tmpfs", str(folder)], check=False).returncode:
        raise SkipBenchmark("mounting a small disk requires root.")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def _full_disk(share: float) -> Iterator[Figure]:
    """Fill the server's disk, then free the space."""
    with place() as here, _small_disk(here.data):
        producers = _start(here, seconds=16.0 + 60 * share)
        time.sleep(3.0)
        filler = here.data / "filler"
        filler.write_bytes(b"x" * max(0, shutil.disk_usage(here.data).free - _MEBIBYTE))
        time.sleep(4.0)
        yield _alive(here, "full disk")
        filler.unlink()
        for producer in producers:
            producer.wait()
        yield from _figures(here, "full disk", sum(producer.report[0] for producer in producers))


def _read_only_disk(share: float) -> Iterator[Figure]:
    """Record with spools on a read-only disk."""
    with place() as here, _small_disk(here.spool):
        subprocess.run(["mount", "-o", "remount,ro", str(here.spool)], check=True)
        producers = _start(here, seconds=8.0 + 60 * share)
        for producer in producers:
            producer.wait()
        yield from _figures(here, "spools on a read-only disk", sum(producer.report[0] for producer in producers))


def _deleted_run(_share: float) -> Iterator[Figure]:
    """Delete the runs' directory under a running server."""
    with place() as here:
        producers = _start(here, seconds=8.0)
        _wait_for_spans(here)
        shutil.rmtree(here.data / "runs")
        for producer in producers:
            producer.wait()
        yield _alive(here, "deleted directory")


def _descriptors(share: float) -> Iterator[Figure]:
    """Use up the server's file descriptors with idle connections."""
    with place() as here:
        here.start_server(["--nofile=128:128"])
        producers = [here.start_producer(rank, 12.0 + 60 * share) for rank in range(_PRODUCERS)]
        time.sleep(3.0)
        held = hold_connections(here.port, 200)
        time.sleep(4.0)
        for connection in held:
            connection.close()
        for producer in producers:
            producer.wait()
        corrupt = len(list((here.data / "runs").glob("*.corrupt-*")))
        yield Figure("out of descriptors: run files set aside", corrupt, "files", budget=0)
        yield from _figures(here, "out of descriptors", sum(producer.report[0] for producer in producers))


def _memory(share: float) -> Iterator[Figure]:
    """Send decompression bombs, under a memory limit."""
    import gzip

    with place() as here:
        here.start_server(["--as=8589934592"])
        bomb = gzip.compress(b"\x12\x00" * 30_000_000)
        import http.client

        for _ in range(max(2, round(50 * share))):
            for path in ("/v1/traces", "/v1/logs", "/v1/metrics"):
                connection = http.client.HTTPConnection("127.0.0.1", here.port, timeout=120)
                headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
                connection.request("POST", path, bomb, headers)
                connection.getresponse().read()
                connection.close()
        yield _alive(here, "memory limit")
        yield Figure("memory limit: memory", here.memory_bytes() / _MEBIBYTE, "MiB", budget=2048)


_JUMPING = """
import sys, time
real, started = time.time_ns, time.time_ns()
jumps = [0, 3600, -7200, 40 * 86400, -86400]
time.time_ns = lambda: real() + jumps[int((real() - started) / 1e9) % len(jumps)] * 10**9
import rl_insight as insight
config = {"server": {"backend": "http", "url": sys.argv[1]}, "http": {"spool_dir": sys.argv[2]}}
insight.init("benchmarks", "faults", config, run_id="faults", role="worker", rank=0)
end, made = time.monotonic() + float(sys.argv[3]), 0
while time.monotonic() < end:
    with insight.trace_span("work"):
        made += 1
    time.sleep(0.005)
insight.finish()
print(made)
"""


def _clock_jumps(share: float) -> Iterator[Figure]:
    """Let the wall clock of a producer jump by hours and days."""
    import duckdb

    with place() as here:
        here.start_server()
        arguments = [here.url, str(here.spool), str(6.0 + 60 * share)]
        finished = subprocess.run(
            [sys.executable, "-c", _JUMPING, *arguments], stdout=subprocess.PIPE, check=True, timeout=300
        )
        made = int(finished.stdout)
        yield from _figures(here, "clock jumps", made)
        with duckdb.connect(str(here.data / "runs" / "faults.duckdb")) as connection:
            sql = "SELECT count(*) FROM span_data WHERE duration_ns < 0 OR duration_ns > 60e9"
            ((wrong,),) = connection.execute(sql).fetchall()
        yield Figure("clock jumps: impossible durations", wrong, "spans", budget=0)


def _hostile_server(share: float) -> Iterator[Figure]:
    """Record to a server that drips, resets, floods and fails."""
    with place() as here:
        hostile = HostileServer()
        here.url = f"http://127.0.0.1:{hostile.port}"
        seconds = 6.0 + 120 * share
        producer = here.start_producer(0, seconds)
        begun = time.monotonic()
        time.sleep(seconds)
        hostile.stop()
        producer.wait()
        yield Figure("hostile server: longest burst of 20 spans", producer.report[1] * 1000, "ms")
        # `finish` waits up to 60 s for delivery, and the hostile server is gone by then.
        yield Figure("hostile server: time to leave", time.monotonic() - begun - seconds, "s", budget=75)


def _slow_clients(share: float) -> Iterator[Figure]:
    """Hold many unfinished requests while producers record."""
    with place() as here:
        producers = _start(here, seconds=8.0 + 60 * share)
        held = hold_connections(here.port, 90, body_bytes=31_000_000)
        for producer in producers:
            producer.wait()
        yield Figure("slow clients: memory", here.memory_bytes() / _MEBIBYTE, "MiB", budget=1024)
        for connection in held:
            connection.close()
        yield from _figures(here, "slow clients", sum(producer.report[0] for producer in producers))


def _fuzzed(share: float) -> Iterator[Figure]:
    """Send random requests."""
    count = max(2_000, round(1_000_000 * share))
    with place() as here:
        here.start_server()
        producer = here.start_producer(0, 3.0)
        producer.wait()
        with ThreadPoolExecutor(4) as senders:
            parts = senders.map(lambda seed: fuzz(here.port, count // 4, seed), range(4))
            found: Counter[int] = sum(parts, Counter())
        # 503 and 507 mean that there is currently no room; any other 5xx is a defect.
        defects = sum(number for status, number in found.items() if status >= 500 and status not in {503, 507})
        say(f"faults: responses by status: {dict(sorted(found.items()))}")
        yield Figure("fuzzed requests", found.total(), "requests")
        yield Figure("fuzzed requests: answered with a defect", defects, "requests", budget=0)
        yield _alive(here, "fuzzed requests")


def _streams(share: float) -> Iterator[Figure]:
    """Hold live streams open while producers record."""
    with place() as here:
        here.start_server()
        before = here.descriptors()
        streams = open_streams(here.port, 500)
        producers = [here.start_producer(rank, 8.0 + 120 * share) for rank in range(_PRODUCERS)]
        for producer in producers:
            producer.wait()
        yield Figure("live streams", len(streams), "streams", 500, True)
        for stream in streams:
            stream.close()
        until = time.monotonic() + 30
        while here.descriptors() > before + 40 and time.monotonic() < until:
            time.sleep(0.5)
        yield Figure("live streams: descriptors left open", max(0, here.descriptors() - before - 40), "files", budget=0)
        yield from _figures(here, "live streams", sum(producer.report[0] for producer in producers))


def _soak(share: float) -> Iterator[Figure]:
    """Record for a long time while views are read, and check that memory stays flat."""
    seconds = max(20.0, 7200 * share)
    with place([f"store.memory_limit={_SOAK_CACHE}"]) as here:
        producers = _start(here, seconds)
        samples: list[int] = []
        end = time.monotonic() + seconds
        _wait_for_spans(here)
        with _reading(here) as failed:
            while time.monotonic() < end:
                time.sleep(seconds / 40)
                samples.append(here.memory_bytes())
        for producer in producers:
            producer.wait()
        middle, last = samples[len(samples) // 2 : -5], samples[-5:]
        growth = (max(last) - max(middle)) / _MEBIBYTE
        yield Figure("soak", seconds / 60, "minutes")
        yield Figure("soak: memory at the end", max(last) / _MEBIBYTE, "MiB", budget=1024)
        yield Figure("soak: growth in the second half", growth, "MiB", budget=64)
        yield Figure("soak: views that failed", len(failed), "views", budget=0)
        yield from _figures(here, "soak", sum(producer.report[0] for producer in producers))


_VIEWS = ("summary", "steps", "lanes", "hotspots", "findings", "logs")


@contextlib.contextmanager
def _reading(here: Place) -> Iterator[list[int]]:
    """Read one view after another during a `with` block; yields the statuses of failed requests."""
    stop = threading.Event()
    failed: list[int] = []

    def read() -> None:
        views = itertools.cycle(_VIEWS)
        while not stop.wait(_VIEW_EVERY_S):
            status = here.status(f"/api/v1/{next(views)}?run={RUN_ID}", timeout_s=60)
            failed.extend([status] if status != 200 else [])

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield failed
    finally:
        stop.set()
        reader.join()
