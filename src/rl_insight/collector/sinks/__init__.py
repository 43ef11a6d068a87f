"""Sinks: where a collector sends batches. One module per sink."""
