"""The way to an OTLP receiver: HTTP with protobuf, or gRPC."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from urllib.parse import urlsplit

from rl_insight.collector.sinks.delivery import Carrier, HttpCarrier, checked_url
from rl_insight.errors import ConfigError
from rl_insight.otlp.grpc_extra import GRPC_MISSING, has_grpc

_PASSING_STATUSES = frozenset({408, 429, 502, 503, 504})
_GZIP_FROM_BYTES = 1024


class OtlpHttpCarrier(HttpCarrier):
    """Posts OTLP as protobuf, compressed where it is worth it."""

    def __init__(self, url: str, *, headers: Mapping[str, str], timeout_s: float) -> None:
        headers = {"Content-Type": "application/x-protobuf", **headers}
        super().__init__(url, headers=headers, timeout_s=timeout_s, is_passing=_PASSING_STATUSES.__contains__)

    def send(self, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
        """Post one request and return the answer."""
        if len(body) < _GZIP_FROM_BYTES:
            return super().send(body, headers)
        return super().send(gzip.compress(body, 1), {"Content-Encoding": "gzip", **(headers or {})})


def make_carrier(endpoint: str, signal: str, protocol: str, *, headers: Mapping[str, str], timeout_s: float) -> Carrier:
    """Return a carrier to an endpoint; over HTTP, an endpoint without a path gets OTLP's default path.

    Raises:
        ConfigError: gRPC is not installed, or the endpoint is not a URL.
    """
    if protocol == "grpc":
        if not has_grpc():
            raise ConfigError(f"the protocol cannot be grpc: {GRPC_MISSING}")
        from rl_insight.collector.sinks.otlp.grpc_carrier import OtlpGrpcCarrier

        return OtlpGrpcCarrier(endpoint, signal, headers=headers, timeout_s=timeout_s)
    url = urlsplit(checked_url(endpoint, "OTLP endpoint"))
    if url.path in {"", "/"}:
        url = url._replace(path=f"/v1/{signal}")
    return OtlpHttpCarrier(url.geturl(), headers=headers, timeout_s=timeout_s)
