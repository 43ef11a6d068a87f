"""The command line: every command with its arguments and options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from docs_reference.text import table
from rl_insight.cli.app import build

_INTRODUCTION = """# Commands

Every command, from the code of this version. [The command line](../cli.md) explains which server and run they mean, and
their exit codes.
"""


def page() -> str:
    """Return the page."""
    root = build()
    options = table(("option", "does"), _rows(root))
    return "\n".join([_INTRODUCTION, "## rl-insight\n", options, *_commands(root, "rl-insight")])


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield every command that does something, with the words that call it."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    for name, found in sorted(inner.items()):
        if not found.hidden:
            yield from commands(found, f"{path} {name}")


def _commands(root: Any, path: str) -> Iterator[str]:
    for words, command in commands(root, path):
        arguments = " ".join(
            f"[{one.name.upper()}]" if not one.required else one.name.upper()
            for one in command.params
            if one.param_type_name == "argument"
        )
        yield f"## {words}\n\n```sh\n{f'{words} {arguments}'.rstrip()} [OPTIONS]\n```\n\n{_help(command)}\n"
        yield table(("option", "does"), _rows(command))


def _help(command: Any) -> str:
    # Typer marks where paragraphs must not be joined.
    return (command.help or "").replace("\b\n", "").strip()


def _rows(command: Any) -> Iterator[tuple[str, str]]:
    for one in command.params:
        if getattr(one, "hidden", False):
            continue
        names = ", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts))
        if one.param_type_name == "argument":
            names = f"`{one.name.upper()}`"
        default = one.default
        shown = "" if default in (None, False, (), []) or callable(default) else f" Default: `{default}`."
        needed = " Required." if one.required else ""
        yield names, f"{(getattr(one, 'help', None) or '').strip()}{shown}{needed}".strip()
