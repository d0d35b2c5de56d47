"""What attention reads, held as it was at the valley.

    words      the logit that the mean query gives each word, less the mean over places: an offset on its keys
    mean       the mean of what attention reads: a vector is added
    moments    its mean and its covariance: the linear map with the least movement that gives both back

Words and mean are held in every batch. The map of the covariance is worked out on the fixed batch every so many steps,
since a batch of training has too few places for it; the mean around which it acts is that of the batch.

A control gets the same push elsewhere: a word's offset on the words of the next sequence, a vector as long in a random
direction, the map turned by a random rotation.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from joma.models.change import Change
from joma.models.decoder import DecoderConfig
from joma.studies.rebound._held import Hold, Tensors, length

RIDGE = 1e-3
"""Of the mean variance, added to both covariances: directions in which nothing varies stay as they are."""


@dataclass(frozen=True)
class Mean(Hold):
    """The mean of what attention reads, over all places of a batch."""

    always: ClassVar[bool] = True

    def draw(self, config: DecoderConfig, tokens: Tensor, draws: torch.Generator) -> Tensor:
        """A direction."""
        direction = torch.randn(config.width, generator=draws)
        return direction / length(direction)

    def measure(self, seen: Tensors, tokens: Tensor) -> dict[str, Tensor]:
        """(members, width)."""
        return {"mean": seen["input"].mean((1, 2))}

    def push(self, valley: Tensors, now: Tensors, drawn: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """The mean of the valley; the difference is taken in every batch."""
        return {"on": torch.ones_like(now["mean"][:, :1]), "mean": valley["mean"], "aside": drawn}

    def change(self, push: Tensors) -> Change:
        """As `Hold` has it."""
        return MeanKept(push["on"], push["mean"], push["aside"] if self.elsewhere else None)

    def miss(self, valley: Tensors, now: Tensors, tokens: Tensor) -> Tensor:
        """Distance of the means."""
        return length(now["mean"] - valley["mean"]) / length(valley["mean"])


class MeanKept(Change):
    """Reads with the mean of the batch replaced: (members, width). aside: the control's direction."""

    def __init__(self, on: Tensor, mean: Tensor, aside: Tensor | None) -> None:
        self.on, self.mean, self.aside = on, mean, aside

    def read(self, x: Tensor) -> Tensor:
        """As `Change` has it."""
        return x + (self.on * self.lacking(x.mean((1, 2))))[:, None, None]

    def lacking(self, now: Tensor) -> Tensor:
        """What is added where the mean is `now`, (members, width)."""
        lacks = self.mean - now
        return lacks if self.aside is None else self.aside * length(lacks.detach())[:, None]


@dataclass(frozen=True)
class Moments(Mean):
    """The mean and the covariance of what attention reads."""

    always: ClassVar[bool] = False

    def draw(self, config: DecoderConfig, tokens: Tensor, draws: torch.Generator) -> Tensor:
        """A rotation. Its first row is the direction of the mean's push."""
        rotation: Tensor = torch.linalg.qr(torch.randn(config.width, config.width, generator=draws)).Q
        return rotation

    def measure(self, seen: Tensors, tokens: Tensor) -> dict[str, Tensor]:
        """The mean (members, width) and the covariance (members, width, width)."""
        x = seen["input"].flatten(1, 2)
        mean = x.mean(1)
        centred = x - mean[:, None]
        return {"mean": mean, "covariance": centred.mT @ centred / x.shape[1]}

    def push(self, valley: Tensors, now: Tensors, drawn: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """The mean of the valley, and by how much the map of the covariance is more than nothing."""
        more = transport(now["covariance"], valley["covariance"])
        if self.elsewhere:
            more = drawn @ more @ drawn.mT
        return super().push(valley, now, drawn[:, 0], tokens) | {"more": more}

    def change(self, push: Tensors) -> Change:
        """As `Hold` has it."""
        return MomentsKept(push["on"], push["mean"], push["aside"] if self.elsewhere else None, push["more"])

    def miss(self, valley: Tensors, now: Tensors, tokens: Tensor) -> Tensor:
        """The larger of two: distance of the means, distance of the covariances."""
        off, size = (x.square().sum((-2, -1)).sqrt() for x in (now["covariance"] - valley["covariance"],
                                                              valley["covariance"]))  # fmt: skip
        return torch.maximum(super().miss(valley, now, tokens), off / size)


class MomentsKept(MeanKept):
    """Reads what is apart from the mean of the batch through a map as well: more, (members, width, width)."""

    def __init__(self, on: Tensor, mean: Tensor, aside: Tensor | None, more: Tensor) -> None:
        super().__init__(on, mean, aside)
        self.more = more

    def read(self, x: Tensor) -> Tensor:
        """As `Change` has it."""
        now = x.mean((1, 2))
        apart = (x - now[:, None, None]).flatten(1, 2) @ self.more  # a symmetric map
        return x + apart.view(x.shape) + (self.on * self.lacking(now))[:, None, None]


def transport(now: Tensor, then: Tensor) -> Tensor:
    """A - 1 of the symmetric A with A now A = then: of all such maps the one that moves a Gaussian least.

    now, then: covariances (..., width, width). Both get the same small ridge, so that A is 1 where nothing varies.
    """
    wide = [x.double() for x in (now, then)]
    width = now.shape[-1]
    ridge = RIDGE * wide[1].diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None] * torch.eye(width).to(wide[0])
    # A member that diverged has no covariance. It must not keep the others from theirs.
    sound = torch.stack([x.isfinite().all((-2, -1)) for x in wide]).all(0)[..., None, None]
    wide = [torch.where(sound, x, 0.0) + torch.where(sound, ridge, torch.eye(width).to(x)) for x in wide]
    root, inverse = _roots(wide[0])
    middle, _ = _roots(root @ wide[1] @ root)
    found = inverse @ middle @ inverse - torch.eye(width).to(wide[0])
    return ((found + found.mT) / 2).to(now)


