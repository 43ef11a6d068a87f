"""Encodes Prometheus remote-write 1.0 requests."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from rl_insight.metrics import Family, MetricKind
from rl_insight.metrics.prometheus import number
from rl_insight.otlp.wire import BYTES, FIXED64, VARINT, double, fixed64, sized, tag, text, varint

# prometheus.WriteRequest, TimeSeries, Label, Sample, Exemplar, MetricMetadata
_TIME_SERIES, _METADATA = tag(1, BYTES), tag(3, BYTES)
_LABEL, _SAMPLE, _EXEMPLAR = tag(1, BYTES), tag(2, BYTES), tag(3, BYTES)
_LABEL_NAME, _LABEL_VALUE = tag(1, BYTES), tag(2, BYTES)
_VALUE, _TIMESTAMP = tag(1, FIXED64), tag(2, VARINT)
_EXEMPLAR_VALUE, _EXEMPLAR_TIMESTAMP = tag(2, FIXED64), tag(3, VARINT)
_TYPE, _FAMILY_NAME, _HELP = tag(1, VARINT), tag(2, BYTES), tag(4, BYTES)

_STALE = fixed64(0x7FF0000000000002)
"""The NaN that marks the end of a series."""


class TimeSeries(NamedTuple):
    """Samples of one series."""

    encoded: bytes
    samples: int
    family: Family | None
    """The metric, if its metadata may have to be sent."""


def write_request(series: Iterable[TimeSeries]) -> bytes:
    """Encode a request; metadata may be appended."""
    return b"".join([_TIME_SERIES + sized(one.encoded) for one in series])


def metadata(name: str, kind: MetricKind, documentation: str) -> bytes:
    """Encode the metadata of a metric."""
    described = _TYPE + varint(kind.remote_write_type) + _FAMILY_NAME + text(name) + _HELP + text(documentation)
    return _METADATA + sized(described)


def labels(pairs: Iterable[tuple[str, str]]) -> bytes:
    """Encode labels, which must be sorted by name and include `__name__`."""
    return b"".join([_label(name, value) for name, value in pairs])


@lru_cache(maxsize=65_536)
def bound_label(bound: float) -> bytes:
    """Encode the label of a histogram bucket."""
    return _label("le", number(bound))


@lru_cache(maxsize=1024)
def stamp(time_ms: int) -> bytes:
    """Encode a timestamp, for use in several samples."""
    return _TIMESTAMP + varint(time_ms)


def sample(value: float, time: bytes) -> bytes:
    """Encode a sample with a timestamp from `stamp`."""
    return _SAMPLE + sized(_VALUE + double(value) + time)


def stale_marker(time: bytes) -> bytes:
    """Encode a stale marker."""
    return _SAMPLE + sized(_VALUE + _STALE + time)


def exemplar(trace_id: str, value: float, time_ms: int) -> bytes:
    """Encode an exemplar."""
    return _EXEMPLAR + sized(
        _label("trace_id", trace_id) + _EXEMPLAR_VALUE + double(value) + _EXEMPLAR_TIMESTAMP + varint(time_ms)
    )


def _label(name: str, value: str) -> bytes:
    return _LABEL + sized(_LABEL_NAME + text(name) + _LABEL_VALUE + text(value))
