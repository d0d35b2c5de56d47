"""Small integers and small floating numbers, several to a word, as public formats of quantised weights pack them."""

from __future__ import annotations

from math import gcd

import torch
from torch import Tensor

# The 16 numbers of FP4 (one bit of sign, two of exponent, one of mantissa).
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # nibble k of a word of AWQ belongs to this one of its eight columns


def unpacked(words: Tensor, bits: int) -> Tensor:
    """(rows * 32 / bits, columns) integers of `bits` bits from (rows, columns) words of 32, the lowest bits first.

    Three bits run on from one word into the next: 32 integers take three words.

    >>> unpacked(torch.tensor([[0x3210]], dtype=torch.int32), 4)[:4, 0].tolist()
    [0, 1, 2, 3]
    """
    shared = gcd(bits, 32)
    height, count = bits // shared, 32 // shared
    if words.shape[0] % height:
        raise ValueError(f"{words.shape[0]} words do not hold whole numbers of {bits} bits")
    wide = (words.to(torch.int64) & 0xFFFFFFFF).view(-1, height, words.shape[1])
    found = torch.empty(wide.shape[0], count, words.shape[1], dtype=torch.int16)
    for at in range(count):
        word, shift = divmod(at * bits, 32)
        value = wide[:, word] >> shift
        if shift + bits > 32:
            value = value | wide[:, word + 1] << (32 - shift)
        found[:, at] = (value & (2**bits - 1)).to(torch.int16)
    return found.view(-1, words.shape[1])


def in_awq_order(values: Tensor) -> Tensor:
    """Rows that AWQ has put in another order within every eight, back in their own."""
    back = torch.tensor(AWQ_ORDER).argsort()
    return values.view(-1, 8, values.shape[1])[:, back].reshape(values.shape)


def nibbles(packed: Tensor, *, high_first: bool) -> Tensor:
    """(..., 2 n) numbers from 0 to 15 from (..., n) bytes."""
    high, low = packed >> 4, packed & 0xF
    both = (high, low) if high_first else (low, high)
    return torch.stack(both, -1).flatten(-2)


def spread(scale: Tensor, shape: tuple[int, ...], blocks: tuple[int, ...] | None = None) -> Tensor:
    """`scale` as it multiplies a tensor of that shape: one number for all, one per row, or one per block.

    blocks: the size of a block along the last dimensions. Where it is not known, it is 128 if that fits, as almost
    everywhere, else what divides the dimension. ValueError where nothing fits.

    >>> spread(torch.tensor([[1.0, 2.0]]), (2, 4)).tolist(), spread(torch.tensor([1.0, 2.0]), (2, 4)).tolist()
    ([[1.0, 1.0, 2.0, 2.0]], [[1.0], [2.0]])
    """
    if scale.numel() == 1:
        return scale.reshape((1,) * len(shape))
    if scale.ndim == 1:
        scale = scale[:, None]
    if scale.ndim != len(shape):
        raise ValueError(f"its scales have shape {tuple(scale.shape)}, and it has {shape}")
    known = (None,) * (len(shape) - len(blocks or ())) + tuple(blocks or ())
    for dim, (count, length) in enumerate(zip(scale.shape, shape, strict=True)):
        if count in (1, length):
            continue
        size = _block(count, length, known[dim])
        scale = scale.repeat_interleave(size, dim).narrow(dim, 0, length)
    return scale


def _block(count: int, length: int, known: int | None) -> int:
    for size in (known, 128, length // count if count else None):
        if size and -(-length // size) == count:
            return size
    raise ValueError(f"{count} scales do not fit {length} rows or columns")
