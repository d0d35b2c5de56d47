"""The text that a model reads while it is measured: its token ids, and how they are cut into windows."""

import codecs
import json
import signal
import subprocess
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.host import limits
from joma.host.children import child_command, child_environment
from joma.host.errors import BadInput
from joma.host.words import counted
from joma.probes.lengths import default_seq_len
from joma.scan.errors import CheckpointError
from joma.scan.model.loading import transformers_library
from joma.scan.sources.series import Place

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
_SLOWEST = 100_000  # letters per second of processor time that a tokenizer is allowed
_STILL = 1800.0  # seconds by the clock at least, for a process that waits for something and uses no processor
_PER_TOKEN, _LEAST = 8, 1 << 16  # bytes that are read per token at first, and at least
_MARGIN = 256  # tokens at the end of a part of a text that may be cut in another way than in all of it
_OUT_OF_TIME = {getattr(signal, name) for name in ("SIGXCPU",) if hasattr(signal, name)}
SHORTEST = 32
"""Tokens that a text must have where seq_len is not given, or as many as the model was trained on, if that is less."""


def tokens_of(
    place: Place, config: Any, text: Path, tokenizer: Path | None, *, seq_len: int | None = None,
    most: int | None = None,
) -> Tensor:  # fmt: skip
    """The token ids of a text for the model at a place, or of a .npy file that holds them already."""
    least, words = seq_len or min(SHORTEST, default_seq_len(config)), getattr(config, "vocab_size", None)
    if text.suffix == ".npy":
        if tokenizer is not None:
            what = f"a tokenizer is for words, but text {text} holds token ids already"
            raise BadInput(what, argument="tokenizer")
        tokens = torch.from_numpy(_stored_ids(text))
    else:
        tokens = _ids_of(place, text, tokenizer, None if most is None else max(most, least))
    if len(tokens) < least:
        more = counted(least - len(tokens), "more token")
        what = f"text {text} has {counted(len(tokens), 'token')}, and at least {least} are needed: give {more}"
        raise BadInput(what, argument="text")
    for token in (int(tokens.min()), int(tokens.max())):
        if isinstance(words, int) and not 0 <= token < words:
            raise BadInput(f"text {text} has token {token}, and the model knows 0 to {words - 1}", argument="text")
    return tokens


def describe_windows(measures: Sequence[str], text: Path, seq_len: int, length: int) -> str:
    """How a text is read, and for which measures, in one sentence.

    >>> describe_windows(["entropy"], Path("a.txt"), 16, 100)
    'entropy reads a.txt: 6 windows of 16 tokens; the last 4 of its 100 tokens are not read'
    """
    count, rest = divmod(length, seq_len)
    left = f"; the last {rest} of its {length:,} tokens are not read" if rest else ""
    who = f"{', '.join(measures)} read{'s' if len(measures) == 1 else ''}"
    return f"{who} {text.name}: {counted(count, 'window')} of {counted(seq_len, 'token')}{left}"


def token_ids(folder: Path, text: str, what: str) -> list[int]:
    """The tokens that the tokenizer in a folder makes of a text. what: how messages call the checkpoint.

    In a process of its own: a tokenizer's expressions may go on for ever, and its library ends the process where it
    meets words that it does not expect.
    """
    # transformers makes up an empty tokenizer where there is none.
    if not _has_tokenizer(folder):
        raise CheckpointError(f"{what} has no tokenizer; give the token ids of the text as a .npy file")
    transformers_library()
    patience = limits.TOKENIZER_SECONDS + len(text) / _SLOWEST
    slow = f"took more than {patience:.0f} s of processor time for the text and was given up"
    try:
        done = subprocess.run(
            child_command("joma.scan.model.loading", str(folder), what, str(ceil(patience))),
            input=text.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**child_environment(), "HF_HUB_OFFLINE": "1"},  # a config may name another model there
            timeout=max(_STILL, 20 * patience),
        )
    except subprocess.TimeoutExpired:
        still = f"did not end in {max(_STILL, 20 * patience):.0f} s and was given up"
        raise CheckpointError(f"the tokenizer of {what} {still}") from None
    if -done.returncode in _OUT_OF_TIME:
        raise CheckpointError(f"the tokenizer of {what} {slow}")
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise CheckpointError(f"the tokenizer of {what} broke down over the text (status {done.returncode})") from None
    if "error" in answer:
        raise CheckpointError(answer["error"])
    return list(answer["ids"])


def _stored_ids(text: Path) -> np.ndarray:
    """One row of token ids in a .npy file. Mapped first: so its header cannot ask for more than the file holds."""
    try:
        ids = np.lib.format.open_memmap(text, mode="r")
    except Exception as error:  # numpy raises many kinds on damaged headers
        why = " ".join(str(error).split())[:160]
        raise BadInput(f"text {text} cannot be read: {why}", argument="text") from None
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        what = f"text {text} must hold one row of token ids, got {ids.dtype} {str(ids.shape)[:60]}"
        raise BadInput(what, argument="text")
    return ids.astype(np.int64)


def _ids_of(place: Place, text: Path, tokenizer: Path | None, most: int | None) -> Tensor:
    try:
        if not text.is_file():
            raise OSError("it is missing, or no plain file")
        beginning(text, 1)
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"text {text} cannot be read: {error}", argument="text") from None
    if tokenizer is None:
        with place.folder() as folder:
            # Trainers often write the tokenizer once, into the folder of the run that the checkpoint's folder lies in.
            parent = Path(getattr(place, "path", folder)).parent
            if (found := next(filter(_has_tokenizer, (folder, parent)), None)) is None:
                what = f"{place.name} has no tokenizer; name one, or give the text's token ids as .npy"
                raise BadInput(what, argument="tokenizer")
            return _tokens_of_beginning(found, text, place.name, most)
    folder = tokenizer.parent if tokenizer.is_file() else tokenizer  # a folder, or a file in it
    if not _has_tokenizer(folder):
        what = f"tokenizer {tokenizer} has none of {', '.join(TOKENIZERS)}; name a folder with a tokenizer"
        raise BadInput(what, argument="tokenizer")
    return _tokens_of_beginning(folder, text, str(tokenizer), most)


def _tokens_of_beginning(folder: Path, text: Path, what: str, most: int | None) -> Tensor:
    """Tokens of as much of a text as gives `most` of them and a margin; the last ones hang on where it was cut."""
    size, length = text.stat().st_size, None if most is None else max(_LEAST, _PER_TOKEN * (most + _MARGIN))
    while True:
        try:
            content = beginning(text, length)
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"text {text} cannot be read: {error}", argument="text") from None
        ids = token_ids(folder, content, what)
        if most is None or length is None or length >= size:
            return torch.tensor(ids, dtype=torch.int64)
        if len(ids) >= most + _MARGIN:
            return torch.tensor(ids[:most], dtype=torch.int64)
        length *= 4


def beginning(text: Path, length: int | None) -> str:
    """The text in the first `length` bytes of a file, without a letter that they cut; None: all of it."""
    with text.open("rb") as stream:
        content = stream.read(-1 if length is None else length)
        cut = length is not None and bool(stream.read(1))
    return (
        codecs.getincrementaldecoder("utf-8")().decode(content, final=not cut).replace("\r\n", "\n").replace("\r", "\n")
    )


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in TOKENIZERS)
