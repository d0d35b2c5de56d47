"""Dropout that depends on nothing but a member's seed, the step and the place: no generator, no state.

Each mask is a hash of (key, index). So a network sees the same masks alone and inside an ensemble, a resumed run
sees those it would have seen, a captured CUDA graph replays fresh ones by changing the key, and a compiler can
recompute a mask in the backward pass instead of storing it.
"""

import math

import torch
from torch import Tensor

from joma.host.arguments import Number, as_tensor, floating
from joma.models.parts import compiled_part

_SIGN = 1 << 31
_PLACE = 0x85EBCA6B


@compiled_part
def keys(seeds: Number, step: Tensor | int) -> Tensor:
    """One int32 key per member and step. seeds (members,), whole numbers; step a number or an int32 tensor.

    >>> keys(torch.tensor([0, 1], dtype=torch.int32), 5).dtype
    torch.int32
    """
    return _mix(_mix(as_tensor(seeds, "seeds").int() + 0x2545F491) ^ (step * _signed(0x9E3779B1) + 0x1B873593))


def onwards(key: Number, places: int) -> Tensor:
    """The key whose place 1 is place 1 + `places` of this one: what is alike but for its places can be compiled once.

    >>> x, key = torch.ones(1, 5), keys(torch.tensor([7], dtype=torch.int32), 0)
    >>> torch.equal(dropout(x, 0.5, onwards(key, 3), place=1), dropout(x, 0.5, key, place=4))
    True
    """
    return as_tensor(key, "key").int() + _signed(_PLACE * places)


def dropout(x: Number, probability: float, key: Number, place: int) -> Tensor:
    """x (members, ...) with entries dropped with `probability`, the others scaled up. `key` (members,) from `keys`.

    `place` tells the dropouts of one forward pass apart. Masks are uniform to 2^-32.

    >>> x = torch.ones(1, 100_000)
    >>> kept = dropout(x, 0.2, keys(torch.tensor([7], dtype=torch.int32), 0), place=1) > 0
    >>> round(kept.float().mean().item(), 2)
    0.8
    """
    x = floating(x, "x")
    if probability == 0:
        return x
    index = torch.arange(math.prod(x.shape[1:]), device=x.device, dtype=torch.int32).view(x.shape[1:])
    start = _mix(onwards(key, place)).view(-1, *[1] * (x.ndim - 1))
    word, bound = _mix(index ^ start), round(probability * 2 * _SIGN) - _SIGN
    # On a CPU torch has vector instructions for numbers that are compared and multiplied, and none for truth values.
    kept = word.ge_(bound).to(x.dtype) if x.device.type == "cpu" else word >= bound
    return x * kept * (1 / (1 - probability))


def _mix(x: Tensor) -> Tensor:
    """A bijection of 32-bit words that lets every input bit change every output bit (two multiply-xorshift rounds)."""
    x = ((x >> 16).bitwise_and_(0xFFFF)).bitwise_xor_(x).mul_(0x7FEB352D)
    x.bitwise_xor_((x >> 15).bitwise_and_(0x1FFFF)).mul_(_signed(0x846CA68B))
    return x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))


def _signed(number: int) -> int:
    """The last 32 bits, as a number with a sign."""
    word = number % (2 * _SIGN)
    return word - 2 * _SIGN if word >= _SIGN else word
