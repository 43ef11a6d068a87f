"""The YAML file of a server of rl-insight 0.3.0: its keys, translated to the current ones."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final

from rl_insight.errors import ConfigError

logger = logging.getLogger(__name__)

_PROGRAMS = ("prometheus", "tempo", "grafana")
SECTIONS: Final = ("server", "otel", *_PROGRAMS)
"""None of them is a current section, so any of them identifies a file of 0.3.0."""
RENAMED: Final[dict[str, str]] = {
    "server.port": "port",
    "server.data_dir": "data_dir",
    "server.install_dir": "stack.install_dir",
    "otel.otel_port": "otlp_http_port",
    **{f"{name}.enable": f"stack.{name}.enabled" for name in _PROGRAMS},
    **{f"{name}.binary_path": f"stack.{name}.binary_path" for name in _PROGRAMS},
    **{f"{name}.install_version": f"stack.{name}.install_version" for name in _PROGRAMS},
    "prometheus.prometheus_port": "stack.prometheus.port",
    "prometheus.retention_time": "stack.prometheus.retention",
    "tempo.query_port": "stack.tempo.port",
    "tempo.retention_time": "stack.tempo.retention",
    "grafana.port": "stack.grafana.port",
    "grafana.dashboards_dir": "stack.grafana.dashboards_dir",
    "grafana.extra_dashboard_dir": "stack.grafana.dashboards_dir",
}
"""Keys of 0.3.0 and their equivalents; of two with the same equivalent, the later one wins."""
WITHOUT_EFFECT: Final = frozenset(
    {"server.runtime_dir", "server.state_file", "grafana.provisioning_dir"}
    | {f"{name}.{key}" for name in _PROGRAMS for key in ("min_version", "config_file", "data_dir")}
)
"""Keys without effect: the server writes the configuration of the programs, and keeps their data in its directory."""
_CHECKED = {"server.backend": "local", "server.enable": True}
_DEFAULTS = re.compile(r"\$\{service_root\}")
_DAYS = re.compile(r"\s*(\d+)\s*d\s*")


def translated(layer: Mapping[Any, Any], origin: str) -> dict[Any, Any]:
    """Translate the settings of a file; a file without sections of 0.3.0 is unchanged.

    The stack is enabled if the file has a section about one of its programs, as in 0.3.0.

    >>> translated({"tempo": {"query_port": 3201, "retention_time": "2d"}}, "server.yaml")
    {'stack': {'enabled': True, 'tempo': {'port': 3201, 'retention': '48h'}}}

    Raises:
        ConfigError: a key in one of these sections is unknown, or its value is not supported.
    """
    older = {name: layer[name] or {} for name in SECTIONS if name in layer}
    kept = {name: value for name, value in layer.items() if name not in older}
    given = {f"{name}.{key}": value for name, section in older.items() for key, value in _items(section, name, origin)}
    for key, value in given.items():
        _check(key, value, origin)
    if any(name in older for name in _PROGRAMS):
        on = any(given.get(f"{name}.enable", True) is not False for name in _PROGRAMS)
        kept["stack"] = {"enabled": on, **(kept.get("stack") or {})}
    for key, name in RENAMED.items():
        if not _is_default(given.get(key)):
            _put(kept, name, _value(key, given[key]))
    if unused := sorted(key for key in WITHOUT_EFFECT if not _is_default(given.get(key))):
        logger.warning(
            "%s in %s has no effect: the server writes the configuration of the stack itself.",
            ", ".join(unused),
            origin,
        )
    return kept


def _items(section: Any, name: str, origin: str) -> list[tuple[Any, Any]]:
    if not isinstance(section, Mapping):
        raise ConfigError(f"{name} in {origin} cannot be {section!r}: it must be a section with keys.")
    return list(section.items())


def _check(key: str, value: Any, origin: str) -> None:
    expected = _CHECKED.get(key)
    if expected is not None and value != expected:
        shown = "true" if expected is True else expected
        raise ConfigError(f"{key} in {origin} cannot be {value!r}: only {shown} is supported. Remove the key.")
    known = [*RENAMED, *WITHOUT_EFFECT, *_CHECKED]
    if key not in known:
        near = get_close_matches(key, known, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ConfigError(f"{key} in {origin} is not a setting.{hint}")


def _is_default(value: Any) -> bool:
    """Return whether a value is a default: empty, or under the directory that 0.3.0 ships."""
    return value is None or value == "" or bool(_DEFAULTS.match(str(value)))


def _value(key: str, value: Any) -> Any:
    """Convert a value: Tempo does not support days."""
    days = _DAYS.fullmatch(str(value)) if key == "tempo.retention_time" else None
    return f"{int(days[1]) * 24}h" if days else value


def _put(settings: dict[Any, Any], name: str, value: Any) -> None:
    *sections, leaf = name.split(".")
    for section in sections:
        inner = settings.get(section)
        settings[section] = dict(inner) if inner else {}
        settings = settings[section]
    settings[leaf] = value
