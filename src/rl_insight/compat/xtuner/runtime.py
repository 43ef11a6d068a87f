"""The trace of this process, from `configure_trace` or a trainer's environment variables to `close_trace`."""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_insight.compat._recording import BatchFiles, is_recording, start_recording
from rl_insight.compat.xtuner.config import TraceConfig, read_config
from rl_insight.compat.xtuner.otlp_file import OtlpFile
from rl_insight.compat.xtuner.producer import ProducerTraceFile, SampleRecorder
from rl_insight.compat.xtuner.viewer import Viewer, open_viewer
from rl_insight.config.loading import RUN_VARIABLE, SERVER_VARIABLE, TOKEN_VARIABLE
from rl_insight.monitor import default_monitor
from rl_insight.recorder.ids import host_name
from rl_insight.recorder.propagation import INHERIT_VARIABLE

logger = logging.getLogger("rl_insight")

ROLLOUT_VARIABLE = "XTUNER_TRACE_ENABLE_ROLLOUT"
_FROM_PARENT = (INHERIT_VARIABLE, SERVER_VARIABLE, TOKEN_VARIABLE, RUN_VARIABLE)
_FLUSH_TIMEOUT_S = 0.2
_CLOSE_TIMEOUT_S = 2.0
_next_writer: Callable[[], int] = itertools.count(1).__next__


@dataclass(frozen=True)
class TraceRuntime(SampleRecorder):
    """The trace of this process and its files; also the recorder of the producer trace."""

    enabled: bool = False
    mode: str = "disabled"
    """`disabled`, `driver` or `inherited`."""
    run_id: str | None = None
    run_dir: Path | None = None
    trace_jsonl_path: Path | None = None
    service_name: str = "xtuner-rollout"
    trace_viewer_url: str | None = None
    trace_viewer_port: int | None = None
    config: TraceConfig = field(default_factory=TraceConfig, repr=False)
    file: ProducerTraceFile | None = field(default=None, repr=False)
    otlp_file: OtlpFile | None = field(default=None, repr=False)
    viewer: Viewer | None = field(default=None, repr=False)
    owns_monitor: bool = field(default=False, repr=False)
    variables: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def files(self) -> list[BatchFiles]:
        """The files that are written."""
        return [file for file in (self.file, self.otlp_file) if file is not None]


OFF = TraceRuntime()
_runtime: TraceRuntime | None = None
"""None until the environment has been read."""
_exit_registered = False


def configure_trace(config: Any = None, *, output_dir: str | Path | None = None) -> TraceRuntime:
    """Start tracing with this configuration; a second call replaces the first, None turns tracing off.

    With a viewer it prints ``Producer Trace Viewer: <url>``: the page of a known server, or of a new server that runs
    alongside this process and stops with it.

    Raises:
        TypeError: the configuration has an unsupported type.
        ValueError: a key is unknown, or a value is out of range.
    """
    settings = read_config(config)
    if output_dir is not None:
        settings = settings.model_copy(update={"output_dir": output_dir})
    close_trace()
    if settings.enabled:
        _begin(settings, "driver")
    return active_runtime()


def _begin(settings: TraceConfig, mode: str, run_id: str | None = None) -> None:
    global _runtime, _exit_registered  # noqa: PLW0603  # one trace per process
    viewer, receiver = None, None
    if mode == "driver" and settings.viewer is not None:
        viewer = open_viewer(settings)
    if viewer is not None:
        receiver = {"server": {"backend": "http", "url": viewer.url, "token": viewer.token}}
        print(f"Producer Trace Viewer: {viewer.page(settings)}", flush=True)  # noqa: T201  # the trainer's line
    owns_monitor = not is_recording()
    run_id = run_id or f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{os.urandom(4).hex()}"
    flusher = start_recording(receiver, run_id=run_id)
    run_id = run_id if flusher is None else flusher.process.run_id
    folder = None if settings.output_dir is None else Path(settings.output_dir).absolute()
    otel_folder = folder
    if folder is None and not settings.has_producer_trace:
        otel_folder = Path("otel_traces").absolute()
    file, otlp_file, run_dir = None, None, None
    if flusher is not None and folder is not None and settings.has_producer_trace:
        writer = f"{os.getpid()}_{_next_writer():04d}-{host_name()}"
        file = ProducerTraceFile(flusher, folder, writer)
    if flusher is not None and otel_folder is not None and settings.has_otel_trace:
        run_dir = otel_folder / run_id
        name = "traces.jsonl" if mode == "driver" else f"traces-{host_name()}-{os.getpid()}.jsonl"
        otlp_file = OtlpFile(flusher, run_dir / "traces" / name, service_name=settings.service_name, run_id=run_id)
    variables = _environment(settings, run_id, folder, otlp_file)
    _runtime = TraceRuntime(
        enabled=flusher is not None,
        mode=mode,
        run_id=run_id,
        run_dir=run_dir,
        trace_jsonl_path=None if otlp_file is None else otlp_file.path,
        service_name=settings.service_name,
        trace_viewer_url=None if viewer is None else viewer.page(settings),
        trace_viewer_port=None if viewer is None else viewer.port,
        config=settings,
        file=file,
        otlp_file=otlp_file,
        viewer=viewer,
        owns_monitor=owns_monitor,
        variables=variables,
    )
    if mode == "driver":
        os.environ.update(variables)
    if not _exit_registered:
        _exit_registered = True
        atexit.register(close_trace)


