"""The groups of an optimizer and of the inner one: who is trained how, as which matrices, with which options.

`Members` sorts parameters into matrices, which lie in packs, and those that pass to the inner optimizer as they are.
`Folded` has the matrices of a weight with more axes, in its memory. A kernel of a convolution (out, in, height, width)
is one matrix, out x (in height width). A weight of experts (experts, rows, columns) is one matrix per expert, each with
a subspace of its own: experts see different tokens, and one that sees none waits for its first gradient.
`Following` has the groups of the inner optimizer, each of which follows the options of a group of ours.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from joma.optim import _arguments, _matrix
from joma.optim._arguments import Decay, Projected, Role
from joma.optim._inner import only, regroup
from joma.optim._matrix import Matrix, Pack, is_sharded, one_number

STACK_SHARE = {True: 2, False: 16}  # of all entries a pack has one in so many: where products are stacked, elsewhere
SMALL_STACK = 1 << 18  # entries that may always be in one pack, however small the model is
Partner = Callable[[Matrix], object]
"""Matrices for which it gives the same may be in one pack; for None a matrix stays alone."""
ORIGIN = "galore"  # in a new group of the inner optimizer: the number of ours and the role of its parameters
Place = tuple[int, Role]
"""The number of a group of ours, and the role of some of its parameters: what a group of the inner optimizer has."""


class Folded:
    """The matrices of one weight: parameters that have its memory and, for the time of a step, its gradient."""

    def __init__(self, name: str, owner: nn.Parameter, *, experts: bool) -> None:
        """A kernel if it is not one of experts."""
        self.owner, self.experts = owner, experts
        views = self._matrices_of(owner.detach())
        self.names = [f"{name}[{place}]" for place in range(len(views))] if experts else [name]
        self.parts = [nn.Parameter(one) for one in views]
        self._known: tuple[object, ...] = ()

    def _matrices_of(self, whole: Tensor) -> list[Tensor]:
        """Views, but for kernels whose channels come last in memory: those are copied."""
        return list(whole.unbind()) if self.experts else [whole.flatten(1)]

    @property
    def _copied(self) -> bool:
        whole = self.owner.detach()
        return not self.experts and whole.flatten(1).data_ptr() != whole.data_ptr()

    def lend(self) -> None:
        """Let the matrices have the memory of the weight, which may have moved, and its gradient."""
        whole, gradient = self.owner.detach(), self.owner.grad
        now = (whole.data_ptr(), whole.dtype, whole.device, whole.stride())
        if now != self._known or self._copied:
            for part, one in zip(self.parts, self._matrices_of(whole), strict=True):
                part.data = one
            self._known = now
        if gradient is not None and gradient.layout == torch.strided:
            for part, one in zip(self.parts, self._matrices_of(gradient), strict=True):
                part.grad = one
        elif gradient is not None:
            raise ValueError(f"the gradient of {self.names[0]} is sparse and cannot be projected: make it dense")

    def give_back(self) -> None:
        """The gradient is the weight's again; what was copied goes back into it, and its memory is freed."""
        if self._copied:
            (part,) = self.parts
            if part.grad is not None:
                self.owner.detach().copy_(part.detach().view_as(self.owner))
            part.data = part.detach().new_zeros(()).expand(part.shape)
        for part in self.parts:
            part.grad = None


def can_fold(name: str, weight: Tensor, kernels: set[str], *, conv: bool, experts: bool) -> bool | None:
    """Whether a weight is one of experts (True) or a kernel (False) that is to be trained as matrices; None if neither.

    - kernels: names that are known to be weights of convolutions. A weight with three axes that is not among them is
      one of experts, if those are asked for
    - conv, experts: which are asked for
    """
    if weight.ndim < 3 or not weight.is_floating_point() or is_sharded(weight) or weight.numel() == 0:
        return None
    if weight.ndim > 3 or name in kernels or not experts:
        return False if conv else None
    return True


