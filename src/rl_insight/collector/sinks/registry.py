"""Creates sinks from the configuration, by entry point."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import Any, get_type_hints

import msgspec

from rl_insight.collector.base import Sink
from rl_insight.errors import ConfigError

GROUP = "rl_insight.sinks"
"""The entry-point group: the name in the configuration, and a callable that returns one or more sinks."""


def make_sinks(configured: Mapping[str, Any]) -> list[Sink]:
    """Create the sinks in a configuration, with their options as keyword arguments.

    No sink connects before it has something to send.

    Raises:
        ConfigError: an option is invalid; the message names its key.

    >>> [sink.name for sink in make_sinks({"memory": {"max_batches": 10}, "jsonl": None})]
    ['memory']
    """
    if not configured:
        return []
    known = {point.name: point for point in entry_points(group=GROUP)}
    sinks: list[Sink] = []
    for name, options in configured.items():
        if options is None:
            continue
        if name not in known:
            advice = _advice("sinks", name, known)
            raise ConfigError(
                f"unknown sink 'sinks.{name}': {advice} If another package provides it, install that package."
            )
        if not isinstance(options, Mapping):
            raise ConfigError(f"sinks.{name} cannot be {options!r}: it must be a section with the options of the sink.")
        sinks += _make(f"sinks.{name}", known[name], options)
    return sinks


def _make(section: str, point: EntryPoint, options: Mapping[str, Any]) -> list[Sink]:
    try:
        factory = point.load()
        made = factory(**_converted_options(section, factory, options))
        sinks = [made] if isinstance(made, Sink) else list(made)
    except ConfigError as error:
        raise ConfigError(f"{section} cannot be used: {error}") from error
    except Exception as error:  # a factory of another package may raise anything
        raise ConfigError(f"{section} cannot be used: {type(error).__name__}: {error}.") from error
    if wrong := [sink for sink in sinks if not isinstance(sink, Sink)]:
        raise ConfigError(f"{section} returned a {type(wrong[0]).__name__}: it must be a rl_insight.collector.Sink.")
    return sinks


def _converted_options(section: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the options to the types in the factory's signature."""
    parameters = inspect.signature(factory).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    hints = get_type_hints(factory if inspect.isfunction(factory) else factory.__init__)
    required = [one.name for one in parameters.values() if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    missing = [name for name in required if name not in options]
    for name in options.keys() - parameters.keys():
        if not takes_any or get_close_matches(name, missing, n=1):
            raise ConfigError(f"unknown option {name!r}: {_advice(section, name, missing or parameters)}")
    if missing:
        raise ConfigError(f"{section}.{missing[0]} is missing: set it.")
    return {name: _converted(f"{section}.{name}", hints.get(name, Any), value) for name, value in options.items()}


def _advice(section: str, name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"did you mean '{section}.{near[0]}'?" if near else f"known are {', '.join(sorted(known))}."


def _converted(key: str, hint: Any, value: Any) -> Any:
    try:
        return msgspec.convert(value, hint, strict=False)
    except msgspec.ValidationError as error:
        # Without the value, which may be a secret.
        raise ConfigError(f"{key} is invalid: {error}.") from error
    except TypeError:  # not a type that msgspec supports: the factory checks it
        return value
