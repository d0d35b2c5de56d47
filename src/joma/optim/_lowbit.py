"""Bases in 8 bits: whole numbers and no scale.

A direction has length 1. So its codes c, whole numbers with the largest at 127, say all of it: it is c / |c|. No scale
is kept, none can be damaged, and what is read back has length 1 again. Scales for 256 entries at a time, as in
Q-GaLore (arXiv 2407.08296), leave bases about as orthonormal: `bench_galore --parts lowbit_loss` measures both.
"""

import torch
from torch import Tensor

LARGEST = 127
"""The largest code."""


def to_stored(basis: Tensor, dtype: torch.dtype) -> Tensor:
    """A basis (..., rows, rank) for its memory. Codes stay as they are, bit for bit.

    - basis: floating, or as it was stored in any precision
    - dtype: what `basis_dtype` says
    """
    if basis.dtype == dtype:
        return basis
    basis = to_directions(basis, torch.promote_types(basis.dtype, torch.float32))
    if dtype != torch.int8:
        return basis
    return (basis * (LARGEST / basis.abs().amax(-2, keepdim=True))).round().to(torch.int8)


def to_directions(stored: Tensor, dtype: torch.dtype) -> Tensor:
    """A basis (..., rows, rank) to compute with, from its memory; where that is floating already, it is not copied."""
    if stored.dtype == dtype:  # nearly always; a call of torch that changes nothing costs the host something too
        return stored
    codes = stored.to(dtype)
    if stored.is_floating_point():
        return codes
    precise = torch.promote_types(dtype, torch.float32)
    lengths = torch.linalg.vector_norm(codes, dim=-2, keepdim=True, dtype=precise)
    return codes.div_(lengths)
