"""What `collapse` does to networks while they train, so that they do not diverge: all members at once.

A member whose weights are no longer finite stays as it is and disturbs no other.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from joma.models.decoder import Decoder
from joma.training import Ensemble

Tend = Callable[[Any, int], None]
ROUNDS = 40  # of Newton and Schulz: a singular value grows by half in each until it is near one


def clipping(tokens: Callable[[int], Tensor], limit: float) -> Tend:
    """QK-clip before every step: heads whose largest logit is above the limit come down to it (Kimi K2)."""
    return lambda decoder, step: clip_heads(decoder, tokens(step), limit)


def restoring(every: int) -> Tend:
    """The attention's matrices get one singular value, of their own norm, every so many steps (arXiv 2602.01734)."""

    def tend(decoder: Decoder, step: int) -> None:
        if step and step % every == 0:
            restore_ranks(decoder)

    return tend


def clip_heads(decoder: Decoder, tokens: Tensor, limit: float) -> None:
    """Queries and keys of a head that is above the limit are scaled, both by the root of what is left."""
    largest: list[Tensor] = []

    def look(layer: int, name: str, value: Tensor) -> None:
        if name == "logits":  # (members, sequences, heads, queries, keys)
            largest.append(value.amax((1, 3, 4)))

    decoder.features(tokens, look=look)
    most = torch.stack(largest, 1)  # (members, layers, heads)
    above = (most > limit) & most.isfinite()
    factor = torch.where(above, limit / most, 1.0).sqrt()
    width = decoder.config.width
    columns = factor.repeat_interleave(width // decoder.config.heads, -1)
    columns = torch.cat([columns, columns, torch.ones_like(columns)], -1)  # values stay
    decoder.get_parameter("qkv").mul_(columns[:, :, None])
    decoder.get_parameter("qkv_bias").mul_(columns)


def restore_ranks(decoder: Decoder) -> None:
    """Queries, keys, values and the matrix behind them: all singular values become one, at the same Frobenius norm."""
    for matrix in (*decoder.get_parameter("qkv").split(decoder.config.width, -1), decoder.get_parameter("projection")):
        size = torch.linalg.matrix_norm(matrix, keepdim=True)
        sign = matrix_sign(matrix.double()).to(matrix.dtype)  # a GPU may round factors of products to ten bits
        matrix.copy_(sign * (size / torch.linalg.matrix_norm(sign, keepdim=True)))


def matrix_sign(w: Tensor) -> Tensor:
    """U V^T of every matrix U S V^T, (..., rows, columns), by products alone."""
    x = w / torch.linalg.matrix_norm(w, keepdim=True)
    for _ in range(ROUNDS):
        x = 1.5 * x - 0.5 * x @ (x.mT @ x)
    found: Tensor = x
    return found


def extra_work(ensemble: Ensemble, tend: Tend | None, every: Sequence[int]) -> float:
    """The multiplications that a remedy adds to those of a training step, as a share."""
    networks = ensemble.networks([0]).cpu()
    inputs, targets = (part.cpu() for part in ensemble.batch(0, [0]))
    with FlopCounterMode(display=False) as step:
        features = networks.features(inputs, look=lambda *_: None).flatten(1, 2)
        logits = networks.read(features)
        logits.gather(-1, targets.flatten()[None, :, None]).sum().backward()
    with FlopCounterMode(display=False) as more, torch.no_grad():
        if tend is not None:
            for at in every:
                tend(networks, at)
    return float(more.get_total_flops() / len(every) / step.get_total_flops())
