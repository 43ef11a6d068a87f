"""What a span costs a training loop on a GPU.

The loops run with and without spans in turns, second by second: only the difference within a run says something.
"""

from __future__ import annotations

import importlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

from benchmarks.harness import Figure, Options, SkipBenchmark
from benchmarks.sink import running_sink

NAME = "gpu_loop"

_SECONDS = 1.0
_KERNELS = 4
"""Small kernels per iteration: about 20 µs, so a span for each makes about 50,000 per second."""
_SIDE = 4096


class Loop(NamedTuple):
    """One kind of training loop."""

    name: str
    work: Callable[[], Any]
    budget_us: float


def run(options: Options) -> Iterator[Figure]:
    """Measure both loops."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        raise SkipBenchmark("PyTorch is not installed.") from None
    if not torch.cuda.is_available():
        raise SkipBenchmark("PyTorch sees no GPU here.")
    small = torch.zeros(1024, device="cuda")
    matrix = torch.randn(_SIDE, _SIDE, device="cuda", dtype=torch.bfloat16)
    product = torch.empty_like(matrix)

    def launch_bound() -> None:
        for _ in range(_KERNELS):
            small.add_(1.0)

    def compute_bound() -> None:
        torch.mm(matrix, matrix, out=product)

    rounds = 3 if options.quick else 15
    loops = (Loop("small kernels", launch_bound, 5.0), Loop("matrix products", compute_bound, 1.0))
    with _recording() as monitor:
        for loop in loops:
            yield from _measure(loop, monitor, torch.cuda.synchronize, rounds)


def _measure(loop: Loop, monitor: Any, synchronize: Callable[[], None], rounds: int) -> Iterator[Figure]:
    bare, spanned = [], []
    _turn(loop.work, nullcontext, synchronize)
    for _ in range(rounds):
        bare.append(_turn(loop.work, nullcontext, synchronize))
        spanned.append(_turn(loop.work, lambda: monitor.trace_span("step", {"tokens": 512, "turn": 3}), synchronize))
    added = statistics.median(with_span - without for without, with_span in zip(bare, spanned, strict=True))
    yield Figure(f"{loop.name}: an iteration", statistics.median(bare), "us")
    yield Figure(f"{loop.name}: spans", 1e6 / statistics.median(spanned), "/s")
    yield Figure(f"{loop.name}: added by a span", added, "us", budget=loop.budget_us)
    lost = sum(monitor.get_status()["losses"].values())
    yield Figure(f"{loop.name}: lost", lost, "spans", budget=0)


def _turn(
    work: Callable[[], Any], around: Callable[[], AbstractContextManager[Any]], synchronize: Callable[[], None]
) -> float:
    """Return the microseconds of an iteration."""
    synchronize()
    begun = time.perf_counter()
    count = 0
    while time.perf_counter() < begun + _SECONDS:
        for _ in range(500):
            with around():
                work()
        count += 500
    synchronize()
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
