"""Branches of an ensemble, which continue from a state of it with one thing changed.

    base = Ensemble(..., keep_at=(600,))
    other = branch(base, of="base", at=600, frozen=["embedding"])
    train_all({"base": base, "embeddings frozen": other}, run)

A branch has the weights and the optimizer's state that its base had at that step, and reads the same batches from there
on, so that with nothing changed it is its base again. Whatever differs between the two comes from the change.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from joma.host.arguments import integer
from joma.training.ensemble import Ensemble, Origin
from joma.training.optimizers import Optimizer


def branch(
    base: Ensemble,
    *,
    of: str,
    at: int,
    frozen: Sequence[Any] = (),
    optimizer: Optimizer | None = None,
    steps: int | None = None,
    renew: bool | None = None,
    **changes: Any,
) -> Ensemble:
    """A branch of `base`, recorded under `of` in the same run, that leaves it after `at` steps.

    at: one of `base.keep_at`. frozen: parameters that stay as they are from then on, by name, or ("qkv", index) for
    the part qkv[index]; they count nowhere, as in the norm that `clip` looks at. optimizer: another one, or other
    rates; the same unless given. steps: where it ends, counted from the beginning of `base`; the same unless given.
    renew: whether the optimizer forgets its state; unless said, only if the new one has a state of another kind.
    changes: other fields of the Ensemble, such as `measures`. It is measured where `base` is, and at `at`.

    >>> import torch
    >>> from joma.models import Decoder, DecoderConfig
    >>> from joma.training import next_token_loss
    >>> text = torch.zeros(4, 10, dtype=torch.long)
    >>> base = Ensemble(
    ...     members=2,
    ...     networks=lambda members: Decoder(DecoderConfig(vocabulary=7), seeds=members),
    ...     batch=lambda step, members: (text[:, :-1], text[:, 1:]),
    ...     loss=next_token_loss,
    ...     optimizer=Optimizer("adam", rate=1e-3),
    ...     steps=10,
    ...     measure_at=(0, 4, 8),
    ...     keep_at=(6,),
    ... )
    >>> other = branch(base, of="base", at=6, frozen=["embedding"])
    >>> other.points, other.origin
    ([6, 8, 10], Origin(of='base', at=6, renew=False))
    >>> branch(base, of="base", at=5)
    Traceback (most recent call last):
    ValueError: at must be one of the steps whose state is kept, [6], got 5
    """
    if at not in base.keep_at:
        raise ValueError(f"at must be one of the steps whose state is kept, {list(base.keep_at)}, got {at}")
    if isinstance(frozen, str):
        raise ValueError(f"frozen must be a list of parameters, got the one name {frozen!r}")
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise ValueError(f"optimizer must be an Optimizer of joma.training, got {optimizer!r}")
    optimizer = optimizer or base.optimizer
    other_state = optimizer.state_kind != base.optimizer.state_kind
    if renew is False and other_state:
        kinds = f"{optimizer.kind} cannot go on with what {base.optimizer.kind} remembers"
        raise ValueError(f"renew must be True or left out, since {kinds}, got False")
    last = base.steps if steps is None else integer(steps, "steps", 1)
    return replace(
        base,
        origin=Origin(of, at, other_state if renew is None else renew),
        optimizer=optimizer,
        steps=last,
        frozen=tuple(frozen),
        **{
            "keep_at": (),
            "measure_at": tuple(sorted({at, *(point for point in base.points if at <= point <= last)})),
            **changes,
        },
    )
