"""Projected matrices: how a gradient comes into the subspace and an update goes out of it.

A `Matrix` is one parameter that is trained in a subspace. A `Pack` has matrices that are alike (same group, shape,
rank, precision and device): their bases lie in one tensor, and one compact parameter stands for all of them in the
inner optimizer. So a step has a few products and a few tensors instead of one per matrix.

Rows of a matrix may lie on several processes (DTensor, as FSDP2 makes them; see `ShardedPack`). A program without
distributed training never loads torch.distributed.tensor: a DTensor exists only where somebody has loaded it.

Bases may be kept in 8 bits: whole numbers and no scale. A direction has length 1. So its codes c, with the largest at
127, say all of it: it is c / |c|. No scale is kept, none can be damaged, and what is read back has length 1 again.
Scales for 256 entries at a time, as in Q-GaLore (arXiv 2407.08296), leave bases about as orthonormal:
`bench_galore --parts lowbit_loss` measures both.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from joma.optim.projector import Side, side_of

STACKED_ON = ("cuda", "xpu", "mps")  # kinds of devices on which one large product beats many small ones
FUSED_ON = ("cuda", "cpu")  # those that have torch's fused SGD
PADDED_ON = ("cuda",)  # those that read rows of half precision fast if each begins at a multiple of ALIGNED entries
ALIGNED = 8
ALONE = 1 << 21  # entries of a matrix whose product fills such a device by itself: nothing is copied for it
SECOND_MOMENTS = ("sq", "square", "sum", "var", "inf", "max", "step_size", "acc_delta")  # parts of names
LARGEST = 127  # code of a basis in 8 bits
STACK = 12 << 20  # entries that are copied together for one product: 48 MiB of float32 beside the gradients


def is_second_moment(name: str) -> bool:
    """Whether torch's optimizers call something so that is not linear in the gradient."""
    return any(part in name for part in SECOND_MOMENTS)


def is_stacked_on(device: torch.device) -> bool:
    """Whether one large product beats many small ones on a device."""
    return device.type in STACKED_ON


def is_sharded(value: object) -> bool:
    """Whether a tensor lies on several processes."""
    loaded = sys.modules.get("torch.distributed.tensor")
    return loaded is not None and isinstance(value, loaded.DTensor)


def local(tensor: Any) -> Tensor:
    """What of a tensor is on this process."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[no-any-return]


def full_tensor(tensor: Any) -> Tensor:
    """The tensor with all its rows, gathered where they lie on several processes."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[no-any-return]


def part_like(full: Tensor, like: Any) -> Tensor:
    """What of a full tensor is on this process, if it is split as another one; nothing is sent."""
    if not is_sharded(like):
        return full
    of: Any = sys.modules["torch.distributed.tensor"]
    everywhere = of.DTensor.from_local(full, like.device_mesh, [of.Replicate()] * like.device_mesh.ndim)
    return local(everywhere.redistribute(placements=like.placements))


def broadcast_from_first(found: Tensor, group: dist.ProcessGroup) -> Tensor:
    """What the first process of a group found, on all of them."""
    sent = found.contiguous()
    dist.broadcast(sent, group=group, group_src=0)
    return sent


def precision_of(parameter: Tensor, asked: torch.dtype | None) -> torch.dtype:
    """Of a basis or a state: the parameter's own unless another is asked for.

    float16 has too few exponents for squares of gradients, so a float16 parameter needs float32.
    """
    if asked is not None:
        return asked
    return torch.float32 if parameter.dtype == torch.float16 else parameter.dtype


def to_stored(basis: Tensor, dtype: torch.dtype) -> Tensor:
    """A basis (..., rows, rank) for its memory. Codes stay as they are, bit for bit."""
    if basis.dtype == dtype:
        return basis
    basis = to_directions(basis, torch.promote_types(basis.dtype, torch.float32))
    if dtype != torch.int8:
        return basis
    return (basis * (LARGEST / basis.abs().amax(-2, keepdim=True))).round().to(torch.int8)


def to_directions(stored: Tensor, dtype: torch.dtype) -> Tensor:
    """A basis (..., rows, rank) to compute with, from its memory; where that is floating already, it is not copied."""
    if stored.dtype == dtype:  # nearly always; a call of torch that changes nothing costs the host something too
        return stored
    codes = stored.to(dtype)
    if stored.is_floating_point():
        return codes
    precise = torch.promote_types(dtype, torch.float32)
    lengths = torch.linalg.vector_norm(codes, dim=-2, keepdim=True, dtype=precise)
    return codes.div_(lengths)


