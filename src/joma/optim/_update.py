"""One update of some packs and of some parameters that pass: project, let the inner optimizer step, write back.

Few packs at a time have memory for their compact parameters: a round. What the write-back does is the choice of the
optimizer (see `WriteBack`). Where a gradient is not finite, the step is held back; a `Guard` does that without waiting
for the device, with a flag `found_inf` that is 1 there.

Before it come the subspaces that are due. The inner state moves with its subspace, as `on_move` says.
- keep: nothing. Direction i of the new subspace inherits the state of direction i of the old one, as in galore-torch.
- rotate: with R = P_new^T P_old, first moments m become R m, which is exact. Second moments have no exact rotation:
  they become (R * R) v + (1 - sum_j R_ij^2) mean(v). The first term is exact where the old coordinates are
  uncorrelated. The second gives the part of a new direction that lay outside the old subspace the mean second moment.
- reset: the state is forgotten; the inner optimizer starts that matrix anew, its step count included.

A state tensor is moved if it is a plain floating-point matrix with the rank along the projected axis (moments of the
compact shape, and Adafactor's factor along that axis). Quantised states cannot be rotated; they are refused.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache, reduce
from importlib.util import find_spec
from itertools import compress, pairwise
from math import isfinite
from operator import not_
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from joma.optim._groups import OnMove, Passing, Place
from joma.optim._inner import Following, has_decoupled_decay
from joma.optim._matrix import (
    Matrix,
    Pack,
    full_tensor,
    is_second_moment,
    is_sharded,
    is_stacked_on,
    local,
    one_number,
    stacked,
    state_of,
    unless,
)
from joma.optim.projector import SPARE, FollowedBasis, Kind, Projector, find_projector, follow_projector, have_settled

FOLLOWED_ON = ("cuda",)  # kinds of devices that wait where the host looks at numbers
FOLLOWED_IN_A_ROW = 3  # updates in which a subspace that has not settled is followed, before it is searched for
SEARCHED_NEXT = -1  # in the place of the count at the last refresh
EARLIEST = SEARCHED_NEXT - FOLLOWED_IN_A_ROW + 1  # what stands there if the subspace was followed the most in a row
_SEED_STRIDE = 1_000_003  # a prime that makes seeds of different matrices and updates different
Agree = Callable[[Matrix, Tensor], Tensor]
Found = list[tuple[Matrix, Projector]]
LARGE = 1 << 22  # entries of a tensor whose largest is looked for alone on a GPU
NameOf = Callable[[int], str]
"""The name of the parameter that a flag is of, asked for where it is False."""
UNFOLDED = 1 << 23  # compact entries that a device which likes large steps has at once: 32 MiB of float32
UNFOLDED_SHARE = 32  # elsewhere, and of large models: one in so many entries
UNFOLDED_LEAST = 1 << 17  # but always so many
Groups = list[dict[str, Any]]
WriteBack = Callable[[Pack, float, float | Tensor, Tensor | None], None]
"""Brings what the inner optimizer did with a pack into its matrices.

