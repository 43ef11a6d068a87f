"""OTLP over gRPC; a separate module because importing gRPC is slow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import grpc  # type: ignore[import-untyped]  # it ships no types

from rl_insight.collector.sinks.delivery import USER_AGENT, DeliveryRefusedError, TryAgainError, checked_url
from rl_insight.otlp.mapping import SERVICES
from rl_insight.otlp.wire import fields
from rl_insight.urls import host_and_port, without_credentials

_TRANSIENT_CODES = frozenset(
    {
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DATA_LOSS,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
    }
)
_RETRY_INFO = b"type.googleapis.com/google.rpc.RetryInfo"


class OtlpGrpcCarrier:
    """Calls an OTLP service over gRPC, with TLS if the endpoint is an https URL.

    As OTLP requires, RESOURCE_EXHAUSTED is only retried if the receiver sends a delay: otherwise the request itself may
    be too large.
    """

    def __init__(self, endpoint: str, signal: str, *, headers: Mapping[str, str], timeout_s: float) -> None:
        url = endpoint if "://" in endpoint else f"http://{endpoint}"
        parts = urlsplit(checked_url(url, "OTLP endpoint"))
        self.address = without_credentials(url)
        self._target = host_and_port(parts.hostname or "", parts.port or 4317)
        self._is_secure = parts.scheme == "https"
        self._method = f"/{SERVICES[signal]}/Export"
        self._metadata = [(name.lower(), value) for name, value in headers.items()]
        self._timeout_s = timeout_s
        self._channel: Any = None
        self._export: Any = None

    def send(self, body: bytes) -> bytes:
        """Make one call and return the response."""
        try:
            answer: bytes = self._call()(
                body, timeout=self._timeout_s, metadata=self._metadata, compression=grpc.Compression.Gzip
            )
        except grpc.RpcError as error:
            raise self._judged(error) from error
        return answer

    def close(self) -> None:
        """Close the channel; the next `send` opens another one."""
        if self._channel is not None:
            self._channel.close()
            self._channel = self._export = None

    def _call(self) -> Any:
        if self._export is None:
            options = [("grpc.primary_user_agent", USER_AGENT)]
            if self._is_secure:
                self._channel = grpc.secure_channel(self._target, grpc.ssl_channel_credentials(), options)
            else:
                self._channel = grpc.insecure_channel(self._target, options)
            # Without serializers, bytes are passed through.
            self._export = self._channel.unary_unary(self._method)
        return self._export

    def _judged(self, error: Any) -> TryAgainError | DeliveryRefusedError:
        code, sentence = error.code(), " ".join((error.details() or "").split())[:300]
        delay_s = _retry_delay(error)
        if code is grpc.StatusCode.UNAVAILABLE:
            # A channel backs off between connection attempts; a new one connects immediately.
            self.close()
        if code in _TRANSIENT_CODES or (code is grpc.StatusCode.RESOURCE_EXHAUSTED and delay_s is not None):
            return TryAgainError(f"{self.address} answered {code.name} {sentence}.", retry_after_s=delay_s)
        return DeliveryRefusedError(f"{self.address} refused the request: {code.name} {sentence}.")


def _retry_delay(error: Any) -> float | None:
    """Return the retry delay in the `google.rpc.Status` of the response."""
    details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
    try:
        for number, detail in fields(details or b""):
            packed = _message(detail) if number == 3 else {}
            if packed.get(1) == _RETRY_INFO:
                delay = _message(_message(packed.get(2, b"")).get(1, b""))
                return min(float(delay.get(1, 0)) + float(delay.get(2, 0)) / 1e9, 300.0)
    except (TypeError, ValueError):
        pass
    return None


def _message(value: Any) -> dict[int, Any]:
    return dict(fields(value))
