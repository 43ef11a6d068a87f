"""Readers, which convert the records of a file to batches."""