class Passing(NamedTuple):
    """A parameter that the inner optimizer trains as it is; if `scaled`, at a rate times `scale`."""

    name: str
    parameter: nn.Parameter
    group: int
    role: Role


class Members:
    """The parameters of an optimizer.

    - skip, embeddings: what passes, by words in names and by whole names
    - kernels: names that are known to be weights of convolutions
    - projected: what is projected, and in which precision
    """

    def __init__(self, skip: tuple[str, ...], embeddings: set[str], kernels: set[str], projected: Projected) -> None:
        self.skip, self.embeddings, self.kernels, self.projected = skip, embeddings, kernels, projected
        self.folded: list[Folded] = []
        self.matrices: list[Matrix] = []
        self.packs: list[Pack] = []
        self.passing: list[Passing] = []

    def add_group(self, group: dict[str, Any], number: int, *, explicit: bool) -> dict[Role, list[Tensor]]:
        """Take the parameters of a group; what stands for them in the inner optimizer, by role.

        A group that states its rank is explicit: its matrices are projected whatever their size.
        """
        found: dict[Role, list[Tensor]] = {"compact": [], "passing": [], "scaled": []}
        asked = self.projected
        precision = {"basis_dtype": asked.basis_dtype, "state_dtype": asked.state_dtype}
        for name, each in zip(group["param_names"], group["params"], strict=True):
            skipped = name in self.embeddings or _arguments.is_named(name, self.skip)
            kind = can_fold(name, each, self.kernels, conv=asked.conv, experts=asked.experts)
            folded = None if kind is None or skipped else Folded(name, each, experts=kind)
            names, parts = ([name], [each]) if folded is None else (folded.names, folded.parts)
            role = _arguments.role_of(name, parts[0], group["rank"], asked.smallest, explicit=explicit, skipped=skipped)
            if role != "compact":
                self.passing.append(Passing(name, each, number, role))
                found[role].append(each)
                continue
            if folded is not None:
                self.folded.append(folded)
            for place, (one, part) in enumerate(zip(names, parts, strict=True)):
                of = {"owner": each, "expert": place if folded is not None and folded.experts else None, **precision}
                self.matrices.append(Matrix(one, part, number, len(self.matrices), group["rank"], **of))
                self.packs.append(make_pack(self.matrices[-1:]))
                found[role].append(self.packs[-1].compact)
        return {role: each for role, each in found.items() if each}

    def form_packs(self, inner: torch.optim.Optimizer, packs: list[Pack], partner: Partner) -> None:
        """Put the matrices of these packs into new ones, as many in one as may be; inner states go with them."""
        gone = {id(pack) for pack in packs}
        entries = sum(each.parameter.numel() for each in self.matrices)
        formed = regroup(inner, packs, lambda matrices: form_packs(matrices, make_pack, partner, entries))
        self.packs = [pack for pack in self.packs if id(pack) not in gone] + formed

    def sizes(self) -> tuple[int, int, int, int]:
        """How many there are; `cut` goes back to them."""
        return len(self.matrices), len(self.packs), len(self.passing), len(self.folded)

    def cut(self, sizes: tuple[int, int, int, int]) -> None:
        """Forget those that came later."""
        for each, size in zip((self.matrices, self.packs, self.passing, self.folded), sizes, strict=True):
            del each[size:]  # type: ignore[attr-defined]


def make_pack(matrices: list[Matrix]) -> Pack:
    """Of matrices that lie here, or of one that lies on several processes."""
    if is_sharded(matrices[0].parameter):  # only then: the import loads torch.distributed.tensor
        from joma.optim._sharded import ShardedPack

        return ShardedPack(matrices)
    return Pack(matrices)


