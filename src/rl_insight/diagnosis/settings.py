"""The configuration of rules: which ones are evaluated, and with which thresholds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rl_insight._version import __version__
from rl_insight.diagnosis.rules import RULES
from rl_insight.diagnosis.run import Settings
from rl_insight.errors import ConfigError

_SWITCH = "enabled"


def make_settings(rules: Mapping[str, Any], only: frozenset[str] | None = None) -> Settings:
    """Return the settings for `diagnosis.rules`: rule to parameter to value; `enabled: false` turns a rule off.

    Raises:
        ConfigError: a rule or parameter is unknown, or a value is not a number.
    """
    known = {rule.name: {parameter.name for parameter in rule.parameters} for rule in RULES}
    values: dict[str, dict[str, float]] = {}
    off = set()
    for name, given in rules.items():
        check_rule(str(name))
        if not isinstance(given, Mapping):
            raise ConfigError(f"diagnosis.rules.{name} cannot be {given!r}: write its parameters below it.")
        for key, value in given.items():
            if key == _SWITCH and isinstance(value, bool):
                off |= set() if value else {str(name)}
            elif key not in known[name]:
                choices = ", ".join(sorted({*known[name], _SWITCH}))
                raise ConfigError(f"diagnosis.rules.{name}.{key} is unknown: the rule has {choices}.")
            elif isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ConfigError(f"diagnosis.rules.{name}.{key} cannot be {value!r}: it must be a number.")
            else:
                values.setdefault(str(name), {})[str(key)] = float(value)
    return Settings(values, frozenset(off), only)


def rules_version(settings: Settings) -> str:
    """Return a string that changes with the rules and their settings."""
    digest = hashlib.blake2b(digest_size=12)
    for path in sorted(Path(__file__).parent.rglob("*.py")):  # a version number stays the same during development
        digest.update(path.read_bytes())
    values = sorted((name, sorted(given.items())) for name, given in settings.values.items())
    digest.update(repr((values, sorted(settings.off))).encode())
    return f"{__version__} {digest.hexdigest()}"


def check_rule(name: str) -> None:
    """Check that a rule exists.

    Raises:
        ConfigError: it does not; suggests the closest one.
    """
    names = [rule.name for rule in RULES]
    if name not in names:
        near = get_close_matches(name, names, 1)
        hint = f"did you mean {near[0]!r}?" if near else "docs/diagnosis.md lists all rules."
        raise ConfigError(f"there is no rule {name!r}: {hint}")
