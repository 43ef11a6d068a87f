"""Importing files: formats, their readers, and where the batches go."""
