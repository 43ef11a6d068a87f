"""The command line's root. Each group of commands is a separate module, added to `GROUPS` or `COMMANDS`.

Heavy modules are imported inside the commands, so that `rl-insight --help` answers at once.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer

from rl_insight.cli import (
    browse,
    demo,
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
    version,
)
from rl_insight.cli.console import fail
from rl_insight.cli.place import remote
from rl_insight.errors import ConfigError, InsightError

OK, FAILURE, BAD_CONFIG, INTERRUPTED = 0, 1, 2, 130
"""The exit codes."""

_EXTRAS = frozenset({"mcp", "ray"})
"""Packages that an extra of the same name brings."""
_SERVER = 'the whole server with `pip install "rl-insight[server]"`'
_NEWER_PYTHON = (
    "the server and commands that read run files need Python 3.11 or newer: this is Python "
    f"{platform.python_version()}. Recording works here, also with `rl-insight run`."
)

GROUPS = {"server": server.app, "runs": runs.app}
"""Name to a `typer.Typer` with subcommands."""

COMMANDS: dict[str, Callable[..., Any]] = {
    "import": importing.import_,
    "export": exporting.export,
    "report": report.report,
    "hotspots": hotspots.hotspots,
    "sessions": sessions.sessions,
    "diagnose": diagnose.diagnose,
    "stacks": stacks.stacks,
    "diff": diff.diff,
    "open": browse.open_,
    "top": top.top,
    "doctor": doctor.doctor,
    "mcp": mcp.mcp,
    "run": run.run,
    "version": version.version,
}
"""Name to a function that is a command by itself."""
LOCAL = {"run", "version", "demo"}
"""Commands that talk to no server, or choose it in their own way."""

app = typer.Typer(
    name="rl-insight",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
app.callback()(version.root)
for _name, _group in GROUPS.items():
    app.add_typer(_group, name=_name)
for _name, _command in COMMANDS.items():
    app.command(_name)(_command if _name in LOCAL else remote(_command))
app.command("demo", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(demo.demo)


def build() -> Any:
    """Return the command line, ready to run; flags show no value in help."""
    root = typer.main.get_command(app)
    waiting: list[Any] = [root]
    while waiting:
        command = waiting.pop()
        waiting += getattr(command, "commands", {}).values()
        # The option --help is made when it is first asked for, and kept.
        for parameter in (*command.params, command.get_help_option(typer.Context(command))):
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 ok, 1 failure, 2 bad config or missing dependency, 130 Ctrl+C."""
    try:
        # Not standalone: errors come here, so that each becomes one sentence and the documented code.
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
        part = f'what it needs with `pip install "rl-insight[{extra}]"`' if extra in _EXTRAS else _SERVER
        return fail(f"the package {name} is not installed: install it, or {part}.", BAD_CONFIG)
    except InsightError as error:
        return fail(str(error), FAILURE)
    except BrokenPipeError:
        # The reader of our output has gone; what is still buffered must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except Exception as error:
        # Typer's errors of usage have no public base class; they know how to show themselves.
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        return BAD_CONFIG
    return code if isinstance(code, int) else OK
