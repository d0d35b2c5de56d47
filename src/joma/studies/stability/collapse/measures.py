"""What is measured on the networks of `collapse` at a point of training, all members at once.

One pass forward and back over a fixed batch, and the weights. A member whose numbers are no longer finite gets NaN and
disturbs no other.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from joma.models.decoder import Decoder
from joma.probes.decoder import leading_inputs, stable_ranks
from joma.training import cross_entropy

Measure = Callable[[Any, Sequence[int]], Mapping[str, Tensor]]
MATRICES = ("query", "key", "up", "down")  # Whose stable rank is taken, in this order
SMALL = 1e-12  # what is added to a matrix of unit size, so that it can be factored where it is singular


def attention_and_loss(tokens: Tensor, targets: Tensor) -> Measure:
    """The loss, the lowest and the largest that attention has: what every network is measured by."""

    def measure(decoder: Decoder, members: Sequence[int]) -> dict[str, Tensor]:
        seen = Seen()
        loss = _loss(decoder, tokens, targets, seen)
        return {"loss": loss, "entropy": torch.stack(seen.entropy, 1), "largest_logit": torch.stack(seen.largest, 1)}

    return measure


def everything(tokens: Tensor, targets: Tensor) -> Measure:
    """The same, the gradient's norm (members,), stable ranks (members, layers, matrices) and sign diversity."""

    def measure(decoder: Decoder, members: Sequence[int]) -> dict[str, Tensor]:
        seen = Seen()
        with torch.enable_grad():
            loss = _loss(decoder, tokens, targets, seen)
            gradients = torch.autograd.grad(loss.sum(), list(decoder.parameters()))
        norms = [torch.linalg.vector_norm(g.flatten(1), dim=1, dtype=torch.float64) for g in gradients]
        query, key, _ = decoder.get_parameter("qkv").detach().split(decoder.config.width, dim=-1)
        matrices = {"query": query, "key": key} | {name: decoder.get_parameter(name) for name in ("up", "down")}
        return {
            "loss": loss.detach(),
            "entropy": torch.stack(seen.entropy, 1),
            "largest_logit": torch.stack(seen.largest, 1),
            "gradient_norm": torch.stack(norms).norm(dim=0).float(),
            "stable_rank": torch.stack([stable_ranks(matrices[name]).float() for name in MATRICES], -1),
            "sign_diversity": sign_diversity(torch.stack(seen.inputs, 1), torch.stack((query, key), 2)),
        }

    return measure


class Seen:
    """What a pass shows of each layer."""

    def __init__(self) -> None:
        self.entropy: list[Tensor] = []
        self.largest: list[Tensor] = []
        self.inputs: list[Tensor] = []

    def look(self, layer: int, name: str, value: Tensor) -> None:
        value = value.detach()
        if name == "input":  # (members, sequences, length, width)
            self.inputs.append(value.flatten(1, 2))
        elif name == "logits":  # (members, sequences, heads, queries, keys), -inf for keys that are not seen
            self.largest.append(value.amax((1, 3, 4)))
        elif name == "attention":
            self.entropy.append(torch.special.entr(value).sum(-1).mean((1, 3)))


def _loss(decoder: Decoder, tokens: Tensor, targets: Tensor, seen: Seen) -> Tensor:
    features = decoder.features(tokens, look=seen.look).flatten(1, 2)
    return cross_entropy(features, decoder.out, decoder.out_bias, targets.flatten()[None].expand(decoder.members, -1))


def sign_diversity(inputs: Tensor, weights: Tensor) -> Tensor:
    """How many of the inputs lie on the less common side of a matrix's leading direction: 0.5 is most, 0 is none."""
    along = inputs.double() @ leading_inputs(weights).mT  # (members, layers, tokens, matrices)
    share = (along > 0).double().mean(-2)
    rarer = torch.minimum(share, 1 - share)
    return torch.where(along.isfinite().all(-2), rarer, torch.nan).float()


Between = Callable[[Any, Mapping[str, Tensor], Sequence[int]], Mapping[str, Tensor]]


def update_entropies(networks: Callable[[Sequence[int]], Decoder]) -> Between:
    """Spectral entropy of the change of W_q W_k^T since the point before, and since the start."""
    starts: dict[tuple[int, ...], Tensor] = {}

    def between(decoder: Decoder, before: Mapping[str, Tensor], members: Sequence[int]) -> dict[str, Tensor]:
        now, which = decoder.get_parameter("qkv").detach(), tuple(members)
        if which not in starts:  # a resumed run begins from the same seeds
            starts[which] = networks(members).get_parameter("qkv").detach().to(now.device)
        heads = decoder.config.heads
        return {
            "update_entropy": first_order_entropy(*_by_head(before["qkv"], heads), *_by_head(now, heads)),
            "drift_entropy": first_order_entropy(*_by_head(starts[which], heads), *_by_head(now, heads)),
        }

    return between


def _by_head(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    query, key, _ = qkv.double().chunk(3, dim=-1)
    return query.unflatten(-1, (heads, -1)).movedim(-2, 2), key.unflatten(-1, (heads, -1)).movedim(-2, 2)


def first_order_entropy(query: Tensor, key: Tensor, query_now: Tensor, key_now: Tensor) -> Tensor:
    """Spectral entropy of dQ K^T + Q dK^T, the first order of the change of Q K^T, in nats (arXiv 2606.28116).

    With shares p of the squared singular values it is -sum p ln p: 0 where the change has one direction, ln of twice
    the head width at most. All four: (..., width, head width) in float64. 0 where nothing changed, NaN where a number
    is not finite.

    The change is A B^T with A = [dQ, Q] and B = [K, dK], so that its squared singular values are the eigenvalues of
    L^T (B^T B) L, L L^T = A^T A: small matrices, which a GPU takes all at once.
    """
    moved, turned = query_now - query, key_now - key
    sound = torch.stack([part.isfinite().all(-1).all(-1) for part in (moved, turned, query, key)]).all(0)
    moved, turned, query, key = (torch.where(sound[..., None, None], p, 0.0) for p in (moved, turned, query, key))
    sizes = [torch.linalg.vector_norm(part, dim=(-2, -1), keepdim=True) for part in (moved, query)]
    unit = [torch.where(size == 0, 1.0, size) for size in sizes]  # of both halves of A, however small the change is
    a = torch.cat((moved / unit[0], query / unit[1]), -1)
    b = torch.cat((key * sizes[0], turned * unit[1]), -1)
    scale = torch.linalg.vector_norm(b, dim=(-2, -1), keepdim=True)
    b = b / torch.where(scale == 0, 1.0, scale)
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    factor = torch.linalg.cholesky_ex(a.mT @ a + SMALL * eye).L
    squares = torch.linalg.eigvalsh(factor.mT @ (b.mT @ b) @ factor).clamp(min=0)
    total = squares.sum(-1, keepdim=True)
    entropy = torch.special.entr(squares / torch.where(total == 0, 1.0, total)).sum(-1)
    return torch.where(sound, entropy, torch.nan).float()
