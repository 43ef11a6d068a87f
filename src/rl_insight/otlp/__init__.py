"""OTLP, the OpenTelemetry protocol: how our spans, logs, metrics and processes look in it, in both directions.

- `mapping`: the names and rules that both directions share.
- `encode`: batches to OTLP, as protobuf (`encode.protobuf`, for sinks) and as JSON (`encode.json`, for exports).
- `decode`: requests, as protobuf and as JSON, to rows of batches; `limits` bounds them before.

Encoding needs no protobuf library, which the processes of a training do not have; decoding does.
"""
