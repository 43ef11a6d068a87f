"""The GPUs of a run now: the last readings of each GPU, and their means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from rl_insight.schema.exporters import AMD_GPU, ASCEND_NPU, NVIDIA_DCGM, RAY_NODE, ExporterMapping, ExporterSeries
from rl_insight.schema.names import DeviceId, device_of
from rl_insight.schema.records import read_object
from rl_insight.schema.tables import LAST_TIME_NS
from rl_insight.store.queries.base import Cursor
from rl_insight.store.queries.hardware import MAX_GAP_S
from rl_insight.store.queries.rank_steps import natural_key
from rl_insight.store.queries.recorded import clock_offsets
from rl_insight.store.queries.summary import time_range

_UTILIZATION: Final = "utilization_ratio"
_MEMORY_SHARE: Final = "memory_used_ratio"
"""Not recorded: the memory in use divided by the memory installed."""
_RECORDED: Final = (
    _UTILIZATION,
    "memory_used_bytes",
    "memory_total_bytes",
    "memory_busy_ratio",
    "power_watts",
    "temperature_celsius",
    "sm_clock_hertz",
)
_STEADY: Final = frozenset({"memory_total_bytes", "temperature_celsius"})
_STEADY_S: Final = 60.0
"""Quantities that rarely change are recorded when they do, and once per minute."""
_OWN: Final = ExporterMapping({f"gpu_{name}": ExporterSeries(name) for name in _RECORDED})
_MAPPINGS: Final = (_OWN, NVIDIA_DCGM, AMD_GPU, AMD_GPU.with_prefix("amd_"), ASCEND_NPU, RAY_NODE)
"""The hardware monitor's metrics, then those of exporters that are scraped; the first is preferred."""
_INFO: Final = "gpu_info"


class GpuNow(msgspec.Struct, frozen=True, kw_only=True):
    """The last readings of a GPU; None where a quantity was not read."""

    host: str
    gpu: str
    """The index on its host."""
    age_s: float
    """Time from the last reading of any quantity to now."""
    is_stale: bool
    """The last reading is too old: the values are the last known ones, and are left out of the means."""
    utilization_ratio: float | None
    memory_used_bytes: float | None
    memory_total_bytes: float | None
    memory_used_ratio: float | None
    memory_busy_ratio: float | None
    power_watts: float | None
    temperature_celsius: float | None
    sm_clock_hertz: float | None


class GpuValue(msgspec.Struct, frozen=True):
    """A value of a GPU."""

    host: str
    gpu: str
    value: float


class QuantityNow(msgspec.Struct, frozen=True, kw_only=True):
    """A quantity over the GPUs that are not stale."""

    quantity: str
    """A field of the devices, such as `utilization_ratio`."""
    gpus: int
    """GPUs whose value is known."""
    mean: float
    """Each GPU counts once."""
    lowest: GpuValue
    highest: GpuValue


