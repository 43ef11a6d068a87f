"""Exports spans, metrics and logs as OTLP, over HTTP or gRPC."""

from rl_insight.collector.sinks.otlp.sink import OtlpLogSink, OtlpMetricSink, OtlpSink, OtlpTraceSink, otlp_sinks

__all__ = ["OtlpLogSink", "OtlpMetricSink", "OtlpSink", "OtlpTraceSink", "otlp_sinks"]
