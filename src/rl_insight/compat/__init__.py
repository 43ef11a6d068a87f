"""Adapters that implement the APIs of other tools on top of the same core."""
