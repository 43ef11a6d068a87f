"""A real server in a separate process, started as users start it, on free ports."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from rl_insight.server.state import ServerRecord, read_record

_WORDS = ("port=0", "otlp_http_port=0", "otlp_grpc_port=0")
_START_S = 60.0


class ServerProcess:
    """The handle of a running server; queries it over one persistent connection, from one thread."""

    def __init__(self, program: subprocess.Popen[bytes], record: ServerRecord, ready_s: float) -> None:
        self.url = record.url
        self.ready_s = ready_s
        """Seconds from starting the program until it was ready."""
        self._process = psutil.Process(program.pid)
        self._status = Path(f"/proc/{program.pid}/status")
        self._connection: http.client.HTTPConnection | None = None

    def get(self, path: str, **parameters: Any) -> bytes:
        """Return the response to a GET.

        Raises:
            RuntimeError: the response is an error.
        """
        given = {key: value for key, value in parameters.items() if value is not None}
        target = f"{path}?{urllib.parse.urlencode(given, doseq=True)}"
        try:
            answer, body = self._ask(target)
        except ConnectionError:  # the server closes a connection that is idle for 30 s
            self._connection = None
            answer, body = self._ask(target)
        if answer.status != 200:
            raise RuntimeError(f"GET {path} {given} returned {answer.status}: {body[:300]!r}")
        return body

    def _ask(self, target: str) -> tuple[http.client.HTTPResponse, bytes]:
        if self._connection is None:
            self._connection = connect(self.url)
        self._connection.request("GET", target)
        answer = self._connection.getresponse()
        return answer, answer.read()

    def get_json(self, path: str, **parameters: Any) -> Any:
        """Return the JSON response to a GET."""
        return json.loads(self.get(path, **parameters))

    def visible_spans(self, run: str) -> int:
        """Return the number of spans of a run that are visible now; 0 before the run exists."""
        runs = {found["run_id"] for found in self.get_json("/api/v1/runs")}
        return int(self.get_json("/api/v1/summary", run=run)["spans"]) if run in runs else 0

    def wait_for_spans(self, run: str, count: int, timeout_s: float = 60.0) -> float:
        """Wait until that many spans are visible; returns the time, by `time.perf_counter`."""
        end = time.perf_counter() + timeout_s
        while (seen := self.visible_spans(run)) < count:
            if time.perf_counter() > end:
                raise RuntimeError(f"{count} spans were recorded, {seen} are visible: the figure would be meaningless.")
            time.sleep(0.05)
        return time.perf_counter()

    def processor_s(self) -> float:
        """Return the CPU time that the server has used so far."""
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def memory_bytes(self) -> int:
        """Return the memory that the server uses now."""
        return int(self._process.memory_info().rss)

    def peak_memory_bytes(self) -> int:
        """Return the server's peak memory; its current memory where the peak is unknown."""
        if not self._status.exists():
            return self.memory_bytes()
        line = next(line for line in self._status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024


def connect(url: str) -> http.client.HTTPConnection:
    """Return a connection to a server."""
    parts = urllib.parse.urlsplit(url)
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)


@contextlib.contextmanager
def running_server(words: Sequence[str] = (), data_dir: Path | None = None) -> Iterator[ServerProcess]:
    """Run a server for a `with` block; without a data directory, in one that is deleted afterward."""
    with contextlib.ExitStack() as stack:
        place = data_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        arguments = [sys.executable, "-m", "rl_insight.cli", "server", "start", "--data-dir", str(place)]
        begun = time.perf_counter()
        program = subprocess.Popen([*arguments, *_WORDS, *words], stdout=subprocess.DEVNULL)
        stack.callback(_end, program)
        record = _wait_until_ready(program, place)
        yield ServerProcess(program, record, time.perf_counter() - begun)


def _wait_until_ready(program: subprocess.Popen[bytes], place: Path) -> ServerRecord:
    end = time.perf_counter() + _START_S
    while program.poll() is None and time.perf_counter() < end:
        record = read_record(place)
        if record is not None and record.pid == program.pid and _is_ready(record.url):
            return record
        time.sleep(0.01)
    raise RuntimeError(f"the server did not start: see {place}/server.log.")


def _is_ready(url: str) -> bool:
    connection = connect(url)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _end(program: subprocess.Popen[bytes]) -> None:
    program.terminate()
    try:
        program.wait(20)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()
