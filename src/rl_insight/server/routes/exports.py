"""A run, or a part of it, in files for other tools, and as a report."""

from __future__ import annotations

import zipfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse

from rl_insight.exchange.exporting.exporter import DIRECTORIES, check_selection, export_run
from rl_insight.exchange.exporting.rows import Selection, count_spans
from rl_insight.exchange.report import check_scope, write_report
from rl_insight.server.http.answers import (
    RunParameter,
    StepParameter,
    TextParameter,
    TimeParameter,
    opened,
    run_of,
    services_of,
)
from rl_insight.server.http.made_files import attachment, check_room, make_file, turn
from rl_insight.store.errors import QueryError
from rl_insight.store.queries import Scope
from rl_insight.store.run_files import file_name

if TYPE_CHECKING:
    from rl_insight.store.run_store import RunStore

router = APIRouter(prefix="/api/v1", tags=["runs"])

RECORDS_HEADER = "RL-Insight-Records"
"""How many records an export has."""
MAX_SPANS = 500_000
"""More make a file that viewers in a browser hardly open; `rl-insight export` writes traces of any size."""
_BYTES: dict[str, Any] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_TRACE: dict[str, Any] = {"application/json": {"schema": {"type": "object", "additionalProperties": True}}}
_PAGE: dict[str, Any] = {"text/html": {"schema": {"type": "string"}}}
_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"description": "Nothing of the run fits."},
    404: {"description": "There is no such run."},
    429: {"description": "Other files are being written: try again."},
}


@router.get(
    "/export",
    response_class=StreamingResponse,
    responses={
        200: {"description": "The file; for `csv` and `parquet` a ZIP archive of the tables.", "content": _BYTES},
        **_REFUSALS,
    },
)
def export(
    request: Request,
    file_format: Annotated[Literal["chrome", "otlp", "jsonl", "rli", "csv", "parquet"], Query(alias="format")],
    is_packed: Annotated[bool, Query(alias="gzip", description="Compress the file; archives never are.")] = False,
    start_ns: TimeParameter = None,
    end_ns: TimeParameter = None,
    step: StepParameter = None,
    session_id: TextParameter = None,
    lane: TextParameter = None,
    run: RunParameter = None,
) -> StreamingResponse:
    """Send a run in a format of `rl-insight export`; conditions add up, spans that overlap the time are taken.

    The header `RL-Insight-Records` says how many records there are.
    """
    run_id = run_of(request, run)
    selection = Selection(start_ns=start_ns, end_ns=end_ns, step=step, session_id=session_id, lane=lane)
    name = "export.gz" if is_packed and file_format not in DIRECTORIES else "export"
    with turn(), opened(request, run_id) as store:
        with store.reader() as cursor:
            check_selection(cursor, selection)
            check_room(services_of(request), count_spans(cursor, selection))
        written = _Export(store, file_format, selection)
        stream = make_file(services_of(request), name, written.write)
    headers = {RECORDS_HEADER: str(written.records)}
    return attachment(stream, f"{Path(file_name(run_id)).stem}.{file_format}", "application/octet-stream", headers)


@router.get(
    "/trace",
    tags=["timeline"],
    response_class=StreamingResponse,
    responses={
        200: {"description": "A Chrome trace: processes and threads have names.", "content": _TRACE},
        **_REFUSALS,
        400: {"description": f"It would hold more than {MAX_SPANS:,} spans."},
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
    run_id = run_of(request, run)
    selection = Selection(start_ns=start_ns, end_ns=end_ns, step=step, session_id=session_id, lane=lane)
    with turn(), opened(request, run_id) as store:
        with store.reader() as cursor:
            spans = count_spans(cursor, selection)
        if spans > MAX_SPANS:
            raise QueryError(
                f"the trace would hold {spans:,} spans, the limit is {MAX_SPANS:,}: choose a shorter time or a step, "
                "or use `rl-insight export`, which has no limit."
            )
        check_room(services_of(request), spans)
        stream = make_file(services_of(request), "trace.json", _Export(store, "chrome", selection).write)
    return attachment(stream, f"{Path(file_name(run_id)).stem}.trace.json", "application/json")


class _Export:
    """Writes one export and counts its records."""

    def __init__(self, store: RunStore, file_format: str, selection: Selection) -> None:
        self.records = 0
        self._store = store
        self._format = file_format
        self._selection = selection

    def write(self, path: Path) -> Path:
        self.records = export_run(self._store, self._format, path, self._selection)
        if self._format not in DIRECTORIES:
            return path
        archive = path.with_suffix(".zip")
        with zipfile.ZipFile(archive, "w") as packed:
            for file in sorted(path.iterdir()):
                packed.write(file, file.name)
        return archive


@router.get(
    "/report",
    response_class=StreamingResponse,
    responses={200: {"description": "One HTML file that needs nothing else.", "content": _PAGE}, **_REFUSALS},
)
def report(
    request: Request,
    step: StepParameter = None,
    last_steps: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
    transcripts: Annotated[bool, Query(description="With the recorded texts of sessions.")] = False,
    run: RunParameter = None,
) -> StreamingResponse:
    """Send the report of a run as `rl-insight report` writes it: of one step, of the last steps, or of all of them."""
    services = services_of(request)
    run_id = run_of(request, run)
    scope = Scope(step=step, last_steps=last_steps)
    with turn(), opened(request, run_id) as store:
        with store.reader() as cursor:
            check_scope(cursor, scope)
        check_room(services, 0)
        stream = make_file(services, "report.html", partial(_write_report, store, scope, transcripts))
    return attachment(stream, f"{Path(file_name(run_id)).stem}.html", "text/html")


def _write_report(store: RunStore, scope: Scope, transcripts: bool, path: Path) -> Path:  # for `partial`
    write_report(store, path, scope, transcripts=transcripts)
    return path
