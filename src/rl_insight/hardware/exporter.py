"""Any Prometheus exporter as a source: its URL, and a mapping of its series to quantities.

>>> npus = ExporterSource(["http://10.0.0.7:8082/metrics"], ASCEND_NPU)
>>> monitor_hardware(sources=[npus, "host"])  # doctest: +SKIP
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from http import HTTPStatus
from math import isfinite
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from rl_insight.hardware.base import Reading, Source
from rl_insight.hardware.exposition import PageReader, Sample, SeriesReader
from rl_insight.hardware.fetch import PageAddress, PageError, fetch_all
from rl_insight.hardware.quantities import QUANTITIES
from rl_insight.http_client import HttpError, request
from rl_insight.schema.exporters import (
    AMD_GPU,
    ASCEND_NPU,
    AVAILABLE,
    NVIDIA_DCGM,
    ExporterMapping,
    ExporterSeries,
    Kind,
)
from rl_insight.urls import split_http_url

__all__ = [
    "AMD_GPU",
    "ASCEND_NPU",
    "NVIDIA_DCGM",
    "ExporterMapping",
    "ExporterSeries",
    "ExporterSource",
    "PageReadings",
    "down",
]


class _Meaning(NamedTuple):
    """The device and quantity that a series of a page measures."""

    device: tuple[str, Kind, str]
    """Its machine (empty for that of the target), kind and index."""
    quantity: str
    factor: float
    labels: dict[str, str]


class PageReadings:
    """Turns the pages of one target into readings.

    Args:
        series: reads the series of the mapping; targets with the same mapping share it.
        mapping: maps series to quantities. A series without a quantity only shows that the target has measured again.
    """

    def __init__(self, series: SeriesReader, mapping: ExporterMapping) -> None:
        self._mapping = mapping
        self._reader = PageReader(series, self._meaning)

    def read(self, page: bytes, node: str, host: str, *, has_stamp: bool = False) -> list[Reading]:
        """Return the readings of a page: the node first, then its accelerators in index order.

        With `has_stamp`, pages with the same values are the same measurement.
        """
        found = self._reader.read(page)
        stamp = (hash(tuple([value for _, value in found])) or 1) if has_stamp else 0
        values: dict[tuple[str, Kind, str], dict[str, float]] = {}
        labels: dict[tuple[str, Kind, str], dict[str, str]] = {}
        for (device, quantity, factor, own), value in found:
            if not quantity or not isfinite(value):
                continue
            measured = values.get(device)
            if measured is None:
                measured = values[device] = {}
                labels[device] = own
            measured[quantity] = value * factor
        for machine in {device[0] for device in values} if self._mapping.host_label and values else {""}:
            values.setdefault((machine, "node", ""), {})["up"] = 1.0
        return [
            self._reading(device, values[device], labels.get(device, {}), node, host, stamp)
            for device in sorted(values, key=_node_first)
        ]

    def _meaning(self, sample: Sample) -> _Meaning:
        mapping, labels = self._mapping, sample.labels
        series = mapping.series[sample.name]
        index = (labels.get(mapping.index_label) or "0") if series.kind == "gpu" else ""
        machine = labels.get(mapping.host_label, "") if mapping.host_label else ""
        return _Meaning((machine, series.kind, index), series.quantity, series.factor, labels)

    def _reading(
        self,
        device: tuple[str, Kind, str],
        values: dict[str, float],
        labels: dict[str, str],
        node: str,
        host: str,
        stamp: int,
    ) -> Reading:
        machine, kind, index = device
        _add_total(values)
        return Reading(
            node=machine or node,
            host=machine or host,
            kind=kind,
            index=index,
            uuid=labels.get(self._mapping.uuid_label, "") if kind == "gpu" else "",
            model=labels.get(self._mapping.model_label, "") if kind == "gpu" else "",
            values=values,
            stamp=stamp,
        )


def _node_first(device: tuple[str, Kind, str]) -> tuple[str, bool, int, str]:
    machine, kind, index = device
    return machine, kind != "node", int(index) if index.isdecimal() else sys.maxsize, index


def _add_total(values: dict[str, float]) -> None:
    """Add the total memory if an exporter reports only its parts."""
    available = values.pop(AVAILABLE, None)
    if "memory_used_bytes" not in values:
        return
    if available is not None:
        values["memory_total_bytes"] = values["memory_used_bytes"] + available
    elif "memory_free_bytes" in values:
        parts = ("memory_used_bytes", "memory_free_bytes", "memory_reserved_bytes")
        values.setdefault("memory_total_bytes", sum(values.get(part, 0.0) for part in parts))


def down(node: str, host: str) -> Reading:
    """Return the reading of a node that does not respond."""
    return Reading(node=node, host=host, kind="node", values={"up": 0.0})


class ExporterSource(Source):
    """Reads one or more exporters that share a mapping.

    Args:
        urls: URLs of the pages, `http` or `https`.
        mapping: Maps their series to quantities.
        timeout_s: The timeout per page.
        name: The label `source` of the recorded metrics.
    """

    def __init__(
        self, urls: str | Sequence[str], mapping: ExporterMapping, *, timeout_s: float = 3.0, name: str = "exporter"
    ) -> None:
        self.name = name
        self._timeout_s = timeout_s
        series_reader = SeriesReader(mapping.series)
        self._targets = {
            url: (_target(url), PageReadings(series_reader, mapping))
            for url in ([urls] if isinstance(urls, str) else urls)
        }
        for name_there, series in mapping.series.items():
            if (series.kind, series.quantity) not in QUANTITIES or series.kind not in ("gpu", "node"):
                raise ValueError(
                    f"the mapping of {name_there!r} names {series.kind} {series.quantity!r}: no such quantity. "
                    "See rl_insight.hardware.quantities."
                )

    def is_available(self) -> bool:
        """Return whether there are pages to read; `read` finds out whether they respond."""
        return bool(self._targets)

    def read(self, stop: threading.Event) -> list[Reading]:
        """Read all pages; one that does not respond is reported as a node that is down."""
        plain = [target for target, _ in self._targets.values() if target is not None]
        pages = fetch_all(plain, timeout_s=self._timeout_s, stop=stop)
        readings: list[Reading] = []
        for url, (target, reader) in self._targets.items():
            page = pages[target] if target is not None else _fetch_tls(url, self._timeout_s)
            host = urlsplit(url).hostname or url
            if isinstance(page, bytes):
                readings.extend(reader.read(page, host, host))
            elif not stop.is_set():
                readings.append(down(host, host))
        return _merged(readings)


def _merged(readings: list[Reading]) -> list[Reading]:
    """Merge readings of the same device from two pages of one host."""
    merged: dict[tuple[str, str, str, int | None], Reading] = {}
    for reading in readings:
        first = merged.setdefault(reading.key, reading)
        if first is not reading:
            merged[reading.key] = msgspec.structs.replace(first, values={**first.values, **reading.values})
    return list(merged.values())


def _target(url: str) -> PageAddress | None:
    """Return the address of a plain HTTP page; None for one that needs TLS."""
    parts = split_http_url(url)
    if parts is None or not parts.hostname:
        raise ValueError(f"{url!r} is not the address of an exporter: write it like 'http://10.0.0.7:9400/metrics'.")
    if parts.scheme == "https":
        return None
    path = parts.path or "/metrics"
    return PageAddress(parts.hostname, parts.port or 80, f"{path}?{parts.query}" if parts.query else path)


def _fetch_tls(url: str, timeout_s: float) -> bytes | PageError:
    try:
        reply = request("GET", url, timeout_s=timeout_s)
    except HttpError as error:
        return PageError(str(error))
    return reply.body if reply.status == HTTPStatus.OK else PageError(f"it responded with status {reply.status}")
