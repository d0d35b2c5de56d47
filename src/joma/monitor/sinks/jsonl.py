"""A file with one JSON object per line and step."""

import json
import os
from math import isfinite

from joma.host.errors import BadInput, FileError
from joma.host.files import continued, named_file, ready_for_lines

_BEGINS = b'{"step": '


class JsonLines:
    r"""Appends `{"step": 100, "entropy/h.0.attn/mean": 1.5, ...}`. JSON has no NaN and no infinity: they become null.

    A line that a killed process left unfinished is cut off when the file is opened again. A file that does not end in
    a line of this sink is refused, and so is what is no file; of a file only the end is read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sink = JsonLines(f"{folder}/a.jsonl")
    ...     sink(100, {"norm/h.0/max": 2.0})
    ...     sink.path.read_text()
    '{"step": 100, "norm/h.0/max": 2.0}\n'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """path: the file; it is made where it is not there, and its folder too."""
        self.path = named_file(os.fspath(path))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            ready_for_lines(self.path, _BEGINS, _is_ours)
        except OSError as error:
            raise BadInput(f"sinks has {self}, which cannot be written ({error.strerror})", argument="sinks") from error
        except FileError as error:
            raise BadInput(f"sinks has {self}, but {error}", argument="sinks") from error

    def __call__(self, step: int, values: dict[str, float]) -> None:
        """Append one line. The file is open only while it is written."""
        plain = {name: value if isfinite(value) else None for name, value in values.items()}
        with continued(self.path) as file:
            file.write(json.dumps({"step": step, **plain}).encode() + b"\n")

    def __repr__(self) -> str:
        return (
            f"JsonLines({str(self.path)!r})" if len(str(self.path)) < 100 else f"JsonLines(.../{self.path.name[-80:]})"
        )


def _is_ours(line: bytes) -> bool:
    if not line.startswith(_BEGINS):
        return False
    try:
        return type(json.loads(line)["step"]) is int
    except (ValueError, RecursionError):
        return False
