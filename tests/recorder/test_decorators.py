from __future__ import annotations

import asyncio
import functools
import inspect

import pytest

import rl_insight as insight


def test_each_call_is_a_span(insight_capture):
    @insight.trace_op("update", stage="optimizer")
    def update(batch, *, scale=1):
        insight_capture.clock.advance(1)
        return batch * scale

    assert update(2, scale=3) == 6
    span = insight_capture.span("update")
    assert (span.segment, span.duration_ns, span.attributes) == ("duration", 10**9, {"stage": "optimizer"})


def test_default_name_is_the_qualified_name(insight_capture):
    class Actor:
        @insight.trace_op()
        def step(self): ...

    @insight.trace_op
    def bare(): ...

    Actor().step()
    bare()
    place = "test_default_name_is_the_qualified_name.<locals>"
    assert [span.name for span in insight_capture.spans] == [f"{place}.Actor.step", f"{place}.bare"]


def test_name_signature_and_documentation_of_the_function_stay(insight_capture):
    @insight.trace_op("update")
    def update(batch: int) -> int:
        """Doubles."""
        return batch * 2

    assert (update.__name__, update.__doc__) == ("update", "Doubles.")
    assert list(inspect.signature(update).parameters) == ["batch"]


@pytest.mark.parametrize("order", ["inside", "outside"])
@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_static_and_class_methods_in_both_orders(insight_capture, order, kind):
    def method(*args):
        return args

    traced = insight.trace_op("method")
    decorated = kind(traced(method)) if order == "inside" else traced(kind(method))
    owner = type("Owner", (), {"method": decorated})
    expected = (owner, 1) if kind is classmethod else (1,)
    assert owner.method(1) == owner().method(1) == expected
    assert len(insight_capture.spans) == 2


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_bare_decorator_on_static_and_class_methods(insight_capture, kind):
    def method(*args):
        return args[-1]

    owner = type("Owner", (), {"method": insight.trace_op(kind(method))})
    assert owner.method(5) == 5
    assert insight_capture.spans[0].name.endswith("method")


def test_method_label_maker_gets_the_object(insight_capture):
    class Worker:
        rank = 3

        @insight.trace_op("generate", extra_labels=lambda self: {"rank": self.rank}, stage="rollout", rank=0)
        def generate(self, prompts):
            return prompts

    Worker().generate([1])
    span = insight_capture.span("generate")
    assert span.attributes == {"stage": "rollout", "rank": 3}
    assert list(span.attributes) == ["stage", "rank"]


def test_label_maker_is_not_called_without_positional_arguments(insight_capture):
    seen = []

    @insight.trace_op("f", extra_labels=lambda first: seen.append(first) or {"n": 1})
    def function(batch=None): ...

    function(batch=1)
    function(2)
    assert seen == [2]
    assert [span.attributes for span in insight_capture.spans] == [{}, {"n": 1}]


class NoTextError(Exception):
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


def failing(_):
    raise NoTextError


@pytest.mark.parametrize("maker", [failing, lambda _: None, lambda _: 5, dict, lambda _: [1]])
def test_failing_label_maker_warns_once_and_never_reaches_the_caller(insight_capture, caplog, maker):
    @insight.trace_op("f", extra_labels=maker, stage="a")
    def function(x):
        return x

    assert [function(1), function(2)] == [1, 2]
    assert [span.attributes for span in insight_capture.spans] == [{"stage": "a"}] * 2
    assert insight_capture.losses == {"labels/extra_labels_failed": 2}
    assert len(caplog.records) == 1


def test_raise_closes_the_span_and_propagates_unchanged(insight_capture):
    error = ValueError("no")

    @insight.trace_op("f")
    def function():
        raise error

    with pytest.raises(ValueError) as caught:
        function()
    assert caught.value is error
    assert (insight_capture.span("f").status, insight_capture.span("f").error) == ("error", "ValueError")


def test_coroutine_span_covers_the_await(insight_capture):
    @insight.trace_op("f")
    async def function(x):
        with insight.trace_span("inside"):
            await asyncio.sleep(0)
        insight_capture.clock.advance(1)
        return x

    assert inspect.iscoroutinefunction(function)
    coroutine = function(4)
    insight_capture.clock.advance(10)
    assert asyncio.run(_await(coroutine)) == 4
    assert insight_capture.span("f").duration_ns == 10**9
    assert insight_capture.span("inside").parent_id == insight_capture.span("f").span_id


