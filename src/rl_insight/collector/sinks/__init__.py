"""Where a collector hands batches on to; each sink is a module of its own."""
