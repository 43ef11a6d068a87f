"""Writers of exports: each takes a cursor on a run and the part of it that is wanted."""
