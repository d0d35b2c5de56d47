"""Tensor files that notice damage: safetensors with a checksum of all they hold, written atomically.

Safetensors itself checks its header and its sizes. A bit that turns over in the numbers it would hand on as they are.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joma.host.errors import JomaError
from joma.host.file_kinds import OWN
from joma.host.files import atomically

if TYPE_CHECKING:
    from torch import Tensor

_SEAL = "crc32"


class DamagedError(JomaError, ValueError):
    """A file does not hold what was written to it."""


def save_sealed(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None) -> None:
    """Write tensors, and strings about them, to one safetensors file with its checksum. Its name is joma's own."""
    from safetensors.torch import save_file

    held = {name: tensor.contiguous() for name, tensor in tensors.items()}
    about = dict(about or {})
    with atomically(path, OWN) as unfinished:
        save_file(held, unfinished, about | {_SEAL: str(_checksum(held, about))})


def load_sealed(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """What `save_sealed` wrote. A `DamagedError` if it is anything else; a missing file is a FileNotFoundError."""
    with _opened(path) as file:
        about = dict(file.metadata() or {})
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    seal = about.pop(_SEAL, "")
    if seal != str(_checksum(tensors, about)):
        raise DamagedError(f"{path} is damaged: its bytes are not those that were written")
    return tensors, about


def about_sealed(path: Path) -> dict[str, str]:
    """The strings of such a file alone, without its checksum being compared: for the question whose it is."""
    with _opened(path) as file:
        return dict(file.metadata() or {})


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            yield file
    except (SafetensorError, UnicodeDecodeError) as error:
        raise DamagedError(f"{path} is damaged: {error}") from error


def _checksum(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> int:
    """CRC-32 of names, types, shapes, bytes and strings, in an order of its own: safetensors keeps none."""
    import torch

    found = zlib.crc32(repr(sorted(about.items())).encode())
    for name, tensor in sorted(tensors.items()):
        found = zlib.crc32(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}".encode(), found)
        flat = tensor.detach().cpu().reshape(-1)
        if flat.stride(0) != 1:  # one number that is spread with stride 0 counts as contiguous
            flat = flat.clone(memory_format=torch.contiguous_format)
        found = zlib.crc32(flat.view(torch.uint8).numpy().data, found)
    return found
