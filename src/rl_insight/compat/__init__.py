"""The spellings that other frameworks use, over the same core."""
