"""QK-clip for members of an ensemble, each at thresholds of its own, and the same clip elsewhere as its control."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from joma.models.decoder import Decoder, DecoderConfig


class Clipped(Decoder):
    """A decoder whose weights are scaled down, head by head, where the largest logit passes a threshold."""

    tokens: Tensor
    bounds: Tensor

    def __init__(
        self, config: DecoderConfig, seeds: Sequence[int], tokens: Tensor, bounds: Tensor, *, every: int
    ) -> None:
        """config, seeds: of the decoder. tokens: the fixed batch, (sequences, length). bounds: thresholds of logits and
        of what heads add, (2, members, layers, heads), inf for none. every: steps between two clips.
        """
        super().__init__(config, seeds)
        self.every = every
        self.register_buffer("tokens", tokens, persistent=False)
        self.register_buffer("bounds", bounds.float().movedim(1, 0).contiguous())  # members first

    @torch.no_grad()
    def tend(self, step: int) -> None:
        if step % self.every:
            return
        logit, output = self.largest()
        width = self.config.width
        for largest, bound, part in ((logit, 0, slice(0, 2 * width)), (output, 1, slice(2 * width, None))):
            limit = self.bounds[:, bound]
            # a member that diverged has no largest logit, and is left as it is
            factor = torch.where(largest > limit, limit / largest, 1.0).sqrt()  # (members, layers, heads)
            by_number = factor.repeat_interleave(width // self.config.heads, -1)  # (members, layers, width)
            times = by_number.repeat(1, 1, 2) if bound == 0 else by_number
            self.get_parameter("qkv")[..., part] *= times[:, :, None]
            self.get_parameter("qkv_bias")[..., part] *= times
            if bound == 1:
                self.get_parameter("projection").mul_(by_number[..., None])

    def largest(self) -> tuple[Tensor, Tensor]:
        logits: list[Tensor] = []
        outputs: list[Tensor] = []

        def look(layer: int, name: str, value: Tensor) -> None:
            if name == "logits":
                logits.append(value.amax((1, 3, 4)))
            elif name == "mixed":
                outputs.append(added(self, layer, value))

        self.features(self.tokens, look=look)
        return torch.stack(logits, 1), torch.stack(outputs, 1)


def added(decoder: Decoder, layer: int, mixed: Tensor) -> Tensor:
    """The largest number by which a head changes the stream, (members, heads). mixed: as `Look` has it."""
    rows = decoder.get_parameter("projection")[:, layer].unflatten(1, (decoder.config.heads, -1))
    return torch.einsum("mbhtd,mhdw->mbhtw", mixed, rows).abs().amax((1, 3, 4))
