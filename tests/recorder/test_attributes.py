from __future__ import annotations

import enum
import json
import math
from collections import UserDict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rl_insight as insight
from rl_insight.config.model import RecorderConfig, RedactionConfig
from rl_insight.recorder.attributes import AttributeEncoder
from rl_insight.recorder.losses import Losses
from rl_insight.recorder.redaction import Redactor
from rl_insight.testing import capture


def recorded(captured, value, key="value"):
    """Return an attribute's value after it was recorded in a span."""
    with insight.trace_span("s", {key: value}):
        pass
    return captured.spans[-1].attributes.get(key, "absent")


class Color(enum.IntEnum):
    RED = 3


class Name(str):
    __slots__ = ()


class Point(NamedTuple):
    x: int
    y: int


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (1, 1),
        (-(2**63), -(2**63)),
        (2**63, str(2**63)),
        (10**400, str(10**400)),
        (1.5, 1.5),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
        (True, True),
        (None, None),
        ("text", "text"),
        ("", ""),
        ("π \x00 \n", "π \x00 \n"),
        (b"raw", "b'raw'"),
        (Color.RED, 3),
        (Name("x"), "x"),
        (Path("/tmp/x"), "/tmp/x"),
        ([1, [2.5, "x"], None], [1, [2.5, "x"], None]),
        ((1, 2), [1, 2]),
        (Point(1, 2), [1, 2]),
        ({"a": {"b": [float("nan")]}}, {"a": {"b": ["NaN"]}}),
        ({1: "x", None: "y"}, {"1": "x", "None": "y"}),
        (UserDict(a=1), {"a": 1}),
        (frozenset([5]), [5]),
        (np.float64(1.5), 1.5),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.array(2.5), 2.5),
        (np.array([1, 2]), "[1 2]"),
        (np.float64("nan"), "NaN"),
        (1 + 2j, "(1+2j)"),
        ({}, {}),
        ([], []),
    ],
    ids=lambda value: type(value).__name__,
)
def test_normal_form_of_each_kind_of_value(insight_capture, given, expected):
    value = recorded(insight_capture, given)
    assert value == expected
    assert type(value) is type(expected)
    assert insight_capture.losses == {}


class Broken:
    def __str__(self):
        raise RuntimeError("no")

    __repr__ = __str__


class BrokenMapping(dict):
    def items(self):
        raise RuntimeError("no")


class BrokenLength(list):
    def __iter__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize("value", [Broken(), BrokenMapping(a=1), BrokenLength([1])], ids=lambda v: type(v).__name__)
def test_value_that_cannot_be_read_is_named_counted_and_warned_once(insight_capture, caplog, value):
    assert recorded(insight_capture, value) == f"<{type(value).__name__}>"
    recorded(insight_capture, value)
    assert insight_capture.losses == {"attributes/unreadable": 2}
    assert len(caplog.records) == 1


def test_broken_value_inside_a_container_costs_only_itself(insight_capture):
    assert recorded(insight_capture, {"good": 1, "bad": [Broken(), 2]}) == {"good": 1, "bad": ["<Broken>", 2]}


def test_broken_key_is_survived(insight_capture):
    class BrokenKey(Broken):
        __hash__ = object.__hash__

    with insight.trace_span("s", {BrokenKey(): 1, "good": 2}):
        pass
    assert insight_capture.span("s").attributes == {"<BrokenKey>": 1, "good": 2}


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "ok\ud83d"])
def test_lone_surrogates_are_escaped(insight_capture, text):
    assert recorded(insight_capture, text) == text.encode("utf-8", "backslashreplace").decode()
    assert recorded(insight_capture, {text: [text]}) != "absent"
    insight.log("info", text)
    with insight.trace_span(text):
        pass
    assert insight_capture.logs[0].message == text.encode("utf-8", "backslashreplace").decode()


def test_container_that_holds_itself_ends(insight_capture):
    loop = []
    loop.extend([loop] * 50)
    mapping = {}
    mapping["self"] = mapping
    assert isinstance(recorded(insight_capture, loop), (list, str))
    assert isinstance(recorded(insight_capture, mapping), (dict, str))


def test_container_with_too_many_values_is_cut_and_counted(insight_capture, caplog):
    assert recorded(insight_capture, list(range(5000))) == list(range(1000))
    assert recorded(insight_capture, list(range(10))) == list(range(10))
    assert insight_capture.losses == {"attributes/cut": 1}
    assert len(caplog.records) == 1


def test_text_up_to_the_limit_is_kept_whole(insight_capture):
    assert recorded(insight_capture, "x" * 65536) == "x" * 65536
    assert insight_capture.losses == {}


@pytest.mark.parametrize("text", ["x" * 65537, "x" * 500_000, "π" * 40_000])
def test_longer_text_is_cut_and_counted(insight_capture, caplog, text):
    value = recorded(insight_capture, text)
    assert text.startswith(value)
    assert 65_530 <= len(value.encode()) <= 65_536
    assert insight_capture.losses == {"attributes/cut": 1}
    assert len(caplog.records) == 1


def test_large_container_is_cut_as_text(insight_capture):
    value = recorded(insight_capture, ["x" * 60_000] * 10)
    assert isinstance(value, str)
    assert len(value) == 65_536
    assert insight_capture.losses == {"attributes/cut": 1}


