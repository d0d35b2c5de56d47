"""The largest product of a query and a key of every head: what QK-clip looks at in every step of a training.

On CUDA one small kernel walks over the tiles of `attention_stats` and keeps their maximum alone: no exponentials, one
number per head. Elsewhere it is the largest of what `attention_stats` gives.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from joma.measure._attention_problem import Problem
from joma.measure.attention import _has_triton, attention_stats


def largest_products(
    q: Tensor, k: Tensor, *, causal: bool = True, bias: Tensor | None = None, real: Tensor | None = None,
    into: Tensor | None = None, **masks: Any,
) -> Tensor:  # fmt: skip
    """(heads,): the largest scaled product of a query and a key that it sees, over the batch; -inf where none is seen.

    This is the largest logit before soft caps, biases and sinks, which scales as queries and keys do.

    - q, k, causal, masks: as in `attention_stats`; gradients are not followed
    - bias: only what it hides counts: where it is False or -inf
    - real: (batch, queries), False for queries that do not count
    - into: (heads,), what was found before: it is raised to what is found now, and given back
    """
    if bias is not None and bias.dtype != torch.bool:
        bias = bias > -torch.inf
    with torch.no_grad():
        if q.is_cuda and _has_triton():
            from joma.measure._largest_triton import covers, launch

            problem = Problem.of(q, k, None, causal=causal, bias=bias, mask_stays=True, **masks)
            if covers(problem):
                return launch(problem, real, into)
        top = attention_stats(q, k, causal=causal, bias=bias, **masks).max_logit
        found = (top if real is None else torch.where(real[:, None], top, -torch.inf)).amax((0, 2))
        return found if into is None else torch.maximum(into, found.to(into), out=into)


def again(
    q: Tensor, k: Tensor, mask: Tensor | None, real: Tensor | None, options: dict[str, Any]
) -> Callable[[Tensor, Tensor, Tensor | None, Tensor], None] | None:
    """A call for further queries, keys and masks that lie in memory as these do, raising what was found before.

    With few steps on the host: what follows from shapes is worked out here. None where the kernel does not take them.

    - mask: None, or what `options["bias"]` and `real` are views of, from its first number on
    - options: causal, scale and bias, as `largest_products` takes them
    """
    if not (q.is_cuda and _has_triton()) or (mask is not None and mask.dtype != torch.bool):
        return None
    from joma.measure._largest_triton import again, covers

    problem = Problem.of(q, k, None, mask_stays=True, **options)
    return again(problem, real) if covers(problem) else None
