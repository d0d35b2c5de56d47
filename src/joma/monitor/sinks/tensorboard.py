"""Scalars for TensorBoard, where it is installed."""

from __future__ import annotations

import os
from typing import Any

from joma.host.errors import BadInput
from joma.host.words import short


class TensorBoard:
    """Writes every number as a scalar through `torch.utils.tensorboard`."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """folder: where TensorBoard looks for its files."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise BadInput("TensorBoard is not installed: pip install tensorboard", argument="sinks") from None
        self.folder = os.fspath(folder)
        self._writer: Any = SummaryWriter(self.folder)  # type: ignore[no-untyped-call, unused-ignore]

    def __call__(self, step: int, values: dict[str, float]) -> None:
        """One scalar per number."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is left, and let go of the files."""
        self._writer.close()

    def __repr__(self) -> str:
        return f"TensorBoard({short(self.folder)})"