def form_packs(
    matrices: Iterable[Matrix], make: Callable[[list[Matrix]], Pack], partner: Partner, entries: int
) -> list[Pack]:
    """Packs of alike matrices for which `partner` gives the same; None: a matrix stays alone. `entries`: of the model.

    A pack has no more entries than one product may copy, so that little memory is needed beside the gradients.
    A weight of experts is one pack, whatever its size: its state is saved as one.
    """
    found: dict[object, list[list[Matrix]]] = {}
    for matrix in matrices:
        more = partner(matrix)
        lists = found.setdefault((matrix.kind, more) if more is not None else id(matrix), [[]])
        share = STACK_SHARE[_matrix.is_stacked_on(matrix.parameter.device)]
        most = min(_matrix.STACK, max(SMALL_STACK, entries // share))
        if matrix.expert is None and lists[-1] and (len(lists[-1]) + 1) * matrix.parameter.numel() > most:
            lists.append([])
        lists[-1].append(matrix)
    return [make(alike) for lists in found.values() for alike in lists]


class Follower(NamedTuple):
    """A group of the inner optimizer, and ours whose options it follows."""

    ours: dict[str, Any]
    theirs: dict[str, Any]
    role: Role


def decays_apart_from_gradients(group: dict[str, Any]) -> bool:
    """Whether the inner optimizer's own decay is decoupled, as AdamW's: it then shrinks by rate times weight_decay."""
    return bool(group.get("decoupled_weight_decay"))


class Following:
    """The inner optimizer as we see it: a group for each role of the parameters in each of our groups."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        """Nothing follows before `link`."""
        self.inner = inner
        self.followers: dict[Place, Follower] = {}

    def link(self, groups: list[dict[str, Any]], new: list[dict[str, Any]]) -> None:
        """Let new groups of the inner optimizer follow ours, and give ours the options that they lack."""
        for one in new:
            number, role = one.pop(ORIGIN)
            for key, value in one.items():
                groups[number].setdefault(key, value)
                one[key] = value.clone() if isinstance(value, Tensor) else value  # several groups may share a tensor
            self.followers[number, role] = Follower(groups[number], one, role)

    def link_again(self) -> None:
        """Loading gives the inner optimizer new group dictionaries, in the old order."""
        pairs = zip(self.followers.items(), self.inner.param_groups, strict=True)
        self.followers = {place: one._replace(theirs=theirs) for (place, one), theirs in pairs}

    def list_packs(self, packs: list[Pack]) -> None:
        """Let the inner optimizer have the compact parameters of these packs and no others."""
        for (number, role), one in self.followers.items():
            if role == "compact":
                one.theirs["params"] = [pack.compact for pack in packs if pack.group == number]

    def options_of(self, number: int, role: Role, group: dict[str, Any], decay: Decay) -> dict[str, Any]:
        """What the group of a role gets of a group of ours; decay of matrices is not the inner optimizer's matter."""
        known = self.followers[number, role].theirs
        options = {key: group[key] for key in known if key not in ("params", "param_names")}
        if role == "scaled" and "lr" in options:
            options["lr"] = options["lr"] * group["scale"]
        if "weight_decay" in options and (role == "compact" or (role == "scaled" and decay == "decoupled")):
            own = role == "scaled" and decays_apart_from_gradients(group)
            options["weight_decay"] = group["weight_decay"] / group["scale"] if own else 0.0
        return options

    def hand_over_options(self, decay: Decay) -> None:
        """Hand on what a scheduler may have changed."""
        for (number, role), (ours, theirs, _) in self.followers.items():
            for key, value in self.options_of(number, role, ours, decay).items():
                if (
                    isinstance(theirs[key], Tensor)
                    and theirs[key] is not value
                    and (key != "weight_decay" or role == "passing")
                ):
                    theirs[key].fill_(one_number(value))  # a rate that torchao keeps in a tensor stays in that tensor
                else:
                    theirs[key] = value

    def step(self, members: dict[Place, list[Tensor]]) -> None:
        """One step of the inner optimizer for some parameters and no others."""
        with only(self.inner, [(self.followers[place].theirs, some) for place, some in members.items()]):
            self.inner.step()
