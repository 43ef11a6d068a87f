"""Replaces the parents of an original's module: the rest of its framework, and PyTorch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from types import ModuleType


def package(name: str) -> None:
    """Make a package importable without running its `__init__`; its modules are the original's."""
    parent, _, last = name.rpartition(".")
    spec = PathFinder.find_spec(last, sys.modules[parent].__path__ if parent else None)
    module = ModuleType(name)
    module.__path__ = list(spec.submodule_search_locations)
    sys.modules[name] = module


def module(name: str, **contents: object) -> ModuleType:
    """Replace a module that is not installed."""
    made = ModuleType(name)
    vars(made).update(contents)
    sys.modules[name] = made
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], last, made)
    return made


@contextmanager
def restored(name: str) -> Iterator[None]:
    """Restore a module, or its absence, after the block."""
    before = sys.modules.get(name)
    try:
        yield
    finally:
        sys.modules.pop(name, None)
        if before is not None:
            sys.modules[name] = before


def load(name: str) -> ModuleType:
    return importlib.import_module(name)
