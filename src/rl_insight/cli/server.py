"""`rl-insight server ...`: start, stop, status, logs, targets."""

from __future__ import annotations

import gc
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_insight.cli import targets
from rl_insight.cli.console import say, say_json, say_table, warn, working
from rl_insight.cli.opening import AsJson
from rl_insight.cli.place import DataDir, call, current_directory, current_server, directory_of, remote, taken_ports
from rl_insight.cli.stack import install, say_stack, stack_left, stack_rows, stack_words
from rl_insight.errors import ConfigError, InsightError
from rl_insight.waiting import wait_for

if TYPE_CHECKING:
    from rl_insight.server.config import ServerSettings
    from rl_insight.server.state import ServerRecord

app = typer.Typer(help="Start, stop and manage the server.", no_args_is_help=True)
app.add_typer(targets.app, name="targets")
app.command()(install)

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 15.0
_STACK_TIMEOUT_S = 60.0
"""Extra time to stop Prometheus, Tempo and Grafana."""
_GARBAGE_OBJECTS = 25_000


@app.command()
def start(
    context: typer.Context,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings, such as retention.max_age_days=7.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Run in the background.")] = False,
    host: Annotated[str | None, typer.Option(help="The address to listen on; default 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="The port; default 18080, 0 for any free one.")] = None,
    data_dir: Annotated[
        str | None,
        typer.Option("--data-dir", "--log-dir", help="The data directory; default ~/.rl-insight."),
    ] = None,
    config: Annotated[str | None, typer.Option(help="A YAML file with settings.")] = None,
    auto_port: Annotated[
        bool, typer.Option("--auto-port", help="Use free ports in place of ports that are in use.")
    ] = False,
    extra_dashboard_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Additional Grafana dashboards; same as stack.grafana.dashboards_dir."),
    ] = None,
    attach_logs: Annotated[
        bool, typer.Option("--attach-logs", help="No effect: the server stays in the foreground by default.")
    ] = False,
    stack: Annotated[
        bool, typer.Option("--stack", help="Add Prometheus, Tempo and Grafana: `--stack local` or `--stack compose`.")
    ] = False,
) -> int:
    """Start the server; it runs until Ctrl+C, or until `server stop` with --detach."""
    from rl_insight.server.config import load_settings
    from rl_insight.server.state import read_record

    if detach and attach_logs:
        raise ConfigError("--detach and --attach-logs are mutually exclusive. Choose one.")
    options = {"host": host, "port": port, "data_dir": data_dir}
    level = context.find_root().params.get("log_level")
    log = [] if level is None else [f"log_level={level}"]
    words = stack_words([*log, *(overrides or [])], stack=stack, dashboards=extra_dashboard_dir)
    settings = load_settings(config, words, options)
    running = read_record(settings.directory)
    if running is not None:
        say(f"A server is already running at {running.url} (pid {running.pid}), with its data in {settings.directory}.")
        return 0
    if auto_port:
        words = [*words, *(f"{key}=0" for key in taken_ports(settings))]
        options["port"] = None if "port=0" in words else port
        settings = load_settings(config, words, options)
    if detach:
        return _start_detached(settings, words, options, config)
    # Importing the server creates 180,000 permanent objects: garbage collection would take 1/6 of the startup time.
    gc.disable()
    from rl_insight.server.lifecycle import serve

    # Batches create hundreds of objects each, without cycles: collecting garbage every 700 objects takes 1/6 of the
    # time spent on them.
    gc.freeze()
    gc.set_threshold(_GARBAGE_OBJECTS, 10, 10)
    gc.enable()
    try:
        return serve(settings, _announce)
    finally:
        gc.unfreeze()  # otherwise DuckDB prints a page of warnings at exit


def _announce(record: ServerRecord) -> None:
    from rl_insight.server.http.pages import STATIC

    say(f"RL-Insight is running at {record.url}")
    if record.token:
        say(f"  open    {record.url}/?token={record.token}")
        say(f"  token   {record.token}  (RL_INSIGHT_TOKEN for producers)")
    say(f"  data    {record.data_dir}")
    say(f"  OTLP    {_otlp_addresses(record)}")
    if not (STATIC / "index.html").is_file():
        say("  page    not included in this installation: build it with npm, or install a release")
    say_stack(Path(record.data_dir))


def _otlp_addresses(record: ServerRecord) -> str:
    from rl_insight.otlp.mapping import has_grpc

    over_grpc = record.otlp_grpc_address or ("off" if has_grpc() else 'off without "rl-insight[grpc]"')
    return f"{record.otlp_http_url or record.url} (HTTP), {over_grpc} (gRPC)"


def _start_detached(
    settings: ServerSettings, overrides: list[str], options: dict[str, str | int | None], config: str | None
) -> int:
    from rl_insight.server.state import LOG_FILE, DataDirectory, read_record
    from rl_insight.server_process import start_server, wait_until_ready

    directory = settings.directory
    DataDirectory(directory).close()  # fails early, in this process, if it cannot be used
    words = [f"--{key.replace('_', '-')}={value}" for key, value in options.items() if value is not None]
    words += [f"--config={config}"] if config else []
    output = directory / "server.out"
    child = start_server([*words, *overrides], output, outlives_parent=True)
    # Each of the three may take the full time to become ready.
    timeout_s = _START_TIMEOUT_S + (3 * settings.stack.ready_timeout_s if settings.stack.enabled else 0.0)
    try:
        with working("starting the server"):
            is_ready = wait_until_ready(child, directory, timeout_s)
    except BaseException:
        child.terminate()
        raise
    if not is_ready and child.poll() is None:
        child.terminate()
        raise InsightError(f"the server was not ready within {timeout_s:.0f} s. See {directory / LOG_FILE}.")
    record = read_record(directory) if is_ready else None
    if record is None:
        warn(output.read_text(errors="replace").strip())
        return child.returncode if child.returncode in {1, 2} else 1
    _announce(record)
    where = "" if directory == directory_of(None) else f" --data-dir {shlex.quote(str(directory))}"
    say(f"It runs in the background: `rl-insight server stop{where}` stops it.")
    return 0


@app.command()
def stop(
    data_dir: DataDir = None,
    config: Annotated[str | None, typer.Option(help="The YAML file the server was started with.")] = None,
) -> None:
    """Stop the server; everything it has accepted is stored."""
    from rl_insight.config.paths import is_running
    from rl_insight.server.config import load_settings
    from rl_insight.server.state import read_record
    from rl_insight.stack import stop_stack

    if config is not None:
        data_dir = str(load_settings(config, options={"data_dir": data_dir}).directory)
    directory = directory_of(data_dir)
    record = read_record(directory)
    if record is None:
        stopped = stop_stack(directory)
        say(f"No server runs on {directory}." + (" Stopped the rest of its stack." if stopped else ""))
        return
    try:
        os.kill(record.pid, signal.SIGTERM)
    except PermissionError as error:
        raise InsightError(f"cannot stop the server with pid {record.pid}: it belongs to another user.") from error
    except ProcessLookupError:
        pass
    timeout_s = _STOP_TIMEOUT_S + (_STACK_TIMEOUT_S if stack_rows(directory) else 0.0)
    with working("stopping the server"):
        if not wait_for(lambda: not is_running(record), timeout_s):
            raise InsightError(f"the server with pid {record.pid} did not stop within {timeout_s:.0f} s.")
        stop_stack(directory)  # left behind by a server that was killed
    say(f"Stopped the server with pid {record.pid}.")


@app.command()
@remote
def status(as_json: AsJson = False) -> int:
    """Show whether the server runs, and its health; exits with 1 if it does not run."""
    from rl_insight.server.state import read_record
    from rl_insight.stack import stack_status

    server, directory = current_server(), current_directory()
    if server is None:
        if as_json:
            say_json({"running": False, "stack": stack_status(directory)})
            return 1
        say(f"No server runs on {directory}. Start one with `rl-insight server start`.")
        if left := stack_left(directory):
            say(f"Still running: {left}, left by a server that was killed. `rl-insight server stop` stops them.")
        return 1
    shown = {"running": True, "url": server.url} | call("GET", "/api/v1/status")
    record = read_record(directory)
    rows: list[list[str]] = []
    if record is not None and record.url == server.url:  # not on another machine
        shown |= {"data_dir": record.data_dir, "otlp_http_url": record.otlp_http_url}
        shown |= {"otlp_grpc": record.otlp_grpc_address, "stack": stack_status(directory)}
        rows = [["pid", str(record.pid)], ["data", record.data_dir], ["OTLP", _otlp_addresses(record)]]
    if as_json:
        say_json(shown)
        return 0
    say_table(["server", "running"], [["address", server.url], *rows, *_health(shown)])
    if rows:
        say_stack(directory)
    return 0


def _health(found: dict[str, Any]) -> list[list[str]]:
    writer, collector = found["writer"], found["collector"]
    rows = [
        ["version", found["version"]],
        ["open runs", ", ".join(found["open_runs"]) or "none"],
        ["processes", str(collector["processes_seen"])],
        ["stored", ", ".join(f"{count:,} {kind}" for kind, count in collector["events"].items() if count) or "nothing"],
        ["queued", f"{writer['pending_batches']} batches, {writer['lag_s']:.1f} s behind"],
        ["targets", str(len(found["targets"]))],
    ]
    if writer["last_error"]:
        rows.append(["last error", writer["last_error"]])
    return rows


@app.command()
def logs(
    data_dir: DataDir = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing as the server writes.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="The number of lines to start with.")] = 100,
) -> None:
    """Show the server's log."""
    from rl_insight.server.state import LOG_FILE

    path = directory_of(data_dir) / LOG_FILE
    if not path.is_file():
        raise InsightError(f"there is no log at {path}. Start a server with `rl-insight server start`.")
    with path.open(encoding="utf-8", errors="replace") as stream:
        last = stream.readlines()[-lines:] if lines else []
        sys.stdout.writelines(last)
        sys.stdout.flush()
    if follow:
        for line in _followed(path):
            sys.stdout.write(line)
            sys.stdout.flush()


def _followed(path: Path) -> Iterator[str]:
    """Yield new lines of a log, even after a rotation; Ctrl+C ends it."""
    stream = path.open(encoding="utf-8", errors="replace")
    stream.seek(0, os.SEEK_END)
    try:
        while True:
            line = stream.readline()
            if line:
                yield line
                continue
            time.sleep(0.2)
            if path.exists() and path.stat().st_ino != os.fstat(stream.fileno()).st_ino:
                stream.close()
                stream = path.open(encoding="utf-8", errors="replace")
    finally:
        stream.close()
