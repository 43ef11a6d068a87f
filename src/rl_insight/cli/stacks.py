"""`rl-insight stacks`: the current stacks of a run's processes, grouped by location."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from rl_insight.cli.console import say, say_json, working
from rl_insight.cli.opening import AsJson, Run, RunWord, given_run, opened_run, run_id_of, server_with
from rl_insight.cli.place import call
from rl_insight.schema.names import process_name
from rl_insight.words import counted

if TYPE_CHECKING:
    from rl_insight.store.queries import StackGroup

_SHOWN_NAMES = 8
_LOOK_AGAIN_S = 0.5


def stacks(
    word: RunWord = None,
    run: Run = None,
    wait: Annotated[
        float, typer.Option(help="How long to wait for processes to answer, in seconds.", min=0, max=600)
    ] = 10.0,
    pid: Annotated[
        int | None, typer.Option(help="A process on this machine instead, even one that hangs.", min=1)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Request the stacks of a run's live processes and show them; without a server, show the recorded ones."""
    from rl_insight.store import queries

    if pid is not None:
        _say_process(pid, as_json=as_json)
        return

    run = given_run(word, run)
    if server_with(run) is None:
        with opened_run(run) as store, store.reader() as cursor:
            found = queries.stack_groups(cursor)
    else:
        with working("waiting for the processes to answer"):
            found = _ask(run_id_of(run), wait)
    if as_json:
        say_json(found)
    elif not found:
        say("No process has sent its stacks. A process sends them with its next batch, at most once per minute.")
    else:
        _say(found)


def _say_process(pid: int, *, as_json: bool) -> None:
    """Show the stacks of one process on this machine."""
    from rl_insight.recorder.dumps import dump_of_pid

    found = dump_of_pid(pid)
    if found is None:
        raise typer.BadParameter(
            f"cannot get stacks of process {pid}: it does not use RL-Insight, belongs to another user, or has ended. "
            "Install py-spy to read the stacks of any process.",
            param_hint="--pid",
        )
    if as_json:
        say_json(found)
        return
    for stack in found.stacks:
        say(stack.name)
        for frame in stack.frames:
            say(f"    {frame}")


def _ask(run_id: str, wait_s: float) -> list[StackGroup]:
    """Request stacks, and wait until all processes have answered, or for `wait_s`."""
    import msgspec

    from rl_insight.store.queries import StackGroup

    since_ns = time.time_ns()
    asked = call("POST", "/api/v1/stacks", run=run_id)["asked"]
    deadline = time.monotonic() + wait_s
    while True:
        found = msgspec.convert(call("GET", "/api/v1/stacks", run=run_id), type=list[StackGroup])
        new = sum(one.time_ns >= since_ns for group in found for one in group.processes)
        if new >= asked or time.monotonic() > deadline:
            return found
        time.sleep(_LOOK_AGAIN_S)


def _say(groups: list[StackGroup]) -> None:
    for group in groups:
        names = [process_name(one.role, one.rank, one.process_id) for one in group.processes]
        more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
        say(f"{counted(len(names), 'process')}: {', '.join(names[:_SHOWN_NAMES])}{more}")
        for frame in group.frames:
            say(f"    {frame}")
        for task in group.processes[0].stacks:
            if task.kind == "task":
                doing = "".join(
                    f", {what} {value}" for what, value in (("span", task.span), ("session", task.session_id)) if value
                )
                say(f"    task {task.name}{doing}: {task.frames[0] if task.frames else 'not started'}")