def _roots(x: Tensor) -> tuple[Tensor, Tensor]:
    """The root of a positive matrix, and one over it."""
    values, vectors = torch.linalg.eigh((x + x.mT) / 2)
    tiny = torch.finfo(x.dtype).tiny
    roots = values.clamp(min=tiny).sqrt()
    return (vectors * roots[..., None, :]) @ vectors.mT, (vectors / roots[..., None, :]) @ vectors.mT


@dataclass(frozen=True)
class Words(Hold):
    """The logit that the mean query of a batch gives each word as key, less the mean over its places.

    Words that the fixed batch does not have get no offset.
    """

    always: ClassVar[bool] = True

    def draw(self, config: DecoderConfig, tokens: Tensor, draws: torch.Generator) -> Tensor:
        """Nothing is drawn: the control has the offsets of another sequence."""
        return torch.zeros(())

    def measure(self, seen: Tensors, tokens: Tensor) -> dict[str, Tensor]:
        """(members, heads, words); 0 where a word is not there."""
        query, key, words = seen["query"], seen["key"], seen["embedding"].shape[1]
        bare = (query[..., -1:, :] @ key.mT).squeeze(-2) / math.sqrt(query.shape[-1])
        offsets = seen["logits"][..., -1, :] - bare  # all queries have them; the last one sees all keys
        logit, there = words_of_mean_query(query, key, tokens[None], words, offsets)
        return {"logit": logit, "there": there.to(logit).expand_as(logit)}

    def push(self, valley: Tensors, now: Tensors, drawn: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """The logits of the valley, and which words have one."""
        return {"logit": valley["logit"], "there": valley["there"]}

    def change(self, push: Tensors) -> Change:
        """As `Hold` has it."""
        return WordsKept(push["logit"], push["there"], elsewhere=self.elsewhere)

    def miss(self, valley: Tensors, now: Tensors, tokens: Tensor) -> Tensor:
        """Root of the mean square over the places of the fixed batch."""
        off, size = (
            at_tokens(values, tokens[None]).square().mean((1, 2, 3)).sqrt()
            for values in (now["logit"] - valley["logit"], valley["logit"])
        )
        return off / size


class WordsKept(Change):
    """Gives words their logits of the valley: (members, heads, words). there: 1 for words that have one, else 0."""

    def __init__(self, logit: Tensor, there: Tensor, *, elsewhere: bool) -> None:
        self.logit, self.there, self.elsewhere = logit, there, elsewhere

    def score(self, logits: Tensor, query: Tensor, key: Tensor, tokens: Tensor) -> Tensor:
        """As `Change` has it."""
        now, _ = words_of_mean_query(query, key, tokens, self.logit.shape[-1])
        offsets = at_tokens(self.there * (self.logit - now), tokens)
        if self.elsewhere:
            offsets = offsets.detach().roll(1, dims=1)
        return logits + offsets[:, :, :, None]


def words_of_mean_query(
    query: Tensor, key: Tensor, tokens: Tensor, words: int, offsets: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    """The logit that the mean query gives each word, a mean over the places where it stands; and which words do.

    query, key: (members, batch, heads, length, head width). tokens: (members or 1, batch, length). offsets: what is
    added to the logits of keys, (members, batch, heads, length). The first result is (members, heads, words), less the
    mean over all places, and 0 for words that are not there; the second is (members or 1, 1, words).
    """
    members, _, heads, _, side = query.shape
    mean = query.mean((1, 3), keepdim=True)
    logits = (mean * key).sum(-1) / math.sqrt(side) + offsets  # (members, batch, heads, length)
    places = (logits - logits.mean((1, 3), keepdim=True)).transpose(1, 2).flatten(2)  # (members, heads, places)
    at = tokens.flatten(1)  # (members or 1, places)
    sums = places.new_zeros(members, heads, words).scatter_add(2, at[:, None].expand_as(places), places)
    counts = places.new_zeros(len(at), words).scatter_add(1, at, torch.ones_like(at, dtype=places.dtype))[:, None]
    return sums / counts.clamp(min=1), counts > 0


def at_tokens(values: Tensor, tokens: Tensor) -> Tensor:
    """Values of words (members, heads, words) at the places of tokens, (members, batch, heads, length)."""
    members, heads, _ = values.shape
    _, batch, size = tokens.shape
    at = tokens.flatten(1)[:, None].expand(members, heads, -1)
    return values.gather(2, at).view(members, heads, batch, size).transpose(1, 2)
