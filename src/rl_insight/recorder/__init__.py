"""The part that runs inside a training process: buffers, context, lanes, aggregation, redaction, limits."""
