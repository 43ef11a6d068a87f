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
"""Resource attributes that name the run; the first one present counts. `run.id` is what XTuner sends."""
SEMANTIC_LABELS: Final = {"algorithm": "rl.algorithm", "model": "rl.model.name", "model_name": "rl.model.name"}
"""Labels of a process that have a name in the semantic conventions for reinforcement learning."""
PROCESS_KEYS: Final = frozenset(
    {
        *RUN_KEYS, "service.name", "service.instance.id", "host.name", "process.pid", "project", "experiment_name",
        "role", "rank", "telemetry.sdk.language", "telemetry.sdk.name", "telemetry.sdk.version",
    }
)  # fmt: skip
"""Resource attributes that are not labels of the process."""

SEGMENT: Final = "monitor.trace_segment"
STATUS: Final = "monitor.status"
GEN_AI_OPERATION: Final = "gen_ai.operation.name"
"""Is on the spans of calls of models and tools, by OpenTelemetry's conventions for generative AI."""
GEN_AI_SESSIONS: Final = ("gen_ai.conversation.id", "session.id")
"""What names the session of such a span, where it has no `session_id`."""
GEN_AI_PHASES: Final = {
    "chat": "generate",
    "text_completion": "generate",
    "generate_content": "generate",
    "execute_tool": "toolcall",
}
"""Operations to the phases of a session."""
STATE_NAME: Final = "state_name"
LANE: Final = "state_lane_id"
OTHER_LANE: Final = "lane"
"""The lane of a log line, and of a span from a sender that calls it so."""
EVENT_SEGMENT: Final = "event"
"""The segment of an instant that is sent as a span without length."""
STATE_SEGMENTS: Final = frozenset({"state_interval", "state_nested"})

MAX_DEPTH: Final = 16
"""Attributes that are nested more deeply become text."""

_TRACE_LEVEL = 5
_LEVELS = (_TRACE_LEVEL, logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
"""By the severity number's group of four: trace, debug, info, warn, error, fatal."""
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
"""How `logging` begins the name of a level that has none."""


def has_grpc() -> bool:
    """Return whether grpcio is installed; it is an extra, because it takes 20 MB and few need it."""
    return importlib.util.find_spec("grpc") is not None


def own_lane(process: Process) -> str:
    """Return what the lane that is the process's own is called, as rl-insight 0.3.0 calls it: by its pid."""
    return str(process.pid or process.process_id)


def resource_attributes(process: Process, namespace: str) -> dict[str, Any]:
    """Return the resource of a process. Names it was not given are empty: a query for any name finds those too."""
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
    """Return the resource attributes that are labels of the process, without the second name of any of them."""
    repeated = {SEMANTIC_LABELS[key] for key in attributes if key in SEMANTIC_LABELS}
    return {key: value for key, value in attributes.items() if key not in PROCESS_KEYS and key not in repeated}


def is_int64(value: Any) -> bool:
    """Return whether a value is a whole number that OTLP can carry as one."""
    return isinstance(value, int) and -(2**63) <= value < 2**63


def severity(level: int) -> int:
    """Return OTLP's severity number for a level of the `logging` module.

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
    """Return the level as in `logging`.

    >>> level_of(9, ""), level_of(17, ""), level_of(0, "warn"), level_of(11, "Level 25")
    (20, 40, 30, 25)
    """
    number = severity_text.removeprefix(_UNNAMED)
    if number != severity_text and number.isdecimal() and len(number) < 4 and severity(int(number)) == severity_number:
        return int(number)
    if 1 <= severity_number <= 24:
        return _LEVELS[(severity_number - 1) // 4]
    return _LEVEL_NAMES.get(severity_text.upper(), logging.INFO)
