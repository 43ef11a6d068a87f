"""Reads a few series out of a long Prometheus page.

Lines in the plain form that exporters write are read here, all others by `prometheus_client`'s parser, one by one, so
that a line it refuses costs that line alone. On a page of a Ray node this is some fifty times cheaper than parsing
everything, and a property test holds both to the same result.
"""

from __future__ import annotations

import os
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
        self._needle = b"\n" + os.path.commonprefix(list(self._names))
        """One search for what all names begin with beats one for each name."""
        self._labels: dict[bytes, dict[str, str]] = {}
        self.bad_lines = 0
        """Lines that no parser could read, over all pages."""

    def read(self, page: bytes) -> list[Sample]:
        """Return the samples of the chosen series."""
        page = b"\n" + page
        if b"\n " in page or b"\n\t" in page or b"\n{" in page:
            return self._read_all(page)
        samples = []
        names, needle, find = self._names, self._needle, page.find
        start = find(needle)
        while start >= 0:
            end = find(b"\n", start + 1)
            line = page[start + 1 : end] if end >= 0 else page[start + 1 :]
            head, brace, rest = line.partition(b"{")
            name = names.get(head) if brace else names.get(head.partition(b" ")[0].partition(b"\t")[0])
            if name is not None:
                sample = self._plain(name, rest) if brace else None
                sample = sample or self._odd(line)
                if sample is not None:
                    samples.append(sample)
            start = find(needle, end) if end >= 0 else -1
        return samples

    def _read_all(self, page: bytes) -> list[Sample]:
        """Read a page whose lines begin in an unusual way."""
        found = []
        for line in page.split(b"\n"):
            stripped = line.strip()
            if stripped and not stripped.startswith(b"#"):
                sample = self._odd(stripped)
                if sample is not None and sample.name.encode() in self._names:
                    found.append(sample)
        return found

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
        from prometheus_client.parser import text_string_to_metric_families

        try:
            for family in text_string_to_metric_families(line.decode("utf-8", "replace")):
                for sample in family.samples:
                    return Sample(sample.name, sample.labels, float(sample.value))
        except (ValueError, IndexError, KeyError):
            self.bad_lines += 1
        return None
