"""The Python API: every public name, its signature and its docstring."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from types import ModuleType

import rl_insight
import rl_insight.errors
import rl_insight.reader
import rl_insight.testing
from docs_reference.text import docstring

_INTRODUCTION = """# Python API

Every public name, from the code of this version. [Instrument a training](../instrument.md) explains how they are used
together.
"""
_LONG_LINE = 100
_MODULES: tuple[tuple[ModuleType, str], ...] = (
    (rl_insight, "rl_insight"),
    (rl_insight.reader, "Read runs"),
    (rl_insight.testing, "rl_insight.testing"),
)


def page() -> str:
    """Return the page."""
    return "\n".join(
        [_INTRODUCTION, *(part for module, title in _MODULES for part in _module(module, title)), *_errors()]
    )


def public_names(module: ModuleType) -> list[str]:
    """Return the names that a module promises, without its version."""
    names = sorted(name for name in module.__all__ if not name.startswith("__"))
    seen = set(rl_insight.__all__) if module is not rl_insight else set()
    return [name for name in names if name not in seen]


def _module(module: ModuleType, title: str) -> Iterator[str]:
    yield f"## {title}\n"
    for name in public_names(module):
        found = getattr(module, name)
        if inspect.ismodule(found):
            yield f"### {name}\n\n{docstring(found)}"
        elif inspect.isclass(found):
            yield from _class(name, found)
        else:
            yield _function(name, found, "###")


def _class(name: str, found: type) -> Iterator[str]:
    yield f"### {name}\n\n```python\nclass {name}{_signature(found)}\n```\n\n{docstring(found)}"
    for method, value in sorted(vars(found).items()):
        if method.startswith("_"):
            continue
        if isinstance(value, property):
            yield f"#### {name}.{method}\n\n{docstring(value)}"
        elif inspect.isfunction(value):
            yield _function(f"{name}.{method}", value, "####")


def _function(name: str, found: object, heading: str) -> str:
    return f"{heading} {name}\n\n```python\n{name.rpartition('.')[2]}{_signature(found)}\n```\n\n{docstring(found)}"


def _signature(found: object) -> str:
    if isinstance(found, type) and issubclass(found, Exception):
        return ""
    signature = inspect.signature(found)  # type: ignore[arg-type]  # functions and classes
    parameters = [one for one in signature.parameters.values() if one.name != "self"]
    text = _plain(str(signature.replace(parameters=parameters)))
    if len(text) <= _LONG_LINE:
        return text
    parts = [_plain(str(one)) for one in parameters]
    kinds = [one.kind for one in parameters]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        parts.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    return "(\n    " + ",\n    ".join(parts) + ",\n)" + text[text.rindex(")") + 1 :]


def _plain(text: str) -> str:
    """Return a signature whose types are not quoted."""
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)


def _errors() -> Iterator[str]:
    yield "## Errors\n"
    for name, found in sorted(vars(rl_insight.errors).items()):
        if inspect.isclass(found) and issubclass(found, Exception) and not name.startswith("_"):
            yield f"### {name}\n\nA subclass of `{found.__bases__[0].__name__}`.\n\n{docstring(found)}"
