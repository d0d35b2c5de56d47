"""The kernels of the cross-entropy: factors in half precision, and logits that become their own gradient."""

import torch
import triton
import triton.language as tl
from torch import Tensor

SCALE = 2.0**15
"""The gradient by a logit lies between -1 and 1. Scaled up it fills the range of float16: unscaled, probabilities
below 3e-8 would vanish, and Adam, which asks only for the sign of what is always small, would leave rare words be."""


def extended(matrix: Tensor, column: Tensor | None, rows: int) -> Tensor:
    """[matrix, column, 0 ...] in float16 with `rows` rows, the new ones zero; the width becomes a multiple of 8.

    matrix (members, old rows, width); column (members, old rows), or None for ones.
    """
    members, old, width = matrix.shape
    wide = -(-(width + 1) // 8) * 8
    made = torch.empty(members, rows, wide, dtype=torch.half, device=matrix.device)
    matrix = matrix.contiguous()
    many = 16
    _extend[(triton.cdiv(rows, many), members)](
        matrix, matrix if column is None else column.contiguous(), made, old, rows,
        WIDTH=width, WIDE=wide, COLUMN=column is not None, ROWS=many, BLOCK=triton.next_power_of_2(wide),
    )  # fmt: skip
    return made


@triton.jit
def _extend(
    matrix, column, made, old, rows,
    WIDTH: tl.constexpr, WIDE: tl.constexpr, COLUMN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    c = tl.arange(0, BLOCK)[None, :]
    there = r < old
    x = tl.load(matrix + member * old * WIDTH + r * WIDTH + c, mask=there & (c < WIDTH), other=0.0)
    last = tl.where(there, 1.0, 0.0)
    if COLUMN:
        last = tl.load(column + member * old + r, mask=there, other=0.0)
    x = tl.where(c == WIDTH, last, x)
    tl.store(made + member * rows * WIDE + r * WIDE + c, x.to(tl.float16), mask=(r < rows) & (c < WIDE))


def gradient_in_place(logits: Tensor, targets: Tensor, losses: Tensor, vocabulary: int, *, write: bool) -> None:
    """losses[m, i] = -log softmax(logits[m, i, :vocabulary])[target].

    With `write`, logits become SCALE (softmax - 1[target]); rows beyond the positions and columns beyond the vocabulary
    become zero. logits (members, rows, columns), contiguous; targets and losses (members, positions).
    """
    members, rows, columns = logits.shape
    positions = targets.shape[1]
    _row[(rows, members)](
        logits, targets, losses, positions, vocabulary, rows, columns, targets.stride(0), targets.stride(1),
        losses.stride(0), WRITE=write, SCALE=SCALE, BLOCK=min(2048, triton.next_power_of_2(columns)), num_warps=8,
    )  # fmt: skip


@triton.jit
def _row(
    logits, targets, losses, positions, vocabulary, rows, columns, targets_member, targets_row, losses_member,
    WRITE: tl.constexpr, SCALE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0)
    start = logits + (member * rows + row) * columns
    c = tl.arange(0, BLOCK)
    if row >= positions:
        if WRITE:
            for first in tl.range(0, columns, BLOCK):
                tl.store(start + first + c, tl.zeros((BLOCK,), logits.dtype.element_ty), mask=first + c < columns)
        return
    target = tl.load(targets + member * targets_member + row * targets_row)
    highest = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in tl.range(0, vocabulary, BLOCK):
        x = tl.load(start + first + c, mask=first + c < vocabulary, other=-float("inf")).to(tl.float32)
        new = tl.maximum(tl.maximum(highest, x), -1e30)  # finite, or lanes beyond the end would be NaN
        total = total * tl.exp(highest - new) + tl.exp(x - new)
        highest = new
    most = tl.max(highest, 0)
    norm = most + tl.log(tl.sum(total * tl.exp(highest - most), 0))
    right = tl.load(start + target).to(tl.float32)
    tl.store(losses + member * losses_member + row, norm - right)
    if WRITE:
        for first in tl.range(0, columns, BLOCK):
            i = first + c
            x = tl.load(start + i, mask=i < vocabulary, other=-float("inf")).to(tl.float32)
            gradient = tl.exp(x - norm) - tl.where(i == target, 1.0, 0.0)
            tl.store(start + i, (SCALE * gradient).to(logits.dtype.element_ty), mask=i < columns)
