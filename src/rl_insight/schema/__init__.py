"""The event schema: batches (columns), records (rows), frames, names, histograms."""

from rl_insight.schema.batch import VERSION, Batch, Loss, Process, decode, encode
from rl_insight.schema.builder import BatchBuilder
from rl_insight.schema.framing import frame, read_frames
from rl_insight.schema.records import Record, process_record, record_json, records
from rl_insight.schema.tables import NO_STEP, OPEN

__all__ = [
    "NO_STEP",
    "OPEN",
    "VERSION",
    "Batch",
    "BatchBuilder",
    "Loss",
    "Process",
    "Record",
    "decode",
    "encode",
    "frame",
    "process_record",
    "read_frames",
    "record_json",
    "records",
]
