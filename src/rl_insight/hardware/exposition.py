"""Reads a few series out of a long Prometheus page.

Lines in the plain form that exporters write are read here, all others by `prometheus_client`'s parser, one by one, so
that a line it refuses costs that line alone. On a page of a Ray node this is some fifty times cheaper than parsing
everything, and a property test holds both to the same result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_PLAIN = re.compile(
    rb'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_][a-zA-Z0-9_]*="[^"\\\n]*",?)*)\})? '
    rb"(NaN|[+-]?Inf|[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)"
)
_LABEL = re.compile(rb'([a-zA-Z_][a-zA-Z0-9_]*)="([^"\\\n]*)"')
_MAX_KNOWN_LABELS = 20_000


class Sample(NamedTuple):
    """One line of a page."""

    name: str
    labels: dict[str, str]
    """Shared between samples: not to be changed."""
    value: float


class SeriesReader:
    """Reads chosen series from pages; keeps the label sets it has seen, since they come again with every page.

    >>> SeriesReader(["up"]).read(b'# TYPE up gauge\\nup{job="a"} 1\\nother 2\\n')
    [Sample(name='up', labels={'job': 'a'}, value=1.0)]
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._needles = [b"\n" + name.encode() for name in sorted(self._names)]
        self._labels: dict[bytes, dict[str, str]] = {}
        self.bad_lines = 0
        """Lines that no parser could read, over all pages."""

    def read(self, page: bytes) -> list[Sample]:
        """Return the samples of the chosen series."""
        samples = []
        for line in self.lines(page):
            sample = self._plain(line) or self._odd(line)
            if sample is not None and sample.name in self._names:
                samples.append(sample)
        return samples

    def lines(self, page: bytes) -> list[bytes]:
        """Return the lines that may belong to the chosen series, and some others at times."""
        page = b"\n" + page
        if b"\n " in page or b"\n\t" in page or b"\n{" in page:
            return [stripped for line in page.split(b"\n") if (stripped := line.strip()) and stripped[:1] != b"#"]
        found = []
        for needle in self._needles:
            start = page.find(needle)
            while start >= 0:
                end = page.find(b"\n", start + 1)
                end = len(page) if end < 0 else end
                if page[start + len(needle) : start + len(needle) + 1] in (b"{", b" ", b"\t"):
                    found.append(page[start + 1 : end])
                start = page.find(needle, end)
        return found

    def _plain(self, line: bytes) -> Sample | None:
        match = _PLAIN.fullmatch(line)
        if match is None:
            return None
        name, labels, value = match.groups()
        return Sample(name.decode(), self._label_set(labels or b""), float(value))

    def _label_set(self, text: bytes) -> dict[str, str]:
        known = self._labels.get(text)
        if known is None:
            known = {name.decode(): value.decode("utf-8", "replace") for name, value in _LABEL.findall(text)}
            if len(self._labels) >= _MAX_KNOWN_LABELS:
                self._labels.clear()
            self._labels[text] = known
        return known

    def _odd(self, line: bytes) -> Sample | None:
        from prometheus_client.parser import text_string_to_metric_families

        try:
            for family in text_string_to_metric_families(line.decode("utf-8", "replace")):
                for sample in family.samples:
                    return Sample(sample.name, sample.labels, float(sample.value))
        except (ValueError, IndexError, KeyError):
            self.bad_lines += 1
        return None
