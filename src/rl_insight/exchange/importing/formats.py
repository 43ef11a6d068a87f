"""The formats that can be imported, and how a file's format is detected from its content."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from rl_insight.exchange.importing._files import uncompressed_name
from rl_insight.exchange.importing._framings import (
    WANDB_MAGIC,
    Framing,
    event_records,
    frame_records,
    is_event_file,
    wandb_records,
)
from rl_insight.exchange.importing.readers.areal import ArealSessionReader
from rl_insight.exchange.importing.readers.base import UNDECODABLE, FileContext, Reader
from rl_insight.exchange.importing.readers.chrome import ChromeReader
from rl_insight.exchange.importing.readers.native import FrameReader, RecordReader
from rl_insight.exchange.importing.readers.otlp import OtlpReader
from rl_insight.exchange.importing.readers.prime_rl import PrimeRlReader
from rl_insight.exchange.importing.readers.prime_rl_traces import PrimeRlTraceReader
from rl_insight.exchange.importing.readers.tensorboard import TensorboardReader
from rl_insight.exchange.importing.readers.verl_log import VerlLogReader, is_verl_log
from rl_insight.exchange.importing.readers.wandb import WandbReader
from rl_insight.exchange.importing.readers.xtuner import XtunerReader
from rl_insight.schema.framing import MAGIC
from rl_insight.schema.records import RECORD_TYPES


class Format(NamedTuple):
    """How files of a format are read."""

    reader: Callable[[FileContext], Reader]
    framing: Framing | None = None
    """Splits a binary file into records; without one, a file has one record per line, unless it is a document."""


FORMATS: Final[dict[str, Format]] = {
    "rli": Format(FrameReader, frame_records),
    "jsonl": Format(RecordReader),
    "areal-sessions": Format(ArealSessionReader),
    "areal-trace": Format(ChromeReader),
    "xtuner": Format(XtunerReader),
    "otlp": Format(OtlpReader),
    "chrome": Format(ChromeReader),
    "tensorboard": Format(TensorboardReader, event_records),
    "wandb": Format(WandbReader, wandb_records),
    "prime-rl": Format(PrimeRlReader),
    "prime-rl-traces": Format(PrimeRlTraceReader),
    "verl-log": Format(VerlLogReader),
}

SUFFIXES: Final = (".rli", ".jsonl", ".json", ".ndjson", ".trace", ".wandb", ".log")
"""Files that are imported from a directory, besides TensorBoard's event files; a single file may have any name."""
_ROTATED = re.compile(r"\.(jsonl|ndjson)\.\d+$")
_OTLP_KEYS = frozenset({"resourceSpans", "resourceMetrics", "resourceLogs"})
_OTLP_START = re.compile(rb'^\s*\{\s*"resource(Spans|Metrics|Logs)"')
_LONG_EPISODE = re.compile(rb'^\s*\{\s*"[^\n]*"traces"\s*:\s*\[\s*\{')
"""An episode whose line, with its messages and tokens, is longer than the head of the file."""
_RECORD_TYPES = frozenset(kind.__struct_config__.tag for kind in RECORD_TYPES)


def has_known_suffix(name: str) -> bool:
    """Return whether a file in a directory may have a known format.

    >>> [has_known_suffix(name) for name in ("a.json", "a.json.zst", "a.jsonl.1.gz", "a.zst", "a.txt")]
    [True, True, True, False, False]
    """
    plain = uncompressed_name(name)
    return plain.endswith(SUFFIXES) or ".tfevents." in plain or _ROTATED.search(plain) is not None


def default_run(path: Path) -> str:
    """Return the run of a path whose files do not name one: it is named after the file or directory.

    >>> default_run(Path("/logs/exp7/sessions-r0.jsonl"))
    'sessions-r0'
    """
    name = path.resolve().name
    return (name if path.is_dir() else name.partition(".")[0]) or "import"


def run_name(kind: str, file: Path, root: Path) -> str:
    """Return the run of a file found at an imported path, for records that do not name one.

    An event file belongs to its directory, as in TensorBoard; a W&B run is named after its file.

    >>> run_name("tensorboard", Path("/logs/ppo/seed1/events.out.tfevents.1.host"), Path("/logs"))
    'ppo-seed1'
    """
    if kind == "wandb":
        return file.stem
    if kind != "tensorboard":
        return default_run(root)
    if root == file:
        return default_run(file.resolve().parent)
    return "-".join(file.parent.relative_to(root).parts) or default_run(root)


def detect(head: bytes) -> str | None:
    """Return the format of a file that begins with these bytes; None if it is unknown.

    >>> detect(b'{"traceEvents": [')
    'chrome'
    >>> detect(b'{"session_id":0,"rank":0,"status":"accepted","submit_ts":1.5}')
    'areal-sessions'
    """
    if head.startswith(MAGIC):
        return "rli"
    if head.startswith(WANDB_MAGIC):
        return "wandb"
    if is_event_file(head):
        return "tensorboard"
    text = head.lstrip()
    if text.startswith(b"[") and (b'"ph"' in text or not text.strip(b"[] \t\r\n")):
        return "chrome"
    if not text.startswith(b"{"):
        return "verl-log" if is_verl_log(text) else None
    # The first lines may be damaged: the first one that can be decoded decides.
    for line in text.splitlines()[:20]:
        found = _of_line(line)
        if found is not None:
            return found
    if _OTLP_START.match(text):
        return "otlp"
    if b'"traceEvents"' in text or b'"baseTimeNanoseconds"' in text or b'"schemaVersion"' in text:
        return "chrome"
    return "prime-rl-traces" if _LONG_EPISODE.match(text) else None


def _of_line(line: bytes) -> str | None:
    try:
        record = msgspec.json.decode(line, type=dict[str, Any])
    except UNDECODABLE:
        return None
    keys = record.keys()
    if "traceEvents" in keys:
        return "chrome"
    if keys & _OTLP_KEYS:
        return "otlp"
    if record.get("type") in _RECORD_TYPES and "process_id" in keys:
        return "jsonl"
    if {"trace_id", "stage", "timestamp_s"} <= keys:
        return "xtuner"
    if "ph" in keys and "name" in keys:
        return "areal-trace"
    if "session_id" in keys and keys & {"submit_ts", "phases", "status"}:
        return "areal-sessions"
    if {"step", "time"} <= keys and isinstance(record["time"], (int, float)):
        return "prime-rl"
    if {"id", "traces", "errors"} <= keys and isinstance(record["traces"], list):
        return "prime-rl-traces"
    return None
