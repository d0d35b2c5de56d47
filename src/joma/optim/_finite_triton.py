"""Whether a large gradient on a GPU is finite: a kernel that reads it once and keeps one number."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from joma.host.kernels import start

BLOCK = 8192
_KINDS = (torch.bfloat16, torch.float16, torch.float32)


@triton.jit
def _look(X, Found, entries, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < entries, other=0.0).to(tl.float32)
    finite = tl.abs(x) < float("inf")  # NaN is not below it either
    wrong = tl.sum((finite == 0).to(tl.int32), 0)
    tl.store(Found, float("inf"), mask=wrong > 0)  # whoever writes, writes the same


def covers(gradient: Tensor) -> bool:
    """Whether the entries lie in memory without gaps, in whatever order, and are of a known kind."""
    dense = gradient.is_contiguous() or (gradient.ndim > 1 and gradient.mT.is_contiguous())
    return gradient.dtype in _KINDS and dense


def zero_if_finite(gradient: Tensor) -> Tensor:
    """(): 0 if all entries are finite, else infinity, in their own kind of number."""
    found = gradient.new_zeros(())
    entries = gradient.numel()
    start(_look, (triton.cdiv(entries, BLOCK), 1), (gradient, found), (entries,), {"BLOCK": BLOCK}, {"num_warps": 8})
    return found
