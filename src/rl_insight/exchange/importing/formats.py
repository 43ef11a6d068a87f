"""The formats that can be imported, and how a file's format is detected from its content."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from rl_insight.exchange.errors import ExchangeError
from rl_insight.exchange.importing._framings import WANDB_MAGIC, Framing, event_records, is_event_file, wandb_records
from rl_insight.exchange.importing.readers.areal import ArealSessionReader
from rl_insight.exchange.importing.readers.base import BinaryReader, FileContext, Reader
from rl_insight.exchange.importing.readers.chrome import ChromeReader
from rl_insight.exchange.importing.readers.native import RecordReader
from rl_insight.exchange.importing.readers.otlp import OtlpReader
from rl_insight.exchange.importing.readers.prime_rl import PrimeRlReader
from rl_insight.exchange.importing.readers.prime_rl_traces import PrimeRlTraceReader
from rl_insight.exchange.importing.readers.tensorboard import TensorboardReader
from rl_insight.exchange.importing.readers.verl_log import VerlLogReader, is_verl_log
from rl_insight.exchange.importing.readers.wandb import WandbReader
from rl_insight.exchange.importing.readers.xtuner import XtunerReader
from rl_insight.schema.framing import MAGIC
from rl_insight.schema.records import RECORD_TYPES

FRAMES: Final = "rli"
RECORDS: Final = "jsonl"
AREAL_SESSIONS: Final = "areal-sessions"
AREAL_TRACE: Final = "areal-trace"
XTUNER: Final = "xtuner"
OTLP: Final = "otlp"
CHROME: Final = "chrome"
TENSORBOARD: Final = "tensorboard"
WANDB: Final = "wandb"
PRIME_RL: Final = "prime-rl"
PRIME_RL_TRACES: Final = "prime-rl-traces"
VERL_LOG: Final = "verl-log"
FORMATS: Final = (
    FRAMES, RECORDS, AREAL_SESSIONS, AREAL_TRACE, XTUNER, OTLP, CHROME, TENSORBOARD, WANDB, PRIME_RL, PRIME_RL_TRACES,
    VERL_LOG,
)  # fmt: skip

ReaderFactory = Callable[[FileContext], Reader]
LINE_READERS: Final[dict[str, ReaderFactory]] = {
    RECORDS: RecordReader,
    AREAL_SESSIONS: ArealSessionReader,
    AREAL_TRACE: ChromeReader,
    XTUNER: XtunerReader,
    OTLP: OtlpReader,
    PRIME_RL: PrimeRlReader,
    PRIME_RL_TRACES: PrimeRlTraceReader,
    VERL_LOG: VerlLogReader,
}
"""The formats of one record per line."""

BINARY_READERS: Final[dict[str, tuple[Framing, Callable[[FileContext], BinaryReader]]]] = {
    TENSORBOARD: (event_records, TensorboardReader),
    WANDB: (wandb_records, WandbReader),
}
"""The formats of binary records: what takes a file apart, and what reads the records."""

SUFFIXES: Final = (
    ".rli", ".jsonl", ".json", ".ndjson", ".jsonl.gz", ".json.gz", ".ndjson.gz", ".jsonl.zst", ".trace", ".wandb",
    ".log",
)  # fmt: skip
"""What is looked at below a directory, beside TensorBoard's event files; a single file may have any name."""
_ROTATED = re.compile(r"\.(jsonl|ndjson)\.\d+$")
_OTLP_KEYS = frozenset({"resourceSpans", "resourceMetrics", "resourceLogs"})
_OTLP_START = re.compile(rb'^\s*\{\s*"resource(Spans|Metrics|Logs)"')
_LONG_EPISODE = re.compile(rb'^\s*\{\s*"[^\n]*"traces"\s*:\s*\[\s*\{')
"""An episode whose line, with its messages and tokens, is longer than what is looked at of a file."""
_RECORD_TYPES = frozenset(kind.__struct_config__.tag for kind in RECORD_TYPES)


def has_known_suffix(name: str) -> bool:
    """Return whether a file of a directory is worth looking at."""
    return name.endswith(SUFFIXES) or ".tfevents." in name or _ROTATED.search(name) is not None


def default_run(path: Path) -> str:
    """Return the run of a path whose files name none: called after the file or directory.

    >>> default_run(Path("/logs/exp7/sessions-r0.jsonl"))
    'sessions-r0'
    """
    name = path.resolve().name
    return (name if path.is_dir() else name.partition(".")[0]) or "import"


def run_name(kind: str, file: Path, root: Path) -> str:
    """Return the run of a file that was found at an imported path, where its records name none.

    An event file belongs to its directory, as in TensorBoard; a run of W&B is named by its own file.

    >>> run_name(TENSORBOARD, Path("/logs/ppo/seed1/events.out.tfevents.1.host"), Path("/logs"))
    'ppo-seed1'
    """
    if kind == WANDB:
        return file.stem
    if kind != TENSORBOARD:
        return default_run(root)
    if root == file:
        return default_run(file.resolve().parent)
    return "-".join(file.parent.relative_to(root).parts) or default_run(root)


def checked_format(name: str) -> str:
    """Return a format's name.

    Raises:
        ExchangeError: there is no such format.
    """
    if name not in FORMATS:
        raise ExchangeError(f"format {name!r} is unknown: it must be auto or one of {', '.join(FORMATS)}.")
    return name


def detect(head: bytes) -> str | None:
    """Return the format of a file that begins with these bytes; None when it is none that is known.

    >>> detect(b'{"traceEvents": [')
    'chrome'
    >>> detect(b'{"session_id":0,"rank":0,"status":"accepted","submit_ts":1.5}')
    'areal-sessions'
    """
    if head.startswith(MAGIC):
        return FRAMES
    if head.startswith(WANDB_MAGIC):
        return WANDB
    if is_event_file(head):
        return TENSORBOARD
    text = head.lstrip()
    if text.startswith(b"[") and (b'"ph"' in text or not text.strip(b"[] \t\r\n")):
        return CHROME
    if not text.startswith(b"{"):
        return VERL_LOG if is_verl_log(text) else None
    # The first lines may be damaged: the first that can be read decides.
    for line in text.splitlines()[:20]:
        found = _of_line(line)
        if found is not None:
            return found
    if _OTLP_START.match(text):
        return OTLP
    if b'"traceEvents"' in text or b'"baseTimeNanoseconds"' in text or b'"schemaVersion"' in text:
        return CHROME
    return PRIME_RL_TRACES if _LONG_EPISODE.match(text) else None


def _of_line(line: bytes) -> str | None:
    try:
        record = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    keys = record.keys()
    if "traceEvents" in keys:
        return CHROME
    if keys & _OTLP_KEYS:
        return OTLP
    if record.get("type") in _RECORD_TYPES and "process_id" in keys:
        return RECORDS
    if {"trace_id", "stage", "timestamp_s"} <= keys:
        return XTUNER
    if "ph" in keys and "name" in keys:
        return AREAL_TRACE
    if "session_id" in keys and keys & {"submit_ts", "phases", "status"}:
        return AREAL_SESSIONS
    if {"step", "time"} <= keys and isinstance(record["time"], (int, float)):
        return PRIME_RL
    if {"id", "traces", "errors"} <= keys and isinstance(record["traces"], list):
        return PRIME_RL_TRACES
    return None
