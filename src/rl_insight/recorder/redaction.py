"""Redaction: secrets never leave the process."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
from collections.abc import Callable, Iterable
from typing import Any

from rl_insight.config.model import RedactionConfig
from rl_insight.errors import ConfigError
from rl_insight.recorder.losses import MAX_NAME, short_text

MASK = "[redacted]"
_CACHE_ENTRIES = 8192
LONGEST_KNOWN = 256
"""Longer strings are not cached: hashing one takes a full pass over it."""
_CONTAINERS = (dict, list, tuple, set, frozenset)
_HASHED_LENGTH = 65_536
SHORTEST_SECRET = 8
"""Shorter strings are not searched for secrets."""

_SECRET_MARGIN = 512
_MAX_KNOWN_NAMES = 4096

RedactionFunction = Callable[[str, Any], Any]


class _Dropped:
    """Marks a value that must not be recorded at all."""


DROPPED = _Dropped()


class Redactor:
    """Applies the key patterns, the value patterns and the user's function, in this order.

    >>> Redactor(RedactionConfig()).text("Authorization: Bearer abcdefghijklmnop1234")
    'Authorization: [redacted]'
    """

    def __init__(self, config: RedactionConfig, on_failure: Callable[[], None] = lambda: None) -> None:
        self._action = config.action
        keys = config.key_patterns if config.enabled else []
        values = config.value_patterns if config.enabled else []
        self._key_pattern = re.compile("|".join(f"(?:{p})" for p in keys), re.IGNORECASE) if keys else None
        self._value_pattern = re.compile("|".join(f"(?:{p})" for p in values)) if values else None
        # Separately, patterns with a literal prefix are searched 20 times as fast as in one alternation.
        self._value_patterns = [re.compile(p) for p in values]
        self.function = load_function(config.function) if config.function else None
        self._on_failure = on_failure
        self._secret_keys: dict[str, bool] = {}
        self.clean_texts: dict[str, str] = {}
        """Cache of searched strings and their redacted form, up to `LONGEST_KNOWN` characters each."""
        # Equal secrets get equal hashes within a process, and no outsider can try candidates against them.
        self._salt = os.urandom(16)

    def is_secret_key(self, key: str) -> bool:
        """Return whether everything under this key must be redacted."""
        known = self._secret_keys.get(key)
        if known is None:
            known = self._key_pattern is not None and self._key_pattern.search(key) is not None
            if len(self._secret_keys) < _CACHE_ENTRIES:
                self._secret_keys[key] = known
        return known

    def hide(self, value: Any) -> Any:
        """Return the replacement for a secret: a mask, a hash, or `DROPPED`."""
        if self._action == "drop":
            return DROPPED
        if self._action == "hash":
            text = "" if isinstance(value, _CONTAINERS) else short_text(value, _HASHED_LENGTH)
            if not text:
                return MASK
            digest = hashlib.blake2b(text.encode("utf-8", "replace"), key=self._salt, digest_size=8)
            return f"[hash:{digest.hexdigest()}]"
        return MASK

    def text(self, value: str) -> Any:
        """Return a string without its secrets; `DROPPED` if it must not be recorded."""
        if self._value_pattern is None or len(value) < SHORTEST_SECRET:
            return value
        if len(value) > LONGEST_KNOWN:
            return self._searched(value, self._value_patterns)
        clean = self.clean_texts.get(value)
        if clean is None:
            clean = self._searched(value, (self._value_pattern,))
            if clean is DROPPED:
                return DROPPED
            if len(self.clean_texts) >= _CACHE_ENTRIES:
                self.clean_texts.clear()
            self.clean_texts[value] = clean
        return clean

    def _searched(self, value: str, patterns: Iterable[re.Pattern[str]]) -> Any:
        for pattern in patterns:
            if pattern.search(value) is None:
                continue
            if self._action == "drop":
                return DROPPED
            value = pattern.sub(lambda match: str(self.hide(match.group())), value)
        return value

    def call_function(self, key: str, value: Any) -> Any:
        """Apply the user's function; if it fails, the value is hidden to be safe."""
        if self.function is None:
            return value
        try:
            return self.function(key, value)
        except Exception:  # noqa: BLE001  # a user's callable may raise anything
            self._on_failure()
            return self.hide(value)


class CleanNames(dict[str, str]):
    """User-supplied name to clean name: a program has few, and cleaning one takes as long as writing its row.

    A known name costs one dictionary lookup and no call. Holds names of up to `LONGEST_KNOWN` characters.
    """

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def __missing__(self, name: str) -> str:
        clean = self._clean(name)
        if len(self) < _MAX_KNOWN_NAMES:
            self[name] = clean
        return clean

    def of(self, name: Any) -> str:
        """Return the clean form of a user-supplied name of any type."""
        return self[name] if name.__class__ is str and len(name) <= LONGEST_KNOWN else self._clean(name)

    def _clean(self, name: Any) -> str:
        # The margin allows recognizing a secret that truncation would otherwise split.
        text = self._redactor.text(short_text(name, MAX_NAME + _SECRET_MARGIN))
        return MASK if text is DROPPED else str(text[:MAX_NAME])


def load_function(path: str) -> RedactionFunction:
    """Import the user's redaction function, written as `package.module:name`.

    Raises:
        ConfigError: it cannot be imported or is not callable.
    """
    module_name, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"redaction.function {path!r} cannot be loaded: {error}. Write 'module:function'.") from error
    if not callable(function):
        raise ConfigError(f"redaction.function {path!r} is not callable.")
    return function  # type: ignore[no-any-return]
