"""The configuration of a run as recorded: dotted keys and plain values, a bounded number of them per event."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Final

MAX_KEYS: Final = 4_000
MAX_TEXT: Final = 2_000
_MAX_DEPTH: Final = 20
KEYS_PER_EVENT: Final = 64


def flat_keys(config: Any) -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of everything in a configuration.

    >>> dict(flat_keys({"actor": {"lr": 1e-6, "betas": [0.9, 0.95]}, "seed": 1}))
    {'actor.lr': 1e-06, 'actor.betas': [0.9, 0.95], 'seed': 1}

    Raises:
        TypeError: it is not a configuration.
    """
    entries = _entries(config)
    if entries is None:
        raise TypeError(f"a {type(config).__name__} is not a mapping, a dataclass instance or a DictConfig")
    yield from _flat("", entries, 0)


def _flat(prefix: str, entries: Mapping[Any, Any], depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in entries.items():
        name = f"{prefix}{key}"
        inner = _entries(value) if depth < _MAX_DEPTH else None
        if inner:
            yield from _flat(f"{name}.", inner, depth + 1)
        else:
            yield name, value[:MAX_TEXT] if isinstance(value, str) else value


def _entries(value: Any) -> Mapping[Any, Any] | None:
    """Return the entries of a configuration object; None for a plain value."""
    omegaconf = sys.modules.get("omegaconf")
    if omegaconf is not None and isinstance(value, omegaconf.DictConfig):
        plain: dict[Any, Any] = omegaconf.OmegaConf.to_container(value, resolve=True)
        return plain
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {entry.name: getattr(value, entry.name) for entry in dataclasses.fields(value)}
    argparse = sys.modules.get("argparse")
    is_namespace = isinstance(value, SimpleNamespace) or (
        argparse is not None and isinstance(value, argparse.Namespace)
    )
    return vars(value) if is_namespace else None