class Matrix:
    """A parameter that is trained in a subspace: its shape and rank, how often it was updated, its place in a pack."""

    pack: "Pack"
    place: int

    def __init__(
        self,
        name: str,
        parameter: nn.Parameter,
        group: int,
        index: int,
        rank: int,
        *,
        basis_dtype: torch.dtype | None = None,
        state_dtype: torch.dtype | None = None,
        owner: nn.Parameter | None = None,
        expert: int | None = None,
    ) -> None:
        """Name and index say which parameter it is, group which parameter group it is in.

        A matrix that lies in a weight with more axes has that weight as its owner; `expert` is its place there.
        """
        self.name, self.parameter, self.group, self.index = name, parameter, group, index
        self.owner, self.expert = parameter if owner is None else owner, expert
        self.side: Side = side_of(*parameter.shape)
        self.shorter, self.longer = min(parameter.shape), max(parameter.shape)
        self.basis_dtype = precision_of(parameter, basis_dtype)
        self.product_dtype = precision_of(parameter, None if basis_dtype == torch.int8 else basis_dtype)
        self.state_dtype = precision_of(parameter, state_dtype)
        self.rank = min(rank, self.shorter)
        self.count = 0  # updates so far
        # The count at the last refresh. Below 0 the subspace is to be found from the next gradient: at -1 by a search,
        # at -1 - n from the last one, which was followed n times in a row and has not settled.
        self.refreshed = -1
        self.turn = (0, 1)  # which of how many turns it has among the refreshes
        self.found = False  # whether it has a subspace

    @property
    def basis(self) -> Tensor | None:
        """(shorter side, rank) as it is kept, in 8 bits maybe, or None before the first gradient."""
        return self.pack.basis[self.place] if self.found and self.pack.basis is not None else None

    @property
    def energies(self) -> Tensor | None:
        """(rank,) shares of the gradient's squared norm when the subspace was found; zeros if it was zero."""
        return self.pack.energies[self.place] if self.found and self.pack.energies is not None else None

    @property
    def compact_shape(self) -> tuple[int, int]:
        return self.compact_shape_of(self.rank)

    def compact_shape_of(self, rank: int) -> tuple[int, int]:
        return (rank, self.longer) if self.side == "left" else (self.longer, rank)

    @property
    def projected_axis(self) -> int:
        """Of the compact shape: the axis whose entries are directions of the subspace."""
        return 0 if self.side == "left" else 1

    @property
    def kind(self) -> tuple[object, ...]:
        """What matrices must share to be in one pack."""
        p = self.parameter
        return (self.group, tuple(p.shape), self.rank, p.dtype, p.device, self.basis_dtype, self.state_dtype)

    def is_due(self, refresh: int) -> bool:
        if self.refreshed < 0:
            return True
        return self.count % refresh == self.offset(refresh) and self.refreshed != self.count

    def offset(self, refresh: int) -> int:
        """Of its refreshes: the remainder of their counts."""
        turn, turns = self.turn
        return turn * refresh // turns

    def take_subspace(self, basis: Tensor, energies: Tensor) -> None:
        self.pack.take_subspaces(self.place, basis[None], energies[None])

    def directions(self) -> Tensor:
        """(shorter side, rank) to compute with."""
        assert self.basis is not None
        return to_directions(self.basis, self.product_dtype)

    def project(self, full: Tensor) -> Tensor:
        full, basis = full.to(self.product_dtype), self.directions()
        return basis.mT @ full if self.side == "left" else full @ basis

    def lift(self, compact: Tensor) -> Tensor:
        compact, basis = compact.to(self.product_dtype), self.directions()
        return basis @ compact if self.side == "left" else compact @ basis.mT


