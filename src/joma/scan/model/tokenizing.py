"""A stranger's tokenizer at work; `joma.scan.model.tokenizing FOLDER NAME` is a process that `model.text` starts."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from joma.scan.errors import CheckpointError
from joma.scan.model.loading import is_panic, pretrained


def tokenized(folder: Path, text: str, what: str) -> list[int]:
    """The tokens that the tokenizer in a folder makes of a text, in this process, which may not survive it."""
    tokenizer = pretrained("AutoTokenizer", folder, f"the tokenizer of {what}")
    try:
        return [int(number) for number in tokenizer(text)["input_ids"]]
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        why = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise CheckpointError(f"the tokenizer of {what} cannot read the text: {why}") from None


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
