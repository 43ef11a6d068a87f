"""The viewer of XTuner's trainer: a running server, or one that is started alongside the trainer."""

from __future__ import annotations

import logging
import subprocess
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from rl_insight.compat._recording import is_recording
from rl_insight.compat.xtuner.config import TraceConfig
from rl_insight.config.loading import environment_config
from rl_insight.config.paths import data_dir, find_local_server, find_server
from rl_insight.monitor import default_monitor
from rl_insight.server_process import start_server, wait_until_ready

logger = logging.getLogger("rl_insight")

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 10.0


class Viewer:
    """A server whose page shows the run; `close` stops it if it was started here."""

    def __init__(self, url: str, token: str | None = None, child: subprocess.Popen[bytes] | None = None) -> None:
        self.url = url
        self.token = token
        self._child = child

    def page(self, config: TraceConfig) -> str:
        """Return the address of the page."""
        query = {"scope": config.viewer_scope, "refresh_s": f"{config.viewer_refresh_interval_s:g}"}
        if self.token:
            query["token"] = self.token
        return f"{self.url}/?{urlencode(query)}"

    @property
    def port(self) -> int | None:
        """The port of the page."""
        return urlsplit(self.url).port

    def close(self) -> None:
        """Stop the server if it was started here; accepted data is stored."""
        child, self._child = self._child, None
        if child is None or child.poll() is not None:
            return
        child.terminate()
        try:
            child.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def open_viewer(config: TraceConfig) -> Viewer | None:
    """Return the server that this process sends to, a known one, or a new one; None if it cannot start."""
    if is_recording():
        pipeline = default_monitor._pipeline
        server = None if pipeline is None else pipeline.config.server
        return Viewer(server.url, server.token) if server is not None and server.url else None
    configured = environment_config().server
    known = find_server(configured.url, configured.token)
    return _start(config) if known is None else Viewer(known.url, known.token)


def _start(config: TraceConfig) -> Viewer | None:
    directory = Path(config.output_dir) / "rl-insight" if config.output_dir else data_dir()
    host, port = config.viewer or ("127.0.0.1", 0)
    words = [f"--host={host}", f"--port={port}", f"--data-dir={directory}"]
    output = directory / "viewer.out"
    words += ["otlp_http_port=null", "otlp_grpc_port=null"]
    try:
        child = start_server(words, output)
    except OSError as error:
        logger.warning("cannot start the trace viewer: %s.", error)
        return None
    state = find_local_server(directory) if wait_until_ready(child, directory, _START_TIMEOUT_S) else None
    if state is None:
        logger.warning("cannot start the trace viewer: see %s.", output)
        Viewer("", child=child).close()
        return None
    return Viewer(state.url, state.token, child)
