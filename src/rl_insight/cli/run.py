"""`rl-insight run -- COMMAND` records a command as one run; `rl-insight demo` runs the example training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from rl_insight.errors import ConfigError, InsightError

_LAST_LINES = 40
_CHUNK = 65_536
_PACKAGE = Path(__file__).parents[1]
_DEMO_PLACES = (_PACKAGE / "demo", _PACKAGE.parents[1])
"""Its location in a wheel, and in a checkout."""


def run(
    command: Annotated[list[str], typer.Argument(help="The command and its arguments, after `--`.")],
    project: Annotated[str | None, typer.Option(help="The project; default the name of the current directory.")] = None,
    experiment: Annotated[str | None, typer.Option(help="The experiment; default the name of the script.")] = None,
    run_id: Annotated[str | None, typer.Option(help="The run id; default a new one.")] = None,
    hardware: Annotated[bool, typer.Option(help="Record this machine's GPUs, CPU and memory.")] = True,
) -> int:
    """Run a command with integrations enabled, and record it as one run.

    Metrics that its Python processes log to W&B, TensorBoard, MLflow or trackio become metrics of the run, whether
    started by python, torchrun, accelerate, Ray or Slurm. The exit status and the last lines of stderr are recorded.
    Exits with the command's exit status.

        rl-insight run -- torchrun --nproc-per-node 8 train.py --lr 1e-6
    """
    import rl_insight as insight
    from rl_insight.activation import prepare_environment

    if not command:
        raise ConfigError("no command given: write it after `--`, as in `rl-insight run -- python train.py`.")
    insight.init(
        project or Path.cwd().name or "runs", experiment or _experiment_of(command), run_id=run_id, role="launcher"
    )
    environ = dict(os.environ)
    prepare_environment(environ)
    _join_run(environ)
    monitor = insight.monitor_hardware() if hardware and os.environ.get("SLURM_LOCALID", "0") == "0" else None
    insight.trace_event("command_started", command=" ".join(command), directory=str(Path.cwd()))
    started = time.monotonic()
    try:
        code, last_lines = _execute(command, environ)
    finally:
        if monitor is not None:
            monitor.stop()
    _record_end(code, last_lines, time.monotonic() - started)
    insight.finish()
    return code


def _join_run(environ: dict[str, str]) -> None:
    """Make the command's processes join this process's run; each chooses its role."""
    from rl_insight.config.loading import RUN_VARIABLE
    from rl_insight.recorder.propagation import INHERIT_VARIABLE

    if inherited := environ.get(INHERIT_VARIABLE):
        settings = json.loads(inherited)
        settings.pop("role", None)
        environ[INHERIT_VARIABLE] = json.dumps(settings)
        environ[RUN_VARIABLE] = settings["run_id"]


def _record_end(code: int, last_lines: list[str], seconds: float) -> None:
    import rl_insight as insight

    ended: dict[str, Any] = {"exit_code": code, "seconds": round(seconds, 3)}
    if code < 0 or code > 128:
        number = -code if code < 0 else code - 128
        ended["signal"] = signal.Signals(number).name if number in set(signal.Signals) else str(number)
    insight.trace_event("command_ended", **ended)
    level = "info" if code == 0 else "error"
    insight.log(level, f"the command ended with exit status {code}", **ended, stderr="\n".join(last_lines))


def _experiment_of(command: list[str]) -> str:
    """Return the name of the script that a command runs.

    >>> _experiment_of(["torchrun", "--nproc-per-node", "8", "examples/train.py", "--lr", "1e-6"])
    'train'
    >>> _experiment_of(["python", "-m", "verl.trainer.main_ppo", "trainer.logger=console"])
    'verl.trainer.main_ppo'
    >>> _experiment_of(["./launch.sh"])
    'launch'
    """
    for word in command:
        if word.endswith(".py"):
            return Path(word).stem
    if "-m" in command[:-1]:
        return command[command.index("-m") + 1]
    return Path(command[0]).stem


def _execute(command: list[str], environ: dict[str, str]) -> tuple[int, list[str]]:
    """Run a command, passing its stderr through; returns its exit status and the last lines of its stderr."""
    reading, writing = os.openpty() if sys.stderr.isatty() else os.pipe()
    with _signals_for_child() as forward_to:
        try:
            child = subprocess.Popen(command, env=environ, stderr=writing)  # noqa: S603  # the user's own command
        except OSError as error:
            os.close(reading)
            raise ConfigError(f"cannot run {command[0]!r}: {error.strerror}. Check the command's name.") from error
        finally:
            os.close(writing)
        forward_to(child)
        lines: deque[str] = deque(maxlen=_LAST_LINES)
        copier = threading.Thread(target=_copy, args=(reading, lines), name="rl-insight-stderr", daemon=True)
        copier.start()
        code = child.wait()
        # A daemon that the command started may keep the stream open: do not wait for it.
        copier.join(1.0)
    return code if code >= 0 else 128 - code, list(lines)


def _copy(source: int, lines: deque[str]) -> None:
    rest = b""
    while True:
        try:
            chunk = os.read(source, _CHUNK)
        except OSError:  # a pty whose last writer has exited
            chunk = b""
        if not chunk:
            break
        sys.stderr.buffer.write(chunk)
        sys.stderr.buffer.flush()
        *complete, rest = (rest + chunk).split(b"\n")
        lines.extend(line.decode(errors="replace").rstrip("\r") for line in complete)
        rest = rest[-_CHUNK:]
    if rest:
        lines.append(rest.decode(errors="replace"))
    os.close(source)


@contextmanager
def _signals_for_child() -> Iterator[Any]:
    """Leave Ctrl+C to the command, which also gets it from the terminal, and forward SIGTERM to it."""
    children: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        for child in children:
            child.send_signal(number)

    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, lambda _number, _frame: None),
        signal.SIGTERM: signal.signal(signal.SIGTERM, pass_on),
    }
    try:
        yield children.append
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def demo(context: typer.Context) -> int:
    """Run the example training: asynchronous GRPO on a toy task, recorded by the local server or a temporary one.

    Options are passed to the example: `rl-insight demo -- --help` lists them.
    """
    place = next((place for place in _DEMO_PLACES if (place / "examples" / "async_grpo").is_dir()), None)
    if place is None:
        raise InsightError("the example is not part of this installation: install a release, or run it from a clone.")
    # Its worker processes import it too.
    sys.path.insert(0, str(place))
    from examples.async_grpo.launcher import main

    return main(list(context.args), "rl-insight demo")