async def _await(coroutine):
    return await coroutine


def test_cancelled_coroutine_closes_as_cancelled(insight_capture):
    @insight.trace_op("hang")
    async def hang():
        await asyncio.Event().wait()

    async def main():
        task = asyncio.create_task(hang())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    span = insight_capture.span("hang")
    assert (span.status, span.error) == ("cancelled", "asyncio.exceptions.CancelledError")


# -- generators


def test_generator_span_covers_the_iteration(insight_capture):
    clock = insight_capture.clock

    @insight.trace_op("items")
    def items(n):
        for number in range(n):
            clock.advance(1)
            yield number

    assert inspect.isgeneratorfunction(items)
    iterator = items(3)
    clock.advance(100)
    assert list(iterator) == [0, 1, 2]
    assert insight_capture.span("items").duration_ns == 3 * 10**9


def test_consumers_spans_are_not_children_and_generators_are(insight_capture):
    @insight.trace_op("items")
    def items():
        with insight.trace_span("first"):
            yield 1
            with insight.trace_span("within first"):
                pass
        with insight.trace_span("second"):
            pass
        yield 2

    with insight.trace_span("loop"):
        for number in items():
            with insight.trace_span(f"consume {number}"):
                pass
    loop, own = insight_capture.span("loop"), insight_capture.span("items")
    assert own.parent_id == loop.span_id
    assert {insight_capture.span(f"consume {n}").parent_id for n in (1, 2)} == {loop.span_id}
    assert insight_capture.span("first").parent_id == own.span_id
    assert insight_capture.span("within first").parent_id == insight_capture.span("first").span_id
    assert insight_capture.span("second").parent_id == own.span_id


def test_generator_send_throw_and_return_value(insight_capture):
    @insight.trace_op("echo")
    def echo():
        received = yield "ready"
        try:
            yield received
        except KeyError as error:
            yield type(error).__name__
        return "done"

    def collect():
        return (yield from echo())

    iterator = collect()
    assert next(iterator) == "ready"
    assert iterator.send("hello") == "hello"
    assert iterator.throw(KeyError("x")) == "KeyError"
    with pytest.raises(StopIteration) as stop:
        next(iterator)
    assert stop.value.value == "done"
    assert insight_capture.span("echo").status == "ok"


def test_exception_thrown_into_a_generator_comes_back_unchanged(insight_capture):
    @insight.trace_op("items")
    def items():
        yield 1

    iterator = items()
    next(iterator)
    error = ValueError("mine")
    with pytest.raises(ValueError) as caught:
        iterator.throw(error)
    assert caught.value is error
    assert insight_capture.span("items").error == "ValueError"


def test_generator_that_raises_fails_its_span(insight_capture):
    @insight.trace_op("items")
    def items():
        yield 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(items())
    assert insight_capture.span("items").status == "error"


def test_closed_generator_cleans_up_inside_its_span(insight_capture):
    @insight.trace_op("items")
    def items():
        try:
            yield 1
        finally:
            with insight.trace_span("clean up"):
                insight_capture.clock.advance(1)

    iterator = items()
    next(iterator)
    iterator.close()
    span = insight_capture.span("items")
    assert (span.status, span.duration_ns) == ("ok", 10**9)
    assert insight_capture.span("clean up").parent_id == span.span_id


def test_generator_that_ignores_its_close_gets_a_runtime_error(insight_capture):
    @insight.trace_op("items")
    def items():
        try:
            yield 1
        except GeneratorExit:
            yield 2

    iterator = items()
    next(iterator)
    with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
        iterator.close()


def test_generator_that_was_never_started_records_nothing(insight_capture):
    @insight.trace_op("items")
    def items():
        yield 1

    items().close()
    assert insight_capture.spans == []


def test_abandoned_generator_ends_its_span(insight_capture):
    @insight.trace_op("items")
    def items():
        yield 1

    next(items())
    assert insight_capture.span("items").status == "ok"


# -- async generators