class Pack:
    """Matrices that are alike, their bases in one tensor, and the compact parameter that stands for all of them."""

    sharded = False  # whether rows lie on several processes

    def __init__(self, matrices: list[Matrix]) -> None:
        """One matrix alone has a compact matrix; several have a stack of them."""
        self.matrices = matrices
        for place, matrix in enumerate(matrices):
            matrix.pack, matrix.place = self, place
        first = matrices[0]
        self.parameters: list[Tensor] = [matrix.parameter for matrix in matrices]
        self.entries = sum(each.numel() for each in self.parameters)
        self.group, self.side, self.device = first.group, first.side, first.parameter.device
        self.product_dtype = first.product_dtype
        self.stacks = is_stacked_on(self.device) and len(matrices) > 1
        large, columns = self.entries >= ALONE * len(matrices), first.parameter.shape[1]
        self._copies = self.stacks and not large
        odd = self.side == "left" and columns % ALIGNED > 0 and self.product_dtype.itemsize == 2
        self._pads = large and odd and self.device.type in PADDED_ON
        # One kernel shrinks many weights and adds to them if they are of one kind with what is added.
        fusible = self.device.type in FUSED_ON and all(each.is_contiguous() for each in self.parameters)
        self._fuses = self._copies and fusible and first.parameter.dtype == self.product_dtype
        self._offsets: tuple[int, set[int]] = (0, set())  # of refreshes, for a number of updates between them
        self.basis: Tensor | None = None  # (matrices, shorter side, rank), in 8 bits maybe
        self.energies: Tensor | None = None  # (matrices, rank)
        self.zero = torch.zeros((), dtype=first.state_dtype, device=self.device)
        self.compact = nn.Parameter(self.zeros())
        self.folded = self.compact.data
        self.shown: tuple[object, ...] = ()  # what the optimizer's state[p] was made from

    @property
    def shape(self) -> tuple[int, ...]:
        shape, count = self.matrices[0].compact_shape, len(self.matrices)
        return shape if count == 1 else (count, *shape)

    def zeros(self) -> Tensor:
        return self.zero.expand(self.shape)

    def allocate_bases(self) -> None:
        if self.basis is None:
            first, count = self.matrices[0], len(self.matrices)
            sides = (count, first.shorter, first.rank)
            self.basis = torch.zeros(sides, dtype=first.basis_dtype, device=self.device)
            precise = torch.promote_types(self.product_dtype, torch.float32)
            self.energies = torch.zeros(count, first.rank, dtype=precise, device=self.device)

    def take_subspaces(self, place: int, basis: Tensor, energies: Tensor, *, sound: Tensor | None = None) -> None:
        """Let neighbours have these subspaces from now on, in the memory of those before."""
        self.allocate_bases()
        assert self.basis is not None
        assert self.energies is not None
        first, there = self.matrices[0], slice(place, place + len(basis))
        kept, shares = self.basis[there], self.energies[there]
        basis = to_stored(basis, first.basis_dtype)
        if sound is None:
            kept.copy_(basis)
            shares.copy_(energies)
        else:
            torch.where(sound[:, None, None], basis.to(kept.dtype), kept, out=kept)
            torch.where(sound[:, None], energies.to(shares.dtype), shares, out=shares)
        for matrix in self.matrices[there]:
            matrix.found = True

    def unfold(self, memory: Tensor) -> None:
        """Give the compact parameter memory, zeros of its shape, for the time of a step."""
        self.compact.data = memory

    def fold(self) -> None:
        """Between steps: no memory for the compact parameter, none for its gradient."""
        if self.folded.shape != self.shape:
            self.folded = self.zeros()
        self.compact.data = self.folded
        self.compact.grad = None

    def bases(self) -> Tensor:
        """(matrices, shorter side, rank) in the precision of products."""
        assert self.basis is not None
        return to_directions(self.basis, self.product_dtype)

    def each_basis(self) -> Iterator[Tensor]:
        """The same, one after the other: of bases in 8 bits only one is unpacked at a time."""
        assert self.basis is not None
        return (to_directions(one, self.product_dtype) for one in self.basis.unbind())

    def project(self, tensors: Sequence[Tensor]) -> Tensor:
        """Tensors of the matrices' shapes in the subspaces, P^T G or G P, in the compact shape."""
        found = self._multi_tensor_project(tensors) if self._copies else self._single_tensor_project(tensors)
        return found if found.dtype == self.zero.dtype else found.to(self.zero.dtype)

    def _single_tensor_project(self, tensors: Sequence[Tensor]) -> Tensor:
        dtype, shape = self.product_dtype, self.matrices[0].compact_shape
        found = torch.empty(len(tensors), *shape, dtype=dtype, device=self.device)
        for basis, one, into in zip(self.each_basis(), tensors, found.unbind(), strict=True):
            if self._pads:
                into.copy_(padded_product(basis.mT, one))
            else:
                torch.mm(*((basis.mT, one.to(dtype)) if self.side == "left" else (one.to(dtype), basis)), out=into)
        return found if len(tensors) > 1 else found[0]

    def _multi_tensor_project(self, tensors: Sequence[Tensor]) -> Tensor:
        bases, full = self.bases(), torch.stack(list(tensors))
        full = full if full.dtype == self.product_dtype else full.to(self.product_dtype)
        return torch.bmm(bases.mT, full) if self.side == "left" else torch.bmm(full, bases)

    def take_gradients(self) -> None:
        """Give the compact parameter the projected gradients, added to what it has."""
        gradients = [each.grad for each in self.parameters if each.grad is not None]
        found = self.project(gradients)
        self.compact.grad = found if self.compact.grad is None else self.compact.grad + found

    def check_dense(self) -> None:
        """Refuse a sparse gradient; parameters that are not projected may have one."""
        for each, matrix in zip(self.parameters, self.matrices, strict=True):
            if each.grad is not None and each.grad.layout != torch.strided:
                raise ValueError(
                    f"the gradient of {matrix.name} is sparse and cannot be projected: make it dense or name it in skip"
                )

    def due(self, refresh: int) -> list[Matrix]:
        """The matrices whose subspaces are to be found anew before the coming update."""
        if self._offsets[0] != refresh:
            self._offsets = refresh, {matrix.offset(refresh) for matrix in self.matrices}
        if self.matrices[0].count % refresh in self._offsets[1] or any(one.refreshed < 0 for one in self.matrices):
            return [matrix for matrix in self.matrices if matrix.is_due(refresh)]
        return []

    def apply(self, scale: float, shrink: float | Tensor, found_inf: Tensor | None = None) -> None:
        """Shrink the matrices and add what the inner optimizer did with the compact parameter.

        Weights in half precision are rounded once: decay alone would be lost.
        """
        moved = self.compact.detach()
        moved = moved if moved.ndim == 3 else moved[None]
        moved = moved if moved.dtype == self.product_dtype else moved.to(self.product_dtype)
        if self._fuses and not isinstance(shrink, Tensor):
            self._multi_tensor_apply(moved, scale, shrink, found_inf)
        else:
            self._single_tensor_apply(moved, scale, unless(found_inf, shrink, self.parameters[0].dtype))

    def _single_tensor_apply(self, moved: Tensor, scale: float, shrink: float | Tensor) -> None:
        for weight, basis, one in zip(self.parameters, self.each_basis(), moved.unbind(), strict=True):
            # A transposed first factor is slower on a CPU than a transposed result.
            into = weight if self.side == "left" else weight.mT
            factors = (basis, one if self.side == "left" else one.mT)
            if weight.dtype != self.product_dtype or (isinstance(shrink, Tensor) and weight.dtype.itemsize <= 2):
                shrink_and_add(into, (padded_product if self._pads else torch.mm)(*factors), scale, shrink)
            elif self._pads:
                add_padded_product(weight, basis, one, scale, float(shrink))
            elif isinstance(shrink, Tensor):
                into.mul_(shrink).addmm_(*factors, alpha=scale)
            else:  # no memory in full shape
                into.addmm_(*factors, beta=shrink, alpha=scale)

    def _multi_tensor_apply(self, moved: Tensor, scale: float, shrink: float, found_inf: Tensor | None) -> None:
        """By the kernel of torch's SGD, W -= scale * (decay * W - lifted): weights are read once."""
        bases = self.bases()
        lifted = torch.bmm(bases, moved) if self.side == "left" else torch.bmm(moved, bases.mT)
        torch._fused_sgd_(
            self.parameters,
            list(lifted.unbind()),
            [],
            weight_decay=(1 - shrink) / scale,
            lr=scale,
            momentum=0.0,
            dampening=0.0,
            nesterov=False,
            maximize=True,
            is_first_step=False,
            found_inf=found_inf,
        )

    def agree(self, found: Tensor) -> Tensor:
        """What was found, the same on all processes that hold a part of the matrix."""
        return found

    def lift(self, compact: Tensor) -> Tensor:
        """A tensor of the compact shape, (matrices, rows, columns) in at least float32."""
        compact = to_precise(compact if compact.ndim == 3 else compact[None])
        bases = self.bases().to(compact.dtype)
        return bases @ compact if self.side == "left" else compact @ bases.mT

    def norms(self, tensor: Tensor, *, by_channel: bool) -> Tensor:
        """Of a tensor of the compact shape, with its axes: of each entry of the longer side, or of a whole matrix."""
        tensor = to_precise(tensor if tensor.ndim == 3 else tensor[None])
        dims = (1 if self.side == "left" else 2,) if by_channel else (1, 2)
        found: Tensor = torch.linalg.vector_norm(tensor, dim=dims, keepdim=True)
        return found

    def whole_norms(self, norms: Tensor) -> Tensor:
        return norms


