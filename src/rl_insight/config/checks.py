"""Validates a client's configuration beyond types and limits: addresses, patterns, names."""

from __future__ import annotations

import re

from rl_insight.config.fields import refused, value_of
from rl_insight.config.model import InsightConfig
from rl_insight.errors import ConfigError
from rl_insight.schema.names import RESERVED_LABELS, metric_name
from rl_insight.urls import clean_token, split_http_url, without_credentials

_URLS = ("server.url", "otlp.traces_endpoint")
_CALLABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def check_values(config: InsightConfig) -> None:
    """Reject unusable values.

    Raises:
        ConfigError: names the key, the value and what is allowed.
    """
    config.server.token = clean_token(config.server.token)
    http = config.http
    if http.retry_max_s < http.retry_initial_s:
        raise refused("http.retry_max_s", http.retry_max_s, f"at least http.retry_initial_s, {http.retry_initial_s}")
    check_namespace("server.namespace", config.server.namespace)
    for key in _URLS:
        url = value_of(config, key)
        if url is not None and split_http_url(url) is None:
            raise refused(key, without_credentials(url), "a URL such as 'http://127.0.0.1:18080'")
    for key in ("redaction.key_patterns", "redaction.value_patterns"):
        for position, pattern in enumerate(value_of(config, key)):
            if problem := _problem_of(pattern):
                raise refused(f"{key}[{position}]", pattern, f"a regular expression ({problem})")
    function = config.redaction.function
    if function is not None and not _CALLABLE.fullmatch(function):
        raise refused("redaction.function", function, "of the form 'package.module:callable'")
    for label in config.labels:
        if label in RESERVED_LABELS:
            raise ConfigError(f"labels.{label} is reserved: set the key {label!r} instead.")


def check_namespace(key: str, namespace: str) -> None:
    """Reject a namespace that no metric name can begin with."""
    if namespace and metric_name(namespace) != namespace:
        raise refused(key, namespace, f"a Prometheus name such as {metric_name(namespace)!r}, or empty")


def _problem_of(pattern: str) -> str | None:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return str(error)
    return None
