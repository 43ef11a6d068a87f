"""Texts as Arrow has them: kept once, and referred to by position."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from numpy.typing import NDArray


class Texts:
    """Texts for columns of positions."""

    def __init__(self, strings: list[str]) -> None:
        # Position 0 means that a text is absent.
        self._dictionary = pa.array(["", *strings], pa.string())

    def between(self, first: int, end: int) -> pa.Array:
        """Return the texts from one position up to another, without copying them."""
        return self._dictionary[first:end]

    def at(self, positions: NDArray[Any]) -> pa.Array:
        """Return the texts at some positions; absent ones are null."""
        return self._at(pa.array(positions, mask=positions == 0))

    def required(self, positions: NDArray[Any]) -> pa.Array:
        """Return the texts at some positions; absent ones are empty."""
        return self._at(pa.array(positions))

    def _at(self, positions: pa.Array) -> pa.Array:
        return pa.DictionaryArray.from_arrays(positions, self._dictionary)