class ShardedPack(Pack):
    """One matrix with its rows on several processes, as FSDP2 leaves it; its compact parameter is a DTensor too.

    The basis P is the same on all processes. If the columns are projected, each process projects its own rows, G_k P,
    and nothing is sent. If the rows are projected, the processes add up P_k^T G_k, and each keeps some columns of the
    sum; on the way back they exchange the compact update. Only a refresh gathers a full gradient.
    """

    sharded = True

    def __init__(self, matrices: list[Matrix]) -> None:
        (matrix,) = matrices
        self.of: Any = sys.modules["torch.distributed.tensor"]  # who has such a matrix has loaded it
        parameter: Any = matrix.parameter
        self.mesh, self.placements = parameter.device_mesh, tuple(parameter.placements)
        if any(one not in (self.of.Shard(0), self.of.Replicate()) for one in self.placements):
            raise ValueError(
                f"{matrix.name} is split as {self.placements}: GaLore takes matrices split by rows, as FSDP2 does"
            )
        super().__init__(matrices)

    @property
    def compact_placements(self) -> tuple[Any, ...]:
        """By the axis that is not projected: rows of m x r, columns of r x n."""
        return self._placed(self.of.Shard(0 if self.side == "right" else 1))

    def zeros(self) -> Tensor:
        """Zeros of the compact shape in the memory of one number, on each process for its part."""
        places = {"device_mesh": self.mesh, "placements": self.compact_placements}
        full = self.of.zeros(self.shape, dtype=self.zero.dtype, **places)
        return self._compact(self.zero.expand(full.to_local().shape))

    def unfold(self, memory: Tensor) -> None:
        """Give the compact parameter memory; assigning to .data would not, and FSDP2 does it this way too."""
        self.compact._local_tensor = memory  # type: ignore[attr-defined]

    def fold(self) -> None:
        """Between steps: no memory for the compact parameter, none for its gradient."""
        self.compact._local_tensor = self.zero.expand(local(self.compact).shape)  # type: ignore[attr-defined]
        self.compact.grad = None

    def project(self, tensors: Sequence[Tensor]) -> Tensor:
        part = local(tensors[0]).to(self.product_dtype)
        if self.side == "right":
            return self._compact((part @ self.bases()[0]).to(self.zero.dtype))
        addend = part_like(self.bases()[0], tensors[0]).mT @ part
        addend = self.of.DTensor.from_local(addend, self.mesh, self._placed(self.of.Partial()))
        summed: Tensor = addend.redistribute(self.mesh, self.compact_placements)
        return summed.to(self.zero.dtype)

    def apply(self, scale: float, shrink: float | Tensor, found_inf: Tensor | None = None) -> None:
        shrink_and_add(
            local(self.matrices[0].parameter.detach()),
            self._lift_rows(self.compact.detach(), self.product_dtype),
            scale,
            unless(found_inf, shrink, self.matrices[0].parameter.dtype),
        )

    def _lift_rows(self, compact: Any, dtype: torch.dtype) -> Tensor:
        if self.side == "right":
            return local(compact).to(dtype) @ self.bases()[0].mT.to(dtype)
        everywhere = compact.redistribute(self.mesh, self._placed(self.of.Replicate())).to_local()
        rows: Tensor = part_like(self.bases()[0], self.parameters[0]).to(dtype) @ everywhere.to(dtype)
        return rows

    def lift(self, compact: Tensor) -> Tensor:
        """The rows that are here, (1, rows, columns)."""
        return self._lift_rows(compact, torch.promote_types(compact.dtype, torch.float32))[None]

    def norms(self, tensor: Tensor, *, by_channel: bool) -> Tensor:
        """Channels are rows, of which each process has its own, or columns, of which each needs all."""
        found = super().norms(local(tensor), by_channel=by_channel)
        if not by_channel:
            return self.whole_norms(found)
        if self.side == "right":
            return found
        size, places = torch.Size((1, self.shape[1])), (self.mesh, self.compact_placements)
        columns: Tensor = self.of.DTensor.from_local(found[0], *places, shape=size, stride=(size[1], 1)).full_tensor()
        return columns[None]

    def whole_norms(self, norms: Tensor) -> Tensor:
        squares = self.of.DTensor.from_local(norms.square(), self.mesh, self._placed(self.of.Partial()))
        found: Tensor = squares.full_tensor().sqrt()
        return found

    def agree(self, found: Tensor) -> Tensor:
        for dimension in range(self.mesh.ndim):
            found = broadcast_from_first(found, self.mesh.get_group(dimension))
        return found

    def _placed(self, instead: Any) -> tuple[Any, ...]:
        return tuple(instead if isinstance(one, self.of.Shard) else one for one in self.placements)

    def _compact(self, part: Tensor) -> Tensor:
        size = torch.Size(self.shape)
        places = self.mesh, self.compact_placements
        found: Tensor = self.of.DTensor.from_local(part, *places, shape=size, stride=(size[1], 1))
        return found


