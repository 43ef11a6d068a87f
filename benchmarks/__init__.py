"""Benchmarks: every budget of the project as a figure, run with `python -m benchmarks`."""