def test_long_log_message_is_cut_and_counted(insight_capture):
    insight.log("info", "x" * 100_000)
    assert len(insight_capture.logs[0].message) == 65_536
    assert insight_capture.losses == {"attributes/cut": 1}


def test_too_many_attributes_are_left_out_and_counted(insight_capture, caplog):
    with insight.trace_span("s", {f"a{n}": n for n in range(200)}):
        pass
    assert insight_capture.span("s").attributes == {f"a{n}": n for n in range(128)}
    assert insight_capture.losses == {"attributes/too_many": 1}
    assert len(caplog.records) == 1


@pytest.mark.parametrize("key", ["prompt", "response", "messages", "completion", "gen_ai.prompt"])
@pytest.mark.parametrize(
    ("value", "stands_for"),
    [
        ("What is 2 + 2?", "[14 characters]"),
        (["secret one", "two"], "[2 items]"),
        ({"role": "user", "content": "secret"}, "[2 items]"),
        (b"secret", "[6 items]"),
        (UserDict(content="secret"), "[1 items]"),
        (np.array(["secret"]), "[1 items]"),
        (Path("secret"), "[PosixPath]"),
        (7, 7),
    ],
    ids=lambda value: type(value).__name__,
)
def test_text_is_not_captured_by_default(insight_capture, key, value, stands_for):
    assert recorded(insight_capture, value, key) == stands_for
    assert recorded(insight_capture, {"nested": {key: value}}, "data") == {"nested": {key: stands_for}}
    insight.trace_event("e", **{key: value})
    assert "secret" not in json.dumps(insight_capture.events[0].attributes)


def test_text_is_captured_on_request():
    with capture({"recorder": {"capture_text": True}}) as captured:
        assert recorded(captured, "What is 2 + 2?", "prompt") == "What is 2 + 2?"
        assert recorded(captured, ["a", "b"], "messages") == ["a", "b"]


@pytest.mark.parametrize(("step", "expected"), [(7, 7), ("7", None), (10**30, None), (None, None)])
def test_an_integer_attribute_named_step_is_the_step(insight_capture, step, expected):
    with insight.trace_span("s", {"step": step}):
        pass
    with insight.step(3), insight.trace_span("t", {"step": step}):
        pass
    assert insight_capture.span("s").step == expected
    assert insight_capture.span("t").step == 3


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), ANYTHING, max_size=5))
def test_anything_made_of_plain_values_is_recorded_as_json(attributes):
    with capture() as captured:
        with insight.trace_span("s", attributes):
            pass
        got = captured.span("s").attributes
    assert set(got) <= {key.encode("utf-8", "backslashreplace").decode() for key in attributes}
    json.dumps(got, allow_nan=False)


def test_zero_and_negative_zero_stay_floats(insight_capture):
    assert math.copysign(1, recorded(insight_capture, -0.0)) == -1


@pytest.mark.parametrize("limit", [1024, 5000, 20_000])
def test_the_attributes_of_a_span_are_cut_together_and_counted(limit):
    given = {"step": 3, "tool": "search", "nested": {"a": [1, 2]}, **{f"text_{n}": "π\n" * 9000 for n in range(16)}}
    with capture(config={"recorder": {"max_attributes_bytes": limit}}) as captured:
        with insight.trace_span("s", given):
            pass
        found = captured.spans[-1].attributes
        size = len(json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode())
        assert limit * 0.9 < size <= limit
        assert (found["step"], found["tool"], found["nested"]) == (3, "search", {"a": [1, 2]})
        assert set(found) == set(given)
        lengths = [len(found[f"text_{n}"]) for n in range(16)]
        assert max(lengths) - min(lengths) <= 2
        assert captured.losses == {"attributes/cut": 1}


def test_an_attribute_whose_key_alone_is_too_long_is_dropped():
    with capture(config={"recorder": {"max_attributes_bytes": 1024}}) as captured:
        with insight.trace_span("s", {"k" * 5000: 1, "kept": "x" * 2000}):
            pass
        (kept,) = captured.spans[-1].attributes
        assert kept == "kept"


def make_encoder(max_total_bytes=1_000_000):
    config = RecorderConfig(max_attributes_bytes=max_total_bytes, max_attributes=64)
    return AttributeEncoder(Redactor(RedactionConfig()), Losses(), config)


def test_many_records_are_encoded_like_single_ones():
    records = [
        {"tokens": 512, "model": "policy"},
        None,
        {"tokens": 2**64, "model": "a text that is searched for secrets"},
        {},
        {"tokens": 1.5, "ok": True, "line": "a\nb"},
        {"tokens": float("nan")},
    ]
    keys = {"tokens", "model", "ok", "line"}
    encoder = make_encoder()
    for _ in range(2):  # the second time the keys are known
        texts = encoder.encode_all(records, keys)
        assert texts == [encoder.encode(record) for record in records]
    records.append({"model": "\ud800"})
    texts = encoder.encode_all(records, keys)
    assert texts == [encoder.encode(record) for record in records]
    assert texts[0] == '{"tokens":512,"model":"policy"}'


def test_plain_records_are_bounded_together_with_others():
    keys = [f"{number:03}-" + "k" * 100 for number in range(20)]
    long, short = dict.fromkeys(keys, 1), {keys[0]: 1}
    encoder = make_encoder(max_total_bytes=500)
    for _ in range(2):
        texts = encoder.encode_all([short, long], set(keys))
        assert len(texts[0]) < 200
        assert len(texts[1].encode()) <= 500
