"""OTLP: the OpenTelemetry protocol, in and out."""
