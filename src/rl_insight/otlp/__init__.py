"""OTLP, the OpenTelemetry protocol, in both directions.

- `mapping`: the names and rules that both directions share.
- `encode`: batches to OTLP, as protobuf (`encode.protobuf`, for sinks) or JSON (`encode.json`, for exports).
- `decode`: protobuf and JSON requests to rows of batches, within `limits`.

Decoding needs the protobuf library. Encoding does not, because training processes may not have it.
"""
