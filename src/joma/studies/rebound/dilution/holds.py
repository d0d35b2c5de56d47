"""Sizes of logits that stay as they were at the valley: the variance over keys through the mean query (shared) and
through the rest of queries (specific). Queries become q = a m + b (q - m), with the mean query m.

The control has the same pushes of queries, turned by a random rotation. To hold sizes at their current value would push
nothing, and one layer has no other layer to take sizes from.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from joma.measure.spread import spread_sums
from joma.models.change import Change
from joma.models.decoder import DecoderConfig
from joma.studies.rebound._held import Hold, Tensors

MOST = 10.0
"""The largest factor by which queries are scaled, and one over it the smallest."""


class Scaled(Change):
    """Asks for q + more x q + shift: (members, heads) and (members, heads, head width)."""

    def __init__(self, more: Tensor, shift: Tensor) -> None:
        self.more, self.shift = more, shift

    def ask(self, query: Tensor) -> Tensor:
        """As `Change` has it."""
        return query * (1 + self.more)[:, None, :, None, None] + self.shift[:, None, :, None]


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
            return {"more": b - 1, "shift": shift}
        return {"matrix": (b - 1)[..., None, None] * drawn, "shift": (drawn @ shift[..., None]).squeeze(-1)}

    def _factor(self, valley: Tensor, now: Tensor, part: str) -> Tensor:
        if part not in self.parts:
            return torch.ones_like(now)
        return torch.where(valley == now, 1.0, valley / now).sqrt().clamp(1 / MOST, MOST)

    def change(self, push: Tensors) -> Change:
        """As `Hold` has it."""
        return Turned(push["matrix"], push["shift"]) if self.elsewhere else Scaled(push["more"], push["shift"])

    def miss(self, valley: Tensors, now: Tensors, tokens: Tensor) -> Tensor:
        """Of the root of the variance, in the part and head where it is largest."""
        off = torch.stack([(now[part] / valley[part]).sqrt() - 1 for part in self.parts])
        return off.abs().amax((0, 2))
