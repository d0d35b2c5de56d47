"""Scalars for TensorBoard, where it is installed."""

import os
from typing import Any

from joma.host.words import short
from joma.monitor.sinks.guard import beginning, library


class TensorBoard:
    """Writes every number as a scalar through `torch.utils.tensorboard`."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """folder: where TensorBoard looks for its files."""
        self.folder = os.fspath(folder)
        written = library("torch.utils.tensorboard", "TensorBoard", "tensorboard")
        with beginning("TensorBoard"):
            self._writer: Any = written.SummaryWriter(self.folder)

    def __call__(self, step: int, values: dict[str, float]) -> None:
        """One scalar per number."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is left, and let go of the files."""
        self._writer.close()

    def __repr__(self) -> str:
        return f"TensorBoard({short(self.folder)})"
