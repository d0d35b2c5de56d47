"""What the latent hierarchies hand out, and how tokens that are switched on become a sequence."""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import NamedTuple

import torch
from torch import Tensor

from joma.host.arguments import Number, as_tensor, described, integer
from joma.host.words import brief_repr

Generators = torch.Generator | Sequence[torch.Generator]
"""One stream of random numbers, or one for each member of an ensemble."""


@brief_repr
class Sample(NamedTuple):
    """Sequences, their classes, and all that is hidden behind them.

    >>> from joma.data import HBLT
    >>> sample = HBLT.one_per_class(2, (2, 3), 1.0).sample(5, generator=torch.Generator().manual_seed(0))
    >>> sample.tokens.shape, [latents.shape[-1] for latents in sample.latents]
    (torch.Size([5, 12]), [4, 2])
    """

    tokens: Tensor
    """(*shape, length) int64: the tokens that are on, in increasing order, at the end; pads before them."""
    labels: Tensor
    """(*shape,) int64: the class."""
    latents: tuple[Tensor, ...]
    """(*shape, latents of a level) bool, one tensor per level, the lowest first."""
    on: Tensor
    """(*shape, tokens) bool: which tokens appear."""


def write_sequences(on: Number, *, length: int, pad: int) -> Tensor:
    """Sequences (..., length) of the tokens that are on, in increasing order, at the END; `pad` stands before them.

    on: (..., tokens) bool, token i is written as the id i. `pad` must not be one of these ids, so `written != pad` is
    the mask of what was written. A length below the number of tokens waits for the device, to see that all samples fit.

    >>> write_sequences(torch.tensor([[True, False, True], [False, False, False]]), length=4, pad=9)
    tensor([[9, 9, 0, 2],
            [9, 9, 9, 9]])
    """
    on = as_tensor(on, "on")
    if on.dtype != torch.bool or on.ndim < 1:
        raise ValueError(f"on must be boolean with shape (..., tokens), got {described(on)}")
    count = on.shape[-1]
    if 0 <= pad < count:
        raise ValueError(f"pad must not be the id of a token, 0 to {count - 1}, got {pad}")
    if integer(length, "length", 1) < count:
        longest = int(on.sum(-1).max()) if on.numel() else 0
        if longest > length:
            raise ValueError(f"length must be at least {longest}, the tokens of the longest sample, got {length}")
    upto = on.cumsum(-1)  # tokens that are on up to here
    token = torch.arange(count, device=on.device)
    # A permutation: those that are off come first, then those that are on, both in their order.
    place = torch.where(on, count - 1 - upto[..., -1:] + upto, token - upto)
    written = torch.empty_like(place).scatter_(-1, place, torch.where(on, token, pad))
    if length > count:
        return torch.nn.functional.pad(written, (length - count, 0), value=pad)
    return written[..., count - length :]


def streams(
    seed: int, members: Sequence[int], step: int = 0, *, device: torch.device | str = "cpu"
) -> list[torch.Generator]:
    """One generator for each of these members at this step, made of nothing but the numbers given.

    So a run that resumes, or an ensemble that is split, draws what it would have drawn.

    >>> one, two = streams(0, [3, 4], step=7)
    >>> torch.equal(torch.rand(2, generator=two), torch.rand(2, generator=streams(0, [4], step=7)[0]))
    True
    """
    names = (f"{seed} {member} {step}".encode() for member in members)
    digests = (blake2b(name, digest_size=7).digest() for name in names)  # 56 bits: any device takes them as a seed
    return [torch.Generator(device).manual_seed(int.from_bytes(digest)) for digest in digests]


def sample_shape(shape: int | Sequence[int], members: tuple[int, ...]) -> tuple[int, ...]:
    """`shape` as a tuple that begins with the ensemble's own."""
    sizes = tuple(integer(size, "shape", 0) for size in (shape if isinstance(shape, Sequence) else (shape,)))
    if sizes[: len(members)] != members:
        raise ValueError(f"shape must begin with {members}, the members of the ensemble, got {sizes}")
    return sizes


def uniform(shape: tuple[int, ...], generator: Generators, device: torch.device) -> Tensor:
    """Numbers in [0, 1), float64. From a list of generators each member draws what it would draw alone."""
    own = shape if isinstance(generator, torch.Generator) else shape[1:]
    if not isinstance(generator, torch.Generator) and shape[:1] != (len(generator),):
        raise ValueError(f"shape must begin with {len(generator)}, the number of generators, got {shape}")

    def draw(source: torch.Generator) -> Tensor:
        if source.device.type != device.type:
            raise ValueError(f"the generator is on {source.device}, the data on {device}; `to` moves the data")
        return torch.rand(own, generator=source, device=device, dtype=torch.float64)

    return each(generator, draw)


def each(generator: Generators, draw: Callable[[torch.Generator], Tensor]) -> Tensor:
    """What one generator draws, or what each of a list draws, stacked in front."""
    if isinstance(generator, torch.Generator):
        return draw(generator)
    if not generator:
        raise ValueError("an ensemble needs at least one generator, got none")
    return torch.stack([draw(one) for one in generator])


def rows(table: Tensor, index: Tensor) -> Tensor:
    """table[..., index, :] member by member: table (*members, rows, width), index and result (*members, *more, ...)."""
    members = table.shape[:-2]
    start = torch.arange(members.numel(), device=table.device) * table.shape[-2]
    return table.flatten(0, -2)[index + with_ones_between(start.reshape(members), index.ndim)]


def with_ones_between(values: Tensor, dims: int, keep: int = 0) -> Tensor:
    """`values` with ones put between its members and its last `keep` axes, until it has `dims` dimensions."""
    members = values.ndim - keep
    return values.reshape((*values.shape[:members], *[1] * (dims - values.ndim), *values.shape[members:]))
