"""Any Prometheus exporter as a source: a URL, and which of its series mean what.

>>> npus = ExporterSource(["http://10.0.0.7:8082/metrics"], ASCEND_NPU)
>>> monitor_hardware(sources=[npus, "host"])  # doctest: +SKIP
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from math import isfinite
from urllib.parse import urlsplit

import msgspec

from rl_insight.hardware.base import Kind, Reading, Source
from rl_insight.hardware.exposition import Sample, SeriesReader
from rl_insight.hardware.fetch import PageAddress, PageError, fetch_all
from rl_insight.hardware.quantities import QUANTITIES
from rl_insight.http_client import HttpError, request
from rl_insight.urls import split_http_url

_MIB = 1024.0**2


class ExporterSeries(msgspec.Struct, frozen=True):
    """What one series of an exporter means here."""

    quantity: str
    """The name of the quantity; see `quantities.QUANTITIES`."""
    factor: float = 1.0
    """To the base unit: 0.01 for percent, 1024² for MiB."""
    kind: Kind = "gpu"


class ExporterMapping(msgspec.Struct, frozen=True):
    """Which series an exporter has, and which of its labels name the device."""

    series: Mapping[str, ExporterSeries]
    """By the exporter's own name of the series."""
    index_label: str = "gpu"
    uuid_label: str = ""
    model_label: str = ""
    host_label: str = ""
    """Names the machine where one exporter serves several; else the URL's host is taken."""

    def with_prefix(self, prefix: str) -> ExporterMapping:
        """Return the same mapping for an exporter that writes `prefix` in front of every name.

        >>> sorted(ExporterMapping({"power": ExporterSeries("power_watts")}).with_prefix("amd_").series)
        ['amd_power']
        """
        return self.with_series({f"{prefix}{name}": series for name, series in self.series.items()}, only=True)

    def with_series(self, series: Mapping[str, ExporterSeries], *, only: bool = False) -> ExporterMapping:
        """Return the same mapping with other or further series; with `only`, with these alone."""
        return msgspec.structs.replace(self, series=dict(series) if only else {**self.series, **series})


AMD_GPU = ExporterMapping(
    series={
        "gpu_gfx_activity": ExporterSeries("utilization_ratio", 0.01),
        "gpu_used_vram": ExporterSeries("memory_used_bytes", _MIB),
        "gpu_total_vram": ExporterSeries("memory_total_bytes", _MIB),
        "gpu_package_power": ExporterSeries("power_watts"),
        "gpu_junction_temperature": ExporterSeries("temperature_celsius"),
    },
    index_label="gpu_id",
    uuid_label="gpu_uuid",
    model_label="card_model",
    host_label="hostname",
)
"""AMD's device metrics exporter, port 5000; some installations write `amd_` in front of each name."""

ASCEND_NPU = ExporterMapping(
    series={
        "npu_chip_info_utilization": ExporterSeries("utilization_ratio", 0.01),
        "npu_chip_info_hbm_used_memory": ExporterSeries("memory_used_bytes", _MIB),
        "npu_chip_info_hbm_total_memory": ExporterSeries("memory_total_bytes", _MIB),
        "npu_chip_info_power": ExporterSeries("power_watts"),
        "npu_chip_info_temperature": ExporterSeries("temperature_celsius"),
    },
    index_label="id",
    uuid_label="vdie_id",
    model_label="model_name",
)
"""Huawei's NPU exporter, port 8082."""

NVIDIA_DCGM = ExporterMapping(
    series={
        "DCGM_FI_DEV_GPU_UTIL": ExporterSeries("utilization_ratio", 0.01),
        "DCGM_FI_DEV_FB_USED": ExporterSeries("memory_used_bytes", _MIB),
        "DCGM_FI_DEV_FB_FREE": ExporterSeries("memory_free_bytes", _MIB),
        "DCGM_FI_DEV_FB_RESERVED": ExporterSeries("memory_reserved_bytes", _MIB),
        "DCGM_FI_DEV_XID_ERRORS": ExporterSeries("last_xid"),
        "DCGM_FI_DEV_POWER_USAGE": ExporterSeries("power_watts"),
        "DCGM_FI_DEV_GPU_TEMP": ExporterSeries("temperature_celsius"),
        "DCGM_FI_DEV_SM_CLOCK": ExporterSeries("sm_clock_hertz", 1e6),
        "DCGM_FI_DEV_MEM_CLOCK": ExporterSeries("memory_clock_hertz", 1e6),
        "DCGM_FI_DEV_MEMORY_TEMP": ExporterSeries("memory_temperature_celsius"),
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ExporterSeries("energy_joules", 0.001),
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": ExporterSeries("pcie_replays"),
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": ExporterSeries("correctable_remapped_rows"),
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": ExporterSeries("uncorrectable_remapped_rows"),
        "DCGM_FI_DEV_ROW_REMAP_FAILURE": ExporterSeries("row_remap_failure"),
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ExporterSeries("engine_active_ratio"),
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ExporterSeries("tensor_active_ratio"),
    },
    index_label="gpu",
    uuid_label="UUID",
    model_label="modelName",
    host_label="Hostname",
)
"""NVIDIA's DCGM exporter, port 9400."""


