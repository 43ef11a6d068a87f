"""`rl-insight stacks`: where the processes of a run are right now, those in the same place as one group."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from rl_insight.cli.client import call
from rl_insight.cli.console import say, say_json, working
from rl_insight.cli.opening import AsJson, DataDir, Run, RunWord, given_run, opened_run, run_id_of, server_with
from rl_insight.schema.names import process_name

if TYPE_CHECKING:
    from rl_insight.reader.places import Server
    from rl_insight.store.queries import StackGroup

_SHOWN_NAMES = 8
_LOOK_AGAIN_S = 0.5


def stacks(
    word: RunWord = None,
    run: Run = None,
    wait: Annotated[float, typer.Option(help="How long to wait for answers, in seconds.", min=0, max=600)] = 10.0,
    pid: Annotated[
        int | None, typer.Option(help="A process of this machine instead, also one that cannot answer.", min=1)
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Ask the live processes of a run for their stacks and show them; without a server, show those in the run."""
    from rl_insight.store import queries

    if pid is not None:
        _say_process(pid, as_json=as_json)
        return

    run = given_run(word, run)
    server = server_with(data_dir, run)
    if server is None:
        with opened_run(data_dir, run) as store, store.reader() as cursor:
            found = queries.stack_groups(cursor)
    else:
        with working("waiting for the processes to answer"):
            found = _ask(server, run_id_of(data_dir, run), wait)
    if as_json:
        say_json(found)
    elif not found:
        say("No process has sent its stacks. A process answers with its next batch, at most once a minute.")
    else:
        _say(found)


def _say_process(pid: int, *, as_json: bool) -> None:
    """Show the stacks of one process of this machine."""
    from rl_insight.recorder.dumps import dump_of_pid

    found = dump_of_pid(pid)
    if found is None:
        raise typer.BadParameter(
            f"process {pid} cannot be asked: it records nothing with RL-Insight, is another user's, or is gone. "
            "Install py-spy to look into any process.",
            param_hint="--pid",
        )
    if as_json:
        say_json(found)
        return
    for stack in found.stacks:
        say(stack.name)
        for frame in stack.frames:
            say(f"    {frame}")


def _ask(server: Server, run_id: str, wait_s: float) -> list[StackGroup]:
    """Ask, and wait until as many processes have answered as were asked."""
    import msgspec

    from rl_insight.store.queries import StackGroup

    path = f"/api/v1/stacks?run={quote(run_id, safe='')}"
    since_ns = time.time_ns()
    asked = call(server, "POST", path)["asked"]
    deadline = time.monotonic() + wait_s
    while True:
        found = msgspec.convert(call(server, "GET", path), type=list[StackGroup])
        new = sum(one.time_ns >= since_ns for group in found for one in group.processes)
        if new >= asked or time.monotonic() > deadline:
            return found
        time.sleep(_LOOK_AGAIN_S)


def _say(groups: list[StackGroup]) -> None:
    for group in groups:
        names = [process_name(one.role, one.rank, one.process_id) for one in group.processes]
        more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
        say(f"{len(names)} process{'es' if len(names) > 1 else ''}: {', '.join(names[:_SHOWN_NAMES])}{more}")
        for frame in group.frames:
            say(f"    {frame}")
        for task in group.processes[0].stacks:
            if task.kind == "task":
                doing = "".join(
                    f", {what} {value}" for what, value in (("span", task.span), ("session", task.session_id)) if value
                )
                say(f"    task {task.name}{doing}: {task.frames[0] if task.frames else 'not started'}")
