"""Shared names: valid Prometheus names, reserved labels, kinds of spans and events, severities, words for waiting."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

DEFAULT_NAMESPACE: Final = "rl_insight_monitor"
TRAINER_JOB: Final = "trainer_metrics"
"""The default name under which a hub's `/metrics` is registered."""
MAX_RUN_ID: Final = 500
"""The maximum length of a run id; queries reject longer ones."""
RESERVED_LABELS: Final = frozenset({"project", "experiment_name", "run_id"})
OVERFLOW_LABEL: Final = "__overflow__"

TARGET_PROCESS_PREFIX: Final = "scrape-"
"""Prefix of the process ids of scrape targets."""

CONFIG_EVENT: Final = "rl_insight.config"
"""Events with a run's configuration: each attribute is one dotted key."""

TEXTS_EVENT: Final = "rl_insight.texts"
"""Events with the text of a span that was sent before its session was selected for capture."""

DURATION_SEGMENT: Final = "duration"
STATE_SEGMENT: Final = "state_interval"
NESTED_STATE_SEGMENT: Final = "state_nested"
STATE_SEGMENTS: Final = frozenset({STATE_SEGMENT, NESTED_STATE_SEGMENT})
"""Segments of plain spans and of states; a state entered on a busy lane is nested."""
SESSION_SEGMENT: Final = "session"
PHASE_SEGMENT: Final = "phase"
TASK_SEGMENT: Final = "task"
"""Segments of the spans of sessions, phases and tasks."""

Severity = Literal["info", "warning", "critical"]
SEVERITIES: Final[tuple[Severity, ...]] = ("info", "warning", "critical")
"""Of findings and alerts, the least severe first."""

_HOST_LABELS: Final = ("host", "node", "hostname", "Hostname")
_WAITING_WORDS = (
    "wait", "waits", "waiting", "idle", "blocked", "barrier", "starved", "paused", "queued", "pending", "bubble",
    "bubbles", "sleep", "sleeping",
)  # fmt: skip
_LOWER = "|".join(form for word in _WAITING_WORDS for form in (word, word.upper()))
_CAPITALIZED = "|".join(word.capitalize() for word in _WAITING_WORDS)
WAITING_PATTERN: Final = f"(?:^|[^A-Za-z])(?:{_LOWER})(?![a-z])|(?:^|[^A-Z])(?:{_CAPITALIZED})(?![a-z])"
"""Matches names with a word that means waiting, also in camel case; a regular expression of Python and of JavaScript.

The page has the same pattern, see `web/src/waiting.ts`."""

_WAITING = re.compile(WAITING_PATTERN)
_SEPARATORS = re.compile(r"[^a-z0-9]+")
_NOT_IN_METRIC = re.compile(r"[^a-zA-Z0-9_:]")
_NOT_IN_LABEL = re.compile(r"[^a-zA-Z0-9_]")


def metric_name(name: str) -> str:
    """Return a valid Prometheus metric name; other characters become ``_``.

    >>> metric_name("timing_s/step"), metric_name("99th")
    ('timing_s_step', '_99th')
    """
    cleaned = _NOT_IN_METRIC.sub("_", name)
    return f"_{cleaned}" if not cleaned or cleaned[0].isdigit() else cleaned


def label_name(name: str) -> str:
    """Return a valid Prometheus label name; a leading ``__`` is reserved for Prometheus itself."""
    cleaned = _NOT_IN_LABEL.sub("_", name)
    if cleaned.startswith("__"):
        cleaned = "_" + cleaned.lstrip("_")
    return f"_{cleaned}" if not cleaned or cleaned[0].isdigit() else cleaned


def normalized(name: str) -> str:
    """Return a metric, state or role name in normalized form, for comparison.

    >>> normalized("actor/entropy"), normalized("Timing S.step"), normalized("vllm:num_requests_running")
    ('actor_entropy', 'timing_s_step', 'vllm_num_requests_running')
    """
    return _SEPARATORS.sub("_", name.lower()).strip("_")


def is_waiting(name: str) -> bool:
    """Return whether the name of a state, phase or span means waiting: the time counts as idle.

    >>> [is_waiting(name) for name in ("wait_for_samples", "trainer/idle", "waitForBatch", "await_nothing", "generate")]
    [True, True, True, False, False]
    """
    return _WAITING.search(name) is not None


def process_name(role: str | None, rank: int | None, otherwise: str = "process") -> str:
    """Return the display name of a process: its role and rank.

    >>> process_name("trainer", 3), process_name("", None)
    ('trainer 3', 'process')
    """
    name = role or otherwise
    return name if rank is None else f"{name} {rank}"


class DeviceId(NamedTuple):
    """A machine, or one of its accelerators."""

    host: str
    gpu: str | None
    """The index of the accelerator; None for the machine."""

    @property
    def title(self) -> str:
        """The display name, such as `node-1 · GPU 2`."""
        return self.host if self.gpu is None else f"{self.host} · GPU {self.gpu}"


def device_of(
    labels: Mapping[str, object], process_host: str = "", *, gpu_label: str = "gpu", default_gpu: str | None = None
) -> DeviceId:
    """Return the device that a series measures.

    Without a label for it, the machine is that of a scraped `instance`, else that of the process that recorded it.

    >>> device_of({"host": "node-1", "node": "7f3a", "gpu": "2"}).title
    'node-1 · GPU 2'
    >>> device_of({"instance": "10.0.0.7:9400", "gpu": "0"}, "server"), device_of({}, "node-1")
    (DeviceId(host='10.0.0.7', gpu='0'), DeviceId(host='node-1', gpu=None))
    """
    named = next((str(labels[label]) for label in _HOST_LABELS if labels.get(label)), "")
    instance = str(labels.get("instance", ""))
    host = named or instance.rpartition(":")[0] or instance or process_host
    gpu = str(labels.get(gpu_label, ""))
    return DeviceId(host, gpu or default_gpu)


def copy_of(process_id: str, source: str) -> str:
    """Return the id under which records of a process are imported: their batches have other sequence numbers.

    >>> copy_of("trainer-0", "imported"), copy_of("trainer-0@imported", "export")
    ('trainer-0@imported', 'trainer-0@export')
    """
    return f"{process_id.partition('@')[0]}@{source}"


def original_of(process_id: str) -> str | None:
    """Return the id of the process whose records were imported; None if `process_id` is not that of a copy.

    >>> original_of("trainer-0@imported"), original_of("trainer-0")
    ('trainer-0', None)
    """
    original, mark, _ = process_id.partition("@")
    return original if mark else None