Takes the pack, the scale, what the matrices are shrunk by, and a flag on the device that is 1 if nothing may change.
"""


def are_finite(tensors: Sequence[Tensor], stacks: Sequence[Tensor] = ()) -> Tensor:
    """For each tensor whether all of it is finite, on the device of the first; the same answer on all processes."""
    if not tensors and not stacks:
        return torch.ones(0, dtype=torch.bool)
    here = [local(one) for one in tensors]
    if not all(one.numel() for one in here):  # a process that has no row of a tensor has nothing to object to
        here = [one if one.numel() else one.new_zeros(1) for one in here]
    if not stacks and _have_finite_sums(here):
        finite = torch.ones(len(here), dtype=torch.bool)
    else:
        finite = _have_finite_norms(here, stacks)
    meshes: dict[Any, None] = {one.device_mesh: None for one in tensors if is_sharded(one)}  # type: ignore[attr-defined]
    if not meshes:
        return finite
    # Where one process sees a fault, all that hold parts must: otherwise some would step and others would not.
    everywhere = finite.to(torch.int32)
    for group in (mesh.get_group(dimension) for mesh in meshes for dimension in range(mesh.ndim)):
        dist.all_reduce(everywhere, dist.ReduceOp.MIN, group=group)
    return everywhere.bool()


def _have_finite_sums(tensors: Sequence[Tensor]) -> bool:
    """On a CPU, which adds much faster than it takes norms. A sum that is not finite may be an overflow."""
    if any(one.device.type != "cpu" for one in tensors) or is_stacked_on(tensors[0].device):
        return False
    return all(isfinite(float(one.sum())) for one in tensors)


def _have_finite_norms(tensors: Sequence[Tensor], stacks: Sequence[Tensor]) -> Tensor:
    norms = [torch.linalg.vector_norm(one, torch.inf, dim=-1).flatten() for one in stacks]
    if tensors:
        singles = _largest_entries(tensors)
        alike = all(one.dtype == singles[0].dtype and one.device == singles[0].device for one in singles)
        norms += [torch.stack(singles)] if alike else [one[None] for one in singles]
    first = norms[0]
    norms = [one if one.device == first.device else one.to(first.device) for one in norms]
    return (torch.cat(norms) if len(norms) > 1 else first) < torch.inf  # NaN is not below it either


def _largest_entries(tensors: Sequence[Tensor]) -> list[Tensor]:
    """In size, or 0 for any that is finite. Many small tensors are read at once; a large one fills a device alone."""
    small = [one for one in tensors if one.numel() < LARGE or one.device.type == "cpu"]
    found = iter(torch._foreach_norm(small, torch.inf) if small else ())
    alone = {id(one) for one in small}
    return [next(found) if id(one) in alone else _of_large(one) for one in tensors]


def _of_large(one: Tensor) -> Tensor:
    if one.device.type == "cuda" and _has_triton():
        from joma.optim._finite_triton import covers, zero_if_finite

        if covers(one):
            return zero_if_finite(one)
    largest: Tensor = torch.linalg.vector_norm(one, torch.inf)
    return largest


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


class Sent:
    """Flags that are on their way from the device to the host, which does not wait for them."""

    def __init__(self, flags: Tensor) -> None:
        """Send them; what is on the host already is there."""
        self._arrived = torch.cuda.Event() if flags.device.type == "cuda" else None
        self._flags = flags.to("cpu", non_blocking=True)
        if self._arrived is not None:
            self._arrived.record(torch.cuda.current_stream(flags.device))

    def read(self) -> np.ndarray:
        if self._arrived is not None:
            self._arrived.synchronize()
        found: np.ndarray = self._flags.numpy()
        return found


class Guard:
    """Holds a step back where a gradient is not finite, without waiting for the device.

    To look at a number that a GPU computes, Python waits until the GPU has caught up, and the GPU then waits for
    Python. torch's fused optimizers take a flag, `found_inf`, that makes their step do nothing. With such an inner
    optimizer the flag is set on the device, and Python reads it at the next step, when it has long been there.
    """

    devices = ("cuda",)  # kinds of devices on which waiting costs something

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        self.pending: list[tuple[NameOf, Sent, list[Matrix]]] = []  # steps that were left to the device
        self._held: dict[torch.device, Tensor] = {}  # in replays; not made in a graph, which would begin anew each time
        self._counts = False  # whether some graph counts there
        self._known = 0
        self._sent: list[Sent] = []

    def serves(self, devices: Iterable[torch.device]) -> bool:
        """Whether the inner optimizer takes the flag, and everything is on one device of the right kind."""
        places = set(devices)
        if len(places) != 1 or next(iter(places)).type not in self.devices:
            return False
        fused = all(group.get("fused") for group in self.inner.param_groups)
        return fused and bool(getattr(self.inner, "_step_supports_amp_scaling", False))

    def hold(self, name_of: NameOf, finite: Tensor, matrices: list[Matrix], *, captured: bool = False) -> Tensor:
        """Let the inner optimizer's next step do nothing if not all is finite; the flag, 1.0 where nothing may change.

        What a CUDA graph captures has no flags of its own: there the device counts, see `held_in_replays`.
        """
        found_inf = torch.empty((), dtype=torch.float32, device=finite.device)
        torch.logical_not(finite.all(), out=found_inf)
        self.inner.found_inf = found_inf  # type: ignore[attr-defined]
        known = found_inf.device in self._held
        if captured and not known:
            raise ValueError("this optimizer has made no step yet: make one as usual before you capture one")
        if captured:
            self._held[found_inf.device].add_(found_inf)
            self._counts = True
        else:
            if not known:
                self._held[found_inf.device] = torch.zeros_like(found_inf)
            self.pending.append((name_of, Sent(finite), matrices))
        return found_inf

    def held_in_replays(self, *, wait: bool) -> int:
        """Updates in replays of CUDA graphs that did not happen, since the last answer."""
        if not self._counts:
            return 0
        before, self._sent = self._sent, [Sent(each) for each in self._held.values()]
        if not (arriving := self._sent if wait else before):
            return 0
        last, self._known = self._known, sum(int(each.read()) for each in arriving)
        return self._known - last

    def release(self) -> None:
        vars(self.inner).pop("found_inf", None)

    def look_back(self) -> list[str]:
        """Of each update since the last look that did not happen: a gradient that was not finite. It does not count."""
        pending, self.pending = self.pending, []
        names = []
        for name_of, sent, matrices in pending:
            if not (finite := sent.read()).all():
                for matrix in matrices:
                    matrix.count -= 1
                names.append(name_of(int(finite.argmin())))
        return names


def values_of(gradient: Tensor) -> Tensor:
    """All numbers of a gradient; of a sparse one, which is coalesced by then, those that are kept."""
    return gradient.values() if gradient.layout == torch.sparse_coo else gradient


def seen_gradients(packs: list[Pack], passing: list[Passing]) -> tuple[list[Tensor], list[Tensor], NameOf]:
    """What must be finite before a step: stacks of projected gradients, and others; the name that belongs to a flag.

    Of a sparse gradient the values, each place once.
    """
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

    return [pack.compact.grad for pack in stacked], tensors, name_of  # type: ignore[misc]


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
        for packs in self._kinds:
            shapes = [local(pack.compact).shape for pack in packs]
            sizes = [shape.numel() for shape in shapes]
            memory = torch.zeros(sum(sizes), dtype=packs[0].zero.dtype, device=packs[0].device)
            for pack, part, shape in zip(packs, memory.split(sizes), shapes, strict=True):
                pack.unfold(part.view(shape))


Kept = dict[tuple[int, ...], list[Round]]
"""Rounds of updates: the next one mostly has the same packs and parameters."""


def rounds_of(kept: Kept, packs: list[Pack], passing: list[Passing], *, together: bool) -> list[Round]:
    """One round on a device that likes large steps, if the memory is small; otherwise few packs in each."""
    key = (*map(id, packs), *map(id, passing))  # what is kept holds them, so that no id is given again
    if key not in kept:
        kept[key] = [Round(packs, passing)] if together else _split(packs, passing)
    return kept[key]


def _split(packs: list[Pack], passing: list[Passing]) -> list[Round]:
    if not packs:
        return [Round([], passing)]
    entries = sum(pack.entries for pack in packs) + sum(each.parameter.numel() for each in passing)
    most = max(entries // UNFOLDED_SHARE, UNFOLDED if is_stacked_on(packs[0].device) else UNFOLDED_LEAST)
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
    """
    if packs and is_stacked_on(packs[0].device) and not any(pack.sharded for pack in packs):
        for pack in packs:
            if pack.compact.grad is None:
                pack.take_gradients()
            if free:
                for each in pack.parameters:
                    each.grad = None


