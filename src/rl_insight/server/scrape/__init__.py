"""Scraping: the registered targets, and the pages that are read from them."""
