"""Assembles configurations from layers: `load_layers` for any configuration, `load_config` for a client's.

A client's layers are: defaults < config file < `init(config)` < `init`'s arguments < environment. OmegaConf does the
merging and the interpolation. It is imported inside the functions, because importing it costs more than the rest of
RL-Insight and only processes that load a configuration need it.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec

from rl_insight.config.checks import check_values
from rl_insight.config.fields import check_keys, fitting, keys_of, sections
from rl_insight.config.model import InsightConfig
from rl_insight.errors import ConfigError

CONFIG_FILE_VARIABLE = "RL_INSIGHT_CONFIG"
ENABLED_VARIABLE = "RL_INSIGHT_ENABLED"
SERVER_VARIABLE = "RL_INSIGHT_SERVER_URL"
TOKEN_VARIABLE = "RL_INSIGHT_TOKEN"  # noqa: S105 -- the name of a variable
RUN_VARIABLE = "RL_INSIGHT_RUN_ID"
TEXT_VARIABLES = {
    SERVER_VARIABLE: ("server", "url"),
    TOKEN_VARIABLE: ("server", "token"),
    RUN_VARIABLE: (None, "run_id"),
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": ("otlp", "traces_endpoint"),
}
ENVIRONMENT_VARIABLES = (CONFIG_FILE_VARIABLE, ENABLED_VARIABLE, *TEXT_VARIABLES)
"""Every variable that `load_config` reads."""

ConfigT = TypeVar("ConfigT")
ConfigSource: TypeAlias = "Mapping[str, Any] | str | os.PathLike[str] | Any"
"""A mapping, a dataclass instance, an OmegaConf `DictConfig`, or the path of a YAML file."""


def load_config(
    source: ConfigSource | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> InsightConfig:
    """Return the configuration of this process.

    Args:
        source: the argument of `init(config)`: a mapping, a dataclass, a `DictConfig` or the path of a YAML file.
        overrides: `init`'s other arguments, by key; None means that the argument was not given.
        environ: the environment variables.

    Raises:
        ConfigError: a key is unknown, or a value cannot be used; the message says which and why.

    >>> load_config({"server": {"url": "http://10.0.0.1:18080"}}, overrides={"rank": 3}, environ={}).rank
    3
    """
    config = load_layers(InsightConfig, _layers(source, overrides or {}, environ))
    check_values(config)
    return config


def environment_config(environ: Mapping[str, str] = os.environ) -> InsightConfig:
    """Return what `load_config` does without arguments, and without OmegaConf unless a file is named.

    >>> environment_config({"RL_INSIGHT_SERVER_URL": "http://10.0.0.1:18080"}).server.url
    'http://10.0.0.1:18080'

    Raises:
        ConfigError: the file or a variable cannot be used; the message says which and why.
    """
    if environ.get(CONFIG_FILE_VARIABLE):
        return load_config(environ=environ)
    return config_from_dict(_environment(environ))


def load_layers(model: type[ConfigT], layers: Iterable[tuple[str, Mapping[Any, Any]]]) -> ConfigT:
    """Return a configuration: its defaults, overridden by each layer (its origin and its values) in turn.

    Raises:
        ConfigError: a key is unknown, or a value cannot be used; the message says which and why.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    inner = sections(model)
    merged = OmegaConf.create(literal(_plain(model())))
    for origin, given in layers:
        # A section whose keys are all commented out is null in YAML.
        layer = {key: value for key, value in given.items() if value is not None or key not in inner}
        check_keys(model, layer, origin)
        try:
            merged = OmegaConf.merge(merged, layer)
        except OmegaConfBaseException as error:
            raise ConfigError(
                f"{error.full_key or 'a value'} in {origin} cannot be used: {_one_line(error)}."
            ) from error
    try:
        values: Any = OmegaConf.to_container(merged, resolve=True)
    except OmegaConfBaseException as error:
        raise _resolution_error(error) from error
    for name, key in keys_of(model).items():
        *path, leaf = name.split(".")
        section = values
        for step in path:
            section = section[step]
        try:
            section[leaf] = fitting(name, key, section[leaf])
        except ConfigError as error:  # every layer was checked, so this is the result of an interpolation
            raise ConfigError(f"{name} cannot be resolved: {error}") from error
    return msgspec.convert(values, model)


def config_to_dict(config: InsightConfig) -> dict[str, Any]:
    """Return a configuration as plain dicts, lists and scalars, for sending to another process.

    It contains `server.token`: send it only where the token may go.
    """
    return dataclasses.asdict(config)


