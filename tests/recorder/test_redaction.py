from __future__ import annotations

import sys
import types

import pytest

import rl_insight as insight
from rl_insight.errors import ConfigError
from rl_insight.testing import capture

KEY = "sk-abcdefghijklmnopqrstuv"
BEARER = "Bearer abcdefghijklmnop1234"


def attributes_of(attributes, **redaction):
    with capture({"redaction": redaction}) as captured:
        with insight.trace_span("s", attributes):
            pass
        return captured.span("s").attributes, captured.losses


@pytest.fixture
def user_function():
    """Make a function importable as `user_redaction:function`."""
    module = types.ModuleType("user_redaction")
    sys.modules["user_redaction"] = module

    def install(function):
        module.function = function
        return "user_redaction:function"

    yield install
    del sys.modules["user_redaction"]


@pytest.mark.parametrize("key", ["api_key", "API-KEY", "password", "Authorization", "my_secret", "HF_TOKEN"])
@pytest.mark.parametrize("value", ["x", 7, ["a"], {"b": 1}, None])
def test_values_under_secret_keys_are_masked(key, value):
    assert attributes_of({key: value, "other": 1})[0] == {key: "[redacted]", "other": 1}


@pytest.mark.parametrize("key", ["tokens", "token_count", "max_tokens", "key", "monkey"])
def test_ordinary_keys_are_left_alone(key):
    assert attributes_of({key: 512})[0] == {key: 512}


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (BEARER, "[redacted]"),
        (f"called with {BEARER}, ok", "called with [redacted], ok"),
        (f"key={KEY}", "key=[redacted]"),
        ("https://user:pass@host/x", "https://[redacted]@host/x"),
        ("nothing here", "nothing here"),
    ],
)
def test_secrets_inside_text_are_masked_everywhere(insight_capture, text, clean):
    with insight.trace_span("s", {"url": text, "list": [{"deep": text}]}):
        insight.trace_event("e", note=text)
        insight.log("info", text, note=text)
        insight.metric_count("calls", note=text)
    with insight.trace_span(text):
        pass
    span = insight_capture.span("s")
    assert span.attributes == {"url": clean, "list": [{"deep": clean}]}
    assert insight_capture.events[0].attributes == {"note": clean}
    assert (insight_capture.logs[0].message, insight_capture.logs[0].attributes) == (clean, {"note": clean})
    assert insight_capture.metric("calls").labels == {"note": clean}
    assert {s.name for s in insight_capture.spans} == {"s", clean}


def test_nothing_secret_is_anywhere_in_the_bytes(insight_capture):
    with insight.trace_span(f"span {KEY}", {"k": KEY, KEY[:2]: [KEY], "password": "hunter2"}):
        insight.log("info", KEY, password="hunter2", x={"y": KEY})
        insight.metric_count("c", header=BEARER)
    insight_capture.flush()
    sent = b"".join(insight_capture._transport.payloads)
    assert KEY.encode() not in sent
    assert b"hunter2" not in sent
    assert BEARER.encode() not in sent


def test_hash_is_equal_for_equal_secrets_and_reveals_nothing():
    got, _ = attributes_of({"a_password": "x", "b_password": "x", "c_password": "y", "t": BEARER}, action="hash")
    assert got["a_password"] == got["b_password"] != got["c_password"]
    assert got["a_password"].startswith("[hash:")
    assert "abcdefgh" not in got["t"]


def test_hash_differs_between_processes():
    first, _ = attributes_of({"password": "x"}, action="hash")
    second, _ = attributes_of({"password": "x"}, action="hash")
    assert first != second


def test_hash_of_a_value_without_text_is_survived():
    class NoText:
        def __str__(self):
            raise RuntimeError("no")

    assert attributes_of({"password": NoText()}, action="hash")[0]["password"].startswith("[hash:")


def test_drop_leaves_nothing_behind():
    got, _ = attributes_of(
        {"password": "x", "t": BEARER, "list": [BEARER, 1], "map": {"password": 1, "b": 2}}, action="drop"
    )
    assert got == {"list": [1], "map": {"b": 2}}


def test_dropped_log_message_and_label():
    with capture({"redaction": {"action": "drop"}}) as captured:
        insight.log("info", BEARER)
        insight.metric_count("calls", header=BEARER, worker="1")
        assert captured.logs[0].message == "[redacted]"
        assert captured.metric("calls").labels == {"worker": "1"}


def test_own_patterns_replace_the_defaults():
    got, _ = attributes_of(
        {"customer": "ACME", "password": "x", "t": "id 123-456"},
        key_patterns=["^customer$"],
        value_patterns=[r"\d+-\d+"],
    )
    assert got == {"customer": "[redacted]", "password": "x", "t": "id [redacted]"}


def test_redaction_can_be_turned_off():
    assert attributes_of({"password": "x", "t": BEARER}, enabled=False)[0] == {"password": "x", "t": BEARER}


def test_user_function_sees_each_value_once(user_function):
    def hide_emails(key, value):
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value + 1
        return "***" if isinstance(value, str) and "@" in value else value

    import numpy as np

    got, _ = attributes_of(
        {"a": "me@example.org", "n": 1, "f": np.float64(1.5), "list": ["me@example.org"]},
        function=user_function(hide_emails),
    )
    assert got == {"a": "***", "n": 2, "f": 2.5, "list": ["***"]}


def test_user_function_sees_labels_and_log_messages(user_function):
    path = user_function(lambda key, value: value.upper() if isinstance(value, str) else value)
    with capture({"redaction": {"function": path}}) as captured:
        insight.log("info", "hello")
        insight.metric_count("calls", worker="a")
        assert captured.logs[0].message == "HELLO"
        assert captured.metric("calls").labels == {"worker": "A"}


def test_user_function_may_return_anything_for_a_label(user_function):
    with capture({"redaction": {"function": user_function(lambda key, value: None)}}) as captured:
        insight.metric_count("calls", worker="a")
        assert captured.metric("calls").labels == {"worker": "None"}


def test_failing_user_function_hides_the_value_and_is_counted(user_function, caplog):
    def fail(key, value):
        raise RuntimeError("no")

    got, losses = attributes_of({"a": "text", "b": 1}, function=user_function(fail))
    assert got == {"a": "[redacted]", "b": "[redacted]"}
    assert losses == {"attributes/redaction_failed": 2}
    assert len(caplog.records) == 1


@pytest.mark.parametrize("path", ["no_such_module:function", "json:no_such_name", "json", "json:__name__"])
def test_function_that_cannot_be_used_is_a_clear_error(path):
    with pytest.raises(ConfigError, match="function"):
        attributes_of({}, function=path)
