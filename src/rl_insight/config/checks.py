"""What makes a configuration wrong, and how to say so: unknown keys, wrong types, values out of range."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from difflib import get_close_matches
from math import inf
from typing import Any

from rl_insight.config.model import MAX_RANK, InsightConfig, config_keys, sections
from rl_insight.errors import ConfigError
from rl_insight.schema.names import RESERVED_LABELS, metric_name
from rl_insight.urls import split_http_url

RANGES: dict[str, tuple[float, float]] = {
    "prometheus.metrics_report_port": (0, 65535),
    "recorder.flush_interval_s": (0.001, 3600),
    "recorder.heartbeat_s": (0.01, 3600),
    "recorder.finish_timeout_s": (0, 3600),
    "recorder.max_metrics": (1, inf),
    "recorder.max_spans": (1, inf),
    "recorder.max_records": (1, inf),
    "recorder.max_series_per_metric": (1, inf),
    "recorder.max_attribute_bytes": (1, inf),
    "recorder.max_attributes": (1, inf),
    "http.timeout_s": (0.001, 3600),
    "http.spool_max_bytes": (0, inf),
    "http.retry_initial_s": (0.001, 3600),
    "http.retry_max_s": (0.001, 3600),
    "file.rotate_bytes": (1, inf),
    "rank": (0, MAX_RANK),
}
"""The smallest and the largest value of each number."""

CHOICES: dict[str, tuple[str, ...]] = {
    "recorder.drop": ("newest", "oldest"),
    "redaction.action": ("mask", "hash", "drop"),
    "http.compression": ("auto", "none", "gzip", "zstd"),
    "ray.hub": ("job", "node"),
}
"""The texts that a key may hold; `server.backend` is open to registered transports and checked by them."""

_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "list[str]": "a list of texts",
    "dict[str, str]": "a mapping of names to texts",
}
_URLS = ("server.url", "otlp.traces_endpoint")
_CALLABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def check_keys(layer: Mapping[Any, Any], origin: str, section: type = InsightConfig, prefix: str = "") -> None:
    """Refuse keys that do not exist, and values where a section must stand.

    Raises:
        ConfigError: names the full key and the nearest valid one.
    """
    names = {entry.name for entry in dataclasses.fields(section)}
    inner = sections(section)
    for key, value in layer.items():
        if key not in names:
            raise ConfigError(f"unknown key {prefix + str(key)!r} in {origin}: {_advice(str(key), names, prefix)}")
        if isinstance(value, str) and "${" in value:
            continue
        if key not in inner:
            _check_shape(prefix + key, value, origin)
            continue
        if not isinstance(value, Mapping):
            expected = f"a section with the keys {_listed(entry.name for entry in dataclasses.fields(inner[key]))}"
            raise wrong_type(prefix + key, value, origin, expected)
        check_keys(value, origin, inner[key], f"{prefix}{key}.")


def _check_shape(key: str, value: Any, origin: str) -> None:
    """Refuse containers that OmegaConf would let pass or fail on without naming the key."""
    declared = config_keys()[key]
    if declared.startswith("list"):
        fits = isinstance(value, list) and all(isinstance(inner, str) for inner in value)
    elif declared.startswith("dict"):
        fits = isinstance(value, Mapping) and all(
            isinstance(name, str) and isinstance(inner, (str, int, float)) for name, inner in value.items()
        )
    else:
        fits = not isinstance(value, (list, Mapping))
    if not fits:
        raise wrong_type(key, value, origin)


def _advice(key: str, siblings: set[str], prefix: str) -> str:
    everywhere = config_keys()
    if prefix + key in everywhere:
        return f"write it nested, {key.partition('.')[0]!r} is a section of its own."
    near = get_close_matches(key.lower(), siblings, n=1)
    if near:
        return f"did you mean {prefix + near[0]!r}?"
    leaves = {dotted.rpartition(".")[2]: dotted for dotted in everywhere}
    near = get_close_matches(key.lower(), leaves, n=1, cutoff=0.8)
    if near:
        return f"did you mean {leaves[near[0]]!r}?"
    return f"valid keys here are {_listed(siblings)}."


def _listed(names: Any) -> str:
    return ", ".join(repr(name) for name in sorted(names))


def wrong_type(key: str, value: Any, origin: str, expected: str | None = None) -> ConfigError:
    """Return the error for a value that its key cannot hold."""
    if expected is None:
        declared = config_keys().get(key, "str")
        expected = _TYPES[declared.removesuffix(" | None")]
        if declared.endswith(" | None"):
            expected += " or null"
    shown = "what was given" if key == "server.token" else f"{value!r} ({type(value).__name__})"
    return ConfigError(f"{key} in {origin} cannot be {shown}: it must be {expected}.")


def check_values(config: InsightConfig) -> None:
    """Refuse values that no part of RL-Insight could work with.

    Raises:
        ConfigError: names the key, the value and what is allowed.
    """
    for key, (smallest, largest) in RANGES.items():
        number = _value(config, key)
        # Written so that NaN, which compares false with everything, is refused.
        if number is not None and not smallest <= number <= largest:
            limit = f"at least {smallest}" if largest == inf else f"from {smallest} to {largest}"
            raise _refused(key, number, limit)
    for key, choices in CHOICES.items():
        if _value(config, key) not in choices:
            raise _refused(key, _value(config, key), f"one of {_listed(choices)}")
    if config.http.retry_max_s < config.http.retry_initial_s:
        smallest = config.http.retry_initial_s
        raise _refused("http.retry_max_s", config.http.retry_max_s, f"at least http.retry_initial_s, {smallest}")
    _check_texts(config)


def _check_texts(config: InsightConfig) -> None:
    namespace = config.server.namespace
    if namespace and metric_name(namespace) != namespace:
        raise _refused("server.namespace", namespace, f"a Prometheus name such as {metric_name(namespace)!r}, or empty")
    for key in _URLS:
        url = _value(config, key)
        if url is not None and split_http_url(url) is None:
            raise _refused(key, url, "a URL such as 'http://127.0.0.1:18080'")
    for key in ("redaction.key_patterns", "redaction.value_patterns"):
        for position, pattern in enumerate(_value(config, key)):
            if problem := _problem_of(pattern):
                raise _refused(f"{key}[{position}]", pattern, f"a regular expression ({problem})")
    function = config.redaction.function
    if function is not None and not _CALLABLE.fullmatch(function):
        raise _refused("redaction.function", function, "of the form 'package.module:callable'")
    for label in config.labels:
        if label in RESERVED_LABELS:
            raise ConfigError(f"labels.{label} is reserved: set the key {label!r} instead.")


def _problem_of(pattern: str) -> str | None:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return str(error)
    return None


def _value(config: InsightConfig, key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def _refused(key: str, value: Any, allowed: str) -> ConfigError:
    return ConfigError(f"{key} cannot be {value!r}: it must be {allowed}.")