def update(
    one: Round, following: Following, groups: Groups, *, found_inf: Tensor | None, write_back: WriteBack, free: bool
) -> None:
    """One round: project, step and write back its packs, and step the parameters that pass."""
    for pack in one.packs:
        if pack.compact.grad is None:
            pack.take_gradients()
    one.unfold()
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
        if each.role == "scaled" and not has_decoupled_decay(groups[each.group]):
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


def full_gradients(batch: Sequence[Matrix]) -> Tensor:
    """(matrices, rows, columns) in at least float32, gathered from all processes."""
    return stacked([full_tensor(each.parameter.grad) for each in batch if each.parameter.grad is not None])


def can_follow(matrix: Matrix) -> bool:
    """Whether it has a subspace to begin with, and lies on one device that would wait for a search."""
    on_device = matrix.parameter.device.type in FOLLOWED_ON and not is_sharded(matrix.parameter)
    return on_device and matrix.found and matrix.refreshed != SEARCHED_NEXT and matrix.rank + SPARE < matrix.shorter


def follow_subspaces(batch: list[Matrix], inner: torch.optim.Optimizer, *, seed: int, on_move: OnMove) -> FollowedBasis:
    """Let alike matrices have the subspaces that follow their last ones, without a look at the device.

    Whether gradients are finite need not be known: where one is not, the last subspace stays.
    """
    first = batch[0]
    start = torch.stack([matrix.directions() for matrix in batch])
    mixed = seed * _SEED_STRIDE + first.count
    found = follow_projector(full_gradients(batch), first.rank, start, seed=mixed)
    for begin, end in _neighbours(batch):
        basis, energies, sound = (each[begin:end] for each in (found.basis, found.energies, found.sound))
        batch[begin].pack.take_subspaces(batch[begin].place, basis, energies, sound=sound)
    if on_move != "keep":
        for matrix, before, alone in zip(batch, start, found.sound, strict=True):
            move_state(inner, matrix, before, on_move, sound=alone)
    return found


