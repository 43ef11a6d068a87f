"""The root of the command line. A new command is added to `GROUPS` or `COMMANDS`.

Heavy modules are imported inside the commands, so that `rl-insight --help` is fast.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import typer

from rl_insight._version import __version__
from rl_insight.cli import (
    diagnose,
    diff,
    doctor,
    exporting,
    hotspots,
    importing,
    mcp,
    report,
    run,
    runs,
    server,
    sessions,
    stacks,
    top,
)
from rl_insight.cli.console import fail, say
from rl_insight.cli.place import remote
from rl_insight.errors import ConfigError, InsightError

OK, FAILURE, BAD_CONFIG, INTERRUPTED = 0, 1, 2, 130
"""The exit codes."""


def version() -> None:
    """Show the version."""
    say(f"rl-insight {__version__}")


def _show_and_exit(*, is_wanted: bool) -> None:
    if is_wanted:
        version()
        raise typer.Exit


def root(
    *,
    is_wanted: Annotated[  # noqa: ARG001 -- handled by its callback
        bool, typer.Option("--version", callback=_show_and_exit, is_eager=True, help="Show the version and exit.")
    ] = False,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None,
        typer.Option(case_sensitive=False, help="The log level of this command, and of a server that it starts."),
    ] = None,
) -> None:
    """See where the time goes in reinforcement-learning post-training, live."""
    if log_level is not None:
        logging.basicConfig(level=log_level.upper())


_EXTRAS = frozenset({"mcp", "ray"})
"""Packages with an extra of the same name."""
_SERVER = 'the server with `pip install "rl-insight[server]"`'
_NEWER_PYTHON = (
    "the server and commands that read run files need Python 3.11 or newer: this is Python "
    f"{platform.python_version()}. Recording works with this version, including `rl-insight run`."
)

GROUPS = {"server": server.app, "runs": runs.app}
"""Subcommands by name."""

COMMANDS: dict[str, Callable[..., Any]] = {
    "import": importing.import_,
    "export": exporting.export,
    "report": report.report,
    "hotspots": hotspots.hotspots,
    "sessions": sessions.sessions,
    "diagnose": diagnose.diagnose,
    "stacks": stacks.stacks,
    "diff": diff.diff,
    "open": report.open_,
    "top": top.top,
    "doctor": doctor.doctor,
    "mcp": mcp.mcp,
    "run": run.run,
    "version": version,
}
"""Commands by name."""
LOCAL = {"run", "version", "demo"}
"""Commands that do not talk to a server, or select it differently."""

app = typer.Typer(
    name="rl-insight",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
app.callback()(root)
for _name, _group in GROUPS.items():
    app.add_typer(_group, name=_name)
for _name, _command in COMMANDS.items():
    app.command(_name)(_command if _name in LOCAL else remote(_command))
app.command("demo", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(run.demo)


def build() -> Any:
    """Return the command line, ready to run; help shows flags without a value."""
    root = typer.main.get_command(app)
    waiting: list[Any] = [root]
    while waiting:
        command = waiting.pop()
        waiting += getattr(command, "commands", {}).values()
        # --help is created at its first use, and cached.
        for parameter in (*command.params, command.get_help_option(typer.Context(command))):
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 ok, 1 failure, 2 bad usage or missing dependency, 130 Ctrl+C."""
    try:
        # Not standalone: errors are handled here, so that each becomes one sentence and the documented exit code.
        code = build().main(
            args=list(sys.argv[1:] if arguments is None else arguments), prog_name="rl-insight", standalone_mode=False
        )
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except ConfigError as error:
        return fail(str(error), BAD_CONFIG)
    except ImportError as error:
        name = error.name or str(error)
        extra = name.partition(".")[0]
        if extra not in _EXTRAS and sys.version_info < (3, 11):
            return fail(_NEWER_PYTHON, BAD_CONFIG)
        part = f'its dependencies with `pip install "rl-insight[{extra}]"`' if extra in _EXTRAS else _SERVER
        return fail(f"the package {name} is not installed: install it, or {part}.", BAD_CONFIG)
    except InsightError as error:
        return fail(str(error), FAILURE)
    except BrokenPipeError:
        # The reader of our output has exited; flushing the buffer must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except Exception as error:
        # Typer's usage errors have no public base class, but they have a method `show`.
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        return BAD_CONFIG
    return code if isinstance(code, int) else OK
