"""Whether OTLP over gRPC can be used: grpcio is an extra, because it takes 20 MB and few need it."""

from __future__ import annotations

import importlib.util

GRPC_MISSING = 'grpcio is not installed. Install it: pip install "rl-insight[grpc]".'


def has_grpc() -> bool:
    """Return whether grpcio is installed."""
    return importlib.util.find_spec("grpc") is not None