class GpusNow(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs of a run now."""

    time_ns: int | None
    """Now: the latest recorded time of the run; None if nothing was recorded."""
    max_age_s: float
    """GPUs whose last reading is older are stale."""
    gpus: int
    """All GPUs that were ever read, including stale ones."""
    stale: int
    quantities: list[QuantityNow]
    metric: str | None
    """The metric from which the utilization of most GPUs was read."""
    factor: float
    """Converts values of `metric` to a ratio: 0.01 if they are in percent."""
    devices: list[GpuNow]
    """By host and index; empty unless requested."""


_SERIES = """
    SELECT series_id, name, series.labels, host, clock_offset_ns
    FROM series JOIN processes USING (process) WHERE list_contains($names, name)
"""
_LATEST = """
    SELECT series_id, max(time_ns), arg_max(value, time_ns)
    FROM sample_data SEMI JOIN (SELECT unnest($series) AS series_id) USING (series_id)
    WHERE isfinite(value) AND time_ns >= $since GROUP BY series_id
"""


class _GpuMetric(NamedTuple):
    """What a metric measures."""

    preference: int
    mapping: ExporterMapping
    quantity: str
    factor: float


_METRICS: Final = {
    name: _GpuMetric(preference, mapping, series.quantity, series.factor)
    for preference, mapping in enumerate(_MAPPINGS)
    for name, series in mapping.series.items()
    if series.kind == "gpu" and series.quantity in _RECORDED
}


class _GpuSeries(NamedTuple):
    series_id: int
    metric: str
    device: DeviceId
    offset_ns: int


class _GpuReading(NamedTuple):
    """The last sample of a series, as a time of the run and a value in base units."""

    metric: str
    time_ns: int
    value: float


def gpus_now(cursor: Cursor, *, with_devices: bool = True) -> GpusNow:
    """Return how busy the GPUs are now: the last reading of each GPU, and the mean, lowest and highest of all.

    Now is the latest recorded time of the run, so for a run that has ended it is the end of the run. A GPU is a host
    and an index; however many sources report it, it counts once: the hardware monitor's reading is preferred to that
    of a scraped exporter, and the newest one otherwise. All sources have the same units: utilization is from 0 to 1. A
    GPU that was not read during the last 30 seconds is stale: it is listed with its last values, but is not part of
    the means.
    """
    _, now_ns = time_range(cursor)
    read = {} if now_ns is None else _last_readings(cursor, now_ns)
    devices, metrics = [], Counter[str]()
    for device in sorted(read, key=lambda device: natural_key(device.title)):
        gpu, metric = _now(device, read[device], now_ns or 0)
        devices.append(gpu)
        if metric is not None:
            # The metrics of stale GPUs matter only if all are stale.
            metrics[metric] += 1 if gpu.is_stale else len(read)
    metric = max(metrics, key=metrics.__getitem__, default=None)
    fresh = [gpu for gpu in devices if not gpu.is_stale]
    return GpusNow(
        time_ns=now_ns,
        max_age_s=MAX_GAP_S,
        gpus=len(devices),
        stale=len(devices) - len(fresh),
        quantities=[one for name in (*_RECORDED, _MEMORY_SHARE) if (one := _over(fresh, name)) is not None],
        metric=metric,
        factor=1.0 if metric is None else _METRICS[metric].factor,
        devices=devices if with_devices else [],
    )


def _last_readings(cursor: Cursor, now_ns: int) -> dict[DeviceId, list[_GpuReading]]:
    """Return the last readings of every GPU."""
    series = _gpu_series(cursor)
    found = _readings(cursor, series, now_ns - _nanoseconds(MAX_GAP_S + _STEADY_S))
    # Only GPUs without a recent reading need a search of the entire run.
    silent = [one for one in series if one.device not in found]
    return found | _readings(cursor, silent, -LAST_TIME_NS)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def _gpu_series(cursor: Cursor) -> list[_GpuSeries]:
    """Return the series of all GPUs.

    An exporter may name hosts and indexes differently than the hardware monitor, for example outside of a container:
    a UUID that the monitor has recorded identifies the GPU.
    """
    rows = cursor.execute(_SERIES, {"names": [*_METRICS, _INFO]}).fetchall()
    by_uuid: dict[str, DeviceId] = {}
    found: list[tuple[_GpuSeries, str]] = []
    for series_id, name, text, host, offset_ns in rows:
        labels = read_object(text)
        if name == _INFO:
            by_uuid[str(labels.get("uuid", ""))] = device_of(labels, host, default_gpu="0")
            continue
        mapping = _METRICS[name].mapping
        device = device_of(labels, host, gpu_label=mapping.index_label, default_gpu="0")
        found.append((_GpuSeries(series_id, name, device, offset_ns), str(labels.get(mapping.uuid_label, ""))))
    by_uuid.pop("", None)
    return [one._replace(device=by_uuid.get(uuid, one.device)) for one, uuid in found]


def _readings(cursor: Cursor, series: Iterable[_GpuSeries], since_ns: int) -> dict[DeviceId, list[_GpuReading]]:
    """Return the last readings of each GPU since a time; a GPU without any is left out."""
    by_id = {one.series_id: one for one in series}
    if not by_id:
        return {}
    given = {"series": [*by_id], "since": max(since_ns - clock_offsets(cursor)[1], -LAST_TIME_NS)}
    found: dict[DeviceId, list[_GpuReading]] = {}
    for series_id, time_ns, value in cursor.execute(_LATEST, given).fetchall():
        _, metric, device, offset_ns = by_id[series_id]
        reading = _GpuReading(metric, time_ns + offset_ns, value * _METRICS[metric].factor)
        found.setdefault(device, []).append(reading)
    return found


def _now(device: DeviceId, readings: list[_GpuReading], now_ns: int) -> tuple[GpuNow, str | None]:
    """Return a GPU, and the metric its utilization is from; None if it is unknown."""
    newest_ns = max(reading.time_ns for reading in readings)
    is_stale = now_ns - newest_ns > _nanoseconds(MAX_GAP_S)
    best: dict[str, _GpuReading] = {}
    for reading in sorted(readings, key=lambda one: (_METRICS[one.metric].preference, -one.time_ns)):
        quantity = _METRICS[reading.metric].quantity
        max_age_s = MAX_GAP_S + (_STEADY_S if quantity in _STEADY else 0.0)
        if (newest_ns if is_stale else now_ns) - reading.time_ns <= _nanoseconds(max_age_s):
            best.setdefault(quantity, reading)
    values = {quantity: best[quantity].value if quantity in best else None for quantity in _RECORDED}
    used, total = values["memory_used_bytes"], values["memory_total_bytes"]
    share = used / total if used is not None and total else None
    gpu = GpuNow(
        host=device.host,
        gpu=device.gpu or "",
        age_s=max(0, now_ns - newest_ns) / 1e9,
        is_stale=is_stale,
        memory_used_ratio=share,
        **values,
    )
    return gpu, best[_UTILIZATION].metric if _UTILIZATION in best else None


def _over(gpus: list[GpuNow], quantity: str) -> QuantityNow | None:
    known = [GpuValue(gpu.host, gpu.gpu, value) for gpu in gpus if (value := getattr(gpu, quantity)) is not None]
    if not known:
        return None
    by_value = sorted(known, key=lambda one: one.value)
    return QuantityNow(
        quantity=quantity,
        gpus=len(known),
        mean=sum(one.value for one in known) / len(known),
        lowest=by_value[0],
        highest=by_value[-1],
    )
