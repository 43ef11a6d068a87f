"""A run, or a part of it, as a trace for Perfetto and `chrome://tracing`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from rl_insight.exchange.exporting.exporter import export_run
from rl_insight.exchange.exporting.rows import Selection, count_spans
from rl_insight.server.http.answers import RunParameter, StepParameter, TextParameter, TimeParameter, latest_run
from rl_insight.server.http.made_files import attachment, check_room, make_file, turn
from rl_insight.store.errors import QueryError
from rl_insight.store.run_files import file_name

if TYPE_CHECKING:
    from rl_insight.server.services import Services
    from rl_insight.store.run_store import RunStore

router = APIRouter(prefix="/api/v1", tags=["timeline"])

MAX_SPANS = 500_000
"""More make a file that viewers in a browser hardly open; `rl-insight export` writes traces of any size."""
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
    with turn(), services.runs.open(run_id) as store:
        with store.reader() as cursor:
            spans = count_spans(cursor, selection)
        if spans > MAX_SPANS:
            raise QueryError(
                f"the trace would hold {spans:,} spans, the limit is {MAX_SPANS:,}: choose a shorter time or a step, "
                "or use `rl-insight export`, which has no limit."
            )
        check_room(services, spans)
        written = make_file(services, "trace.json", partial(_write, store, selection))
    return attachment(written, f"{Path(file_name(run_id)).stem}.trace.json", "application/json")


def _write(store: RunStore, selection: Selection, path: Path) -> Path:
    export_run(store, "chrome", path, selection)
    return path
