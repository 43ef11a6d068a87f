"""OTLP over gRPC."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote

import grpc  # type: ignore[import-untyped]  # it ships no types

from rl_insight.errors import SchemaError
from rl_insight.otlp.decode.requests import OtlpSignal, answer
from rl_insight.otlp.mapping import SERVICES
from rl_insight.server.http.bodies import OVERLOADED
from rl_insight.server.http.security import bearer_matches
from rl_insight.server.otlp.receiver import OtlpOutcome
from rl_insight.urls import host_and_port

if TYPE_CHECKING:
    from rl_insight.server.services import Services

_ROUTE = "otlp_grpc"
_THREADS = 8
_MAX_CALLS = 64


class OtlpGrpcServer:
    """Serves the three OTLP services; each call is answered after its commit.

    Args:
        services: the server's parts.
        host: the address to listen on.
        port: the port; 0 for any free one, then in `port`.

    Raises:
        OSError: cannot listen on the port.
    """

    def __init__(self, services: Services, host: str, port: int) -> None:
        self._services = services
        settings = services.settings
        options = [
            # gRPC holds the messages of all calls before we see them. 4 MiB by default, as in most receivers.
            ("grpc.max_receive_message_length", min(settings.max_inflight_bytes // _MAX_CALLS, 2**31 - 1)),
            # Otherwise two servers could silently share a port.
            ("grpc.so_reuseport", 0),
        ]
        self._server = grpc.server(
            ThreadPoolExecutor(_THREADS, thread_name_prefix="rl-insight-grpc"),
            options=options,
            maximum_concurrent_rpcs=_MAX_CALLS,
        )
        for signal in OtlpSignal:
            # Without a deserializer we get the raw bytes, which the receiver hashes and checks.
            handler = grpc.unary_unary_rpc_method_handler(
                self._export(signal), response_serializer=lambda message: message.SerializeToString()
            )
            self._server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(SERVICES[signal.value], {"Export": handler}),)
            )
        address = host_and_port(host, port)
        try:
            self.port = self._bind(address)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}") from error
        if self.port == 0:
            raise OSError(f"cannot listen on {address}")
        self._server.start()

    def _bind(self, address: str) -> int:
        settings = self._services.settings
        if settings.tls_cert is None or settings.tls_key is None:
            return int(self._server.add_insecure_port(address))
        key = Path(settings.tls_key).expanduser().read_bytes()
        certificate = Path(settings.tls_cert).expanduser().read_bytes()
        return int(self._server.add_secure_port(address, grpc.ssl_server_credentials([(key, certificate)])))

    def _export(self, signal: OtlpSignal) -> Callable[[bytes, grpc.ServicerContext], Any]:
        def export(body: bytes, context: grpc.ServicerContext) -> Any:
            self._check_token(context)
            services = self._services
            services.counters.request(_ROUTE, len(body))
            with services.inflight.reserve() as reservation:
                if not reservation.grow(len(body)):
                    services.counters.refuse(_ROUTE, "overload")
                    _abort(context, grpc.StatusCode.UNAVAILABLE, OVERLOADED)
                outcome = self._stored(signal, body, context)
            if outcome.failure:
                _abort(context, grpc.StatusCode.UNAVAILABLE, outcome.failure)
            return answer(signal, outcome.rejected, outcome.problem)

        return export

    def _stored(self, signal: OtlpSignal, body: bytes, context: grpc.ServicerContext) -> OtlpOutcome:
        services = self._services
        try:
            submission = services.otlp.submit(signal, body, is_json=False, peer=_host(context), route=_ROUTE)
            return submission.settle()
        except SchemaError as error:
            _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))

    def _check_token(self, context: grpc.ServicerContext) -> None:
        token = self._services.token
        if token is None:
            return
        shown = dict(context.invocation_metadata()).get("authorization", "")
        text = shown.decode("latin-1") if isinstance(shown, bytes) else shown
        if not bearer_matches(text, token):
            _abort(context, grpc.StatusCode.UNAUTHENTICATED, "the token is missing or wrong.")

    def close(self, grace_s: float = 1.0) -> None:
        """Finish calls in flight, then stop; idempotent."""
        self._server.stop(grace_s).wait(grace_s + 1.0)


def _abort(context: grpc.ServicerContext, code: grpc.StatusCode, sentence: str) -> NoReturn:
    context.abort(code, sentence)
    raise AssertionError("abort() raises")


def _host(context: grpc.ServicerContext) -> str:
    """Return the address of the client from gRPC's name for it, such as `ipv4:127.0.0.1:5000`."""
    kind, _, address = unquote(context.peer()).partition(":")
    if not kind.startswith("ipv"):
        return ""
    return address.rpartition(":")[0].strip("[]")