def config_from_dict(values: Mapping[str, Any]) -> InsightConfig:
    """Restore a configuration from the result of `config_to_dict`, without OmegaConf.

    Keys of a newer version are ignored; absent ones get their defaults.

    >>> config_from_dict(config_to_dict(InsightConfig(rank=1))).rank
    1

    Raises:
        ConfigError: a value has the wrong type or cannot be used.
    """
    try:
        config = msgspec.convert(values, InsightConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"not a configuration: {error}. Make it with config_to_dict().") from error
    check_values(config)
    return config


def _layers(
    source: ConfigSource | None, overrides: Mapping[str, Any], environ: Mapping[str, str]
) -> list[tuple[str, dict[Any, Any]]]:
    """Return the layers above the defaults, lowest precedence first, each with a name for messages."""
    layers = []
    if path := environ.get(CONFIG_FILE_VARIABLE):
        layers.append((path, read_yaml(path)))
    if source is not None:
        layers.append(_source_layer(source))
    given = {key: value for key, value in overrides.items() if value is not None}
    layers.append(("the arguments", literal(_plain(given))))
    layers.append(("the environment", literal(_environment(environ))))
    return layers


def _source_layer(source: ConfigSource) -> tuple[str, dict[Any, Any]]:
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        return path, read_yaml(path)
    plain = _plain(source)
    if not isinstance(plain, dict):
        raise ConfigError(
            f"the configuration cannot be of type {type(source).__name__}: give a mapping, a dataclass instance, "
            "an OmegaConf DictConfig or the path of a YAML file."
        )
    return "the configuration", plain


def read_yaml(path: str) -> dict[Any, Any]:
    """Return the mapping in a YAML file, with its interpolations unresolved.

    Raises:
        ConfigError: the file cannot be read, or is not a YAML mapping.
    """
    import yaml  # type: ignore[import-untyped]  # it ships no types
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
        # OmegaConf would read a lone word as a key without a value, so check the document itself first.
        document = yaml.compose(text, Loader=yaml.SafeLoader)
        if document is None or document.tag == "tag:yaml.org,2002:null":
            return {}
        if not isinstance(document, yaml.MappingNode):
            raise ConfigError(f"the configuration file {path} is not a mapping: write 'key: value' lines.")
        loaded: Any = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error.strerror or error}.") from error
    except (yaml.YAMLError, UnicodeDecodeError, OmegaConfBaseException) as error:
        raise ConfigError(f"the configuration file {path} is not valid YAML: {_one_line(error)}.") from error
    mapping: dict[Any, Any] = loaded
    return mapping


def _plain(value: Any) -> Any:
    """Convert mappings, dataclasses and sequences of any type to dicts and lists, without modifying the input.

    Interpolations in a `DictConfig` are resolved within their document: they may refer to nodes outside of this part.
    """
    from omegaconf import DictConfig, ListConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if isinstance(value, (DictConfig, ListConfig)):
        try:
            return OmegaConf.to_container(value, resolve=True)
        except OmegaConfBaseException as error:
            raise _resolution_error(error) from error
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {entry.name: _plain(getattr(value, entry.name)) for entry in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _environment(environ: Mapping[str, str]) -> dict[str, Any]:
    layer: dict[str, Any] = {}
    for variable, (section, key) in TEXT_VARIABLES.items():
        if value := environ.get(variable):
            place = layer.setdefault(section, {}) if section else layer
            place[key] = value
    if enabled := environ.get(ENABLED_VARIABLE):
        try:
            layer["enabled"] = fitting("enabled", keys_of(InsightConfig)["enabled"], enabled)
        except ConfigError:
            raise ConfigError(
                f"{ENABLED_VARIABLE} cannot be {enabled!r}: it must be true or false (1/0, yes/no, on/off)."
            ) from None
    return layer


def literal(value: Any) -> Any:
    """Escape values so that OmegaConf does not interpolate them."""
    if isinstance(value, dict):
        return {key: literal(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [literal(inner) for inner in value]
    if isinstance(value, str) and "${" in value:
        return re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    return value


def _resolution_error(error: Any) -> ConfigError:
    return ConfigError(f"{error.full_key or 'the configuration'} cannot be resolved: {_one_line(error)}.")


def _one_line(error: Exception) -> str:
    """Return an error's message without OmegaConf's lines about its internal objects."""
    text = re.sub(r"\n\s*(full_key|reference_type|object_type)[:=].*", "", str(error))
    return " ".join(text.split()).rstrip(".") or type(error).__name__
