"""Readers of foreign and own formats: from the lines or events of a file to batches."""
