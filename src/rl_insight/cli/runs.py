"""`rl-insight runs ...`: list, show, delete, export, import."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from rl_insight.cli.console import fail, say, say_json, say_table, working
from rl_insight.cli.opening import AsJson, RunName, asked_run, local_runs, run_id_of
from rl_insight.cli.place import call, current_place, current_server, remote
from rl_insight.cli.transfer import RUN_PATH, RunTransfer, fetch_file
from rl_insight.errors import InsightError
from rl_insight.words import duration_text, size_text

app = typer.Typer(help="List, show, delete, export and import runs.", no_args_is_help=True)


@app.command("list")
@remote
def list_(as_json: AsJson = False) -> None:
    """List the runs, most recent first."""
    from rl_insight.reader.opening import list_runs
    from rl_insight.reader.places import describe

    place = current_place()
    with working("listing runs"):
        found = list_runs(place)
    if as_json:
        say_json(found)
        return
    if not found:
        say(f"There are no runs {describe(place)} yet.")
        return
    rows = [
        [
            info["run_id"],
            info["project"],
            info["experiment_name"],
            str(info["processes"]),
            info["state"],
            "" if info["last_step"] is None else f"{info['last_step']:,}",
            "" if info["reward"] is None else f"{info['reward']:.4g}",
            ", ".join(info["tags"]),
            _time_text(info["started_ns"]),
            _time_text(info["last_seen_ns"]),
            size_text(info["size_bytes"]),
            info["problem"],
        ]
        for info in found
    ]
    columns = ["run", "project", "experiment", "processes", "state", "step", "reward", "tags", "began", "last seen"]
    columns += ["size", "problem"]
    optional = ["project", "experiment", "size", "processes", "last seen", "tags", "reward", "step"]
    say_table(columns, rows, whole=["run"], optional=optional)


@app.command()
@remote
def show(run: RunName, as_json: AsJson = False) -> None:
    """Show a run: its times, its steps, and the number of spans, sessions, samples and so on."""
    with asked_run(run) as source:
        found = source.ask("summary")
    if as_json:
        say_json(found)
        return
    say_table(["run", found["run_id"]], [[name.replace("_", " "), text] for name, text in _described(found)])


def _described(found: dict[str, Any]) -> list[tuple[str, str]]:
    start, end = found["start_ns"], found["end_ns"]
    lasted = "" if start is None or end is None else duration_text(end - start)
    described = [
        ("project", found["project"]),
        ("experiment_name", found["experiment_name"]),
        ("from", _time_text(start)),
        ("to", _time_text(end)),
        ("lasted", lasted),
        ("steps", "" if found["first_step"] is None else f"{found['first_step']} to {found['last_step']}"),
    ]
    shown = {name for name, _ in described} | {"run_id", "start_ns", "end_ns", "first_step", "last_step"}
    return described + [(name, f"{value:,}") for name, value in found.items() if name not in shown]


@app.command()
@remote
def delete(
    run: RunName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Delete a run and its file."""
    run = run_id_of(run)
    if not yes and not _is_confirmed(run):
        return fail(f"run {run} was not deleted. --yes deletes it without asking.", 1)
    if current_server() is not None:
        call("DELETE", "/api/v1/runs", run=run)
    else:
        with local_runs() as runs:
            runs.delete(run)
    say(f"Deleted run {run}.")
    return 0


def _is_confirmed(run: str) -> bool:
    """Ask for confirmation; without a terminal, or at the end of input, the answer is no."""
    try:
        return bool(typer.confirm(f"Delete run {run} and everything in it?"))
    except typer.Abort:
        return False


@app.command()
@remote
def tag(
    run: RunName,
    tags: Annotated[list[str] | None, typer.Argument(help="Tags to add.")] = None,
    remove: Annotated[list[str] | None, typer.Option("--remove", help="A tag to remove; repeatable.")] = None,
    note: Annotated[str | None, typer.Option("--note", help="The notes of the run; empty removes them.")] = None,
) -> None:
    """Add tags to a run, remove some, or set its notes; prints the result."""
    from rl_insight.reader.opening import list_runs

    run = run_id_of(run)
    (before,) = (info["tags"] for info in list_runs(current_place()) if info["run_id"] == run)
    wanted = [tag for tag in [*before, *(tags or [])] if tag not in (remove or [])]
    if current_server() is not None:
        found = call("POST", "/api/v1/runs/notes", {"tags": wanted, "notes": note}, run=run)
    else:
        from rl_insight.store import queries

        with local_runs() as runs, runs.open(run) as store:
            kept = queries.write_notes(store, wanted, note)
        found = {"tags": kept.tags, "notes": kept.notes}
    say(f"Tags of {run}: {', '.join(found['tags']) or 'none'}.")
    if found["notes"]:
        say(found["notes"])


@app.command()
@remote
def export(
    run: RunName,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file; default <run>.duckdb here.")] = None,
) -> None:
    """Write a copy of a run's file, even while the run is live; `runs import` adds it elsewhere."""
    from rl_insight.store.run_files import file_name

    run = run_id_of(run)
    target = output or Path(file_name(run))
    if target.exists():
        raise InsightError(f"cannot export to {target}: it exists. Choose another name with --output.")
    if current_server() is None:
        with local_runs() as runs, working(f"copying {run}"):
            runs.export(run, target)
    else:
        fetch_file(RUN_PATH, {"run": run}, target, f"copying {run}")
    say(f"Wrote {target} ({size_text(target.stat().st_size)}).")


@app.command("import")
@remote
def import_(
    file: Annotated[Path, typer.Argument(help="A run file, from `runs export` or copied.")],
) -> None:
    """Add a run file to the runs, under its own id."""
    server = current_server()
    if server is None:
        with local_runs() as runs, working(f"reading {file.name}"):
            run_id = runs.import_file(file).run_id
    else:
        if not file.is_file():
            raise InsightError(f"cannot import {file}: there is no such file.")
        with closing(RunTransfer(server)) as connection, working(f"sending {file.name}"):
            run_id = connection.upload_run(file)["run_id"]
    say(f"Imported run {run_id}.")


def _time_text(time_ns: int | None) -> str:
    if time_ns is None:
        return ""
    return datetime.fromtimestamp(time_ns / 1e9).astimezone().strftime("%Y-%m-%d %H:%M:%S")
