"""The server: one process that takes events from everything, keeps them, and answers questions about them."""
