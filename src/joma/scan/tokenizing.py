"""`joma.scan.tokenizing FOLDER NAME`, run as a process: token ids of the text on its input, for `joma.scan.loading`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from joma.scan.errors import CheckpointError
from joma.scan.loading import tokenized


def main() -> None:
    """Write {"ids": [...]} or {"error": a sentence}; nothing, if the tokenizer ends this process."""
    to = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints is no answer
    folder, name = sys.argv[1:]
    try:
        answer: dict[str, object] = {"ids": tokenized(Path(folder), sys.stdin.buffer.read().decode(), name)}
    except CheckpointError as error:
        answer = {"error": str(error)}
    json.dump(answer, to)
    to.close()


if __name__ == "__main__":
    main()
