"""The server: one process that ingests events from all sources, stores them, and answers queries about them."""
