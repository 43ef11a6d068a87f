"""Batches to OTLP."""
