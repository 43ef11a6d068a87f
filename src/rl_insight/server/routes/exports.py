"""A run, or a part of it, as files for other tools and as a report."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
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
from rl_insight.server.http.made_files import attachment, check_room, make_file, work_slot
from rl_insight.store.errors import QueryError
from rl_insight.store.queries import Scope
from rl_insight.store.run_files import file_name

router = APIRouter(prefix="/api/v1", tags=["runs"])

RECORDS_HEADER = "RL-Insight-Records"
"""The number of records in an export."""
MAX_SPANS = 500_000
"""Viewers in a browser can hardly open larger traces; `rl-insight export` writes traces of any size."""
_BYTES: dict[str, Any] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_TRACE: dict[str, Any] = {"application/json": {"schema": {"type": "object", "additionalProperties": True}}}
_PAGE: dict[str, Any] = {"text/html": {"schema": {"type": "string"}}}


def _sent(content: dict[str, Any], description: str, refused: str = "Nothing in the run matches.") -> dict[str, Any]:
    """Describe a route that sends a file."""
    responses = {
        200: {"description": description, "content": content},
        400: {"description": refused},
        404: {"description": "There is no such run."},
        429: {"description": "Other files are being written: try again."},
    }
    return {"response_class": StreamingResponse, "responses": responses}


def _selection(
    start_ns: TimeParameter = None,
    end_ns: TimeParameter = None,
    step: StepParameter = None,
    session_id: TextParameter = None,
    lane: TextParameter = None,
) -> Selection:
    return Selection(start_ns=start_ns, end_ns=end_ns, step=step, session_id=session_id, lane=lane)


Selected = Annotated[Selection, Depends(_selection)]


@router.get("/export", **_sent(_BYTES, "The file; for `csv` and `parquet` a ZIP archive of the tables."))
def export(
    request: Request,
    file_format: Annotated[Literal["chrome", "otlp", "jsonl", "rli", "csv", "parquet"], Query(alias="format")],
    selection: Selected,
    is_packed: Annotated[bool, Query(alias="gzip", description="Compress the file; archives never are.")] = False,
    run: RunParameter = None,
) -> StreamingResponse:
    """Send a run in a format of `rl-insight export`; all conditions must match, and spans match if they overlap.

    The header `RL-Insight-Records` has the number of records.
    """
    run_id = run_of(request, run)
    name = "export.gz" if is_packed and file_format not in DIRECTORIES else "export"
    records = 0

    def write(path: Path) -> None:
        nonlocal records
        is_archive = file_format in DIRECTORIES
        written = path.with_name("tables") if is_archive else path
        records = export_run(store, file_format, written, selection)
        if is_archive:
            with zipfile.ZipFile(path, "w") as packed:
                for file in sorted(written.iterdir()):
                    packed.write(file, file.name)

    with work_slot(), opened(request, run_id) as store:
        with store.reader() as cursor:
            check_selection(cursor, selection)
            check_room(services_of(request), count_spans(cursor, selection))
        stream = make_file(services_of(request), name, write)
    headers = {RECORDS_HEADER: str(records)}
    return attachment(stream, f"{Path(file_name(run_id)).stem}.{file_format}", "application/octet-stream", headers)


@router.get(
    "/trace",
    tags=["timeline"],
    **_sent(
        _TRACE, "A Chrome trace with named processes and threads.", f"It would have more than {MAX_SPANS:,} spans."
    ),
)
def trace(request: Request, selection: Selected, run: RunParameter = None) -> StreamingResponse:
    """Send a trace in the JSON format of Chrome and Perfetto; all conditions must match, spans match if they overlap.

    `lane` is the name of a lane, or the process id or role of a process's own lane.
    """
    run_id = run_of(request, run)
    with work_slot(), opened(request, run_id) as store:
        with store.reader() as cursor:
            spans = count_spans(cursor, selection)
        if spans > MAX_SPANS:
            raise QueryError(
                f"the trace would have {spans:,} spans; the limit is {MAX_SPANS:,}. Choose a shorter time or a step, "
                "or use `rl-insight export`, which has no limit."
            )
        check_room(services_of(request), spans)
        stream = make_file(
            services_of(request), "trace.json", lambda path: export_run(store, "chrome", path, selection)
        )
    return attachment(stream, f"{Path(file_name(run_id)).stem}.trace.json", "application/json")


@router.get("/report", **_sent(_PAGE, "One self-contained HTML file."))
def report(
    request: Request,
    step: StepParameter = None,
    last_steps: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
    transcripts: Annotated[bool, Query(description="With the recorded text of sessions.")] = False,
    run: RunParameter = None,
) -> StreamingResponse:
    """Send the report of a run as `rl-insight report` writes it: for one step, the last steps, or all of them."""
    services, run_id = services_of(request), run_of(request, run)
    scope = Scope(step=step, last_steps=last_steps)
    with work_slot(), opened(request, run_id) as store:
        with store.reader() as cursor:
            check_scope(cursor, scope)
        check_room(services, 0)
        stream = make_file(
            services, "report.html", lambda path: write_report(store, path, scope, transcripts=transcripts)
        )
    return attachment(stream, f"{Path(file_name(run_id)).stem}.html", "text/html")
