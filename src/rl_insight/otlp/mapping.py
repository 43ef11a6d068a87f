"""The names and rules that encoding and decoding share: resources, span attributes, severities."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping
from typing import Any, Final

from rl_insight.schema import Process

SERVICES: Final = {
    "traces": "opentelemetry.proto.collector.trace.v1.TraceService",
    "metrics": "opentelemetry.proto.collector.metrics.v1.MetricsService",
    "logs": "opentelemetry.proto.collector.logs.v1.LogsService",
}
"""The gRPC service of each signal; its only method is `Export`."""
GRPC_MISSING: Final = 'grpcio is not installed. Install it: pip install "rl-insight[grpc]".'
RUN_KEYS: Final = ("rl.run.id", "run_id", "run.id")
"""Resource attributes with the run id, in order of precedence. XTuner sends `run.id`."""
SEMANTIC_LABELS: Final = {"algorithm": "rl.algorithm", "model": "rl.model.name", "model_name": "rl.model.name"}
"""Process labels with a name in the semantic conventions for reinforcement learning."""
PROCESS_KEYS: Final = frozenset(
    {
        *RUN_KEYS, "service.name", "service.instance.id", "host.name", "process.pid", "project", "experiment_name",
        "role", "rank", "telemetry.sdk.language", "telemetry.sdk.name", "telemetry.sdk.version",
    }
)  # fmt: skip
"""Resource attributes that are not process labels."""

SEGMENT: Final = "monitor.trace_segment"
STATUS: Final = "monitor.status"
GEN_AI_OPERATION: Final = "gen_ai.operation.name"
"""Marks spans of model and tool calls in OpenTelemetry's semantic conventions for generative AI."""
GEN_AI_SESSIONS: Final = ("gen_ai.conversation.id", "session.id")
"""Attributes with the session of such a span, if it has no `session_id`."""
GEN_AI_PHASES: Final = {
    "chat": "generate",
    "text_completion": "generate",
    "generate_content": "generate",
    "execute_tool": "toolcall",
}
"""Operation to session phase."""
STATE_NAME: Final = "state_name"
LANE: Final = "state_lane_id"
OTHER_LANE: Final = "lane"
"""The lane of a log line, and of spans from some senders."""
EVENT_SEGMENT: Final = "event"
"""The segment of an event that is sent as a zero-length span."""

SESSION_SCOPE: Final = "rl_insight.sessions"
"""The scope of the log records that are reports of sessions: their attributes are the fields of the report."""
EVENT_NAME: Final = "event.name"
SESSION_EVENT: Final = "rl.session"
"""The `event.name` of such a record."""

MAX_DEPTH: Final = 16
"""Deeper attributes become strings."""

_TRACE_LEVEL = 5
_LEVELS = (_TRACE_LEVEL, logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
"""By severity range, four numbers each: trace, debug, info, warn, error, fatal."""
_LEVEL_NAMES = {
    "TRACE": _TRACE_LEVEL,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "CRITICAL": logging.CRITICAL,
}
_UNNAMED = "Level "
"""Prefix of the names of unnamed levels in `logging`."""


def has_grpc() -> bool:
    """Return whether grpcio is installed; it is an extra, because it takes 20 MB and few need it."""
    return importlib.util.find_spec("grpc") is not None


def own_lane(process: Process) -> str:
    """Return the name of the process's own lane: its pid, as in rl-insight 0.3.0."""
    return str(process.pid or process.process_id)


def resource_attributes(process: Process, namespace: str) -> dict[str, Any]:
    """Return the resource attributes of a process; unset names are empty strings, so that queries can match them."""
    semantic = {SEMANTIC_LABELS[key]: value for key, value in process.labels.items() if key in SEMANTIC_LABELS}
    found: dict[str, Any] = {
        **semantic,
        **process.labels,
        "service.name": namespace,
        "service.instance.id": process.process_id,
        "host.name": process.host,
        "process.pid": process.pid,
        "rl.run.id": process.run_id,
        "run_id": process.run_id,
        "project": process.project,
        "experiment_name": process.experiment_name,
        "role": process.role,
    }
    if process.rank is not None:
        found["rank"] = process.rank
    return found


def label_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resource attributes that are process labels, without their semantic aliases."""
    repeated = {SEMANTIC_LABELS[key] for key in attributes if key in SEMANTIC_LABELS}
    return {key: value for key, value in attributes.items() if key not in PROCESS_KEYS and key not in repeated}


def is_int64(value: Any) -> bool:
    """Return whether a value is an integer that OTLP can represent."""
    return isinstance(value, int) and -(2**63) <= value < 2**63


def severity(level: int) -> int:
    """Return the OTLP severity number for a level of the `logging` module.

    >>> [severity(level) for level in (5, 10, 20, 25, 30, 40, 50, 90)]
    [1, 5, 9, 11, 13, 17, 21, 24]
    """
    if level < logging.DEBUG:
        return 1
    if level >= logging.CRITICAL + 10:
        return 24
    decade, rest = divmod(level, 10)
    return 4 * decade + 1 + rest * 4 // 10


def level_of(severity_number: int, severity_text: str) -> int:
    """Return the `logging` level for a severity.

    >>> level_of(9, ""), level_of(17, ""), level_of(0, "warn"), level_of(11, "Level 25")
    (20, 40, 30, 25)
    """
    number = severity_text.removeprefix(_UNNAMED)
    if number != severity_text and number.isdecimal() and len(number) < 4 and severity(int(number)) == severity_number:
        return int(number)
    if 1 <= severity_number <= 24:
        return _LEVELS[(severity_number - 1) // 4]
    return _LEVEL_NAMES.get(severity_text.upper(), logging.INFO)