def padded_product(first: Tensor, second: Tensor) -> Tensor:
    """first @ second, with the second's rows in memory of their own, where each begins at a multiple of ALIGNED.

    What stands in the columns that this adds comes out in columns that are cut off.
    """
    rows, columns = second.shape
    padded = first.new_empty(rows, columns + -columns % ALIGNED)
    padded[:, :columns] = second
    return torch.mm(first, padded)[:, :columns]


def add_padded_product(weight: Tensor, basis: Tensor, compact: Tensor, scale: float, shrink: float) -> None:
    """W = shrink * W + scale * basis @ compact; weights are read once and rounded once."""
    if decay := 1 - shrink:
        weight.lerp_(padded_product(basis, compact * (scale / decay)), decay)
    else:
        weight.add_(padded_product(basis, compact), alpha=scale)


def to_precise(tensor: Tensor) -> Tensor:
    """In at least float32."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """(count, rows, columns) in at least float32."""
    return to_precise(tensors[0][None] if len(tensors) == 1 else torch.stack(list(tensors)))


def make_pack(matrices: list[Matrix]) -> Pack:
    """Of matrices that lie here, or of one that lies on several processes."""
    return ShardedPack(matrices) if is_sharded(matrices[0].parameter) else Pack(matrices)


def one_number(value: Any) -> Any:
    """A rate; one in a tensor may have an axis, as torch's optimizers allow it."""
    return value.squeeze() if isinstance(value, Tensor) else value


