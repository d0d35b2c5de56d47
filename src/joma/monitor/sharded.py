"""Matrices of a model on several processes. Numbers of each are added up, and nothing is ever put together whole.

A plain matrix is the same on all processes, as in DDP: they deal the matrices out, and each is measured once. Of a
DTensor, as FSDP2 and tensor parallelism leave them, each process measures its part: squares add up to the norm's.

The stable rank of a DTensor comes from the Gram matrix of its shorter side. If each process has all of that side and
some of the longer one, W = [W_1 W_2 ...], then W W^T is the sum of the W_k W_k^T. Where the shorter side is split, the
processes exchange pieces first, and each holds as many numbers as before.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from joma.host.errors import BadInput
from joma.host.products import float32_products
from joma.measure.spectrum import GRAM_SIDE, TOGETHER, spectrum
from joma.monitor.matrices import Matrices, dense
from joma.monitor.measures import Taken
from joma.monitor.names import Names
from joma.probes._parallel import axis_of, is_first_copy, is_split, mesh_ranks, reshard

WIDTH = 2
"""Numbers that a process sends of one matrix and measure, at most."""
_KNOWN = ("norm", "update_ratio", "stable_rank", "gradient_stable_rank", "gradient_norm")


class SharedMatrices(Matrices):
    """All matrices of a model, of which this process measures its share."""

    def __init__(self, model: nn.Module, names: Names, group: Any, device: torch.device) -> None:
        """model, names: as of `Matrices`. group: the processes. device: where their numbers are added up."""
        reshard(model)
        super().__init__(model, names)
        self._group, self._device = group, device
        self._mine = _Dealt(model, names, dist.get_rank(group), dist.get_world_size(group))
        self._leading: dict[str, Tensor] = {}  # singular vectors found last, where the next search begins
        self._updates = 0
        self._elsewhere: set[str] = set()
        self._zero = torch.zeros((), dtype=torch.float64, device=device)

    def meshes(self) -> list[tuple[int, ...]]:
        return [mesh_ranks(each) for each in self.parameters.values()]

    def settle(self, meshes: list[list[tuple[int, ...]]]) -> None:
        """Leave a parameter to the first of several meshes that hold it, as where FSDP is one dimension of two."""
        mine, firsts = self.meshes(), (min(each) for each in zip(*meshes, strict=True))
        pairs = zip(self.parameters, mine, firsts, strict=True)
        self._elsewhere = {name for name, here, first in pairs if here != first}

    def must_know(self, measures: Iterable[str]) -> None:
        for measure in measures:
            rows = () if measure in _KNOWN else self.rows(measure)
            if (split := next((name for name in rows if is_split(self.parameters[name])), None)) is not None:
                raise BadInput(
                    f"{measure} is not measured of matrices in parts, and {split} lies on several processes",
                    argument="measures",
                )

    def names(self) -> tuple[str, ...]:
        return tuple(self.parameters)

    def look_again(self) -> None:
        reshard(self._model)
        super().look_again()
        self._mine.look_again()

    @torch.no_grad()
    def parts(self, measures: Iterable[str]) -> dict[str, Tensor]:
        """(matrices, WIDTH) of each measure: what is added up over all processes. Updates have none at first."""
        found = {}
        for measure in measures:
            first = measure == "update_ratio" and self._updates == 0
            self._updates += measure == "update_ratio"
            by_name = getattr(self._mine, measure)() | getattr(self, f"_parts_of_{measure}", dict)()
            if not first:
                found[measure] = self._packed(measure, by_name)
        return found

    def nothing(self, measure: str) -> Tensor:
        return torch.zeros(len(self.rows(measure)), WIDTH, dtype=torch.float64, device=self._device)

    def whole(self, sums: Mapping[str, Tensor]) -> Taken:
        found: Taken = {}
        for measure, rows in sums.items():
            finish = {"norm": _root, "update_ratio": _ratio, "gradient_norm": _root}.get(measure, _first)
            parts = {name: measure == "gradient_norm" or is_split(self.parameters[name]) for name in self.rows(measure)}
            pairs = zip(parts.items(), rows, strict=True)
            found[measure] = {name: (finish if in_parts else _first)(row) for (name, in_parts), row in pairs}
        return found

    def _packed(self, measure: str, by_name: Mapping[str, Tensor]) -> Tensor:
        table = self.nothing(measure)
        for row, name in zip(table, self.rows(measure), strict=True):
            if name in by_name:
                numbers = by_name[name].reshape(-1)
                row[: len(numbers)] = numbers
        return table

    def _split(self) -> dict[str, Any]:
        return {name: each for name, each in self.by_name.items() if is_split(each)}

    def _counts(self, name: str) -> bool:
        return name not in self._elsewhere and is_first_copy(self.parameters[name])

    def _here(self) -> dict[str, Tensor]:
        return {name: each.to_local() for name, each in self._split().items() if self._counts(name)}

    def _parts_of_norm(self) -> dict[str, Tensor]:
        return {name: _squares(part) for name, part in self._here().items()}

    def _parts_of_update_ratio(self) -> dict[str, Tensor]:
        here = self._here()
        found = {
            name: torch.stack([_squares(here[name] - before.to(here[name])), _squares(here[name])])
            for name, before in self._before.items()
        }
        self._before = {name: part.detach().clone() for name, part in here.items()}
        return found

    def _parts_of_stable_rank(self) -> dict[str, Tensor]:
        return self._ranks_of(self._split(), self._leading)

    def _parts_of_gradient_norm(self) -> dict[str, Tensor]:
        """A gradient that is the same on all processes is counted by the first one."""
        first, found = dist.get_rank(self._group) == 0, {}
        for layer, names in self.layers.items():
            there: dict[str, Any] = {name: w.grad for name in names if (w := self.parameters[name]).grad is not None}
            mine = [each.to_local() for name, each in there.items() if is_split(each) and self._counts(name)]
            mine += [each for each in there.values() if first and not is_split(each)]
            found[layer] = self._zero + sum(_squares(dense(each)).to(self._device) for each in mine)
        return found

    def _parts_of_gradient_stable_rank(self) -> dict[str, Tensor]:
        gradients = {name: each.grad for name, each in self._split().items() if each.grad is not None}
        return self._ranks_of(gradients, {})

    def _ranks_of(self, matrices: dict[str, Any], leading: dict[str, Tensor]) -> dict[str, Tensor]:
        """Gram matrices are added up on one process after the other in turn: it finds the ranks of these."""
        found: dict[str, Tensor] = {}
        for turn, names in enumerate(_of_one_side(matrices)):
            # Every process must come here for all of them, and in this order.
            grams = torch.stack([self._gram_part(name, matrices[name]) for name in names])
            owner = turn % dist.get_world_size(self._group)
            dist.reduce(grams, group_dst=owner, group=self._group)
            if dist.get_rank(self._group) == owner:
                found |= {name: _rank_of(name, gram, leading) for name, gram in zip(names, grams, strict=True)}
        return found

    def _gram_part(self, name: str, matrix: Any) -> Tensor:
        part = gram_part(matrix).to(self._device)
        return part if self._counts(name) else torch.zeros_like(part)


class _Dealt(Matrices):
    """The plain matrices that this process measures."""

    def __init__(self, model: nn.Module, names: Names, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        super().__init__(model, names)

    def gradient_norm(self) -> dict[str, Tensor]:
        return {}  # `_parts_of_gradient_norm` has all

    def _some(self, matrices: dict[str, Tensor]) -> dict[str, Tensor]:
        plain = [(name, each) for name, each in matrices.items() if not is_split(each)]
        return dict(plain[self._rank :: self._size])


def _of_one_side(matrices: dict[str, Any]) -> Iterator[list[str]]:
    groups: dict[tuple[int, torch.dtype], list[str]] = {}
    for name, each in matrices.items():
        groups.setdefault((min(each.shape), each.dtype), []).append(name)
    for (side, _), names in groups.items():
        some = max(1, TOGETHER // side**2)
        yield from (names[at : at + some] for at in range(0, len(names), some))


def _rank_of(name: str, gram: Tensor, leading: dict[str, Tensor]) -> Tensor:
    """|W|_F^2 / |W|_2^2: the trace over the largest eigenvalue. NaN where it is not finite."""
    try:
        found = spectrum(gram, start=leading.get(name))
    except ValueError:
        leading.pop(name, None)
        return torch.full((), torch.nan)
    leading[name] = found.vectors
    top = found.spectral_norm
    return torch.where(top > 0, gram.trace() / torch.where(top > 0, top, 1.0), 0.0)


def gram_part(w: Any) -> Tensor:
    """What this process adds to the Gram matrix of the shorter side of a DTensor, in float64 where that side is small.

    Rows may come in another order than in `w`, the same on all processes: that changes no singular value.
    """
    short = int(w.shape[0] > w.shape[1])
    part = w.to_local().detach().to(w.device_mesh.device_type)
    part = part.mT if short else part
    for dim, placement in enumerate(w.placements):
        if axis_of(placement) == short:
            part = _with_all_rows(part, w.device_mesh.get_group(dim))
    wide = part.to(torch.float64 if len(part) <= GRAM_SIDE else torch.promote_types(part.dtype, torch.float32))
    with float32_products("highest"), torch.autocast(wide.device.type, enabled=False):
        gram: Tensor = wide @ wide.mT
    return gram


def _with_all_rows(part: Tensor, group: Any) -> Tensor:
    """(rows of all, some columns) from (some rows, columns) on every process: each sends pieces of its columns."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    rows = [torch.zeros(1, dtype=torch.int64, device=part.device) for _ in range(size)]
    dist.all_gather(rows, torch.tensor([len(part)], device=part.device), group=group)
    heights = [int(each) for each in rows]
    pieces = part.tensor_split(size, dim=1)
    width = pieces[rank].shape[1]
    sent = torch.cat([piece.reshape(-1) for piece in pieces])
    received = part.new_empty(sum(heights) * width)
    dist.all_to_all_single(
        received, sent, [height * width for height in heights], [piece.numel() for piece in pieces], group=group
    )
    return received.view(sum(heights), width)


def _squares(part: Tensor) -> Tensor:
    """The sum of squares; the norm first, so that float32 does not overflow."""
    size: Tensor = torch.linalg.vector_norm(part, dtype=torch.promote_types(part.dtype, torch.float32))
    return size.double().square()


def _root(row: Tensor) -> Tensor:
    return row[0].sqrt()


def _ratio(row: Tensor) -> Tensor:
    return torch.where(row[1] > 0, (row[0] / torch.where(row[1] > 0, row[1], 1.0)).sqrt(), row[1])


def _first(row: Tensor) -> Tensor:
    return row[0]
