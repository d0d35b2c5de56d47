"""Bases in few bits: whole numbers, 8 bits or 4, and no scale.

A direction has length 1. So its codes c, whole numbers with the largest at 127 (or 7), say all of it: it is c / |c|. No
scale is kept, none can be damaged, and what is read back has length 1 again. Scales for 256 entries at a time, as in
Q-GaLore (arXiv 2407.08296), leave bases about as orthonormal: `bench_galore --parts lowbit_loss` measures both.
"""

import torch
from torch import Tensor

INT4: torch.dtype = torch.int4  # type: ignore[attr-defined]
LARGEST = {torch.int8: 127, INT4: 7}
"""The largest code, by what `basis_dtype` says."""


def stored_as(rows: int, dtype: torch.dtype) -> tuple[int, torch.dtype]:
    """How many rows the memory of a basis has, and of what; torch computes nothing in int4, so a byte has two codes."""
    return ((rows + 1) // 2, torch.uint8) if dtype == INT4 else (rows, dtype)


def has_rows(stored: Tensor, rows: int) -> bool:
    """Whether something is the memory of one basis with so many rows, in any precision."""
    kept = INT4 if stored.dtype == torch.uint8 else stored.dtype
    return stored.ndim == 2 and len(stored) == stored_as(rows, kept)[0]


def to_stored(basis: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """A basis (..., rows, rank) for its memory. Codes of the same kind stay as they are, bit for bit.

    - basis: floating, or as it was stored in any precision
    - rows: the shorter side of the matrix
    - dtype: what `basis_dtype` says
    """
    if basis.dtype == stored_as(rows, dtype)[1]:
        return basis
    basis = to_directions(basis, rows, torch.promote_types(basis.dtype, torch.float32))
    if dtype not in LARGEST:
        return basis
    codes = (basis * (LARGEST[dtype] / basis.abs().amax(-2, keepdim=True))).round().to(torch.int8)
    return codes if dtype == torch.int8 else _two_in_a_byte(codes)


def to_directions(stored: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """A basis (..., rows, rank) to compute with, from its memory; where that is floating already, it is not copied."""
    if stored.dtype == dtype:  # nearly always; a call of torch that changes nothing costs the host something too
        return stored
    if stored.is_floating_point():
        return stored.to(dtype)
    codes = (_one_in_a_byte(stored)[..., :rows, :] if stored.dtype == torch.uint8 else stored).to(dtype)
    precise = torch.promote_types(dtype, torch.float32)
    lengths = torch.linalg.vector_norm(codes, dim=-2, keepdim=True, dtype=precise)
    return codes.div_(lengths)


def _two_in_a_byte(codes: Tensor) -> Tensor:
    """The first half of the rows in the low bits, the second half in the high ones, with a row of zeros if odd."""
    if codes.shape[-2] % 2:
        codes = torch.cat((codes, torch.zeros_like(codes[..., :1, :])), -2)
    low, high = codes.view(torch.uint8).chunk(2, -2)
    return (low & 15) | (high << 4)


def _one_in_a_byte(stored: Tensor) -> Tensor:
    low, high = (stored << 4).view(torch.int8), stored.view(torch.int8)
    return torch.cat((low >> 4, high >> 4), -2)  # of signed numbers: the sign comes along
