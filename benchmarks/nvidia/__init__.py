"""Hardware readings beside those of `nvidia-smi`, on a machine with GPUs: a check by hand, not a benchmark."""