def test_async_generator_span_covers_the_iteration(insight_capture):
    @insight.trace_op("items")
    async def items():
        for number in range(2):
            insight_capture.clock.advance(1)
            with insight.trace_span(f"make {number}"):
                await asyncio.sleep(0)
            yield number

    async def main():
        async for number in items():
            with insight.trace_span(f"consume {number}"):
                await asyncio.sleep(0)

    assert inspect.isasyncgenfunction(items)
    asyncio.run(main())
    span = insight_capture.span("items")
    assert span.duration_ns == 2 * 10**9
    assert [insight_capture.span(f"make {n}").parent_id for n in range(2)] == [span.span_id] * 2
    assert [insight_capture.span(f"consume {n}").parent_id for n in range(2)] == [None, None]


def test_async_generator_asend_athrow_and_aclose(insight_capture):
    closed = []

    @insight.trace_op("echo")
    async def echo():
        try:
            received = yield "ready"
            try:
                yield received
            except KeyError as error:
                yield type(error).__name__
            yield "never"
        finally:
            await asyncio.sleep(0)
            closed.append(True)

    async def main():
        iterator = echo()
        assert await iterator.asend(None) == "ready"
        assert await iterator.asend("hello") == "hello"
        assert await iterator.athrow(KeyError("x")) == "KeyError"
        await iterator.aclose()
        with pytest.raises(StopAsyncIteration):
            await iterator.asend(None)

    asyncio.run(main())
    assert closed == [True]
    assert insight_capture.span("echo").status == "ok"


@pytest.mark.parametrize(("kind", "status"), [(ValueError, "error"), (asyncio.CancelledError, "cancelled")])
def test_async_generator_that_raises_closes_its_span(insight_capture, kind, status):
    error = kind("x")

    @insight.trace_op("items")
    async def items():
        yield 1
        raise error

    async def main():
        async for _ in items():
            pass

    with pytest.raises(kind):
        asyncio.run(main())
    assert insight_capture.span("items").status == status


# -- wrong use, and no use


@pytest.mark.parametrize("target", [5, "text", None, property(lambda self: 1), dict])
def test_what_is_not_a_function_cannot_be_decorated(target):
    with pytest.raises(TypeError, match="trace_op decorates functions"):
        insight.trace_op("x")(target)


@pytest.mark.parametrize("name", [5, ["a"], b"x"])
def test_a_name_is_a_text(name):
    with pytest.raises(TypeError, match="takes a name"):
        insight.trace_op(name)


@pytest.mark.parametrize("maker", [5, {"a": 1}, "text"])
def test_a_label_maker_is_callable(maker):
    with pytest.raises(TypeError, match="must be callable"):
        insight.trace_op("x", extra_labels=maker)


def test_partial_functions_and_callable_objects_can_be_decorated(insight_capture):
    class Reward:
        def __call__(self, x):
            return x + 1

    assert insight.trace_op(functools.partial(pow, 2))(3) == 8
    assert insight.trace_op("reward")(Reward())(1) == 2
    assert [span.name for span in insight_capture.spans] == ["partial", "reward"]


def test_decorated_functions_work_while_nothing_is_recorded():
    calls = []

    @insight.trace_op("f", extra_labels=calls.append)
    def function(x):
        return x

    @insight.trace_op("g", extra_labels=calls.append)
    def generator(x):
        return (yield x)

    @insight.trace_op("h", extra_labels=calls.append)
    async def coroutine(x):
        return x

    @insight.trace_op("i", extra_labels=calls.append)
    async def async_generator(x):
        yield x

    async def main():
        return [await coroutine(1)] + [item async for item in async_generator(2)]

    assert function(0) == 0
    assert list(generator(3)) == [3]
    assert asyncio.run(main()) == [1, 2]
    assert calls == []


def test_function_decorated_before_init_records_after_it():
    from rl_insight.testing import capture

    @insight.trace_op("early")
    def function(): ...

    function()
    with capture() as captured:
        function()
    assert [span.name for span in captured.spans] == ["early"]


def test_recursive_function_nests(insight_capture):
    @insight.trace_op("count down")
    def count_down(n):
        return count_down(n - 1) if n else 0

    count_down(2)
    by_parent = {span.parent_id: span.span_id for span in insight_capture.spans}
    root = by_parent[None]
    assert by_parent[by_parent[root]]