def _neighbours(batch: list[Matrix]) -> list[tuple[int, int]]:
    """Where runs of matrices begin and end that lie side by side in one pack: one copy serves a whole run."""
    after = [one.pack is not two.pack or one.place + 1 != two.place for one, two in pairwise(batch)]
    ends = [0, *(at for at, parted in enumerate(after, 1) if parted), len(batch)]
    return list(pairwise(ends))


class Outcomes:
    """Whether subspaces that were followed are good: on its way from the device, and read at the next update.

    It is read then whether it has arrived or not, so that no result depends on the time that something takes.
    """

    def __init__(self) -> None:
        # matrices, how often in a row, whether sound and on what course, and what is close enough
        self._sent: list[tuple[list[Matrix], list[int], Sent, float]] = []

    def send(self, batch: list[Matrix], found: FollowedBasis) -> None:
        times = [max(0, SEARCHED_NEXT - matrix.refreshed) + 1 for matrix in batch]
        numbers = torch.cat([found.sound[None].to(found.course), found.course])
        self._sent.append((batch, times, Sent(numbers), found.tolerance))
        for matrix in batch:
            matrix.refreshed = matrix.count

    def read(self) -> None:
        sent, self._sent = self._sent, []
        for batch, times, arriving, tolerance in sent:
            numbers = torch.from_numpy(arriving.read())
            flags = numbers[0].tolist(), have_settled(numbers[1:], tolerance).tolist()
            for matrix, time, sound, settled in zip(batch, times, *flags, strict=True):
                if not (sound and settled):
                    matrix.refreshed = SEARCHED_NEXT - time if sound and time < FOLLOWED_IN_A_ROW else SEARCHED_NEXT


