"""Runs, the processes in them, and what was lost."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool

from rl_insight.diagnosis.run_comparison import RunComparison, compare_runs
from rl_insight.server.http.answers import RunParameter, answers, json_answer, reading, services_of
from rl_insight.store import queries
from rl_insight.store.errors import NoRunError, RunExistsError, StoreCorruptError, StoreFullError, StoreVersionError
from rl_insight.store.run_files import RunInfo, file_name

if TYPE_CHECKING:
    from rl_insight.server.services import Services

router = APIRouter(prefix="/api/v1", tags=["runs"])


@router.get("/runs", responses=answers(list[RunInfo], "The runs, the one that began last first."))
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
# The store's own words name files of the server.
_NO_RUN_FILE = "cannot import the run file: it is damaged, cut short, or no run file."
_FREE_CHECK_BYTES = 16 * 1024 * 1024


@router.get(
    "/runs/file",
    response_class=FileResponse,
    responses={200: {"description": "The run's file.", "content": _BINARY}, 404: {"description": "No such run."}},
)
def download_run(request: Request, run: Annotated[str, Query(max_length=500)]) -> FileResponse:
    """Send a consistent copy of a run's file, while the run is live."""
    services = services_of(request)
    directory = _work_directory(services)
    try:
        copy = services.runs.export(run, directory / "run")
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    # The name of the copy is ours; the one that the browser gets is harmless whatever the run is called.
    return FileResponse(
        copy,
        media_type=_RUN_FILE,
        filename=file_name(run),
        background=BackgroundTask(shutil.rmtree, directory, ignore_errors=True),
    )


@router.post(
    "/runs/file",
    openapi_extra={"requestBody": {"required": True, "content": _BINARY}},
    responses={
        **answers(RunInfo, "The run as it is now listed."),
        400: {"description": "The body is not a run file."},
        409: {"description": "A run of that name is here already."},
        507: {"description": "There is no room on the disk."},
    },
)
async def upload_run(request: Request) -> Response:
    """Take a run file, as `GET` of the same path sends it."""
    services = services_of(request)
    directory = _work_directory(services)
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
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _work_directory(services: Services) -> Path:
    """Make a directory for one request, on the disk that the runs are on."""
    place = services.runs.path.parent
    place.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=".transfer-", dir=place))


async def _receive_file(request: Request, path: Path, min_free_bytes: int) -> None:
    """Write a body to a file, as long as there is room."""
    since_check = _FREE_CHECK_BYTES
    with path.open("wb") as stream:
        async for part in request.stream():
            since_check += len(part)
            if since_check >= _FREE_CHECK_BYTES:
                since_check = 0
                if shutil.disk_usage(path.parent).free < min_free_bytes + 2 * _FREE_CHECK_BYTES:
                    raise StoreFullError("the run file is too large: there is no room for it on the disk.")
            await run_in_threadpool(stream.write, part)


class LaunchRank(BaseModel):
    """A rank of a launch whose name may be used again."""

    model_config = ConfigDict(extra="forbid")

    run_id: str = Field(min_length=1, max_length=500)
    rank: int = Field(ge=0, lt=2**31)
    restarts: int = Field(default=0, ge=0, lt=2**31)


@router.post("/runs/join", responses=answers(dict[str, str], "The run, as `run_id`."))
def join_run(request: Request, rank: LaunchRank) -> Response:
    """Return the run of a rank: the one asked for, with a number where an earlier launch had that name."""
    return json_answer({"run_id": services_of(request).launches.join(rank.run_id, rank.rank, rank.restarts)})


class NotesChange(BaseModel):
    """What to set; what is left out stays as it is."""

    model_config = ConfigDict(extra="forbid")

    tags: list[str] | None = Field(default=None, max_length=1000)
    notes: str | None = Field(default=None, max_length=100_000)


@router.post("/runs/notes", responses=answers(queries.RunNotes, "The tags and notes as they are now."))
def change_notes(request: Request, change: NotesChange, run: Annotated[str, Query(max_length=500)]) -> Response:
    """Set the tags or the notes of a run."""
    with services_of(request).runs.open(run) as store:
        return json_answer(queries.write_notes(store, change.tags, change.notes))


@router.get("/runs/compare", responses=answers(RunComparison))
def compare(request: Request, other: Annotated[str, Query(max_length=500)], run: RunParameter = None) -> Response:
    """Compare a run with another one over the finished steps that both have: times, metrics and configuration.

    `sentence` says what is different in the other run.
    """
    with reading(request, run) as first, reading(request, other) as second:
        return json_answer(compare_runs(first, second))
