"""What took long to prepare, kept in one folder: safetensors files, named after a hash of what they were made from."""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from joma.host.sealed import DamagedError, load_sealed, save_sealed


def cache_folder() -> Path:
    """JOMA_CACHE, else `joma` in XDG_CACHE_HOME, else ~/.cache/joma. Everything in it can be made or fetched again."""
    if named := os.environ.get("JOMA_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "joma"


def key_of(*parts: object) -> str:
    """One hash for everything that decides a result; the parts as JSON writes them."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def remembered(kind: str, key: str, compute: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """What was computed for this key before, else `compute()`, kept for the next time.

    A damaged file is made anew. A folder that cannot be written (read-only, full) costs time at the next call, no more.
    """
    from safetensors import SafetensorError

    path = cache_folder() / f"{kind}-{key[:32]}.safetensors"
    with suppress(OSError, DamagedError):
        return load_sealed(path)[0]
    tensors = compute()
    with suppress(OSError, SafetensorError):
        path.parent.mkdir(parents=True, exist_ok=True)
        save_sealed(path, tensors)
    return tensors


def packed(words: Sequence[str]) -> Tensor:
    """Strings as a tensor of bytes, for a file that holds tensors."""
    return torch.frombuffer(bytearray(json.dumps(list(words)).encode()), dtype=torch.uint8)


def unpacked(tensor: Tensor) -> tuple[str, ...]:
    """The strings that `packed` took."""
    return tuple(json.loads(tensor.numpy().tobytes()))
