"""Normalizes attributes: JSON, redacted and bounded.

JSON has no NaN, no infinities and, in most readers, no integers beyond 64 bits: those become the strings `NaN`,
`Infinity`, `-Infinity` and the integer's digits. Any other value that JSON lacks is converted with `str()`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, islice
from math import isfinite
from typing import Any

import msgspec

from rl_insight.config.model import RecorderConfig
from rl_insight.recorder.losses import Losses, bounded_text, short_text
from rl_insight.recorder.redaction import DROPPED, LONGEST_KNOWN, SHORTEST_SECRET, Redactor
from rl_insight.schema.captured_text import CAPTURED_TEXT, FULL_LENGTH, LEFT_OUT, stand_in
from rl_insight.schema.json_values import json_number, utf8_form

RESERVED_ATTRIBUTES = frozenset({"monitor.trace_segment", "state_name"})
_MAX_DEPTH = 6
_MAX_VALUES = 1000
"""Values in the containers of one attribute, over all levels; also bounds a list that contains itself."""
_INT64 = 2**63
_CONTAINERS = (dict, list)
_PLAIN_KINDS = {int, float, bool, str}
_MAX_PLAIN_KEYS = 8192

_encode = msgspec.json.Encoder().encode
_encode_lines = msgspec.json.Encoder().encode_lines


class AttributeEncoder:
    """Turns user-supplied attributes into JSON; one per process, used only by the flusher."""

    def __init__(self, redactor: Redactor, losses: Losses, config: RecorderConfig) -> None:
        self._redactor = redactor
        self._losses = losses
        self._max_bytes = config.max_attribute_bytes
        self._max_text_bytes = config.max_attribute_bytes
        self._max_total_bytes = config.max_attributes_bytes
        self._max_attributes = config.max_attributes
        self._never_shown = frozenset[str]() if config.capture_text else CAPTURED_TEXT
        self._hidden_text = self._never_shown
        self._uncut_length = 0
        """Original length of the last truncated string; 0 if none was truncated."""
        self._values_left = _MAX_VALUES
        self._longest_plain = min(LONGEST_KNOWN, self._max_bytes // 4)
        self._plain_keys: set[str] = set()
        """Keys already checked that allow any number or short string: skips 0.9 of 1.6 us for a small span."""

    def encode(self, attributes: dict[str, Any] | None, *, is_hidden: bool = False) -> str | None:
        """Return attributes as a JSON object; None if there are none.

        If `is_hidden`, text governed by `capture_text` is replaced by its length.
        """
        return self.encode_all((attributes,), set(attributes or ()), {0} if is_hidden else ())[0]

    def encode_all(
        self, records: Sequence[dict[str, Any] | None], keys: AbstractSet[str], hidden: Collection[int] = ()
    ) -> list[str | None]:
        """Encode the attributes of many records, in one call and without a copy if all of them are plain.

        Args:
            records: The attributes of each record.
            keys: Every key in them.
            hidden: Positions of records in which text governed by `capture_text` is replaced by its length.
        """
        given: Any = records if all(records) else [attributes for attributes in records if attributes]
        has_plain_keys = keys <= self._plain_keys and len(keys) <= self._max_attributes
        if has_plain_keys and self._has_plain_values(given):
            encoded = self._plain_texts(given)
            if len(given) == len(records):
                return [*encoded]
            following = iter(encoded)
            return [next(following) if attributes else None for attributes in records]
        texts: list[str | None] = [None] * len(records)
        plain: dict[int, dict[str, Any]] = {}
        for at, attributes in enumerate(records):
            if not attributes:
                continue
            if (has_plain_keys or self._has_plain_keys(attributes)) and self._has_plain_values((attributes,)):
                plain[at] = attributes
                continue
            self._hidden_text = CAPTURED_TEXT if at in hidden else self._never_shown
            texts[at] = self._encode_copy(attributes)
        self._hidden_text = self._never_shown
        for at, text in zip(plain, self._plain_texts([*plain.values()]), strict=True):
            texts[at] = text
        return texts

    def _has_plain_keys(self, attributes: dict[str, Any]) -> bool:
        return attributes.keys() <= self._plain_keys and len(attributes) <= self._max_attributes

    def _has_plain_values(self, records: Iterable[dict[str, Any]]) -> bool:
        """Return whether all values are already normalized. Checking many at once is faster."""
        values = [*chain.from_iterable(map(dict.values, records))]
        kinds = set(map(type, values))
        if not kinds <= _PLAIN_KINDS:
            return False
        if str in kinds:
            longest, clean = self._longest_plain, self._redactor.clean_texts
            for text in {value for value in values if value.__class__ is str}:
                if len(text) >= SHORTEST_SECRET and (len(text) > longest or clean.get(text) != text):
                    return False
            values = [value for value in values if value.__class__ is not str]
        try:
            # False unless all are finite and within 64 bits: comparisons with NaN are false.
            return bool(sum(map(abs, values)) < _INT64)
        except OverflowError:  # an integer too large for any float
            return False

    def _plain_texts(self, plain: Sequence[dict[str, Any]]) -> list[str]:
        """Return records that need no cleaning as JSON. One encoder call takes half the time of one call per record."""
        if len(plain) > 1:
            try:
                text = _encode_lines(plain).decode()
            except UnicodeEncodeError:  # lone surrogates
                text = ""
            lines, limit = text.split("\n"), self._max_total_bytes // 4
            if text and (len(text) <= limit or max(map(len, lines)) <= limit):
                return lines[: len(plain)]  # the last line also ends with a newline
        return [self._bounded_json(attributes) for attributes in plain]

    def _encode_copy(self, attributes: dict[str, Any]) -> str | None:
        clean: dict[str, Any] = {}
        plain_keys: Collection[str] = self._plain_keys if len(attributes) <= self._max_attributes else ()
        for key, value in attributes.items():
            if key in plain_keys and _is_plain(value) and key.__class__ is str:
                clean[key] = value
                continue
            name = short_text(key)
            if name in RESERVED_ATTRIBUTES:
                self._losses.refuse("attributes", "reserved", f"attribute {name!r} is reserved: it was dropped.")
                continue
            if len(clean) >= self._max_attributes:
                self._losses.refuse(
                    "attributes", "too_many", f"more than {self._max_attributes} attributes: the rest was dropped."
                )
                break
            self._learn(name)
            self._uncut_length = 0
            if name in CAPTURED_TEXT and not isinstance(value, str):
                # One long message must leave room for the rest of the list.
                self._max_text_bytes = self._max_bytes // 2
            value = self.value(name, value)  # noqa: PLW2901  # the same value, cleaned
            self._max_text_bytes = self._max_bytes
            if value is DROPPED:
                continue
            if value.__class__ in _CONTAINERS:
                clean[name] = self._bounded(name, value, clean)
            else:
                clean[name] = value
                self._note_length(name, clean)
        return self._bounded_json(clean) if clean else None

    def _note_length(self, key: str, clean: dict[str, Any]) -> None:
        """Add the original length of a truncated conversation text."""
        if self._uncut_length and key in CAPTURED_TEXT:
            clean[f"{key}{FULL_LENGTH}"] = self._uncut_length

    def _bounded_json(self, clean: dict[str, Any]) -> str:
        text = _to_json(clean)
        if len(text) > self._max_total_bytes // 4 and len(text.encode()) > self._max_total_bytes:
            return self._cut(dict(clean))
        return text

    def _cut(self, clean: dict[str, Any]) -> str:
        """Truncate attributes to their total limit: short ones are kept, long ones share the remaining space."""
        self._losses.refuse(
            "attributes", "cut", f"the attributes of a record were truncated to {self._max_total_bytes} bytes in total."
        )
        for key in CAPTURED_TEXT & clean.keys():
            if isinstance(clean[key], str):
                clean.setdefault(f"{key}{FULL_LENGTH}", len(clean[key]))
        left = self._max_total_bytes - 2
        sizes = sorted((_entry_bytes(key, value), key) for key, value in clean.items())
        for at, (size, key) in enumerate(sizes):
            room = left // (len(sizes) - at)
            left -= size if size <= room else _cut_entry(clean, key, room)
        return _to_json(clean)

    def _learn(self, key: str) -> None:
        redactor = self._redactor
        if redactor.function is not None or key in CAPTURED_TEXT or redactor.is_secret_key(key):
            return
        if len(self._plain_keys) < _MAX_PLAIN_KEYS:
            self._plain_keys.add(key)

    def value(self, key: str, value: Any, depth: int = 0) -> Any:
        """Return one value normalized and redacted; `DROPPED` if it must not be recorded."""
        redactor = self._redactor
        if redactor.is_secret_key(key):
            return redactor.hide(value)
        if redactor.function is not None:
            value = redactor.call_function(key, value)
        return self._normal(key, value, depth)

    def _normal(self, key: str, value: Any, depth: int) -> Any:
        kind = value.__class__
        if kind is str:
            return stand_in(value) if key in self._hidden_text else self.text(key, value)
        if kind is bool or value is None:
            return value
        if kind is int:
            return value if -_INT64 <= value < _INT64 else str(value)
        if kind is float:
            return json_number(value)
        return self._other(key, value, depth)

    def text(self, key: str, value: str) -> Any:
        """Return a string truncated to the limit, without secrets; `DROPPED` if it must not be recorded."""
        limit = self._max_text_bytes
        if len(value) > limit // 4:
            # Truncate by characters first: encoding a long string in full would hold the GIL the entire time.
            encoded = value[: limit + 1].encode("utf-8", "replace")
            if len(encoded) > limit:
                self._uncut_length = len(value)
                value = encoded[:limit].decode("utf-8", "ignore")
                self._losses.refuse("attributes", "cut", f"text in {key!r} was truncated to {limit} bytes.")
        return self._redactor.text(value)

    def _other(self, key: str, value: Any, depth: int) -> Any:
        try:
            if isinstance(value, (bool, int, float, str)):  # subclasses, such as enums and NumPy's float64
                return self._normal(key, _plain(value), depth)
            number = _as_number(value)
            if number is not None:
                return self._normal(key, number, depth)
            if key in self._hidden_text:
                return stand_in(value)
            if depth < _MAX_DEPTH and isinstance(value, Mapping):
                return self._mapping(value, depth)
            if depth < _MAX_DEPTH and isinstance(value, (list, tuple, set, frozenset)):
                return self._sequence(key, value, depth)
            if isinstance(value, (bytes, bytearray)):
                value = value[: self._max_bytes]
            return self.text(key, bounded_text(value))
        except Exception:  # noqa: BLE001  # inspecting a user's object may raise anything
            self._losses.refuse(
                "attributes", "unreadable", f"the value of attribute {key!r} cannot be read.", topic=key
            )
            return f"<{type(value).__name__}>"

    def _mapping(self, values: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        clean: dict[str, Any] = {}
        for name, value in list(islice(values.items(), _MAX_VALUES + 1)):
            if not self._has_room():
                break
            key = short_text(name)
            self._uncut_length = 0
            item = self.value(key, value, depth + 1)
            if item is not DROPPED:
                clean[key] = item
            if self._uncut_length:
                clean[f"{key}{FULL_LENGTH}"] = self._uncut_length
                self._uncut_length = 0
        return clean

    def _sequence(self, key: str, values: Iterable[Any], depth: int) -> list[Any]:
        clean: list[Any] = []
        for value in list(islice(values, _MAX_VALUES + 1)):
            if not self._has_room():
                break
            item = self.value(key, value, depth + 1)
            if item is not DROPPED:
                clean.append(item)
        return clean

    def _has_room(self) -> bool:
        self._values_left -= 1
        return self._values_left >= 0

    def _bounded(self, key: str, value: Any, clean: dict[str, Any]) -> Any:
        """Return a container unchanged, or its JSON truncated to the limit if it is too large.

        Conversations keep their last messages: the first ones belong to earlier turns.
        """
        if self._values_left < 0:
            self._losses.refuse("attributes", "cut", f"{key!r} has over {_MAX_VALUES} values: the rest was dropped.")
        self._values_left = _MAX_VALUES
        text = _to_json(value)
        if len(text) <= self._max_bytes // 4 or len(text.encode()) <= self._max_bytes:
            return value
        if key in CAPTURED_TEXT and value.__class__ is list:
            kept = _last_messages(value, self._max_bytes)
            if kept:
                self._losses.refuse(
                    "attributes", "cut", f"{key!r} was truncated to its last {self._max_bytes} bytes of messages."
                )
                clean[f"{key}{LEFT_OUT}"] = len(value) - len(kept)
                return kept
        return self.text(key, text)


def _last_messages(messages: list[Any], max_bytes: int) -> list[Any]:
    """Return as many of the last messages as fit, possibly none."""
    left = max_bytes - 2
    for place in range(len(messages) - 1, -1, -1):
        left -= len(_to_json(messages[place]).encode()) + 1
        if left < 0:
            return messages[place + 1 :]
    return messages


def _entry_bytes(key: str, value: Any) -> int:
    """Return the size of one attribute in the JSON object, including the comma."""
    return len(_to_json({key: value}).encode()) - 1


def _cut_entry(clean: dict[str, Any], key: str, room: int) -> int:
    """Truncate an attribute to `room` bytes of JSON, or drop it if its key alone is larger; return its size."""
    value = clean.pop(key)
    text = value if isinstance(value, str) else _to_json(value)
    while (size := _entry_bytes(key, text)) > room:
        if not text:
            return 0
        # Proportionally: a character that JSON escapes takes up to six bytes.
        text = text[: min(len(text) - 1, len(text) * room // size)]
    clean[key] = text
    return size


def _is_plain(value: Any) -> bool:
    """Return whether a value is already normalized, under any key that is not secret."""
    kind = value.__class__
    if kind is int:
        return bool(-_INT64 <= value < _INT64)
    if kind is str:
        return len(value) < SHORTEST_SECRET
    return kind is bool or (kind is float and isfinite(value))


def _plain(value: Any) -> Any:
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value) if kind is not str else str.__str__(value)
    return bool(value)


def _as_number(value: Any) -> Any:
    """Return the number in a NumPy or Torch scalar (one element and an `item()` method); None for other values."""
    item = getattr(value, "item", None)
    if not callable(item) or getattr(value, "shape", None) not in ((), None) or not hasattr(value, "dtype"):
        return None
    try:
        number = item()
    except Exception:  # noqa: BLE001  # some tensor types raise
        return None
    return number if number.__class__ in (int, float, bool) else None


def _to_json(value: Any) -> str:
    try:
        return _encode(value).decode()
    except UnicodeEncodeError:  # lone surrogates
        return _encode(utf8_form(value)).decode()
