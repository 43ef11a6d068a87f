"""OTLP in: traces, metrics and logs of any OpenTelemetry SDK, turned into batches."""
