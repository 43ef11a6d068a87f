"""What happens inside a training process: buffers, context, lanes, aggregation, redaction, limits."""
