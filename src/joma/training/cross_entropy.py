"""Cross-entropy through a large output matrix, without keeping the logits.

With a vocabulary of 28,782 the logits of one batch are larger than the network. On a GPU, in half precision, they are
made for a few members at a time, turned into their own gradient in place, multiplied into the two gradients, and
overwritten by those of the next members. The bias rides along as one more column of the matrix. Half is float16, not
bfloat16: logits and probabilities are of order one, so its range is enough and its three more bits are worth having.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from joma.models.parts import compiled_part

_HALF = {"allowed": False}  # a dict, for the reason given at `joma.models.products`

AT_ONCE = 256 * 2**20
"""Bytes of logits that exist at one time."""

LEAST = -87.0
"""About the logarithm of the smallest normal float32. Below it an exponential takes fifty times as long."""


@contextmanager
def half_logits(allowed: bool = True) -> Iterator[None]:
    """Within, logits on a GPU are made in float16 (sums in float32) when the vocabulary is large enough to pay.

    >>> with half_logits():  # on a CPU nothing changes
    ...     loss = cross_entropy(torch.ones(1, 1, 4), torch.ones(1, 5, 4), torch.zeros(1, 5), torch.tensor([[2]]))
    """
    before, _HALF["allowed"] = _HALF["allowed"], allowed
    try:
        yield
    finally:
        _HALF["allowed"] = before


@compiled_part
def cross_entropy(features: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """Mean of -log softmax(features weight^T + bias)[target] for every member, (members,).

    features (members, positions, width), weight (members, vocabulary, width), bias (members, vocabulary),
    targets (members, positions).

    >>> x, w, b = torch.zeros(2, 3, 4), torch.zeros(2, 5, 4), torch.zeros(2, 5)
    >>> cross_entropy(x, w, b, torch.zeros(2, 3, dtype=torch.long)).exp()
    tensor([5., 5.])
    """
    if _HALF["allowed"] and features.is_cuda and weight.shape[1] >= 1024:
        with_gradients = torch.is_grad_enabled() and weight.requires_grad
        given = (features, weight, bias, targets)
        loss: Tensor = _with_gradients(*given)[0] if with_gradients else _loss_alone(*given)
        return loss
    if features.device.type == "cpu" and not torch.compiler.is_compiling():
        found: Tensor = _OnProcessor.apply(features, weight, bias, targets)  # type: ignore[no-untyped-call]
        return found
    logits = torch.baddbmm(bias[:, None], features, weight.mT)
    right = logits.gather(-1, targets[..., None]).squeeze(-1)
    return (logits.logsumexp(-1) - right).mean(-1)


class _OnProcessor(torch.autograd.Function):
    """The same numbers with half the passes over the logits: their gradient is known in closed form."""

    @staticmethod
    def forward(ctx, features: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        logs = torch.baddbmm(bias[:, None], features, weight.mT).log_softmax(-1)
        ctx.save_for_backward(features, weight, targets, logs)
        return -logs.gather(-1, targets[..., None]).squeeze(-1).mean(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, by_loss: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        features, weight, targets, logs = ctx.saved_tensors
        scale = (by_loss / targets.shape[1])[:, None, None]
        by_logits = logs.clamp(min=LEAST).exp_()  # softmax - 1[target]; 0 of words that a mask leaves out
        torch.threshold_(by_logits, 2e-38, 0.0).mul_(scale)
        by_logits.scatter_add_(-1, targets[..., None], -scale.expand(*targets.shape, 1))
        ones = by_logits.new_ones(1, 1, features.shape[1]).expand(len(features), -1, -1)
        by_features, by_weight, by_bias, _ = ctx.needs_input_grad
        return (
            torch.bmm(by_logits, weight) if by_features else None,
            torch.bmm(by_logits.mT, features) if by_weight else None,
            torch.bmm(ones, by_logits)[:, 0] if by_bias else None,
            None,
        )


@torch.library.custom_op("joma::cross_entropy_with_gradients", mutates_args=())
def _with_gradients(features: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _in_pieces(features, weight, bias, targets, gradients=True)


@torch.library.custom_op("joma::cross_entropy_alone", mutates_args=())
def _loss_alone(features: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    return _in_pieces(features, weight, bias, targets, gradients=False)[0]


@_with_gradients.register_fake
def _(features: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    members, positions, width = features.shape
    wide = _multiple(width + 1, 8)
    by_x = features.new_empty(members, _multiple(positions, 8), wide)
    return features.new_empty(members), by_x, features.new_empty(members, _multiple(weight.shape[1], 64), wide)


@_loss_alone.register_fake
def _(features: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    return features.new_empty(len(features))


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(output[1], output[2])
    ctx.sizes = (inputs[0].shape[1], *inputs[1].shape[1:])


def _backward(ctx, loss, by_x, by_w):  # type: ignore[no-untyped-def]
    from joma.training._cross_entropy_triton import SCALE

    by_x, by_w = ctx.saved_tensors
    positions, vocabulary, width = ctx.sizes
    scale = (loss / (positions * SCALE))[:, None, None]
    by_w = by_w[:, :vocabulary] * scale
    return by_x[:, :positions, :width] * scale, by_w[..., :width], by_w[..., width], None


_with_gradients.register_autograd(_backward, setup_context=_save)


def _in_pieces(
    features: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, *, gradients: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """float16 holds SCALE (softmax - 1[target]); the mean over positions is left to float32."""
    from joma.training._cross_entropy_triton import extended, gradient_in_place

    members, positions, _ = features.shape
    vocabulary = weight.shape[1]
    # Multiples throughout: products over rows that start anywhere take three times as long.
    rows, columns = _multiple(positions, 8), _multiple(vocabulary, 64)
    x = extended(features, None, rows)
    w = extended(weight, bias, columns)
    together = max(1, min(members, AT_ONCE // (2 * rows * columns)))
    logits = torch.empty(together, rows, columns, dtype=torch.half, device=features.device)
    losses = features.new_empty(members, positions)
    by_x = features.new_empty(x.shape if gradients else (0, 0, 0))
    by_w = features.new_empty(w.shape if gradients else (0, 0, 0))
    for first in range(0, members, together):
        part = slice(first, min(first + together, members))
        piece = logits[: part.stop - first]
        torch.bmm(x[part], w[part].mT, out=piece)
        gradient_in_place(piece, targets[part], losses[part], vocabulary, write=gradients)
        if gradients:
            torch.bmm(piece, w[part], out_dtype=torch.float32, out=by_x[part])
            torch.bmm(piece.mT, x[part], out_dtype=torch.float32, out=by_w[part])
    return losses.mean(-1), by_x, by_w


def _multiple(number: int, of: int) -> int:
    return -(-number // of) * of
