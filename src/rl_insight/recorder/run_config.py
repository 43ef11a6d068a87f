"""The configuration of a run as recorded: dotted keys and plain values, a bounded number of them per event."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from types import SimpleNamespace
from typing import Any, Final

from rl_insight.recorder.recorder import EVENT
from rl_insight.recorder.session_producer import SessionProducer
from rl_insight.schema.names import CONFIG_EVENT

MAX_KEYS: Final = 4_000
MAX_TEXT: Final = 2_000
_MAX_DEPTH: Final = 20
_KEYS_PER_EVENT: Final = 64


class ConfigProducer(SessionProducer):
    """The part of a producer that records the configuration of the run."""

    def record_config(self, config: Any, /) -> None:
        """Record the configuration of the run: what the page shows with it and compares with that of other runs.

        >>> record_config({"algorithm": "grpo", "actor": {"lr": 1e-6}})

        Several calls add up; a key that is recorded again has its latest value. Values of keys that look like secrets
        are redacted. At most 4,000 keys are taken, and the first 2,000 characters of a text.

        Args:
            config: A mapping, a dataclass instance, an OmegaConf `DictConfig` or a namespace.
        """
        recorder = self._recorder
        if recorder is None and (recorder := self._join()) is None:
            return
        try:
            keys = list(islice(flat_keys(config), MAX_KEYS + 1))
        except Exception as error:  # noqa: BLE001  # properties and interpolations of users may raise anything
            recorder.losses.refuse(
                "configs", "unreadable", f"record_config() was refused: {type(error).__name__}: {error}"
            )
            return
        if len(keys) > MAX_KEYS:
            recorder.losses.refuse("configs", "too_many", f"record_config() took the first {MAX_KEYS} keys alone.")
        for first in range(0, min(len(keys), MAX_KEYS), _KEYS_PER_EVENT):
            part = dict(keys[first : min(first + _KEYS_PER_EVENT, MAX_KEYS)])
            recorder.record_point(EVENT, 0, CONFIG_EVENT, part)


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
    """Return what a configuration object holds; None for a value."""
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
