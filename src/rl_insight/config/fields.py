"""The keys, types and limits of a configuration's fields, and the validation of values against them.

A configuration is a tree of dataclasses. Limits are part of a field's type: `Annotated[float, Meta(ge=0)]` for a range,
`Literal["a", "b"]` for a choice. Loading, messages and documentation all read them from there.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from rl_insight.errors import ConfigError

_WORDS = {
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "str": "a string",
    "list[str]": "a list of strings",
    "dict[str, str]": "a mapping of names to strings",
    "dict[str, Any]": "a mapping",
}
_BOOLEANS = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}


class Key(NamedTuple):
    """One key of a configuration."""

    hint: Any
    """The declared type, with its limits."""
    kind: str
    """The type without its limits, as shown in the documentation."""
    choices: tuple[str, ...] = ()
    smallest: float | None = None
    largest: float | None = None

    @property
    def is_optional(self) -> bool:
        """Whether the key may be null."""
        return self.kind.endswith(" | None")

    @property
    def allowed(self) -> str:
        """The limits in words; empty if there are none."""
        if self.choices:
            return f"one of {listed(self.choices)}"
        if self.smallest is None:
            return ""
        return f"at least {self.smallest}" if self.largest is None else f"from {self.smallest} to {self.largest}"

    @property
    def expected(self) -> str:
        """The type in words."""
        return _WORDS[self.kind.removesuffix(" | None")] + (" or null" if self.is_optional else "")


def sections(model: type) -> dict[str, type]:
    """Return the sections directly inside a section, by name."""
    hints = get_type_hints(model)
    return {entry.name: hints[entry.name] for entry in dataclasses.fields(model) if _is_section(hints[entry.name])}


def keys_of(model: Any) -> Mapping[str, Key]:
    """Return every key of a configuration by its dotted name."""
    return _keys_of(model, "")


@cache
def _keys_of(model: Any, prefix: str) -> dict[str, Key]:
    hints = get_type_hints(model, include_extras=True)
    keys: dict[str, Key] = {}
    for entry in dataclasses.fields(model):
        hint = hints[entry.name]
        if _is_section(hint):
            keys.update(_keys_of(hint, f"{prefix}{entry.name}."))
        else:
            keys[prefix + entry.name] = _key(hint)
    return keys


def config_keys(model: type) -> dict[str, str]:
    """Return the dotted name of every key with its type.

    >>> from rl_insight.config import InsightConfig
    >>> config_keys(InsightConfig)["server.url"]
    'str | None'
    """
    return {name: key.kind for name, key in keys_of(model).items()}


def value_of(config: Any, key: str) -> Any:
    """Return the value of a dotted key."""
    for name in key.split("."):
        config = getattr(config, name)
    return config


def fitting(name: str, key: Key, value: Any, origin: str = "") -> Any:
    """Convert a value to its key's type: strings to numbers and booleans, numbers to strings, empty strings to null.

    Raises:
        ConfigError: it does not fit; the message names the key and what is allowed.
    """
    given = _coerced(key, value)
    try:
        return msgspec.convert(given, key.hint, strict=False)
    except (msgspec.ValidationError, OverflowError):
        if not key.allowed or not _has_base_type(key, given):
            raise wrong_value(name, value, key.expected, origin) from None
    raise refused(name, given, key.allowed)


def check_limits(config: Any, prefix: str = "") -> None:
    """Check the values of a configuration that was created without a loader.

    Raises:
        ConfigError: names the key and what is allowed.
    """
    for name, key in keys_of(type(config)).items():
        fitting(prefix + name, key, value_of(config, name))


def refused(key: str, value: Any, allowed: str) -> ConfigError:
    """Return the error for a value that is not allowed."""
    return ConfigError(f"{key} cannot be {value!r}: it must be {allowed}.")


def wrong_value(key: str, value: Any, expected: str, origin: str = "") -> ConfigError:
    """Return the error for a value of the wrong type; the value of a token is not shown."""
    shown = "what was given" if key.endswith("token") else f"{value!r} ({type(value).__name__})"
    return ConfigError(f"{key}{' in ' if origin else ''}{origin} cannot be {shown}: it must be {expected}.")


def listed(names: Iterable[str]) -> str:
    """Return names as shown in messages."""
    return ", ".join(repr(name) for name in sorted(names))


def _is_section(hint: Any) -> bool:
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def _key(hint: Any) -> Key:
    options = [option for option in parts_of(hint) if option is not types.NoneType]
    bare, limits = options[0], {}
    if get_origin(bare) is Annotated:
        bare, *metadata = get_args(bare)
        (meta,) = (entry for entry in metadata if isinstance(entry, msgspec.Meta))
        limits = {"smallest": meta.ge, "largest": meta.le}
    is_choice = get_origin(bare) is Literal
    kind = "str" if is_choice else bare.__name__ if isinstance(bare, type) and not get_args(bare) else str(bare)
    if len(options) < len(parts_of(hint)):
        kind += " | None"
    return Key(hint, kind.replace("typing.", ""), get_args(bare) if is_choice else (), **limits)


def parts_of(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union, or a tuple of the type itself."""
    return get_args(hint) if get_origin(hint) in {types.UnionType, Union} else (hint,)


