"""Exporting runs: the rows of a run, and a writer per format."""
