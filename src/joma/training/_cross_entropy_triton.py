"""One kernel: a row of logits becomes its own gradient, and its loss is written beside."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


def gradient_in_place(logits: Tensor, targets: Tensor, losses: Tensor, *, write: bool) -> None:
    """losses[m, i] = -log softmax(logits[m, i])[target]; with `write`, logits become softmax - 1[target].

    logits (members, positions, vocabulary), rows contiguous; targets and losses (members, positions).
    """
    members, positions, vocabulary = logits.shape
    block = triton.next_power_of_2(vocabulary)
    _row[(members * positions,)](
        logits,
        targets,
        losses,
        positions,
        vocabulary,
        logits.stride(0),
        logits.stride(1),
        targets.stride(0),
        targets.stride(1),
        losses.stride(0),
        WRITE=write,
        BLOCK=block,
        num_warps=min(32, max(4, block // 1024)),
    )


@triton.jit
def _row(
    logits,
    targets,
    losses,
    positions,
    vocabulary,
    logits_member,
    logits_row,
    targets_member,
    targets_row,
    losses_member,
    WRITE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    member = (program // positions).to(tl.int64)
    row = program % positions
    target = tl.load(targets + member * targets_member + row * targets_row)
    start = logits + member * logits_member + row * logits_row
    columns = tl.arange(0, BLOCK)
    inside = columns < vocabulary
    # the whole row stays in registers: read once, written once
    x = tl.load(start + columns, mask=inside, other=-float("inf")).to(tl.float32)
    highest = tl.max(x, 0)
    raised = tl.exp(x - highest)
    total = tl.sum(raised, 0)
    right = tl.sum(tl.where(columns == target, x, 0.0), 0)
    tl.store(losses + member * losses_member + row, highest + tl.log(total) - right)
    if WRITE:
        gradient = raised / total - tl.where(columns == target, 1.0, 0.0)
        tl.store(start + columns, gradient.to(logits.dtype.element_ty), mask=inside)
