"""Who is trained how: matrices in packs, and parameters that pass to the inner optimizer as they are."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from joma.optim import _arguments, _matrix
from joma.optim._arguments import Role
from joma.optim._folded import Folded, can_fold
from joma.optim._inner import regroup
from joma.optim._matrix import Matrix, Pack, is_sharded

STACK_SHARE = {True: 2, False: 16}  # of all entries a pack has one in so many: where products are stacked, elsewhere
SMALL_STACK = 1 << 18  # entries that may always be in one pack, however small the model is
Partner = Callable[[Matrix], object]
"""Matrices for which it gives the same may be in one pack; for None a matrix stays alone."""


class Passing(NamedTuple):
    """A parameter that the inner optimizer trains as it is; if `scaled`, at a rate times `scale`."""

    name: str
    parameter: nn.Parameter
    group: int
    role: Role


class Members:
    """The parameters of an optimizer.

    - skip, embeddings, smallest: what passes, by words in names, by whole names, by size
    - basis_dtype, state_dtype: precisions of projected matrices
    - kernels: names that are known to be weights of convolutions
    - conv, experts: which weights with more axes are trained as matrices
    """

    def __init__(
        self,
        skip: tuple[str, ...],
        embeddings: set[str],
        smallest: int | None,
        basis_dtype: torch.dtype | None,
        state_dtype: torch.dtype | None,
        *,
        kernels: set[str] | None = None,
        conv: bool = False,
        experts: bool = False,
    ) -> None:
        self.kernels, self.conv, self.experts = kernels or set(), conv, experts
        self.folded: list[Folded] = []
        self.skip, self.embeddings, self.smallest = skip, embeddings, smallest
        self.basis_dtype, self.state_dtype = basis_dtype, state_dtype
        self.matrices: list[Matrix] = []
        self.packs: list[Pack] = []
        self.passing: list[Passing] = []

    def add_group(self, group: dict[str, Any], number: int, *, explicit: bool) -> dict[Role, list[Tensor]]:
        """Take the parameters of a group; what stands for them in the inner optimizer, by role.

        A group that states its rank is explicit: its matrices are projected whatever their size.
        """
        found: dict[Role, list[Tensor]] = {"compact": [], "passing": [], "scaled": []}
        precision = {"basis_dtype": self.basis_dtype, "state_dtype": self.state_dtype}
        for name, each in zip(group["param_names"], group["params"], strict=True):
            skipped = name in self.embeddings or _arguments.is_named(name, self.skip)
            kind = can_fold(name, each, self.kernels, conv=self.conv, experts=self.experts)
            folded = None if kind is None or skipped else Folded(name, each, experts=kind)
            names, parts = ([name], [each]) if folded is None else (folded.names, folded.parts)
            role = _arguments.role_of(name, parts[0], group["rank"], self.smallest, explicit=explicit, skipped=skipped)
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
