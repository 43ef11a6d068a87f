"""The runs: list, delete, copy, join, annotate, compare."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from rl_insight.diagnosis.run_comparison import RunComparison, compare_runs
from rl_insight.server.http.answers import RunParameter, StrictBody, answers, json_answer, reading, services_of
from rl_insight.server.http.made_files import attachment, make_file, work_directory
from rl_insight.store import queries
from rl_insight.store.errors import NoRunError, RunExistsError, StoreCorruptError, StoreFullError, StoreVersionError
from rl_insight.store.run_files import RunInfo, file_name

router = APIRouter(prefix="/api/v1", tags=["runs"])


@router.get("/runs", responses=answers(list[RunInfo], "The runs, most recent first."))
def list_runs(request: Request) -> Response:
    """List the runs."""
    return json_answer(services_of(request).runs.list_runs())


@router.delete("/runs", responses={404: {"description": "No such run."}, 409: {"description": "It is in use."}})
def delete_run(request: Request, run: Annotated[str, Query(max_length=500)]) -> JSONResponse:
    """Delete a run and its file."""
    services_of(request).delete_run(run)
    return JSONResponse({"deleted": run})


_RUN_FILE = "application/vnd.rl-insight.run"
_BINARY: dict[str, Any] = {_RUN_FILE: {"schema": {"type": "string", "format": "binary"}}}
# The store's messages name paths of the server.
_NO_RUN_FILE = "cannot import the run file: it is damaged, truncated, or not a run file."
_FREE_CHECK_BYTES = 16 * 1024 * 1024


@router.get(
    "/runs/file",
    response_class=StreamingResponse,
    responses={200: {"description": "The run's file.", "content": _BINARY}, 404: {"description": "No such run."}},
)
def download_run(request: Request, run: Annotated[str, Query(max_length=500)]) -> StreamingResponse:
    """Send a consistent copy of a run's file, also while the run is live."""
    services = services_of(request)
    copy = make_file(services, "run", lambda path: services.runs.export(run, path))
    return attachment(copy, file_name(run), _RUN_FILE)


@router.post(
    "/runs/file",
    openapi_extra={"requestBody": {"required": True, "content": _BINARY}},
    responses={
        **answers(RunInfo, "The run as it is now listed."),
        400: {"description": "The body is not a run file."},
        409: {"description": "A run with that id exists."},
        507: {"description": "The disk is full."},
    },
)
async def upload_run(request: Request) -> Response:
    """Add a run file, as sent by `GET` of the same path."""
    services = services_of(request)
    with work_directory(services) as directory:
        path = directory / "run"
        try:
            await _receive_file(request, path, services.settings.store.min_free_bytes)
            return json_answer(await run_in_threadpool(services.runs.import_file, path))
        except StoreVersionError as error:
            return JSONResponse({"error": str(error)}, 400)
        except (StoreCorruptError, NoRunError):
            return JSONResponse({"error": _NO_RUN_FILE}, 400)
        except RunExistsError as error:
            return JSONResponse({"error": str(error).replace(str(path), "the run file")}, 409)


async def _receive_file(request: Request, path: Path, min_free_bytes: int) -> None:
    """Write a body to a file, as long as the disk has room."""
    since_check = _FREE_CHECK_BYTES
    with path.open("wb") as stream:
        async for part in request.stream():
            since_check += len(part)
            if since_check >= _FREE_CHECK_BYTES:
                since_check = 0
                if shutil.disk_usage(path.parent).free < min_free_bytes + 2 * _FREE_CHECK_BYTES:
                    raise StoreFullError("the run file is too large for the server's disk. Free some space there.")
            await run_in_threadpool(stream.write, part)


class LaunchRank(StrictBody):
    """A rank of a launch whose name may be reused."""

    run_id: str = Field(min_length=1, max_length=500)
    rank: int = Field(ge=0, lt=2**31)
    restarts: int = Field(default=0, ge=0, lt=2**31)


@router.post("/runs/join", responses=answers(dict[str, str], "The run, as `run_id`."))
def join_run(request: Request, rank: LaunchRank) -> Response:
    """Return the run of a rank: the requested one, with a number appended if an earlier launch had that name."""
    return json_answer({"run_id": services_of(request).launches.join(rank.run_id, rank.rank, rank.restarts)})


class NotesChange(StrictBody):
    """Tags and notes to set; omitted fields keep their values."""

    tags: list[str] | None = Field(default=None, max_length=1000)
    notes: str | None = Field(default=None, max_length=100_000)


@router.post("/runs/notes", responses=answers(queries.RunNotes, "The new tags and notes."))
def change_notes(request: Request, change: NotesChange, run: Annotated[str, Query(max_length=500)]) -> Response:
    """Set the tags or the notes of a run."""
    with services_of(request).runs.open(run) as store:
        return json_answer(queries.write_notes(store, change.tags, change.notes))


@router.get("/runs/compare", responses=answers(RunComparison))
def compare(request: Request, other: Annotated[str, Query(max_length=500)], run: RunParameter = None) -> Response:
    """Compare two runs over the finished steps that both have: times, metrics and configuration.

    `sentence` summarizes how the other run differs.
    """
    with reading(request, run) as first, reading(request, other) as second:
        return json_answer(compare_runs(first, second))
