"""The configuration: every key of a recording process and of the server, with its type, default and limits."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import textwrap
from typing import Any, get_type_hints

from docs_reference.text import table
from rl_insight.config import InsightConfig
from rl_insight.config.fields import keys_of, value_of
from rl_insight.server.config import ServerSettings

_INTRODUCTION = """# Settings

Every key, from the code of this version. [Configuration](../configuration.md) explains files, environment variables and
which of them wins; [the server](../server.md) how to give it settings.
"""


def page() -> str:
    """Return the page."""
    return "\n".join(
        [
            _INTRODUCTION,
            "## A recording process\n\nKeys of `init(config=...)` and of the file that `RL_INSIGHT_CONFIG` names.\n",
            _keys(InsightConfig),
            "## The server\n\nKeys of `rl-insight server start KEY=VALUE` and of its file (`--config`).\n",
            _keys(ServerSettings),
        ]
    )


def _keys(model: type) -> str:
    texts = meanings(model)
    default = model()
    rows = [
        (f"`{name}`", f"`{key.kind}`", _shown(value_of(default, name)), key.allowed.replace("'", "`"), texts[name])
        for name, key in keys_of(model).items()
    ]
    return table(("key", "type", "default", "allowed", "meaning"), rows)


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple, dict)) and len(value) > 3:
        return f"{len(value)} entries"
    return f"`{value if isinstance(value, str) and value else json.dumps(value)}`"


def meanings(model: type, prefix: str = "") -> dict[str, str]:
    """Return the text under each key of a tree of dataclasses, by its dotted name."""
    found: dict[str, str] = {}
    texts = _attribute_texts(model)
    hints = get_type_hints(model)
    for field in dataclasses.fields(model):
        name, kind = f"{prefix}{field.name}", hints[field.name]
        if dataclasses.is_dataclass(kind):
            found |= meanings(kind, f"{name}.")  # type: ignore[arg-type]  # a class
        else:
            found[name] = texts.get(field.name, "")
    return found


def _attribute_texts(model: type) -> dict[str, str]:
    """Return the texts that follow the attributes of a class and of those it inherits from."""
    texts: dict[str, str] = {}
    for owner in reversed(model.__mro__[:-1]):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(definition, ast.ClassDef)  # noqa: S101  (the source of a class)
        for before, after in zip(definition.body, definition.body[1:], strict=False):
            if not isinstance(before, ast.AnnAssign) or not isinstance(before.target, ast.Name):
                continue
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                texts[before.target.id] = inspect.cleandoc(str(after.value.value))
    return texts
