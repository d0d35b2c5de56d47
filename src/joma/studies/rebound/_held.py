"""Decoders in which something of attention stays as it was at the valley, while they train on.

What is held is measured at the valley, on a fixed batch of the training text. From then on a push makes up for what is
lacking. There are two ways:

    anew     every so many steps the held thing is measured on the fixed batch, layer by layer from below, with this
             layer's own push left out; the push that follows holds until the next time, and no gradient goes through it
    always   the push is worked out from the very batch that passes, so that it is exact in every batch; the gradient
             goes through it, so nothing is learned against it

A control is pushed as far elsewhere. So it shows what comes of being pushed at all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from joma.host.arguments import Number
from joma.host.seeds import generator
from joma.models.change import Change
from joma.models.decoder import Decoder, DecoderConfig, Look

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Hold(ABC):
    """What is held in every layer. Each function is of one layer, all members at once: (members, ...)."""

    elsewhere: bool = False  # whether it is the control: a push that is as large and holds nothing
    always: ClassVar[bool] = False
    """Whether the push is worked out in every pass; then it is written once, at the valley."""

    @abstractmethod
    def draw(self, config: DecoderConfig, tokens: Tensor, draws: torch.Generator) -> Tensor:
        """Where the control of one member pushes. tokens: of the fixed batch, (sequences, length)."""

    @abstractmethod
    def measure(self, seen: Tensors, drawn: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """What is held, of what passed by on the fixed batch; drawn: what the controls of all members drew."""

    @abstractmethod
    def push(self, valley: Tensors, now: Tensors, drawn: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """What makes up for the difference, as tensors. A push of zeros changes nothing."""

    @abstractmethod
    def change(self, push: Tensors) -> Change:
        """The push as the decoder takes it."""

    @abstractmethod
    def miss(self, valley: Tensors, now: Tensors, tokens: Tensor) -> Tensor:
        """How far the held thing is from its value at the valley, as a share of that, (members,)."""


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
            found = hold.measure(self._passing([Change()] * config.layers, tokens[:1])[0], self.drawn[0], tokens[:1])
            push = hold.push(found, found, self.drawn[0], tokens[:1])
        for kind, values in (("valley", found), ("push", push)):
            for name, value in values.items():
                self.register_buffer(f"{kind}_{name}", value.new_zeros(config.layers, *value.shape))
        self._held, self._pushes = tuple(found), tuple(push)

    def features(
        self, tokens: Number, *, noise: Tensor | None = None, look: Look | None = None, change: Sequence[Change] = ()
    ) -> Tensor:
        return super().features(tokens, noise=noise, look=look, change=change or self.changes())

    def changes(self) -> list[Change]:
        return [self.hold.change(self._of(layer, "push", self._pushes)) for layer in range(self.config.layers)]

    @torch.no_grad()
    def tend(self, step: int) -> None:
        """Before every step: at the step whose state is held, note it; then, every so often, push anew."""
        if step == self.at:
            self.begun.fill_(True)
            for layer, seen in enumerate(self._passing([Change()] * self.config.layers, self.tokens)):
                self._write(layer, "valley", self.hold.measure(seen, self.drawn[layer], self.tokens))
        if step == self.at or (step > self.at and step % self.every == 0 and not self.hold.always):
            for layer in range(self.config.layers):  # from below: what is above depends on it
                self._push(layer)

    @torch.no_grad()
    def miss(self) -> Tensor:
        """How far what is held is from its value at the valley now, (members, layers); 0 before that."""
        seen = self._passing(self.changes(), self.tokens)
        now = [self.hold.measure(seen[layer], self.drawn[layer], self.tokens) for layer in range(self.config.layers)]
        found = [self.hold.miss(self._valley(layer), one, self.tokens) for layer, one in enumerate(now)]
        return torch.where(self.begun, torch.stack(found, -1), 0.0)

    def _push(self, layer: int) -> None:
        changes = self.changes()
        changes[layer] = Change()
        now = self.hold.measure(self._passing(changes, self.tokens)[layer], self.drawn[layer], self.tokens)
        self._write(layer, "push", self.hold.push(self._valley(layer), now, self.drawn[layer], self.tokens))

    def _passing(self, changes: Sequence[Change], tokens: Tensor) -> list[dict[str, Tensor]]:
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
        for name, value in values.items():
            getattr(self, f"{kind}_{name}")[layer].copy_(value)


def length(x: Tensor) -> Tensor:
    """Of vectors (..., width)."""
    return x.square().sum(-1).sqrt()
