"""Diagnosis: reads a run as an engineer would, and reports what is wrong, what causes it, and what it costs."""
