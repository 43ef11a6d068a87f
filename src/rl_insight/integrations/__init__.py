"""Bridges to the systems that training code is built on; none of them is required."""
