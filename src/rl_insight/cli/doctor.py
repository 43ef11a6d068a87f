"""`rl-insight doctor`: checks the connection to the server, and this machine."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from rl_insight._version import __version__
from rl_insight.cli.console import say_json, say_table, working
from rl_insight.cli.opening import AsJson
from rl_insight.cli.place import current_place, taken_ports
from rl_insight.cli.transfer import RunTransfer
from rl_insight.config.paths import Server
from rl_insight.errors import InsightError
from rl_insight.reader.client import ServerClient
from rl_insight.waiting import wait_for
from rl_insight.words import size_text

if TYPE_CHECKING:
    from rl_insight.reader.places import Place

OK, WARNING, PROBLEM = "ok", "warning", "problem"
_CLOCK_S = 1.0
_RUN = "rl-insight-doctor"
_READ_BACK_S = 15.0


class Check(NamedTuple):
    """A check and its result."""

    name: str
    state: str
    said: str


def doctor(as_json: AsJson = False) -> int:
    """Check server, token, versions, clock, ports, spool, GPUs and Ray; write a span and read it back.

    Exits with 1 if there is a problem.
    """
    with working("checking the server, and writing a span"):
        checks = list(examine(current_place()))
    if as_json:
        say_json([check._asdict() for check in checks])
    else:
        say_table(["check", "state", "found"], [list(check) for check in checks], whole=["check"])
    return int(any(check.state == PROBLEM for check in checks))


def examine(place: Place) -> Iterator[Check]:
    """Run the checks; one that fails does not stop the others."""
    yield Check("python", OK, f"{platform.python_version()}, rl-insight {__version__}")
    if isinstance(place, Server):
        yield from _server_checks(place)
    else:
        said = f"none runs on {place}, and RL_INSIGHT_SERVER_URL is not set. Start one with `rl-insight server start`."
        yield Check("server", PROBLEM, said)
        yield _guarded("ports", _ports)
    for name, look in (("spool", _spool), ("GPUs", _gpus), ("Ray", _ray)):
        yield _guarded(name, look)


def _guarded(name: str, look: Callable[[], Check]) -> Check:
    try:
        return look()
    except Exception as error:  # noqa: BLE001 -- a broken driver must not hide the other checks
        return Check(name, WARNING, f"check failed: {error}")


def _server_checks(server: Server) -> Iterator[Check]:
    client = ServerClient(server, 10.0)
    try:
        before = time.time()
        status, _ = client.request("GET", "/readyz")
        seconds = time.time() - before
        yield Check(
            "server", OK if status == 200 else PROBLEM, f"{server.url} responds with {status} in {seconds * 1e3:.0f} ms"
        )
        found = client.get("/api/v1/status")
        yield Check("token", OK, "accepted" if server.token else "not required")
    except InsightError as error:
        yield Check("server or token", PROBLEM, str(error))
        return
    finally:
        client.close()
    same = found["version"] == __version__
    yield Check("version", OK if same else WARNING, f"server {found['version']}, here {__version__}")
    writer = found["writer"]
    lagging = writer["lag_s"] > 10 or bool(writer["last_error"])
    said = writer["last_error"] or f"{writer['pending_batches']} batches queued, {writer['lag_s']:.1f} s behind"
    yield Check("writer", PROBLEM if lagging else OK, said)
    yield Check("SQL", OK, "on" if found.get("sql_enabled") else "off; enable it with sql.enabled=true")
    try:
        yield from _write_and_read_back(server)
    except InsightError as error:
        yield Check("write and read back", PROBLEM, str(error))


def _write_and_read_back(server: Server) -> Iterator[Check]:
    """Send a span as a training process does, query it, compare the clocks, and delete its run."""
    from rl_insight.schema import BatchBuilder, Process, encode, frame

    run_id = f"{_RUN}-{os.getpid()}-{time.time_ns()}"
    builder = BatchBuilder()
    sent_ns = time.time_ns()
    builder.add_span(span_id=1, trace=(1, 1), name="doctor", start_ns=sent_ns, duration_ns=1)
    process = Process(process_id=run_id, run_id=run_id, host=platform.node(), pid=os.getpid())
    with closing(RunTransfer(server)) as transfer, closing(ServerClient(server, 10.0)) as client:
        answer = transfer.post_frames(frame(encode(builder.build(process, sequence=1, sent_ns=time.time_ns()))))
        if answer.status != 200:
            yield Check("write and read back", PROBLEM, f"the server refused a span: {answer.error or answer.status}")
            return
        row = _awaited_process(client, run_id)
        seconds = (time.time_ns() - sent_ns) / 1e9
        if row is None:
            said = f"the span was accepted, but not found within {_READ_BACK_S:.0f} s"
            yield Check("write and read back", PROBLEM, said)
            return
        off_s = (row["first_seen_ns"] - sent_ns) / 1e9
        client.call("DELETE", "/api/v1/runs", conditions={"run": run_id})
    yield Check("write and read back", OK, f"a span was stored and found after {seconds:.2f} s")
    if abs(off_s) > seconds + _CLOCK_S:
        yield Check("clock", WARNING, f"the server's clock is {off_s:+.1f} s off: set both with NTP")
    else:
        yield Check("clock", OK, f"the server's clock and this one agree within {max(abs(off_s), 0.01):.2f} s")


def _awaited_process(client: ServerClient, run_id: str) -> dict[str, Any] | None:
    def look() -> dict[str, Any] | None:
        try:
            if not client.get("/api/v1/spans", {"run": run_id, "name": "doctor"}):
                return None
            row: dict[str, Any] = client.get("/api/v1/processes", {"run": run_id})[0]
        except InsightError:  # the run is created by its first commit
            return None
        return row

    return wait_for(look, _READ_BACK_S, 0.1)


def _spool() -> Check:
    from rl_insight.config import load_config
    from rl_insight.transport.http import spool_folder

    root = spool_folder("any", load_config(None).http.spool_dir)
    if root is None:
        return Check("spool", WARNING, "the default directory belongs to another user. Set http.spool_dir.")
    files = [file for file in root.parent.rglob("*") if file.is_file()] if root.parent.is_dir() else []
    waiting = sum(file.stat().st_size for file in files)
    if not waiting:
        return Check("spool", OK, f"{root.parent} is empty")
    return Check("spool", WARNING, f"{size_text(waiting)} in {root.parent} are waiting for a server")


def _ports() -> Check:
    """Check whether the default ports of a server are free."""
    from rl_insight.server.config import load_settings

    settings = load_settings()
    taken = taken_ports(settings)
    if taken:
        ports = ", ".join(f"{key}={port}" for key, port in taken.items())
        return Check("ports", WARNING, f"{ports} in use: start the server with --auto-port")
    return Check("ports", OK, "the default ports are free")


def _gpus() -> Check:
    import pynvml  # type: ignore[import-untyped]

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Check("GPUs", WARNING, f"NVML cannot be used: {error}. GPU metrics will be missing on this machine.")
    try:
        return Check("GPUs", OK, f"{pynvml.nvmlDeviceGetCount()} found, driver {pynvml.nvmlSystemGetDriverVersion()}")
    finally:
        pynvml.nvmlShutdown()


def _ray() -> Check:
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("ray")
    except PackageNotFoundError:
        return Check("Ray", OK, "not installed; only needed with Ray")
    address = os.environ.get("RAY_ADDRESS")
    return Check("Ray", OK, f"{found}, " + (f"RAY_ADDRESS is {address}" if address else "RAY_ADDRESS is not set"))
