"""Writers of exports: each takes a cursor on a run and the selection to write."""
