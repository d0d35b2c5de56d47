"""The plain loop of training one network with an optimizer of torch, for whoever needs no ensemble."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor


def descend(
    optimizer: torch.optim.Optimizer,
    loss: Callable[[int], Tensor],
    steps: int,
    *,
    share: Callable[[int], float] | None = None,
    clip: float | None = None,
) -> Iterator[tuple[int, Tensor]]:
    """Make `steps` steps; after each, gives its number and its loss, which no gradient follows.

    optimizer: of torch, over what is trained. loss: loss(step), steps counted from 0. share: share(step) of its own
    learning rate is what every group of parameters has then; all of it unless given. clip: the gradient's largest norm.

    >>> w = torch.tensor([1.0], requires_grad=True)
    >>> sgd = torch.optim.SGD([w], lr=0.5)
    >>> [(step, loss.item()) for step, loss in descend(sgd, lambda step: w.square().sum() / 2, 3)]
    [(0, 0.5), (1, 0.125), (2, 0.03125)]
    """
    rates = [group["lr"] for group in optimizer.param_groups]
    for step in range(steps):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate if share is None else rate * share(step)
        found = loss(step)
        optimizer.zero_grad()
        found.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_((p for group in optimizer.param_groups for p in group["params"]), clip)
        optimizer.step()
        yield step, found.detach()
