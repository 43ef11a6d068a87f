"""A run, or a part of it, as a trace for Perfetto and `chrome://tracing`."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import StreamingResponse

from rl_insight.exchange.exporting.exporter import export_run
from rl_insight.exchange.exporting.rows import Selection, count_spans
from rl_insight.server.http.answers import RunParameter, StepParameter, TextParameter, TimeParameter, latest_run
from rl_insight.store.errors import QueryError, StoreFullError
from rl_insight.store.run_files import file_name

if TYPE_CHECKING:
    from rl_insight.server.services import Services

router = APIRouter(prefix="/api/v1", tags=["timeline"])

MAX_SPANS = 500_000
"""More make a file that viewers in a browser hardly open; `rl-insight export` writes traces of any size."""
_SPAN_BYTES = 1_000
"""Room on the disk for one span, generously."""
_CHUNK_BYTES = 256 * 1024
# Writing a trace keeps a core busy: more than two at once would hold up everything else.
_turns = threading.BoundedSemaphore(2)
_TRACE: dict[str, Any] = {"application/json": {"schema": {"type": "object", "additionalProperties": True}}}


@router.get(
    "/trace",
    response_class=StreamingResponse,
    responses={
        200: {"description": "A Chrome trace: processes and threads have names.", "content": _TRACE},
        400: {"description": f"It would hold more than {MAX_SPANS:,} spans."},
        404: {"description": "There is no such run."},
        429: {"description": "Other traces are being written: try again."},
    },
)
def trace(
    request: Request,
    start_ns: TimeParameter = None,
    end_ns: TimeParameter = None,
    step: StepParameter = None,
    session_id: TextParameter = None,
    lane: TextParameter = None,
    run: RunParameter = None,
) -> StreamingResponse:
    """Send a trace in the JSON format of Chrome and Perfetto; conditions add up, spans that overlap the time are taken.

    `lane` is a lane's name, or the process id or role of a process's own lane.
    """
    services: Services = request.app.state.services
    run_id = run if run is not None else latest_run(services)
    selection = Selection(start_ns=start_ns, end_ns=end_ns, step=step, session_id=session_id, lane=lane)
    if not _turns.acquire(blocking=False):
        raise HTTPException(
            429, "other traces are being written: try again in a few seconds.", headers={"Retry-After": "3"}
        )
    try:
        written = _write(services, run_id, selection)
    finally:
        _turns.release()
    name = f"{Path(file_name(run_id)).stem}.trace.json"
    headers = {
        "Content-Disposition": f'attachment; filename="{name}"',
        "Content-Length": str(os.fstat(written.fileno()).st_size),
    }
    return StreamingResponse(_chunks(written), media_type="application/json", headers=headers)


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    with stream:
        while chunk := stream.read(_CHUNK_BYTES):
            yield chunk


def _write(services: Services, run_id: str, selection: Selection) -> BinaryIO:
    """Write the trace to a file that has no name any more: nothing is left behind, however the sending ends.

    While it is sent, which may be slow, nothing of the store is kept open.
    """
    with services.runs.open(run_id) as store:
        with store.reader() as cursor:
            spans = count_spans(cursor, selection)
        if spans > MAX_SPANS:
            raise QueryError(
                f"the trace would hold {spans:,} spans, the limit is {MAX_SPANS:,}: choose a shorter time or a step, "
                "or use `rl-insight export`, which has no limit."
            )
        parent = services.runs.path.parent
        if shutil.disk_usage(parent).free < services.settings.store.min_free_bytes + spans * _SPAN_BYTES:
            raise StoreFullError("there is no room on the server's disk to write the trace: choose a shorter time.")
        with tempfile.TemporaryDirectory(prefix=".transfer-", dir=parent) as directory:
            path = Path(directory) / "trace.json"
            export_run(store, "chrome", path, selection)
            return path.open("rb")
