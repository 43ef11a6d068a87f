"""Files into runs: formats, their readers, and where the batches go."""
