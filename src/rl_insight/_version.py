"""The single definition of the version."""

__version__ = "1.0.0.dev0"
