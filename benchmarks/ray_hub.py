"""Events per second of one Ray hub with batches, compared with an actor that receives one event per call."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.harness import Figure, Options, SkipBenchmark, say

NAME = "ray_hub"

_WORKERS = 8
_BURST = 500
_DEADLINE_S = 120.0


def run(options: Options) -> Iterator[Figure]:
    """Measure a hub with batches from 8 workers, and the same workers with one call per event."""
    try:
        import ray
    except ImportError:
        raise SkipBenchmark("Ray is not installed. Install it with: pip install 'rl-insight[ray]'.") from None
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # Ray's announced future behavior; silences its warning
    ray.init(
        "local",
        num_cpus=_WORKERS,
        _node_ip_address="127.0.0.1",
        include_dashboard=False,
        log_to_driver=False,
        logging_level=40,
    )
    try:
        yield from _measure(options)
    finally:
        ray.shutdown()


def _measure(options: Options) -> Iterator[Figure]:
    import rl_insight
    from rl_insight.hub.ray_hub import find_hub

    rounds = 1 if options.quick else 3
    spans, calls = (4_000, 100) if options.quick else (40_000, 500)
    rl_insight.init(config={"server": {"backend": "ray"}, "prometheus": {"metrics_report_port": 0}})
    try:
        batched, single = [], []
        workers = _start_workers()
        for number in range(rounds):
            say(f"ray_hub: round {number + 1} of {rounds}")
            single.append(_one_event_a_call(workers, calls))
            batched.append(_in_batches(find_hub(), workers, spans))
    finally:
        rl_insight.finish()
    rate, sender_us = (statistics.median(values) for values in zip(*batched, strict=True))
    single_rate, single_sender_us = (statistics.median(values) for values in zip(*single, strict=True))
    yield Figure("spans through one hub, 8 workers, in batches", rate, "/s")
    yield Figure("events through one actor, 8 workers, one per call", single_rate, "/s")
    yield Figure("hub with batches / one event per call", rate / single_rate, "x", budget=50, at_least=True)
    yield Figure("CPU time of the caller for a recorded span", sender_us, "us")
    yield Figure("CPU time of the caller for one call per event", single_sender_us, "us")


class Worker:
    """Records in a separate process, like a rollout worker: no `init()`, it finds the job's hub."""

    def start(self) -> None:
        """Join the run and wait until the hub is known."""
        import rl_insight

        rl_insight.metric_count("workers_started")
        deadline = time.monotonic() + _DEADLINE_S
        while not rl_insight.flush(5.0):
            if time.monotonic() > deadline:
                raise RuntimeError("the worker found no hub.")
            time.sleep(0.05)

    def record(self, spans: int) -> float:
        """Record spans as fast as the buffer allows and deliver them; returns the calls' CPU seconds."""
        import rl_insight
        from rl_insight.monitor import default_monitor

        spent = 0.0
        for _ in range(spans // _BURST):
            begun = time.thread_time()
            for turn in range(_BURST):
                with rl_insight.trace_span("generate", {"tokens": 512, "model": "policy", "turn": turn}):
                    pass
            spent += time.thread_time() - begun
            recorder = default_monitor._recorder
            while recorder is not None and len(recorder.spans) > 10_000:
                time.sleep(0.005)
        if not rl_insight.flush(_DEADLINE_S):
            raise RuntimeError("the hub did not accept the batches in time.")
        losses = rl_insight.get_status()["losses"]
        if losses:
            raise RuntimeError(f"events were lost while measuring: {losses}.")
        return spent

    def call(self, hub: Any, calls: int) -> float:
        """Send events one per call, as fast as the hub responds; returns the calls' CPU seconds."""
        import ray

        begun = time.thread_time()
        references = [
            hub.take.remote("generate", time.time_ns(), {"tokens": 512, "model": "policy", "turn": turn})
            for turn in range(calls)
        ]
        spent = time.thread_time() - begun
        ray.get(references)
        return spent


class OneEventHub:
    """The baseline: an actor whose method is called once per event and only stores it."""

    def __init__(self) -> None:
        self._events: list[Any] = []

    def take(self, name: str, time_ns: int, attributes: dict[str, Any]) -> None:
        """Keep one event."""
        self._events.append((name, time_ns, attributes))

    def count(self) -> int:
        """Return the number of events received."""
        return len(self._events)


def _start_workers() -> list[Any]:
    import ray

    workers = [ray.remote(Worker).options(num_cpus=1).remote() for _ in range(_WORKERS)]
    ray.get([worker.start.remote() for worker in workers])
    return workers


def _in_batches(hub: Any, workers: list[Any], spans: int) -> tuple[float, float]:
    """Return spans per second from the first call until the hub has them all, and the CPU microseconds of a call."""
    import ray

    before = _spans_seen(hub)
    begun = time.perf_counter()
    spent = ray.get([worker.record.remote(spans) for worker in workers])
    seen = _spans_seen(hub) - before
    taken = time.perf_counter() - begun
    if seen != spans * _WORKERS:
        raise RuntimeError(f"{spans * _WORKERS} spans were recorded, {seen} arrived: the figure would be meaningless.")
    return seen / taken, sum(spent) / seen * 1e6


def _spans_seen(hub: Any) -> int:
    import ray

    status = ray.get(hub.get_status.remote())["collector"]
    return int(status["events"]["spans"] if isinstance(status, dict) else status.events["spans"])


def _one_event_a_call(workers: list[Any], calls: int) -> tuple[float, float]:
    import ray

    hub = ray.remote(OneEventHub).options(num_cpus=0).remote()
    ray.get(hub.count.remote())
    begun = time.perf_counter()
    spent = ray.get([worker.call.remote(hub, calls) for worker in workers])
    seen = ray.get(hub.count.remote())
    taken = time.perf_counter() - begun
    ray.kill(hub)
    return seen / taken, sum(spent) / seen * 1e6
