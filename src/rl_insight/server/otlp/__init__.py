"""OTLP ingest: converts traces, metrics and logs from any OpenTelemetry SDK to batches."""
