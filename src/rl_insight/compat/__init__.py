"""The APIs of other tools on top of the same core."""
