"""OTLP requests to rows of batches."""
