"""One update of some packs and of some parameters that pass: project, let the inner optimizer step, write back.

The gradients are finite by then, or `acts` is 0 on the device. Few packs at a time have memory for their compact
parameters: a round. What the write-back does is the choice of the optimizer (see `WriteBack`).
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from joma.optim import _matrix
from joma.optim._arguments import Decay
from joma.optim._following import Following
from joma.optim._matrix import Pack, full_tensor, local
from joma.optim._members import Passing

UNFOLDED = 1 << 23  # compact entries that a device which likes large steps has at once: 32 MiB of float32
UNFOLDED_SHARE = 32  # elsewhere, and of large models: one in so many entries
UNFOLDED_LEAST = 1 << 17  # but always so many
Groups = list[dict[str, Any]]
WriteBack = Callable[[Pack, float, float], None]
"""Brings what the inner optimizer did with a pack into its matrices: pack, scale, what the matrices are shrunk by."""


def values_of(gradient: Tensor) -> Tensor:
    """All numbers of a gradient; of a sparse one, which is coalesced by then, those that are kept."""
    return gradient.values() if gradient.layout == torch.sparse_coo else gradient


def seen_gradients(packs: list[Pack], passing: list[Passing]) -> tuple[list[str], list[Tensor]]:
    """Names and gradients that must be finite; of a sparse gradient the values, each place once."""
    names, gradients = [], []
    for pack in packs:
        if pack.compact.grad is not None:  # projected already
            names.append(pack.matrices[0].name)
            gradients.append(pack.compact.grad)
            continue
        for matrix in pack.matrices:
            assert matrix.parameter.grad is not None
            names.append(matrix.name)
            gradients.append(matrix.parameter.grad)
    for each in passing:
        assert each.parameter.grad is not None
        if each.parameter.grad.layout == torch.sparse_coo:
            each.parameter.grad = each.parameter.grad.coalesce()
        names.append(each.name)
        gradients.append(values_of(each.parameter.grad))
    return names, gradients


def total_norm(tensors: Sequence[Tensor]) -> Tensor:
    """The norm of all entries together; squares of half precision would overflow where their root does not."""
    precise = reduce(torch.promote_types, {one.dtype for one in tensors}, torch.float32)
    norms = [full_tensor(norm) for norm in torch._foreach_norm(list(tensors), 2, precise)]
    total: Tensor = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
    return total


def clip_gradients(packs: list[Pack], passing: list[Passing], most: float) -> None:
    """Scale all gradients, as the inner optimizer sees them, if their norm together is above `most`."""
    for pack in packs:
        if pack.compact.grad is None:
            pack.take_gradients()
    seen = [each.grad for each in (*(pack.compact for pack in packs), *(each.parameter for each in passing))]
    gradients = [values_of(each) for each in seen if each is not None]
    factor = (most / (total_norm(gradients) + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_
    torch._foreach_mul_([local(one) for one in gradients], factor)


def rounds(packs: list[Pack], passing: list[Passing]) -> list[tuple[list[Pack], list[Passing]]]:
    """Packs that are unfolded together: one round on a device that likes large steps, if the memory is small."""
    if not packs:
        return [([], passing)]
    entries = sum(each.numel() for pack in packs for each in pack.parameters)
    entries += sum(each.parameter.numel() for each in passing)
    most = max(entries // UNFOLDED_SHARE, UNFOLDED if _matrix.is_stacked_on(packs[0].device) else UNFOLDED_LEAST)
    found: list[list[Pack]] = [[]]
    held = 0
    for pack in packs:
        size = torch.Size(pack.shape).numel()
        if found[-1] and held + size > most:
            found.append([])
            held = 0
        found[-1].append(pack)
        held += size
    if len(found) == 1:
        return [(packs, passing)]
    return [*((some, []) for some in found), *([([], passing)] if passing else [])]


def update(
    packs: list[Pack],
    passing: list[Passing],
    following: Following,
    groups: Groups,
    *,
    decay: Decay,
    acts: Tensor | float,
    write_back: WriteBack,
) -> None:
    """One round: project, step and write back some packs, and step some parameters that pass.

    - following: the inner optimizer, with groups that follow ours
    - groups: ours
    - decay: of the matrices
    - acts: 1, or on a device 0 where a gradient is not finite and nothing may change
    - write_back: the optimizer's way from the compact parameters to the matrices
    """
    for pack, memory in zip(packs, _zeros(packs), strict=True):
        if pack.compact.grad is None:
            pack.take_gradients()
        pack.unfold(memory)
        if decay == "coupled":
            _couple_decay(pack, groups[pack.group])
    shrinks = [1.0] * len(packs) if decay == "coupled" else _decay(packs, passing, groups, acts)
    following.step(
        [
            *((groups[pack.group], "compact", pack.compact) for pack in packs),
            *((groups[each.group], each.role, each.parameter) for each in passing),
        ]
    )
    for pack, shrink in zip(packs, shrinks, strict=True):
        write_back(pack, groups[pack.group]["scale"], shrink)
        pack.fold()


def _zeros(packs: list[Pack]) -> list[Tensor]:
    """Memory for each compact parameter, zeros; packs of one kind of number have one memory together."""
    shapes = [tuple(local(pack.compact).shape) for pack in packs]
    sizes = [torch.Size(shape).numel() for shape in shapes]
    if len({(pack.zero.dtype, pack.device) for pack in packs}) > 1:
        kinds = zip(packs, shapes, strict=True)
        return [torch.zeros(shape, dtype=pack.zero.dtype, device=pack.device) for pack, shape in kinds]
    if not packs:
        return []
    memory = torch.zeros(sum(sizes), dtype=packs[0].zero.dtype, device=packs[0].device)
    return [part.view(shape) for part, shape in zip(memory.split(sizes), shapes, strict=True)]


def _decay(packs: list[Pack], passing: list[Passing], groups: Groups, acts: Tensor | float) -> list[float]:
    """Decoupled decay of what is projected or scaled; for each pack what is left to do with its update."""
    apart: dict[int, list[Tensor]] = {}
    factors = [_shrink(group, acts) for group in groups]
    left = []
    for pack in packs:
        shrink = factors[pack.group]
        if pack.shrinks_apart(shrink):
            apart.setdefault(pack.group, []).extend(pack.parameters)
        left.append(1.0 if pack.shrinks_apart(shrink) else shrink)
    for each in passing:
        if each.role == "scaled":
            apart.setdefault(each.group, []).append(local(each.parameter.detach()))
    for number, weights in apart.items():
        if isinstance(factors[number], Tensor) or factors[number] != 1:
            torch._foreach_mul_(weights, factors[number])
    return left  # type: ignore[return-value]


def _shrink(group: dict[str, Any], acts: Tensor | float) -> Tensor | float:
    """What decoupled decay multiplies the weights of a group with; 1 where the step does not happen."""
    strength = group.get("weight_decay", 0)
    return 1 - group["lr"] * strength * acts if strength else 1.0


def _couple_decay(pack: Pack, group: dict[str, Any]) -> None:
    """Add weight_decay * W to the gradient, inside the subspace."""
    strength = group.get("weight_decay", 0)
    if strength and pack.compact.grad is not None:
        factor = -strength if group.get("maximize") else strength
        pack.compact.grad.add_(pack.project([each.detach() for each in pack.parameters]) * factor)
