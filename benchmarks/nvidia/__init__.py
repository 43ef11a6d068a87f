"""Compares hardware readings with those of `nvidia-smi`, on a machine with GPUs: a manual check, not a benchmark."""
