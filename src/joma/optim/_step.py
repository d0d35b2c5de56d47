"""One update of some packs and of some parameters that pass: project, let the inner optimizer step, write back.

The gradients are finite by then, or a flag `found_inf` is 1 on the device. Few packs at a time have memory for their
compact parameters: a round. What the write-back does is the choice of the optimizer (see `WriteBack`).
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from joma.optim import _matrix
from joma.optim._arguments import Decay
from joma.optim._groups import Following, Passing, Place, decays_apart_from_gradients
from joma.optim._guard import NameOf
from joma.optim._matrix import Pack, full_tensor, local, one_number, unless

UNFOLDED = 1 << 23  # compact entries that a device which likes large steps has at once: 32 MiB of float32
UNFOLDED_SHARE = 32  # elsewhere, and of large models: one in so many entries
UNFOLDED_LEAST = 1 << 17  # but always so many
Groups = list[dict[str, Any]]
WriteBack = Callable[[Pack, float, float | Tensor, Tensor | None], None]
"""Brings what the inner optimizer did with a pack into its matrices.

Takes the pack, the scale, what the matrices are shrunk by, and a flag on the device that is 1 if nothing may change.
"""


def values_of(gradient: Tensor) -> Tensor:
    """All numbers of a gradient; of a sparse one, which is coalesced by then, those that are kept."""
    return gradient.values() if gradient.layout == torch.sparse_coo else gradient


class Seen(NamedTuple):
    """Gradients that must be finite: stacks of projected ones, and others; the name that belongs to a flag of them."""

    stacks: list[Tensor]
    tensors: list[Tensor]
    name_of: NameOf


def seen_gradients(packs: list[Pack], passing: list[Passing]) -> Seen:
    """What is looked at before a step; of a sparse gradient the values, each place once."""
    stacked = [pack for pack in packs if pack.compact.grad is not None and len(pack.matrices) > 1]
    others = [pack for pack in packs if pack.compact.grad is None or len(pack.matrices) == 1]
    tensors: list[Any] = []
    for pack in others:
        tensors += [each.grad for each in pack.parameters] if pack.compact.grad is None else [pack.compact.grad]
    for each in passing:
        gradient: Any = each.parameter.grad
        if gradient.layout == torch.sparse_coo:
            gradient = each.parameter.grad = gradient.coalesce()
        tensors.append(values_of(gradient))

    def name_of(flag: int) -> str:
        for pack in stacked:  # a flag for each row of each matrix
            if flag < len(pack.matrices) * (rows := pack.shape[1]):
                return pack.matrices[flag // rows].name
            flag -= len(pack.matrices) * rows
        names = [matrix.name for pack in others for matrix in pack.matrices]
        return [*names, *(each.name for each in passing)][flag]

    return Seen([pack.compact.grad for pack in stacked], tensors, name_of)  # type: ignore[misc]


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


class Round:
    """Packs that are unfolded together and parameters that pass; what a step asks of them is worked out once."""

    def __init__(self, packs: list[Pack], passing: list[Passing]) -> None:
        """Packs of one kind of number have one memory together."""
        self.packs, self.passing = packs, passing
        self.members: dict[Place, list[Tensor]] = {}
        for pack in packs:
            self.members.setdefault((pack.group, "compact"), []).append(pack.compact)
        for each in passing:
            self.members.setdefault((each.group, each.role), []).append(each.parameter)
        kinds: dict[object, list[Pack]] = {}
        for pack in packs:
            kinds.setdefault((pack.zero.dtype, pack.device), []).append(pack)
        self._kinds = list(kinds.values())

    def unfold(self) -> None:
        """Give each compact parameter its memory, zeros."""
        for packs in self._kinds:
            shapes = [local(pack.compact).shape for pack in packs]
            sizes = [shape.numel() for shape in shapes]
            memory = torch.zeros(sum(sizes), dtype=packs[0].zero.dtype, device=packs[0].device)
            for pack, part, shape in zip(packs, memory.split(sizes), shapes, strict=True):
                pack.unfold(part.view(shape))


class Rounds:
    """The rounds of an update, kept for the next one, which mostly has the same packs and parameters."""

    def __init__(self) -> None:
        """None so far."""
        self._kept: dict[tuple[int, ...], list[Round]] = {}

    def forget(self) -> None:
        """Packs have changed."""
        self._kept.clear()

    def of(self, packs: list[Pack], passing: list[Passing]) -> list[Round]:
        """One round on a device that likes large steps, if the memory is small; otherwise few packs in each."""
        key = (*map(id, packs), *map(id, passing))  # what is kept holds them, so that no id is given again
        if (found := self._kept.get(key)) is None:
            found = self._kept[key] = _split(packs, passing)
        return found


def _split(packs: list[Pack], passing: list[Passing]) -> list[Round]:
    if not packs:
        return [Round([], passing)]
    entries = sum(pack.entries for pack in packs) + sum(each.parameter.numel() for each in passing)
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
        return [Round(packs, passing)]
    return [*(Round(some, []) for some in found), *([Round([], passing)] if passing else [])]


def project_first(packs: list[Pack], *, free: bool) -> None:
    """Project before anybody looks whether gradients are finite, where all are projected in one round anyway.

    A product with a number that is not finite is not finite, and there are fewer numbers to look at.

    - free: gradients are not needed any more once they are projected
    """
    if packs and _matrix.is_stacked_on(packs[0].device) and not any(pack.sharded for pack in packs):
        for pack in packs:
            if pack.compact.grad is None:
                pack.take_gradients()
            if free:
                for each in pack.parameters:
                    each.grad = None


def update(
    one: Round,
    following: Following,
    groups: Groups,
    *,
    decay: Decay,
    found_inf: Tensor | None,
    write_back: WriteBack,
    free: bool,
) -> None:
    """One round: project, step and write back its packs, and step the parameters that pass.

    - following: the inner optimizer, with groups that follow ours
    - groups: ours
    - decay: of the matrices
    - found_inf: on a device, 1 where a gradient is not finite and nothing may change
    - write_back: the optimizer's way from the compact parameters to the matrices
    - free: it does not look at what the inner optimizer saw
    """
    for pack in one.packs:
        if pack.compact.grad is None:
            pack.take_gradients()
    one.unfold()
    if decay == "coupled":
        for pack in one.packs:
            _couple_decay(pack, groups[pack.group])
        shrinks: list[float | Tensor] = [1.0] * len(one.packs)
    else:
        _shrink_scaled(one.passing, groups, found_inf)
        shrinks = [_shrink(groups[pack.group], found_inf) for pack in one.packs]
    following.step(one.members)
    if free:
        for pack in one.packs:
            pack.compact.grad = None
    for pack, shrink in zip(one.packs, shrinks, strict=True):
        write_back(pack, groups[pack.group]["scale"], shrink, found_inf)
        pack.fold()


def _shrink_scaled(passing: list[Passing], groups: Groups, found_inf: Tensor | None) -> None:
    """Decoupled decay of what passes at a rate of its own, where the inner optimizer would add it to gradients."""
    scaled: dict[tuple[int, torch.dtype], list[Tensor]] = {}
    for each in passing:
        if each.role == "scaled" and not decays_apart_from_gradients(groups[each.group]):
            scaled.setdefault((each.group, each.parameter.dtype), []).append(local(each.parameter.detach()))
    for (number, dtype), weights in scaled.items():
        factor = unless(found_inf, _shrink(groups[number], found_inf), dtype)
        if isinstance(factor, Tensor) or factor != 1:
            torch._foreach_mul_(weights, factor)


def _shrink(group: dict[str, Any], found_inf: Tensor | None) -> Tensor | float:
    """What decoupled decay multiplies the weights of a group with; 1 on the device where nothing may change."""
    strength = group.get("weight_decay", 0)
    if not strength:
        return 1.0
    rate = one_number(group["lr"])
    acts = 1 - found_inf if isinstance(rate, Tensor) and found_inf is not None else 1
    shrink: Tensor | float = 1 - rate * strength * acts
    return shrink


def _couple_decay(pack: Pack, group: dict[str, Any]) -> None:
    """Add weight_decay * W to the gradient, inside the subspace."""
    strength = group.get("weight_decay", 0)
    if strength and pack.compact.grad is not None:
        factor = -strength if group.get("maximize") else strength
        pack.compact.grad.add_(pack.project([each.detach() for each in pack.parameters]) * factor)
