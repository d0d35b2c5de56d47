"""The root g of the row law, (e^g - 1) + (M - 1) g = x, by Newton's method, for numbers of any size.

The left side is increasing and convex in g. Both ln(1 + x) and x / M are upper bounds of the root: e^g - 1 <= x, and
M g <= e^g - 1 + (M - 1) g = x. From the smaller of them, the left side is at least x, so Newton's steps go down
monotonically to the root and never past it. Everything is divided by 1 + x = e^k, so that nothing overflows.

With finite steps, (M rate / 2) ln((e^g + M - 1) / M) is subtracted on the left. For rates up to 1 it stays increasing
and convex: its second derivative is e^g (1 - (M rate / 2) (M - 1) / (e^g + M - 1)^2) > 0. So one step of Newton's
leads to the right of the root, and the next ones go down monotonically.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_STEPS = 100
"""More than ever needed: about ten are."""


class _Law(NamedTuple):
    """The equation, divided by e^k."""

    k: Tensor
    log_m: Tensor
    others: Tensor
    """ln(M - 1)"""
    weight: Tensor
    """(M - 1) / e^k"""
    right: Tensor
    """x / e^k"""
    half: Tensor | None
    """M rate / (2 e^k), or None for gradient flow."""

    def newton(self, gap: Tensor) -> Tensor:
        """By how much the gap is too large."""
        off = self._grown(gap) + self.weight * gap - self.right
        slope = torch.exp(gap - self.k) + self.weight
        if self.half is not None:
            off = off - self.half * (torch.logaddexp(gap, self.others) - self.log_m)
            slope = slope - self.half * torch.sigmoid(gap - self.others)
        return off / slope

    def _grown(self, gap: Tensor) -> Tensor:
        """(e^g - 1) / e^k, to the last digit where g is small."""
        near = gap < 1
        small = torch.expm1(torch.where(near, gap, 0.0)) * torch.exp(-self.k)
        return torch.where(near, small, torch.exp(torch.where(near, 1.0, gap) - self.k) - torch.exp(-self.k))


def solve(log_m: Tensor, log_rate: Tensor, log_visits: Tensor, *, finite: bool = False) -> Tensor:
    """g(M, x = M rate visits), from logarithms; float64, differentiable (twice) in all three."""
    log_x = log_m + log_rate + log_visits
    k = torch.logaddexp(log_x, torch.zeros_like(log_x))
    others = log_m + torch.log1p(-torch.exp(-log_m))
    flow = _Law(k, log_m, others, torch.exp(others - k), torch.exp(log_x - k), None)
    with torch.no_grad():
        gap = _settled(flow, torch.minimum(k, torch.exp((log_rate + log_visits).clamp(max=700.0))))
    law = flow._replace(half=torch.exp(log_m + log_rate - k) / 2) if finite else flow
    if finite:
        with torch.no_grad():
            gap = _settled(law, gap)
    if torch.is_grad_enabled():
        for _ in range(2):  # each step with the graph doubles the order of derivatives that are right
            gap = gap - law.newton(gap)
    return gap


def _settled(law: _Law, gap: Tensor) -> Tensor:
    for _ in range(_STEPS):
        step = law.newton(gap)
        gap = gap - step
        if bool((step.abs() <= 1e-14 * gap).all()):
            break
    return gap