def check_keys(
    model: type, layer: Mapping[Any, Any], origin: str, section: type | None = None, prefix: str = ""
) -> None:
    """Reject unknown keys, values that do not fit, and values in place of a section; of `section` only, if given.

    Raises:
        ConfigError: names the full key and, for an unknown one, the closest valid key.
    """
    root, model = model, section or model
    names = {entry.name for entry in dataclasses.fields(model)}
    inner = sections(model)
    for name, value in layer.items():
        full = f"{prefix}{name}"
        if name not in names:
            raise ConfigError(f"unknown key {full!r} in {origin}: {_advice(root, str(name), names, prefix)}")
        if isinstance(value, str) and "${" in value:
            continue
        if name not in inner:
            fitting(full, keys_of(root)[full], value, origin)
        elif isinstance(value, Mapping):
            check_keys(root, value, origin, inner[name], f"{full}.")
        else:
            keys = listed(entry.name for entry in dataclasses.fields(inner[name]))
            raise wrong_value(full, value, f"a section with the keys {keys}", origin)


def _advice(root: type, name: str, siblings: set[str], prefix: str) -> str:
    everywhere = keys_of(root)
    older: Mapping[str, str] = getattr(root, "OLDER_KEYS", {})
    if prefix + name in older:
        return older[prefix + name]
    if prefix + name in everywhere:
        return f"write it nested, {name.partition('.')[0]!r} is a section."
    near = get_close_matches(name.lower(), siblings, n=1)
    if near:
        return f"did you mean {prefix + near[0]!r}?"
    leaves = {dotted.rpartition(".")[2]: dotted for dotted in everywhere}
    near = get_close_matches(name.lower(), leaves, n=1, cutoff=0.8)
    return f"did you mean {leaves[near[0]]!r}?" if near else f"valid keys here are {listed(siblings)}."


def _coerced(key: Key, value: Any) -> Any:
    kind = key.kind.removesuffix(" | None")
    if kind == "str":
        if value == "" and key.is_optional:  # as `${oc.env:NAME,""}` gives it
            return None
        return str(value) if isinstance(value, (bool, int, float)) else value
    if kind == "bool" and isinstance(value, str):
        return _BOOLEANS.get(value.strip().lower(), value)
    if kind == "dict[str, str]" and isinstance(value, Mapping):
        return {name: str(text) if isinstance(text, (bool, int, float)) else text for name, text in value.items()}
    return value


def _has_base_type(key: Key, value: Any) -> bool:
    base = {"int": int, "float": float, "str": str}[key.kind.removesuffix(" | None")]
    try:
        msgspec.convert(value, base, strict=False)
    except (msgspec.ValidationError, OverflowError):
        return False
    return True
