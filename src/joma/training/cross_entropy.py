"""Cross-entropy through a large output matrix, without keeping the logits.

With a vocabulary of 28,782 the logits of one batch are larger than the network. On a GPU, in half precision, they are
made for a few members at a time, turned into their own gradient in place by one kernel that reads and writes each
once, multiplied into the two gradients, and overwritten by those of the next members. The bias rides along as one
more column of the matrix. Half is float16, not bfloat16: logits and probabilities are of order one, so its range is
enough and its three more bits are worth having.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_HALF = {"allowed": False}

AT_ONCE = 256 * 2**20
"""Bytes of logits that exist at one time."""


@contextmanager
def half_logits(allowed: bool = True) -> Iterator[None]:
    """Within, logits on a GPU are made in float16 (sums in float32) when the vocabulary is large enough to pay."""
    before, _HALF["allowed"] = _HALF["allowed"], allowed
    try:
        yield
    finally:
        _HALF["allowed"] = before


def cross_entropy(features: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """Mean of -log softmax(features weight^T + bias)[target] for every member, (members,).

    features (members, positions, width), weight (members, vocabulary, width), bias (members, vocabulary),
    targets (members, positions).

    >>> x, w, b = torch.zeros(2, 3, 4), torch.zeros(2, 5, 4), torch.zeros(2, 5)
    >>> cross_entropy(x, w, b, torch.zeros(2, 3, dtype=torch.long)).exp()
    tensor([5., 5.])
    """
    loss: Tensor
    if _HALF["allowed"] and features.is_cuda and weight.shape[1] >= 1024:
        if torch.is_grad_enabled() and weight.requires_grad:
            loss = _with_gradients(features, weight, bias, targets)[0]
            return loss
        loss = _loss_alone(features, weight, bias, targets)
        return loss
    logits = torch.baddbmm(bias[:, None], features, weight.mT)
    right = logits.gather(-1, targets[..., None]).squeeze(-1)
    return (logits.logsumexp(-1) - right).mean(-1)


@torch.library.custom_op("joma::cross_entropy_with_gradients", mutates_args=())
def _with_gradients(features: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The loss and the gradients of its sum by features and by [weight, bias]."""
    return _in_pieces(features, weight, bias, targets, gradients=True)


@torch.library.custom_op("joma::cross_entropy_alone", mutates_args=())
def _loss_alone(features: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    return _in_pieces(features, weight, bias, targets, gradients=False)[0]


@_with_gradients.register_fake
def _(features: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    extended = features.new_empty(*weight.shape[:2], _extended_width(weight.shape[2]))
    return features.new_empty(len(features)), torch.empty_like(features), extended


@_loss_alone.register_fake
def _(features: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    return features.new_empty(len(features))


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(output[1], output[2])
    ctx.width = inputs[1].shape[2]


def _backward(ctx, loss, by_features, by_extended):  # type: ignore[no-untyped-def]
    by_features, by_extended = ctx.saved_tensors
    by_extended = by_extended * loss[:, None, None]
    return by_features * loss[:, None, None], by_extended[..., : ctx.width], by_extended[..., ctx.width], None


_with_gradients.register_autograd(_backward, setup_context=_save)


def _in_pieces(
    features: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, *, gradients: bool
) -> tuple[Tensor, Tensor, Tensor]:
    from joma.training._cross_entropy_triton import gradient_in_place

    members, positions, width = features.shape
    vocabulary = weight.shape[1]
    padded = -(-vocabulary // 64) * 64  # rows of logits start on a boundary, or matrix products crawl
    x = _extended(features, torch.ones_like(features[..., 0]))
    w = _extended(weight, bias)
    together = max(1, min(members, AT_ONCE // (2 * positions * padded)))
    logits = torch.empty(together, positions, padded, dtype=torch.half, device=features.device)
    losses = features.new_empty(members, positions)
    by_features = torch.empty_like(features) if gradients else features.new_empty(0)
    by_extended = features.new_empty(*w.shape) if gradients else features.new_empty(0)
    for first in range(0, members, together):
        part = slice(first, min(first + together, members))
        piece = logits[: part.stop - first, :, :vocabulary]
        torch.bmm(x[part], w[part].mT, out=piece)
        gradient_in_place(piece, targets[part], losses[part], write=gradients)
        if gradients:
            # float16 holds p - 1[target]; the mean over positions is taken in float32, or small p would vanish
            back = torch.bmm(piece, w[part], out_dtype=torch.float32)
            by_features[part] = back[..., :width] / positions
            torch.bmm(piece.mT, x[part], out_dtype=torch.float32, out=by_extended[part])
    if gradients:
        by_extended /= positions
    return losses.mean(-1), by_features, by_extended


def _extended_width(width: int) -> int:
    return -(-(width + 1) // 8) * 8


def _extended(matrix: Tensor, column: Tensor) -> Tensor:
    """[matrix, column, zeros] in half precision, its width a multiple of 8."""
    width = matrix.shape[-1]
    wide = matrix.new_zeros(*matrix.shape[:-1], _extended_width(width), dtype=torch.half)
    wide[..., :width] = matrix
    wide[..., width] = column
    return wide
