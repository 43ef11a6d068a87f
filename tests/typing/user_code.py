"""What users write, checked by mypy in strict mode; it is never run.

Each `type: ignore` marks a call that must be rejected: mypy reports unneeded ones.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

from typing_extensions import assert_type

import rl_insight as insight
from rl_insight.testing import CaptureMonitor, capture


@insight.trace_op("add", stage="x")
def add(a: int, b: str = "") -> float:
    return a + len(b)


@insight.trace_op
def bare(a: int) -> str:
    return str(a)


@insight.trace_op(extra_labels=lambda batch: {"size": len(batch)})
async def fetch(batch: list[int]) -> bytes:
    return bytes(batch)


@insight.trace_op()
def numbers(n: int) -> Iterator[int]:
    yield from range(n)


@insight.trace_op()
async def stream(n: int) -> AsyncIterator[int]:
    for number in range(n):
        yield number


class Worker:
    @insight.trace_op("generate")
    def generate(self, prompt: str) -> list[int]:
        return [len(prompt)]

    @staticmethod
    @insight.trace_op("score")
    def score(value: float) -> float:
        return value

    @classmethod
    @insight.trace_op
    def make(cls, n: int) -> Worker:
        return cls()


assert_type(add(1, b="x"), float)
assert_type(bare(1), str)
assert_type(Worker().generate("x"), list[int])
assert_type(Worker.score(1.0), float)
assert_type(Worker.make(1), Worker)
assert_type(list(numbers(3)), list[int])

add("x")  # type: ignore[arg-type]
add(1, c=2)  # type: ignore[call-arg]
bare()  # type: ignore[call-arg]
Worker().generate(5)  # type: ignore[arg-type]
Worker.score("x")  # type: ignore[arg-type]
insight.trace_op(5)  # type: ignore[call-overload]
insight.metric_count(5)  # type: ignore[arg-type]
insight.metric_gauge("x")  # type: ignore[call-arg]
insight.metric_gauge("x", "much")  # type: ignore[arg-type]
insight.set_step("x")  # type: ignore[arg-type]


async def use() -> None:
    assert_type(await fetch([1]), bytes)
    async for number in stream(3):
        assert_type(number, int)
    async with insight.trace_span("x", {"a": 1}) as span:
        span.set_attribute("b", [1, 2])
        span.set_status("error", "HTTP 500")
    async with insight.trace_state("rollout", "lane", worker=1), insight.step(3):
        pass


insight.init("p", "e", {"server": {"backend": "memory"}}, run_id="r", role="t", rank=0, labels={"a": "b"})
insight.init({"server": {"backend": "memory"}})
insight.metric_count("a", 1, documentation="x", worker=0, role="x")
insight.metric_value("a", 1.5)
insight.metric_distribution("a", 1.5)
with insight.trace_state("rollout", state_lane_id="x"), insight.trace_span("y"), insight.step(1):
    insight.trace_event("e", version=7)
    insight.log("info", "x", sample=1)
    insight.log(logging.INFO, "x")
insight.trace_span(name="x", start_time_ns=1, end_time_ns=2, attributes={"a": 1})
with insight.attach(insight.inject({"a": "b"})):
    pass
logging.getLogger().addHandler(insight.InsightHandler(level="INFO"))
assert_type(insight.flush(), bool)
assert_type(insight.get_status(), dict[str, Any])
with capture() as captured:
    assert_type(captured, CaptureMonitor)
    assert_type(captured.value("x", worker="0"), float)
    assert_type(captured.spans[0].duration_ns, int | None)
insight.finish()
