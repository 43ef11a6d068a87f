"""Reads a few series out of a long Prometheus page.

Lines in the plain form that exporters write are read fast, all others (escapes, blanks, timestamps, quoted names) in
full, one by one, so that a malformed line costs that line alone. On a page of a Ray node this is a hundred times
cheaper than parsing everything. Training processes use it, which have no Prometheus library; a property test compares
it with the parser of one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

_LABELS = re.compile(rb'(?:[a-zA-Z_][a-zA-Z0-9_]*="[^"\\\n]*",)*[a-zA-Z_][a-zA-Z0-9_]*="[^"\\\n]*",?')
_LABEL = re.compile(rb'([a-zA-Z_][a-zA-Z0-9_]*)="([^"\\\n]*)"')
_VALUE = re.compile(rb"NaN|[+-]?Inf|[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?")
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_ANY_LINE = re.compile(
    rf"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)?\s*(?:{{(?P<labels>(?:[^\"{{}}]|{_QUOTED})*)}}\s*|\s)(?P<value>\S+)(?:\s+(?P<time>\S+).*)?"
)
_ANY_LABEL = re.compile(
    rf"\s*(?:(?P<name>[a-zA-Z_][a-zA-Z0-9_]*|{_QUOTED})\s*(?:=\s*(?P<value>{_QUOTED}))?\s*)?(?:,|$)"
)
_ESCAPE = re.compile(r'\\([\\"n])')
_MAX_KNOWN_LABELS = 20_000
_UNKNOWN_LINE = b"\n"
"""What no line begins with."""

Meaning = TypeVar("Meaning")


class Sample(NamedTuple):
    """One line of a page."""

    name: str
    labels: dict[str, str]
    """Shared between samples: not to be changed."""
    value: float


class SeriesReader:
    r"""Reads chosen series from pages; keeps the label sets it has seen, since they come again with every page.

    >>> SeriesReader(["up"]).read(b'# TYPE up gauge\nup{job="a"} 1\nother 2\n')
    [Sample(name='up', labels={'job': 'a'}, value=1.0)]
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {name.encode(): name for name in names}
        self._beginnings = (_common_beginning(list(self._names)), b" ", b"\t", b"{")
        """What the lines begin with that need a look; most lines of a page do not."""
        self._labels: dict[bytes, dict[str, str]] = {}

    def read(self, page: bytes) -> list[Sample]:
        """Return the samples of the chosen series."""
        samples = [self.read_line(line) for line in self.candidates(page)]
        return [sample for sample in samples if sample is not None]

    def candidates(self, page: bytes) -> list[bytes]:
        """Return the lines of a page that can be samples of the chosen series."""
        beginnings = self._beginnings
        return [line for line in page.split(b"\n") if line.startswith(beginnings)]

    def read_line(self, line: bytes) -> Sample | None:
        """Return the sample that a line shows; None when it is not one of the chosen series."""
        head, brace, rest = line.partition(b"{")
        name = self._names.get(head) if brace else None
        sample = self._plain(name, rest) if name is not None else None
        if sample is not None:
            return sample
        words = head.split(None, 1)
        if words and words[0] not in self._names:
            return None
        return self._odd(line.strip())

    def head(self, line: bytes) -> bytes:
        """Return the beginning of a line that says which series it shows; what no line begins with if it is odd."""
        name, brace, rest = line.partition(b"{")
        if name not in self._names:
            return name + brace if brace and name and name.strip() == name else _UNKNOWN_LINE
        labels, end, value = rest.rpartition(b"} ")
        is_plain = _VALUE.fullmatch(value) is not None and _LABELS.fullmatch(labels) is not None
        return name + brace + labels + end if is_plain else _UNKNOWN_LINE

    def _plain(self, name: str, rest: bytes) -> Sample | None:
        """Read what follows the brace; None for anything but the plain form."""
        text, _end, value = rest.rpartition(b"} ")
        if _VALUE.fullmatch(value) is None:
            return None
        labels = self._labels.get(text)
        if labels is None:
            if _LABELS.fullmatch(text) is None:
                return None
            labels = {key.decode(): value.decode("utf-8", "replace") for key, value in _LABEL.findall(text)}
            if len(self._labels) >= _MAX_KNOWN_LABELS:
                self._labels.clear()
            self._labels[text] = labels
        return Sample(name, labels, float(value))

    def _odd(self, line: bytes) -> Sample | None:
        """Read a line of any form; None when it is not one of the chosen series, or malformed."""
        found = _ANY_LINE.fullmatch(line.decode("utf-8", "replace").strip())
        if found is None or "_" in found["value"]:
            return None
        try:
            name, labels = _name_and_labels(found["name"], found["labels"] or "")
            if found["time"] is not None and not found["time"].startswith("#"):
                float(found["time"])
            value = float(found["value"])
        except ValueError:
            return None
        return Sample(name, labels, value) if name.encode() in self._names else None


