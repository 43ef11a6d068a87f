import math
import re

import pytest

from rl_insight.config import InsightConfig, load_config
from rl_insight.config.fields import keys_of
from rl_insight.errors import ConfigError

KEYS = keys_of(InsightConfig)
RANGES = {name: (key.smallest, key.largest) for name, key in KEYS.items() if key.smallest is not None}
CHOICES = {name: key.choices for name, key in KEYS.items() if key.choices}


def nested(key, value):
    for name in reversed(key.split(".")):
        value = {name: value}
    return value


def refusal(source):
    with pytest.raises(ConfigError) as caught:
        load_config(source, environ={})
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("sever", "server"),
        ("server.ur", "server.url"),
        ("server.URL", "server.url"),
        ("recorder.flush_interval", "recorder.flush_interval_s"),
        ("prometheus.report_port", "prometheus.metrics_report_port"),
        ("namespace", "server.namespace"),
        ("flush_interval_s", "recorder.flush_interval_s"),
        ("http.token", "server.token"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_valid_one(key, nearest):
    assert refusal(nested(key, "x")).startswith(f"unknown key {key!r} in the configuration: did you mean {nearest!r}?")


def test_all_keys_are_listed_when_none_is_near():
    message = refusal({"ray": {"zzz": 1}})
    assert message == "unknown key 'ray.zzz' in the configuration: valid keys here are 'hub'."
    assert "'enabled', 'experiment_name', 'file'" in refusal({"zzz": 1})


def test_keys_that_are_not_text_are_unknown():
    assert "unknown key '1'" in refusal({1: 2})
    assert "unknown key 'server.None'" in refusal({"server": {None: 1}})


def test_a_dotted_key_in_a_mapping_is_explained():
    assert "write it nested" in refusal({"server.url": "http://a:1"})


def test_unknown_arguments_are_refused_too():
    with pytest.raises(ConfigError, match="unknown key 'ranks' in the arguments: did you mean 'rank'"):
        load_config(overrides={"ranks": 1}, environ={})


WRONG_TYPES = [
    ("prometheus.metrics_report_port", "many", "an integer"),
    ("prometheus.metrics_report_port", 3.5, "an integer"),
    ("prometheus.metrics_report_port", True, "an integer"),
    ("prometheus.metrics_report_port", None, "an integer"),
    ("prometheus.metrics_report_port", [1], "an integer"),
    ("recorder.flush_interval_s", "soon", "a number"),
    ("recorder.capture_text", "maybe", "true or false"),
    ("enabled", "maybe", "true or false"),
    ("server.namespace", None, "a string"),
    ("server.url", {"a": 1}, "a string or null"),
    ("rank", "first", "an integer or null"),
    ("labels", 3, "a mapping of names to strings"),
    ("labels", {"a": [1]}, "a mapping of names to strings"),
    ("labels", {"a": {"b": "c"}}, "a mapping of names to strings"),
    ("labels", {"a": None}, "a mapping of names to strings"),
    ("labels", {1: "a"}, "a mapping of names to strings"),
    ("redaction.key_patterns", "text", "a list of strings"),
    ("redaction.key_patterns", ["a", None], "a list of strings"),
    ("redaction.key_patterns", [["a"]], "a list of strings"),
    ("redaction.key_patterns", {"a": "b"}, "a list of strings"),
    ("server", 3, "a section with the keys"),
    ("server", "http://a:1", "a section with the keys"),
    ("run_id", object, "a string or null"),
]


@pytest.mark.parametrize(("key", "value", "expected"), WRONG_TYPES)
def test_a_wrong_type_is_named_with_what_is_allowed(key, value, expected):
    message = refusal(nested(key, value))
    assert message.startswith(f"{key} in the configuration cannot be {value!r}")
    assert expected in message


def test_a_token_of_a_wrong_type_is_not_shown():
    assert "hidden" not in refusal({"server": {"token": {"value": "hidden"}}})


@pytest.mark.parametrize("key", RANGES)
def test_a_number_out_of_range_is_refused(key):
    smallest, largest = RANGES[key]
    outside = [smallest - 1] if largest is None else [smallest - 1, largest + 1]
    if KEYS[key].kind == "float":
        outside += [math.nan, math.inf]
    for value in outside:
        message = refusal(nested(key, value))
        assert key in message
        assert str(smallest) in message


@pytest.mark.parametrize("key", RANGES)
def test_the_smallest_number_is_accepted(key):
    load_config(nested(key, RANGES[key][0]), overrides={"http": {"retry_max_s": 3600}}, environ={})


@pytest.mark.parametrize("key", CHOICES)
def test_only_the_listed_choices_are_accepted(key):
    for choice in CHOICES[key]:
        load_config(nested(key, choice), environ={})
    message = refusal(nested(key, "something"))
    assert message.startswith(f"{key} cannot be 'something'")
    assert all(repr(choice) in message for choice in CHOICES[key])


def test_every_number_has_a_range():
    numbers = {name for name, key in KEYS.items() if key.kind.removesuffix(" | None") in {"int", "float"}}
    assert numbers == set(RANGES)
    assert len(RANGES) > 10


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("server.namespace", "rl-insight"),
        ("server.namespace", "9lives"),
        ("server.url", "10.0.0.1:18080"),
        ("server.url", "ftp://a"),
        ("server.url", "http://"),
        ("server.url", "http://a:port"),
        ("server.url", "http://a:99999"),
        ("server.url", "http://[::1"),
        ("otlp.traces_endpoint", "b:4318"),
        ("redaction.function", "package.module"),
        ("redaction.function", "package module:f"),
        ("redaction.function", ":f"),
        ("redaction.key_patterns", ["fine", "(open"]),
        ("redaction.value_patterns", ["*"]),
        ("labels", {"run_id": "x"}),
    ],
)
def test_a_text_that_cannot_work_is_refused(key, value):
    assert refusal(nested(key, value)).startswith(key)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("server.namespace", ""),
        ("server.backend", "somebody's own"),
        ("server.url", "https://[::1]:18080/insight"),
        ("redaction.function", "package.module:Class.method"),
        ("redaction.key_patterns", []),
    ],
)
def test_unusual_but_valid_texts_are_accepted(key, value):
    load_config(nested(key, value), environ={})


def test_the_longest_pause_cannot_be_shorter_than_the_first():
    assert re.match(
        r"http\.retry_max_s cannot be 10\.0: .*http\.retry_initial_s, 20\.0",
        refusal(nested("http.retry_initial_s", 20)),
    )


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("server.service_ip", "write the server's address as 'server.url'"),
        ("prometheus.prometheus_port", "remove it: 'server.url' is enough"),
        ("prometheus.config_file", "remove it: 'server.url' is enough"),
        ("otel.otel_port", "remove it: 'server.url' is enough"),
    ],
)
def test_a_key_of_an_older_version_names_what_to_write_instead(key, advice):
    said = refusal(nested(key, "x"))
    assert said.startswith(f"unknown key '{key.partition('.')[0] if key.startswith('otel') else key}'")
    assert advice in said
