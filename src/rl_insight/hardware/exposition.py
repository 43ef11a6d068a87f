"""Reads a few series out of a long Prometheus page.

Lines in the plain form that exporters write are read here, all others by `prometheus_client`'s parser, one by one, so
that a line it refuses costs that line alone. On a page of a Ray node this is a hundred times cheaper than parsing
everything, and a property test holds both to the same result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_LABELS = re.compile(rb'(?:[a-zA-Z_][a-zA-Z0-9_]*="[^"\\\n]*",)*[a-zA-Z_][a-zA-Z0-9_]*="[^"\\\n]*",?')
_LABEL = re.compile(rb'([a-zA-Z_][a-zA-Z0-9_]*)="([^"\\\n]*)"')
_VALUE = re.compile(rb"NaN|[+-]?Inf|[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?")
_MAX_KNOWN_LABELS = 20_000


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
        self.bad_lines = 0
        """Lines that no parser could read, over all pages."""

    def read(self, page: bytes) -> list[Sample]:
        """Return the samples of the chosen series."""
        samples = []
        names, beginnings = self._names, self._beginnings
        for line in page.split(b"\n"):
            if not line.startswith(beginnings):
                continue
            head, brace, rest = line.partition(b"{")
            name = names.get(head) if brace else None
            sample = self._plain(name, rest) if name is not None else None
            if sample is None:
                words = head.split(None, 1)
                if words and words[0] not in names:
                    continue
                sample = self._odd(line.strip())
            if sample is not None:
                samples.append(sample)
        return samples

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
        """Read a line of any form with the real parser; None when it is not one of the chosen series."""
        if not line or line.startswith(b"#"):
            return None
        from prometheus_client.parser import text_string_to_metric_families

        try:
            for family in text_string_to_metric_families(line.decode("utf-8", "replace")):
                for sample in family.samples:
                    if sample.name.encode() in self._names:
                        return Sample(sample.name, sample.labels, float(sample.value))
        except (ValueError, IndexError, KeyError):
            self.bad_lines += 1
        return None


def _common_beginning(names: list[bytes]) -> bytes:
    """Return what all names begin with; every name lies between the first and the last in order."""
    if not names:
        return b"#"
    first, last = min(names), max(names)
    length = next(
        (place for place in range(len(first)) if last[place : place + 1] != first[place : place + 1]), len(first)
    )
    return first[:length]