def _add_total(values: dict[str, float]) -> None:
    """Add the memory installed, where an exporter tells only what it is made of."""
    if "memory_free_bytes" in values and "memory_used_bytes" in values:
        parts = ("memory_used_bytes", "memory_free_bytes", "memory_reserved_bytes")
        values.setdefault("memory_total_bytes", sum(values.get(part, 0.0) for part in parts))


class ExporterSource(Source):
    """Reads exporters, one or many, that speak the same language.

    Args:
        urls: Full addresses of the pages, `http` or `https`.
        mapping: What their series mean.
        timeout_s: For each page.
        name: Stands in the label `source`.
    """

    def __init__(
        self, urls: str | Sequence[str], mapping: ExporterMapping, *, timeout_s: float = 3.0, name: str = "exporter"
    ) -> None:
        self.name = name
        self._urls = [urls] if isinstance(urls, str) else list(urls)
        self._mapping = mapping
        self._timeout_s = timeout_s
        self._targets = {url: _target(url) for url in self._urls}
        self._reader = SeriesReader(mapping.series)
        for name_there, series in mapping.series.items():
            if (series.kind, series.quantity) not in QUANTITIES or series.kind not in ("gpu", "node"):
                raise ValueError(
                    f"the mapping of {name_there!r} names {series.kind} {series.quantity!r}: no such quantity. "
                    "See rl_insight.hardware.quantities."
                )

    def is_available(self) -> bool:
        """Return whether there are pages to read; whether they answer shows when they are read."""
        return bool(self._urls)

    def read(self, stop: threading.Event) -> list[Reading]:
        """Read all pages; one that does not answer is reported as a node that is not up."""
        plain = [target for target in self._targets.values() if target is not None]
        pages = fetch_all(plain, timeout_s=self._timeout_s, stop=stop)
        readings: list[Reading] = []
        for url, target in self._targets.items():
            page = pages[target] if target is not None else _fetch_tls(url, self._timeout_s)
            host = urlsplit(url).hostname or url
            if isinstance(page, bytes):
                readings.extend(self._page_readings(host, page))
            elif not stop.is_set():
                readings.append(Reading(node=host, host=host, kind="node", values={"up": 0.0}))
        return _merged(readings)

    def _page_readings(self, url_host: str, page: bytes) -> list[Reading]:
        mapping = self._mapping
        values: dict[tuple[str, Kind, str], dict[str, float]] = {}
        labels: dict[tuple[str, Kind, str], dict[str, str]] = {}
        hosts = {url_host: None} if not mapping.host_label else {}
        for sample in self._reader.read(page):
            if not isfinite(sample.value):
                continue
            series = mapping.series[sample.name]
            key = (self._host(sample, url_host), series.kind, _index(sample, series, mapping.index_label))
            hosts[key[0]] = None
            labels.setdefault(key, sample.labels)
            values.setdefault(key, {})[series.quantity] = sample.value * series.factor
        for found in values.values():
            _add_total(found)
        for host in hosts or {url_host: None}:
            values.setdefault((host, "node", ""), {})["up"] = 1.0
        return [
            Reading(
                node=host,
                host=host,
                kind=kind,
                index=index,
                uuid=labels[host, kind, index].get(mapping.uuid_label, "") if kind == "gpu" else "",
                model=labels[host, kind, index].get(mapping.model_label, "") if kind == "gpu" else "",
                values=quantities,
            )
            for (host, kind, index), quantities in values.items()
        ]

    def _host(self, sample: Sample, url_host: str) -> str:
        return sample.labels.get(self._mapping.host_label) or url_host


def _index(sample: Sample, series: ExporterSeries, index_label: str) -> str:
    return sample.labels.get(index_label) or "0" if series.kind == "gpu" else ""


def _merged(readings: list[Reading]) -> list[Reading]:
    """Join what two pages of one host say about the same thing; each reading of a source is about another thing."""
    merged: dict[tuple[str, str, str, int | None], Reading] = {}
    for reading in readings:
        first = merged.setdefault(reading.key, reading)
        if first is not reading:
            merged[reading.key] = msgspec.structs.replace(first, values={**first.values, **reading.values})
    return list(merged.values())


def _target(url: str) -> PageAddress | None:
    """Return where to fetch a plain HTTP page; None for one that needs TLS."""
    parts = split_http_url(url)
    if parts is None or not parts.hostname:
        raise ValueError(f"{url!r} is not the address of an exporter. Write it like 'http://10.0.0.7:9400/metrics'.")
    if parts.scheme == "https":
        return None
    path = parts.path or "/metrics"
    return PageAddress(parts.hostname, parts.port or 80, f"{path}?{parts.query}" if parts.query else path)


def _fetch_tls(url: str, timeout_s: float) -> bytes | PageError:
    try:
        reply = request("GET", url, timeout_s=timeout_s)
    except HttpError as error:
        return PageError(str(error))
    return reply.body if reply.status == HTTPStatus.OK else PageError(f"it answered with status {reply.status}")
