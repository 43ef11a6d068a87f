"""TensorBoard, through PyTorch's writer or tensorboardX."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from rl_insight.integrations.trackers.base import Tracker

_WRITERS = ("torch.utils.tensorboard", "tensorboardX")


class TensorBoardTracker(Tracker):
    """Writes event files. Steps may come in any order: TensorBoard sorts them.

    Args:
        log_dir: The folder of the run.
        writer: A `SummaryWriter` to use instead of a new one.
    """

    name = "tensorboard"

    def __init__(self, log_dir: str | None = None, *, writer: Any = None) -> None:
        self._is_ours = writer is None
        self._writer = writer if writer is not None else _writer_class()(log_dir)
        self._latest = 0

    def log(self, values: Mapping[str, float], step: int | None) -> None:
        """Write values of one step; without one they go to the latest step there was."""
        if step is not None:
            self._latest = step
        for key, value in values.items():
            self._writer.add_scalar(key, value, global_step=self._latest)

    def close(self) -> None:
        """Write the events out; close the writer if it was made here."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        writer.flush()
        if self._is_ours:
            writer.close()


def _writer_class() -> Any:
    for module in _WRITERS:
        try:
            return importlib.import_module(module).SummaryWriter
        except ImportError:
            continue
    raise ImportError(
        "TensorBoard's writer is missing: run `pip install tensorboardX`, or install tensorboard and torch."
    )
