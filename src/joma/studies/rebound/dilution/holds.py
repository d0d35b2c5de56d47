"""Decoders in which something of attention stays as it was at the valley, while they train on.

Every so many steps the held thing is measured on a fixed batch of the training text, layer by layer from below, with
this layer's own push left out. From that and from its value at the valley follows the push that makes up for the
difference. It holds until the next time, and no gradient goes through it.

    words    the mean logit of each word as key, less the mean of its row: an offset is added to the logits of its keys
    sizes    the variance of logits through the mean query (shared) and the rest (specific): q = a m + b (q - m)
    mean     the mean of what attention reads: a vector is added

A control works out the same push from its own state and gets it elsewhere: the offsets on permuted words, the pushes of
queries turned by a random rotation, a vector as long in a random direction. So it shows what comes of being pushed at
all. To hold sizes at their current value would push nothing, and one layer has no other layer to take sizes from.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from joma.host.arguments import Number
from joma.host.seeds import generator
from joma.measure.spread import spread_sums
from joma.models.change import Change
from joma.models.decoder import Decoder, DecoderConfig, Look

MOST = 10.0
"""The largest factor by which queries are scaled, and one over it the smallest."""
ROUNDS = 8
"""Offsets move the means of rows too. What is left of that shrinks several times with each round."""

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Hold(ABC):
    """What is held in every layer. Each function is of one layer, all members at once: (members, ...)."""

    elsewhere: bool = False
    """Whether it is the control: a push that is as large and holds nothing."""

    @abstractmethod
    def draw(self, config: DecoderConfig, tokens: Tensor, draws: torch.Generator) -> Tensor:
        """Where the control of one member pushes. tokens: of the fixed batch, (sequences, length)."""

    @abstractmethod
    def measure(self, seen: Tensors, tokens: Tensor) -> dict[str, Tensor]:
        """What is held, of what passed by on the fixed batch."""

    @abstractmethod
    def push(self, valley: Tensors, now: Tensors, drawn: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """What makes up for the difference; nothing where there is none."""

    @abstractmethod
    def change(self, push: Tensors) -> Change:
        """The push as the decoder takes it."""

    @abstractmethod
    def miss(self, valley: Tensors, now: Tensors, tokens: Tensor) -> Tensor:
        """How far the held thing is from its value at the valley, as a share of that, (members,)."""


class Shifted(Change):
    """Reads with a vector added, (members, width)."""

    def __init__(self, shift: Tensor) -> None:
        self.shift = shift

    def read(self, x: Tensor) -> Tensor:
        """As `Change` has it."""
        return x + self.shift[:, None, None]


@dataclass(frozen=True)
class Mean(Hold):
    """The mean of what attention reads, over all places of the batch."""

    def draw(self, config: DecoderConfig, tokens: Tensor, draws: torch.Generator) -> Tensor:
        """A direction."""
        direction = torch.randn(config.width, generator=draws)
        return direction / _length(direction)

    def measure(self, seen: Tensors, tokens: Tensor) -> dict[str, Tensor]:
        """(members, width)."""
        return {"mean": seen["input"].mean((1, 2))}

    def push(self, valley: Tensors, now: Tensors, drawn: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """The vector that is added."""
        shift = valley["mean"] - now["mean"]
        return {"shift": drawn * _length(shift)[..., None] if self.elsewhere else shift}

    def change(self, push: Tensors) -> Change:
        """As `Hold` has it."""
        return Shifted(push["shift"])

    def miss(self, valley: Tensors, now: Tensors, tokens: Tensor) -> Tensor:
        """Distance of the means."""
        return _length(now["mean"] - valley["mean"]) / _length(valley["mean"])


def _length(x: Tensor) -> Tensor:
    return x.square().sum(-1).sqrt()


class Scaled(Change):
    """Asks for scale x q + shift: (members, heads) and (members, heads, head width)."""

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        self.scale, self.shift = scale, shift

    def ask(self, query: Tensor) -> Tensor:
        """As `Change` has it."""
        return query * self.scale[:, None, :, None, None] + self.shift[:, None, :, None]


class Turned(Change):
    """Asks for q + matrix q + shift: (members, heads, head width, head width) and (members, heads, head width)."""

    def __init__(self, matrix: Tensor, shift: Tensor) -> None:
        self.matrix, self.shift = matrix, shift

    def ask(self, query: Tensor) -> Tensor:
        """As `Change` has it."""
        return query + query @ self.matrix[:, None].mT + self.shift[:, None, :, None]


@dataclass(frozen=True)
class Sizes(Hold):
    """The variance of logits over keys that goes through the mean query, or through the rest of queries, or both."""

    parts: tuple[str, ...] = ("shared", "specific")

    def draw(self, config: DecoderConfig, tokens: Tensor, draws: torch.Generator) -> Tensor:
        """A rotation for every head."""
        side = config.width // config.heads
        rotations: Tensor = torch.linalg.qr(torch.randn(config.heads, side, side, generator=draws)).Q
        return rotations

    def measure(self, seen: Tensors, tokens: Tensor) -> dict[str, Tensor]:
        """Both variances, (members, heads), and the mean query."""
        query, key = (seen[name] for name in ("query", "key"))  # (members, batch, heads, length, head width)
        flat = [part.transpose(0, 1).flatten(1, 2) for part in (query, key)]
        found = spread_sums(flat[0], flat[1], causal=True, finite=False).spread
        sizes = {part: getattr(found, part).to(query.dtype).view(len(query), -1) for part in ("shared", "specific")}
        return {**sizes, "query": query.mean((1, 3))}

    def push(self, valley: Tensors, now: Tensors, drawn: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """q = a m + b (q - m), with the mean query m of the batch; turned, q plus the rotated difference to that."""
        a, b = (self._factor(valley[part], now[part], part) for part in ("shared", "specific"))
        shift = (a - b)[..., None] * now["query"]
        if not self.elsewhere:
            return {"scale": b, "shift": shift}
        return {"matrix": (b - 1)[..., None, None] * drawn, "shift": (drawn @ shift[..., None]).squeeze(-1)}

    def _factor(self, valley: Tensor, now: Tensor, part: str) -> Tensor:
        if part not in self.parts:
            return torch.ones_like(now)
        return torch.where(valley == now, 1.0, valley / now).sqrt().clamp(1 / MOST, MOST)

    def change(self, push: Tensors) -> Change:
        """As `Hold` has it."""
        return Turned(push["matrix"], push["shift"]) if self.elsewhere else Scaled(push["scale"], push["shift"])

    def miss(self, valley: Tensors, now: Tensors, tokens: Tensor) -> Tensor:
        """Of the root of the variance, in the part and head where it is largest."""
        off = torch.stack([(now[part] / valley[part]).sqrt() - 1 for part in self.parts])
        return off.abs().amax((0, 2))


class Offset(Change):
    """Adds to the logits of a word's keys: (members, heads, words)."""

    def __init__(self, offsets: Tensor) -> None:
        self.offsets = offsets

    def score(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """As `Change` has it."""
        return logits + at_tokens(self.offsets, tokens)[:, :, :, None]


def at_tokens(values: Tensor, tokens: Tensor) -> Tensor:
    """Values of words (members, heads, words) at the places of tokens, (members, batch, heads, length)."""
    member = torch.arange(len(values), device=values.device)[:, None, None]
    return values.mT[member, tokens].mT


@dataclass(frozen=True)
class Words(Hold):
    """The mean logit of each word as key, less the mean of its row; a mean over all pairs of a query and such a key.

    Words that the fixed batch does not have get no offset.
    """

    def draw(self, config: DecoderConfig, tokens: Tensor, draws: torch.Generator) -> Tensor:
        """Another word for every word of the batch."""
        words, there = torch.arange(config.vocabulary), tokens.unique()
        words[there] = there[torch.randperm(len(there), generator=draws)]
        return words

    def measure(self, seen: Tensors, tokens: Tensor) -> dict[str, Tensor]:
        """(members, heads, words); 0 where a word is not there."""
        mask = _seen_keys(tokens)
        logits = seen["logits"].masked_fill(~mask, 0.0)
        centred = (logits - logits.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)).masked_fill(~mask, 0.0)
        words = seen["embedding"].shape[1]
        return {"logit": _by_word(centred.sum(-2), tokens, mask, words)}

    def push(self, valley: Tensors, now: Tensors, drawn: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """Offsets after which words have their logits of the valley, also less the mean of rows with offsets."""
        difference = valley["logit"] - now["logit"]
        offsets, words = difference, difference.shape[-1]
        mask = _seen_keys(tokens)
        share = mask / mask.sum(-1, keepdim=True)
        for _ in range(ROUNDS):
            rows = at_tokens(offsets, tokens[None]) @ share.to(offsets).mT
            offsets = difference + _by_word(rows @ mask.to(offsets), tokens, mask, words)
        if self.elsewhere:
            offsets = offsets.gather(-1, drawn[:, None].expand_as(offsets))
        return {"offsets": offsets}

    def change(self, push: Tensors) -> Change:
        """As `Hold` has it."""
        return Offset(push["offsets"])

    def miss(self, valley: Tensors, now: Tensors, tokens: Tensor) -> Tensor:
        """Root of the mean square over the places of the batch."""
        off, size = (
            at_tokens(values, tokens[None]).square().mean((1, 2, 3)).sqrt()
            for values in (now["logit"] - valley["logit"], valley["logit"])
        )
        return off / size


def _seen_keys(tokens: Tensor) -> Tensor:
    """Which keys a query sees, (queries, keys)."""
    length = tokens.shape[-1]
    return torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()


def _by_word(columns: Tensor, tokens: Tensor, mask: Tensor, words: int) -> Tensor:
    """Sums over queries at every key (members, batch, heads, length), as means over pairs, (members, heads, words)."""
    members, _, heads, _ = columns.shape
    flat = columns.transpose(1, 2).reshape(members * heads, -1)
    sums = flat.new_zeros(members * heads, words).index_add_(1, tokens.flatten(), flat)
    pairs = mask.sum(0).to(flat).expand(tokens.shape).flatten()
    count = flat.new_zeros(words).index_add_(0, tokens.flatten(), pairs)
    return (sums / count.clamp(min=1)).view(members, heads, words)


class Held(Decoder):
    """A decoder that holds something from a step on; before that it is a plain one."""

    tokens: Tensor
    begun: Tensor
    drawn: Tensor

    def __init__(
        self, config: DecoderConfig, seeds: Sequence[int], hold: Hold, tokens: Tensor, *, at: int, every: int
    ) -> None:
        """config, seeds: of the decoder. tokens: the fixed batch, (sequences, length). at: the step whose state is
        held. every: how many steps a push stays as it is.
        """
        super().__init__(config, seeds)
        self.hold, self.at, self.every = hold, at, every
        self.register_buffer("tokens", tokens, persistent=False)
        self.register_buffer("begun", torch.zeros((), dtype=torch.bool))
        each = [[hold.draw(config, tokens, generator(s, "hold", n)) for s in seeds] for n in range(config.layers)]
        self.register_buffer("drawn", torch.stack([torch.stack(of_layer) for of_layer in each]))
        with torch.no_grad():  # from a piece of the batch their shapes are known
            seen = self._passing([Change()] * config.layers, tokens[:1])
            found = [hold.measure(some, tokens[:1]) for some in seen]
        pushes = [hold.push(one, one, self.drawn[n], tokens[:1]) for n, one in enumerate(found)]
        for name in found[0]:
            self.register_buffer(f"valley_{name}", torch.stack([torch.zeros_like(one[name]) for one in found]))
        for name in pushes[0]:
            self.register_buffer(f"push_{name}", torch.stack([one[name] for one in pushes]))
        self._held, self._pushes = tuple(found[0]), tuple(pushes[0])

    def features(
        self, tokens: Number, *, noise: Tensor | None = None, look: Look | None = None, change: Sequence[Change] = ()
    ) -> Tensor:
        """As `Decoder` has it; without another change, with its own."""
        return super().features(tokens, noise=noise, look=look, change=change or self.changes())

    def changes(self) -> list[Change]:
        """What holds, by layer."""
        return [self.hold.change(self._of(layer, "push", self._pushes)) for layer in range(self.config.layers)]

    @torch.no_grad()
    def tend(self, step: int) -> None:
        """Before every step: at the step whose state is held, note it; then, every so often, push anew."""
        if step == self.at:
            self.begun.fill_(True)
            for layer, seen in enumerate(self._passing([Change()] * self.config.layers, self.tokens)):
                self._write(layer, "valley", self.hold.measure(seen, self.tokens))
        if step >= self.at and step % self.every == 0:
            for layer in range(self.config.layers):  # from below: what is above depends on it
                self._push(layer)

    @torch.no_grad()
    def miss(self) -> Tensor:
        """How far what is held is from its value at the valley now, (members, layers); 0 before that."""
        now = [self.hold.measure(seen, self.tokens) for seen in self._passing(self.changes(), self.tokens)]
        found = [self.hold.miss(self._valley(layer), one, self.tokens) for layer, one in enumerate(now)]
        return torch.where(self.begun, torch.stack(found, -1), 0.0)

    def _push(self, layer: int) -> None:
        changes = self.changes()
        changes[layer] = Change()
        now = self.hold.measure(self._passing(changes, self.tokens)[layer], self.tokens)
        self._write(layer, "push", self.hold.push(self._valley(layer), now, self.drawn[layer], self.tokens))

    def _passing(self, changes: Sequence[Change], tokens: Tensor) -> list[dict[str, Tensor]]:
        """What passes by in every layer with these changes."""
        seen: list[dict[str, Tensor]] = [{"embedding": self.embedding} for _ in range(self.config.layers)]

        def look(layer: int, name: str, value: Tensor) -> None:
            seen[layer][name] = value

        super().features(tokens, look=look, change=changes)
        return seen

    def _valley(self, layer: int) -> dict[str, Tensor]:
        return self._of(layer, "valley", self._held)

    def _of(self, layer: int, kind: str, names: Sequence[str]) -> dict[str, Tensor]:
        return {name: getattr(self, f"{kind}_{name}")[layer] for name in names}

    def _write(self, layer: int, kind: str, values: Tensors) -> None:
        """In place: a captured step reads these very tensors."""
        for name, value in values.items():
            getattr(self, f"{kind}_{name}")[layer].copy_(value)