def _environment(settings: TraceConfig, run_id: str, folder: Path | None, otlp_file: OtlpFile | None) -> dict[str, str]:
    """Return the variables that make a worker trace like this process, for both APIs."""
    found: dict[str, str] = {}
    if settings.has_producer_trace:
        found["XTUNER_TRACE_ENABLED"] = "1"
        found["XTUNER_TRACE_MAX_EVENTS"] = str(settings.max_events)
        found["XTUNER_TRACE_MAX_EVENTS_PER_TRACE"] = str(settings.max_events_per_trace)
        if folder is not None:
            found["XTUNER_TRACE_OUTPUT_DIR"] = str(folder)
    if otlp_file is not None:
        run_dir = otlp_file.path.parents[1]
        found["XTUNER_OTEL_ENABLED"] = "1"
        found["XTUNER_OTEL_OUTPUT_DIR"] = str(run_dir.parent)
        found["XTUNER_OTEL_RUN_ID"] = run_id
        found["XTUNER_OTEL_RUN_DIR"] = str(run_dir)
        found["XTUNER_OTEL_JSONL_PATH"] = str(otlp_file.path)
        found["OTEL_SERVICE_NAME"] = settings.service_name
    if settings.enable_rollout_trace:
        found[ROLLOUT_VARIABLE] = "1"
    pipeline = default_monitor._pipeline
    url = None if pipeline is None else pipeline.config.server.url
    if url and otlp_file is not None:  # engines with an OpenTelemetry SDK send to the same server
        found["OTEL_TRACES_EXPORTER"] = "otlp"
        found["OTEL_EXPORTER_OTLP_ENDPOINT"] = url
        found["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = f"{url.rstrip('/')}/v1/traces"
        found["OTEL_EXPORTER_OTLP_PROTOCOL"] = "http/protobuf"
    return found


def active_runtime() -> TraceRuntime:
    """Return the trace of this process; a worker configures itself from its trainer's variables."""
    global _runtime  # noqa: PLW0603  # see _begin
    if _runtime is None:
        _runtime = OFF
        try:
            settings = _settings_of_trainer()
            if settings is not None:
                _begin(settings, "inherited", os.environ.get("XTUNER_OTEL_RUN_ID"))
        except Exception:  # variables of another version must not stop a worker
            logger.exception("this worker is not traced: cannot use the environment variables of its trainer.")
    found: TraceRuntime = _runtime
    return found


def _settings_of_trainer() -> TraceConfig | None:
    """Read the trainer's variables. `XTUNER_TRACE_ENABLED` alone is a switch of launch scripts and is ignored."""
    given: dict[str, Any] = {}
    read = os.environ.get
    if read("XTUNER_TRACE_ENABLED") == "1" and (maximum := read("XTUNER_TRACE_MAX_EVENTS")):
        given["max_events"] = int(maximum)
        given["output_dir"] = read("XTUNER_TRACE_OUTPUT_DIR")
    if read("XTUNER_OTEL_ENABLED") == "1" and read("XTUNER_OTEL_RUN_ID"):
        given["output_dir"] = read("XTUNER_OTEL_OUTPUT_DIR")
        given["service_name"] = read("OTEL_SERVICE_NAME") or "xtuner-rollout"
    return TraceConfig(enabled=True, **given) if given else None


def current_trace_runtime() -> TraceRuntime | None:
    """Return the trace of this process; None if tracing is off."""
    found = active_runtime()
    return found if found.enabled else None


def flush_trace() -> bool:
    """Write everything traced so far; return False if that takes longer than 0.2 s."""
    found = active_runtime()
    if not found.files:
        return default_monitor.flush(_FLUSH_TIMEOUT_S) if found.enabled else True
    written = [file.save(timeout_s=_FLUSH_TIMEOUT_S) for file in found.files]
    return all(written)


def close_trace() -> None:
    """Write everything, stop a viewer that was started here, clear the variables, and stop tracing."""
    global _runtime  # see _begin
    found, _runtime = _runtime, OFF
    if found is None or not found.enabled:
        return
    for file in found.files:
        file.close(_CLOSE_TIMEOUT_S)
    if found.mode == "driver":
        for name, value in found.variables.items():
            if os.environ.get(name) == value:
                del os.environ[name]
    if found.owns_monitor:
        default_monitor.finish()
    if found.viewer is not None:
        found.viewer.close()


def get_trace_env_vars() -> dict[str, str]:
    """Return the variables that make a worker trace like this process; empty if tracing is off."""
    found = active_runtime()
    if not found.enabled:
        return {}
    return {**found.variables, **{name: os.environ[name] for name in _FROM_PARENT if name in os.environ}}


def merge_trace_runtime_env(actor_options: dict[str, Any]) -> dict[str, Any]:
    """Add the variables of `get_trace_env_vars` to an actor's `runtime_env.env_vars`, in place.

    Returns the same options. Existing variables are kept.
    """
    variables = get_trace_env_vars()
    if variables:
        runtime_env = actor_options.get("runtime_env") or {}
        actor_options["runtime_env"] = runtime_env
        runtime_env["env_vars"] = {**variables, **(runtime_env.get("env_vars") or {})}
    return actor_options