def unless(found_inf: Tensor | None, shrink: float | Tensor, dtype: torch.dtype) -> float | Tensor:
    """What to shrink by if `found_inf` is not 1 on the device; what is on the device knows that already.

    It is the same number where that, alone, changes nothing of this kind: the nearest number below a power of two is
    eps / 2 away. So a product that shrinks and adds in one holds a step back where there is nothing to add.
    """
    if found_inf is None or isinstance(shrink, Tensor) or abs(1 - shrink) < torch.finfo(dtype).eps / 4:
        return shrink
    return 1 - (1 - shrink) * (1 - found_inf.to(torch.promote_types(dtype, torch.float32)))


def shrink_and_add(weight: Tensor, added: Tensor, scale: float, shrink: float | Tensor) -> None:
    """W = shrink * W + scale * added; numbers of half precision are rounded once. What is added may be used up."""
    if weight.dtype.itemsize <= 2:  # so coarse that decay, rounded by itself, is mostly lost
        whole = added.to(torch.promote_types(added.dtype, torch.float32)).mul_(scale)
        weight.copy_(whole.add_(weight.to(whole.dtype).mul_(shrink)))
        return
    if isinstance(shrink, Tensor) or shrink != 1:
        weight.mul_(shrink)
    weight.add_(added, alpha=scale)


def state_of(inner: torch.optim.Optimizer, matrix: Matrix) -> dict[str, Any]:
    """The inner state of one matrix: parts of the tensors of its pack; what has no axes, as a step count, is shared."""
    found = inner.state.get(matrix.pack.compact, {})
    return dict(found) if len(matrix.pack.matrices) == 1 else part_of(found, matrix.place)


def part_of(state: Mapping[str, Any], place: int) -> dict[str, Any]:
    """One entry of each tensor; what has no axes, as a step count, is shared."""
    return {key: value[place] if isinstance(value, Tensor) and value.ndim else value for key, value in state.items()}


def join_states(states: list[dict[str, Any]]) -> dict[str, Any]:
    """The state of a pack from those of its matrices, which have the same step count."""
    if len(states) == 1:
        return states[0]
    joined: dict[str, Any] = {}
    for key, value in states[0].items():
        each = [state[key] for state in states]
        joined[key] = torch.stack(each) if isinstance(value, Tensor) and value.ndim else value
    return joined