def find_subspaces(batch: list[Matrix], gradients: Tensor, kind: Kind, *, seed: int) -> Found:
    """The new subspace of each matrix whose gradient is not zero, from gradients (count, rows, columns).

    The last subspaces are where the search begins. Seeds do not depend on which matrices are in the batch.
    """
    nonzero: list[bool] = gradients.flatten(1).any(1).tolist()
    if not all(nonzero):
        # A gradient of zeros has no directions: the subspace stays, or is any, and is to be found from the next.
        for matrix in compress(batch, map(not_, nonzero)):
            matrix.refreshed = SEARCHED_NEXT
            if matrix.basis is None:
                any_basis = torch.eye(matrix.shorter, matrix.rank, device=gradients.device)
                matrix.take_subspace(any_basis, torch.zeros(matrix.rank, device=gradients.device))
        batch = list(compress(batch, nonzero))
        gradients = gradients[torch.tensor(nonzero)]
    if not batch:
        return []
    rank, count = batch[0].rank, batch[0].count
    if kind == "random":  # another subspace for each matrix
        seeds = [(seed * _SEED_STRIDE + matrix.index) * _SEED_STRIDE + matrix.count for matrix in batch]
        alone = zip(batch, gradients, seeds, strict=True)
        return [(matrix, find_projector(one, rank, kind, seed=each)) for matrix, one, each in alone]
    known = [matrix.directions() for matrix in batch if matrix.found]
    start = torch.stack(known) if len(known) == len(batch) else None
    found = find_projector(gradients, rank, kind, start=start, seed=seed * _SEED_STRIDE + count)
    parts = zip(batch, found.basis.unbind(), found.energies.unbind(), strict=True)
    return [(matrix, Projector(basis, shares, found.exact)) for matrix, basis, shares in parts]


def take_subspaces(found_of: Found, inner: torch.optim.Optimizer, *, on_move: OnMove, agree: Agree) -> None:
    """Let matrices have the subspaces that were found, and move the inner state into them."""
    for matrix, found in found_of:
        before = None if matrix.basis is None or on_move == "keep" else matrix.directions().clone()
        matrix.take_subspace(agree(matrix, found.basis), agree(matrix, found.energies))
        matrix.refreshed = matrix.count
        if before is not None:
            move_state(inner, matrix, before, on_move)


def move_state(
    inner: torch.optim.Optimizer, matrix: Matrix, old: Tensor, on_move: OnMove, *, sound: Tensor | None = None
) -> None:
    """Move the inner state of one matrix from the subspace `old` to matrix.basis. `reset` needs a pack of one.

    - inner, matrix, old, on_move: whose state, from where, and how
    - sound: False on the device where the subspace has not moved. A state is not turned there. It is forgotten there
      all the same, since the host does not know: the next step finds that subspace anew, and would forget it then
    """
    state = inner.state.get(matrix.pack.compact, {})
    if on_move == "reset" and "sum" in state:  # Adagrad fills its state when it is made, not at its first step
        state["step"].zero_()
        state["sum"].fill_(inner.defaults.get("initial_accumulator_value", 0.0))
    elif on_move == "reset":
        inner.state.pop(matrix.pack.compact, None)
    if on_move != "rotate" or matrix.basis is None:
        return
    precise = torch.promote_types(matrix.product_dtype, torch.float32)
    rotation = matrix.directions().to(precise).mT @ old.to(precise)
    axis = matrix.projected_axis
    for name, value in state_of(inner, matrix).items():
        plain, sharded = type(value) is Tensor, is_sharded(value)
        if isinstance(value, Tensor) and value.ndim and not sharded and not (plain and value.dtype != torch.uint8):
            # kept in few bits: a tensor of bytes, or a class of its own
            raise ValueError(f"on_move='rotate' cannot turn the quantised state {name}: use keep or reset")
        sides = (plain or sharded) and value.is_floating_point() and value.ndim == 2 and value.shape
        if sides and sides[axis] == matrix.rank and sides[1 - axis] in (1, matrix.longer):
            here = local(value)
            rows = here.to(rotation.dtype) if axis == 0 else here.to(rotation.dtype).mT
            if is_second_moment(name):
                known = rotation.square()
                outside = (1 - known.sum(1, keepdim=True)).clamp_min(0)  # rounding may put it below 0
                moved = torch.addmm(outside * rows.mean(0, keepdim=True), known, rows)
            else:
                moved = rotation @ rows
            moved = (moved if axis == 0 else moved.mT).contiguous().to(here.dtype)
            here.copy_(moved if sound is None else torch.where(sound, moved, here))
