"""The cost of a span in a training loop on a GPU.

The loops alternate with and without spans, second by second: only the difference within a run is meaningful.
Without a GPU, calls to a C function replace launches: like PyTorch, they release the GIL. The cost of a span is then
similar, but the budget applies only to GPUs.
"""

from __future__ import annotations

import ctypes
import importlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

from benchmarks.harness import Figure, Options
from benchmarks.sink import running_sink

NAME = "gpu_loop"

_SECONDS = 1.0
_KERNELS = 2
"""Small kernels per iteration: 10 to 20 µs, so one span per iteration is about 50,000 per second."""
_SIDE = 4096
_CLEARED_BYTES = 100_000
"""Takes about as long as a launch."""


class Loop(NamedTuple):
    """One kind of training loop."""

    name: str
    work: Callable[[], Any]
    budget_us: float | None
    synchronize: Callable[[], Any]


def run(options: Options) -> Iterator[Figure]:
    """Measure each loop."""
    rounds = 3 if options.quick else 15
    loops = _on_gpu() or _in_c()
    with _recording() as monitor:
        for loop in loops:
            yield from _measure(loop, monitor, rounds)


def _on_gpu() -> list[Loop]:
    """Return the loops that need PyTorch and a GPU; none without them."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return []
    if not torch.cuda.is_available():
        return []
    small = torch.zeros(1024, device="cuda")
    matrix = torch.randn(_SIDE, _SIDE, device="cuda", dtype=torch.bfloat16)
    product = torch.empty_like(matrix)

    def launch_bound() -> None:
        for _ in range(_KERNELS):
            small.add_(1.0)

    def compute_bound() -> None:
        torch.mm(matrix, matrix, out=product)

    return [
        Loop("small kernels", launch_bound, 5.0, torch.cuda.synchronize),
        Loop("matrix products", compute_bound, 1.0, torch.cuda.synchronize),
    ]


def _in_c() -> list[Loop]:
    clear, memory = ctypes.CDLL(None).memset, ctypes.create_string_buffer(_CLEARED_BYTES)

    def launch_bound() -> None:
        for _ in range(_KERNELS):
            clear(memory, 0, _CLEARED_BYTES)

    return [Loop("calls to a C function", launch_bound, None, lambda: None)]


def _measure(loop: Loop, monitor: Any, rounds: int) -> Iterator[Figure]:
    around: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "a span": lambda: monitor.trace_span("step"),
        "a span with two attributes": lambda: monitor.trace_span("step", {"tokens": 512, "turn": 3}),
    }
    bare: list[float] = []
    added: dict[str, list[float]] = {kind: [] for kind in around}
    _turn(loop, nullcontext)
    for _ in range(rounds):
        for kind, span in around.items():
            bare.append(_turn(loop, nullcontext))
            added[kind].append(_turn(loop, span) - bare[-1])
    usual = statistics.median(bare)
    yield Figure(f"{loop.name}: an iteration", usual, "us")
    for kind, more in added.items():
        yield Figure(f"{loop.name}: {kind}", 1e6 / (usual + statistics.median(more)), "/s")
        yield Figure(f"{loop.name}: added by {kind}", statistics.median(more), "us", budget=loop.budget_us)
    lost = sum(monitor.get_status()["losses"].values())
    yield Figure(f"{loop.name}: lost", lost, "spans", budget=0)


def _turn(loop: Loop, around: Callable[[], AbstractContextManager[Any]]) -> float:
    """Return the microseconds of an iteration."""
    work = loop.work
    loop.synchronize()
    begun = time.perf_counter()
    count = 0
    while time.perf_counter() < begun + _SECONDS:
        for _ in range(500):
            with around():
                work()
        count += 500
    loop.synchronize()
    return (time.perf_counter() - begun) / count * 1e6


@contextmanager
def _recording() -> Iterator[Any]:
    from rl_insight.monitor import Monitor

    monitor = Monitor()
    with running_sink() as sink, tempfile.TemporaryDirectory() as spool:
        config = {"server": {"backend": "http", "url": sink.url}, "http": {"spool_dir": spool}}
        monitor.init("benchmarks", "loop", config, run_id="loop", role="trainer", rank=0)
        try:
            yield monitor
        finally:
            monitor.finish()
