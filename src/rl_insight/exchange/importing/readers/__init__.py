"""Readers: from the records of a file to batches."""
