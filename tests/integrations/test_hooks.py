"""Hooks on third-party functions: what they see, and how their failures affect the program."""

import asyncio
import logging
from contextlib import contextmanager

import pytest

from rl_insight.integrations import hooks, timers


class Library:
    def add(self, first, second=2):
        return first + second

    async def fetch(self, url):
        return f"<{url}>"

    @classmethod
    def make(cls, name):
        return name

    @contextmanager
    def block(self, name):
        yield name.upper()


@pytest.fixture
def library():
    return type("Library", (Library,), dict(vars(Library)))


@pytest.fixture
def warnings(caplog):
    hooks._reported.clear()
    caplog.set_level(logging.WARNING)
    return lambda: [record.message for record in caplog.records if record.name == "rl_insight"]


def test_after_sees_arguments_by_name_and_the_result(library):
    seen = []
    for name in ("add", "fetch", "make"):
        for _ in range(2):
            hooks.after(library, name, lambda call, result: seen.append(({**call}, result)))
    one = library()
    assert one.add(1) == 3
    assert asyncio.run(one.fetch(url="x")) == "<x>"
    assert library.make("y") == "y"
    assert seen == [
        ({"self": one, "first": 1, "second": 2}, 3),
        ({"self": one, "url": "x"}, "<x>"),
        ({"cls": library, "name": "y"}, "y"),
    ]


def test_a_function_that_raises_has_no_result_to_see(library):
    hooks.after(library, "add", lambda _call, _result: pytest.fail("there is no result"))
    with pytest.raises(TypeError):
        library().add("a", 1)


def test_blocks_are_surrounded_as_long_as_they_run(library):
    order = []

    @contextmanager
    def noted(call):
        order.append(call["name"])
        yield
        order.append("left")

    hooks.around_blocks(library, "block", noted)
    with library().block("inside") as value:
        order.append(value)
    assert order == ["inside", "INSIDE", "left"]


def test_methods_of_one_name_are_reported_each_with_its_owner(library, warnings):
    other = type("Other", (), {"add": lambda _self: 7})
    hooks.before(library, "add", lambda call: call["missing"])
    hooks.after(other, "add", lambda call, _result: call["missing"])
    for _ in range(2):
        assert library().add(1) == 3
        assert other().add() == 7
    assert [message.partition(" failed")[0] for message in warnings()] == [
        "RL-Insight: the hook on Library.add",
        "RL-Insight: the hook on Other.add",
    ]


TIMER = """
class Timer:
    def __init__(self, message): self.message = message
    def __enter__(self): return self
    def __exit__(self, *outcome): return None
    async def __aenter__(self): return self
    async def __aexit__(self, *outcome): return None
"""


def test_a_timer_ended_by_an_exception_records_it(insight_capture, module):
    made = module("framework.timer", TIMER)
    timers.record_blocks(made)
    with pytest.raises(ZeroDivisionError), made.Timer("generate"):
        raise ZeroDivisionError
    try:
        raise KeyError
    except KeyError:  # being handled while the timer runs, and none of its business
        with made.Timer("retry"):
            pass
    assert insight_capture.span("generate").error == "ZeroDivisionError"
    assert insight_capture.span("retry").error is None
