"""Gradients: a few queries at a time, recomputed in the backward pass instead of kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from joma.measure._attention_problem import Problem

_ELEMENTS = 1 << 22  # logits at a time: 16 MiB in float32
_TENSORS = ("q", "k", "v", "bias")

Path = Callable[[Problem], tuple[Tensor, ...]]


def recomputed(forward: Path, problem: Problem) -> tuple[Tensor, ...]:
    """`forward`'s numbers with a backward pass that goes through the chunks again: memory stays linear in keys."""
    tensors = (getattr(problem, name) for name in _TENSORS)
    outputs: tuple[Tensor, ...] = _Recomputed.apply(forward, problem, *tensors)  # type: ignore[no-untyped-call]
    return outputs


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, forward: Path, problem: Problem, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        ctx.problem = problem
        plain: dict[str, Any] = {n: t if t is None else t.detach() for n, t in zip(_TENSORS, tensors, strict=True)}
        return forward(replace(problem, **plain))

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        problem: Problem = ctx.problem
        wanted = [n for n in _TENSORS if (t := getattr(problem, n)) is not None and t.requires_grad]
        leaves: dict[str, Any] = {n: getattr(problem, n).detach().requires_grad_() for n in wanted}
        total = {n: torch.zeros_like(leaf) for n, leaf in leaves.items()}
        tracked = replace(problem, **leaves)
        size = max(1, _ELEMENTS // (problem.q.shape[0] * problem.q.shape[1] * max(problem.keys, 1)))
        with torch.enable_grad():
            for start in range(0, problem.queries, size):
                stop = min(start + size, problem.queries)
                rows = tracked.rows(start, stop)
                # Some numbers of some chunks are constants: the first key's mass where the window hides it.
                pairs = [(r, g[:, :, start:stop]) for r, g in zip(rows, upstream, strict=True) if r.requires_grad]
                outputs, weights = zip(*pairs, strict=True)
                grads = torch.autograd.grad(outputs, list(leaves.values()), weights, allow_unused=True)
                for name, grad in zip(wanted, grads, strict=True):
                    if grad is not None:
                        total[name] += grad
        return None, None, *(total.get(name) for name in _TENSORS)