def _name_and_labels(name: str | None, text: str) -> tuple[str, dict[str, str]]:
    """Return the name of a series, which may be the first thing in the braces, and its labels."""
    labels: dict[str, str] = {}
    place = 0
    while place < len(text):
        found = _ANY_LABEL.match(text, place)
        if found is None:
            raise ValueError("malformed labels")
        place = found.end()
        if found["name"] is None and place == len(text):
            break
        if found["name"] is None:
            raise ValueError("an empty label")
        key = _unquoted(found["name"])
        if found["value"] is not None and key not in labels:
            labels[key] = _unquoted(found["value"])
        elif found["value"] is None and found["name"] != key and name is None:
            name = key
        else:
            raise ValueError("malformed labels")
    if name is None:
        raise ValueError("no name")
    return name, labels


def _unquoted(text: str) -> str:
    if not text.startswith('"'):
        return text
    return _ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], text[1:-1])


class PageReader(Generic[Meaning]):
    r"""Reads the pages of one target, which show the same lines in the same order over and over.

    Where a line begins as it did last time, only its number is read: that takes a quarter of the time.

    >>> reader = PageReader(SeriesReader(["up"]), lambda sample: sample.labels["job"])
    >>> reader.read(b'up{job="a"} 1\nup{job="b"} 0\n'), reader.read(b'up{job="a"} 0\nup{job="b"} 0\n')
    ([('a', 1.0), ('b', 0.0)], [('a', 0.0), ('b', 0.0)])

    Args:
        series: Reads the lines that are new.
        meaning: What a series means to the caller; asked once for a line that stays in its place.
    """

    def __init__(self, series: SeriesReader, meaning: Callable[[Sample], Meaning]) -> None:
        self._series = series
        self._meaning = meaning
        self._known: list[tuple[bytes, Meaning | None]] = []
        """For each line of the last page: all up to its number, and what it means; None where it is not wanted."""

    def read(self, page: bytes) -> list[tuple[Meaning, float]]:
        """Return what the chosen series mean, and their values."""
        lines = self._series.candidates(page)
        if len(lines) != len(self._known):
            self._known = [(_UNKNOWN_LINE, None)] * len(lines)
        found = []
        for number, (line, (head, meaning)) in enumerate(zip(lines, self._known, strict=True)):
            if line.startswith(head):
                if meaning is None:
                    continue
                text = line[len(head) :]
                if text.isdigit() or _VALUE.fullmatch(text):
                    found.append((meaning, float(text)))
                    continue
            sample = self._series.read_line(line)
            learned = None if sample is None else self._meaning(sample)
            self._known[number] = (self._series.head(line), learned)
            if sample is not None and learned is not None:
                found.append((learned, sample.value))
        return found


def _common_beginning(names: list[bytes]) -> bytes:
    """Return what all names begin with; every name lies between the first and the last in order."""
    if not names:
        return b"#"
    first, last = min(names), max(names)
    length = next(
        (place for place in range(len(first)) if last[place : place + 1] != first[place : place + 1]), len(first)
    )
    return first[:length]
