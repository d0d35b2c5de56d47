"""The text that a model reads while it is measured: its token ids, and how they are cut into windows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.host.errors import BadInput
from joma.host.words import counted
from joma.probes.lengths import default_seq_len
from joma.scan.checkpoint import Place
from joma.scan.loading import TOKENIZERS, token_ids

SHORTEST = 32
"""Tokens that a text must have where seq_len is not given, or as many as the model was trained on, if that is less."""


def tokens_of(place: Place, config: Any, text: Path, tokenizer: Path | None, *, seq_len: int | None = None) -> Tensor:
    """The token ids of a text for the model at a place, or of a .npy file that holds them already.

    config: the model's, as transformers reads it. tokenizer: a folder with one; None: that of the checkpoint.
    seq_len: tokens that the text must have, those of one window; None: at most 32.
    """
    if text.suffix == ".npy":
        if tokenizer is not None:
            raise BadInput(f"--tokenizer is for words, but text {text} holds token ids already")
        tokens = torch.from_numpy(_stored_ids(text))
    else:
        tokens = _ids_of(place, text, tokenizer)
    _must_suit(tokens, config, text, seq_len or min(SHORTEST, default_seq_len(config)))
    return tokens


def windows_said(measures: Sequence[str], text: Path, seq_len: int, length: int) -> str:
    """How a text is read, and for which measures, in one sentence.

    >>> windows_said(["entropy"], Path("a.txt"), 16, 100)
    'entropy reads a.txt: 6 windows of 16 tokens; the last 4 of its 100 tokens are not read'
    """
    count, rest = divmod(length, seq_len)
    left = f"; the last {rest} of its {length:,} tokens are not read" if rest else ""
    who = f"{', '.join(measures)} read{'s' if len(measures) == 1 else ''}"
    return f"{who} {text.name}: {counted(count, 'window')} of {counted(seq_len, 'token')}{left}"


def _must_suit(tokens: Tensor, config: Any, text: Path, least: int) -> None:
    words = getattr(config, "vocab_size", None)
    if len(tokens) < least:
        more = counted(least - len(tokens), "more token")
        raise BadInput(f"text {text} has {counted(len(tokens), 'token')}, and at least {least} are needed: give {more}")
    for token in (int(tokens.min()), int(tokens.max())):
        if isinstance(words, int) and not 0 <= token < words:
            raise BadInput(f"text {text} has token {token}, and the model knows 0 to {words - 1}")


def _stored_ids(text: Path) -> np.ndarray:
    """One row of token ids in a .npy file. Mapped first: so its header cannot ask for more than the file holds."""
    try:
        ids = np.lib.format.open_memmap(text, mode="r")
    except Exception as error:  # numpy raises many kinds on damaged headers
        raise BadInput(f"text {text} cannot be read: {' '.join(str(error).split())[:160]}") from None
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise BadInput(f"text {text} must hold one row of token ids, got {ids.dtype} {str(ids.shape)[:60]}")
    return ids.astype(np.int64)


def _ids_of(place: Place, text: Path, tokenizer: Path | None) -> Tensor:
    try:
        if not text.is_file():
            raise OSError("it is missing, or no plain file")
        content = text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"text {text} cannot be read: {error}") from None
    if tokenizer is not None:
        ids = token_ids(_given(tokenizer), content, str(tokenizer))
    else:
        with place.folder() as folder:
            ids = token_ids(_beside(folder, place), content, place.name)
    return torch.tensor(ids, dtype=torch.int64)


def _given(tokenizer: Path) -> Path:
    """The folder that --tokenizer names, by itself or by a file in it."""
    folder = tokenizer.parent if tokenizer.is_file() else tokenizer
    if not _has_tokenizer(folder):
        raise BadInput(f"--tokenizer {tokenizer} has none of {', '.join(TOKENIZERS)}; name a folder with a tokenizer")
    return folder


def _beside(folder: Path, place: Place) -> Path:
    """Trainers often write the tokenizer once, into the folder of the run that the checkpoint's folder lies in."""
    if _has_tokenizer(folder):
        return folder
    parent = Path(getattr(place, "path", folder)).parent
    if _has_tokenizer(parent):
        return parent
    raise BadInput(f"{place.name} has no tokenizer; name one with --tokenizer, or give the text's token ids as .npy")


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in TOKENIZERS)
