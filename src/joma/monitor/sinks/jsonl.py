"""A file with one JSON object per line and step."""

from __future__ import annotations

import json
import os
from math import isfinite
from pathlib import Path

from joma.host.errors import BadInput


class JsonLines:
    r"""Appends `{"step": 100, "entropy/h.0.attn/mean": 1.5, ...}`. JSON has no NaN and no infinity: they become null.

    A line that a killed process left unfinished is cut off when the file is opened again.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sink = JsonLines(f"{folder}/a.jsonl")
    ...     sink(100, {"norm/h.0/max": 2.0})
    ...     Path(f"{folder}/a.jsonl").read_text()
    '{"step": 100, "norm/h.0/max": 2.0}\n'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """path: the file; it is made where it is not there, and its folder too."""
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.touch()
            whole, _, rest = self.path.read_bytes().rpartition(b"\n")
            if rest:
                os.truncate(self.path, len(whole) + bool(whole))
        except OSError as error:
            raise BadInput(f"sinks has {self}, which cannot be written ({error.strerror})", argument="sinks") from error

    def __call__(self, step: int, values: dict[str, float]) -> None:
        """Append one line. The file is open only while it is written."""
        plain = {name: value if isfinite(value) else None for name, value in values.items()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **plain}) + "\n")

    def __repr__(self) -> str:
        return (
            f"JsonLines({str(self.path)!r})" if len(str(self.path)) < 100 else f"JsonLines(.../{self.path.name[-80:]})"
        )
