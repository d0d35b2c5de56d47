"""Finding subspaces: whose turn it is, which matrices are worked on together, and what their gradients give.

The inner state moves with its subspace, as `on_move` says.
- keep: nothing. Direction i of the new subspace inherits the state of direction i of the old one, as in galore-torch.
- rotate: with R = P_new^T P_old, first moments m become R m, which is exact. Second moments have no exact rotation:
  they become (R * R) v + (1 - sum_j R_ij^2) mean(v). The first term is exact where the old coordinates are
  uncorrelated. The second gives the part of a new direction that lay outside the old subspace the mean second moment.
- reset: the state is forgotten; the inner optimizer starts that matrix anew, its step count included.

A state tensor is moved if it is a plain floating-point matrix with the rank along the projected axis (moments of the
compact shape, and Adafactor's factor along that axis). Quantised states cannot be rotated; they are refused.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import compress, groupby, pairwise
from operator import itemgetter, not_

import torch
from torch import Tensor

from joma.optim import _matrix
from joma.optim._groups import OnMove
from joma.optim._matrix import Matrix, full_tensor, is_sharded, local, state_of
from joma.optim._update import Sent
from joma.optim.projector import (
    SPARE,
    Energy,
    FollowedBasis,
    Kind,
    Projector,
    Rank,
    find_projector,
    follow_projector,
    have_settled,
)

SEARCHED = 1 << 23  # entries of gradients that are searched together at most
REFRESHED_TOGETHER = 4  # subspaces that are found at once where products are stacked: more make a step too long
FOLLOWED_ON = ("cuda",)  # kinds of devices that wait where the host looks at numbers
FOLLOWED_IN_A_ROW = 3  # updates in which a subspace that has not settled is followed, before it is searched for
SEARCHED_NEXT = -1  # in the place of the count at the last refresh
EARLIEST = SEARCHED_NEXT - FOLLOWED_IN_A_ROW + 1  # what stands there if the subspace was followed the most in a row
_SEED_STRIDE = 1_000_003  # a prime that makes seeds of different matrices and updates different
SECOND_MOMENTS = ("sq", "square", "sum", "var", "inf", "max", "step_size", "acc_delta")
"""Parts of the names that torch's optimizers give to what is not linear in the gradient."""
Agree = Callable[[Matrix, Tensor], Tensor]
Found = list[tuple[Matrix, Projector]]
Place = Callable[[Matrix], Hashable]


def give_turns(matrices: Sequence[Matrix], *, staggered: bool, alone: bool, place: Place) -> None:
    """Say which matrices are refreshed together: all, or few at a time, spread over the updates between refreshes.

    Turns follow from shapes and order alone, so that a resumed run has those of the run before.

    - staggered: whether they are spread
    - alone: whether each has a turn of its own, since their gradients are not there together
    - place: gradients of neighbours for which it gives the same are there together, with per_layer too
    """
    turns = (
        [[matrix] for matrix in matrices]
        if alone
        else refresh_batches(matrices, lambda matrix: matrix.largest_rank, place)
    )
    for number, batch in enumerate(turns):
        for matrix in batch:
            matrix.turn = (number, len(turns)) if staggered else (0, 1)


def refresh_batches(
    matrices: Iterable[Matrix],
    rank: Callable[[Matrix], int] = lambda matrix: matrix.rank,
    place: Place = lambda matrix: None,
) -> list[list[Matrix]]:
    """Alike matrices whose subspaces are found together: of one place, or of places that have one each."""
    kinds: dict[object, list[Matrix]] = {}
    for matrix in matrices:
        kinds.setdefault(matrix.kind_at(rank(matrix)), []).append(matrix)
    return [batch for alike in kinds.values() for batch in _batches(alike, place)]


def _batches(alike: list[Matrix], place: Place) -> list[list[Matrix]]:
    together = REFRESHED_TOGETHER if _matrix.is_stacked_on(alike[0].parameter.device) else 1
    most = max(1, min(together, SEARCHED // max(1, alike[0].parameter.numel())))
    there = Counter(map(place, alike))
    places = [each if there[each] > 1 else None for each in map(place, alike)]
    runs = groupby(zip(places, alike, strict=True), key=itemgetter(0))
    each_run = ([matrix for _, matrix in run] for _, run in runs)
    return [run[at : at + most] for run in each_run for at in range(0, len(run), most)]


def full_gradients(batch: Sequence[Matrix]) -> Tensor:
    """(matrices, rows, columns) in at least float32, gathered from all processes."""
    gradients = [full_tensor(each.parameter.grad) for each in batch if each.parameter.grad is not None]
    stacked = gradients[0][None] if len(gradients) == 1 else torch.stack(gradients)
    return stacked.to(torch.promote_types(stacked.dtype, torch.float32))


def can_follow(matrix: Matrix) -> bool:
    """Whether it has a subspace to begin with, and lies on one device that would wait for a search."""
    on_device = matrix.parameter.device.type in FOLLOWED_ON and not is_sharded(matrix.parameter)
    return on_device and matrix.found and matrix.refreshed != SEARCHED_NEXT and matrix.rank + SPARE < matrix.shorter


def follow_subspaces(batch: list[Matrix], inner: torch.optim.Optimizer, *, seed: int, on_move: OnMove) -> FollowedBasis:
    """Let alike matrices have the subspaces that follow their last ones, without a look at the device.

    Whether gradients are finite need not be known: where one is not, the last subspace stays.

    - batch: matrices that `can_follow`
    - inner: the inner optimizer
    - seed, on_move: those of the optimizer
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
        """Nothing was followed yet."""
        # matrices, how often in a row, whether sound and on what course, and what is close enough
        self._sent: list[tuple[list[Matrix], list[int], Sent, float]] = []

    def send(self, batch: list[Matrix], found: FollowedBasis) -> None:
        """These were followed in the update that goes on."""
        times = [max(0, SEARCHED_NEXT - matrix.refreshed) + 1 for matrix in batch]
        numbers = torch.cat([found.sound[None].to(found.course), found.course])
        self._sent.append((batch, times, Sent(numbers), found.tolerance))
        for matrix in batch:
            matrix.refreshed = matrix.count

    def read(self) -> None:
        """Let what is not sound be searched for, and what has not settled go on."""
        sent, self._sent = self._sent, []
        for batch, times, arriving, tolerance in sent:
            numbers = torch.from_numpy(arriving.read())
            flags = numbers[0].tolist(), have_settled(numbers[1:], tolerance).tolist()
            for matrix, time, sound, settled in zip(batch, times, *flags, strict=True):
                if not (sound and settled):
                    matrix.refreshed = SEARCHED_NEXT - time if sound and time < FOLLOWED_IN_A_ROW else SEARCHED_NEXT


def _each(batch: list[Matrix], found: Projector) -> Found:
    parts = zip(batch, found.basis.unbind(), found.energies.unbind(), strict=True)
    return [(matrix, Projector(basis, shares, found.exact)) for matrix, basis, shares in parts]


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
    return _each(batch, found)


def take_subspaces(found_of: Found, inner: torch.optim.Optimizer, *, rank: Rank, on_move: OnMove, agree: Agree) -> None:
    """Let matrices have the subspaces that were found, and move the inner state into them.

    - found_of: matrices of one group with what was found
    - inner: the inner optimizer
    - rank, on_move: those of the optimizer
    - agree: makes of what was found here what all processes that train a matrix use
    """
    for matrix, found in found_of:
        settles = isinstance(rank, Energy) and (matrix.energies is None or not bool(matrix.energies.any()))
        before = None if matrix.basis is None or on_move == "keep" else matrix.directions().clone()
        matrix.take_subspace(agree(matrix, found.basis), agree(matrix, found.energies))
        matrix.refreshed = matrix.count
        if before is not None:
            move_state(inner, matrix, before, on_move)
        if settles:  # the first subspace that is not of a zero gradient settles the rank
            assert isinstance(rank, Energy)
            assert matrix.energies is not None
            largest = matrix.rank
            matrix.pack.narrow(rank.choose(matrix.energies))
            narrow_state(inner, matrix, largest)


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
            if any(part in name for part in SECOND_MOMENTS):
                known = rotation.square()
                outside = (1 - known.sum(1, keepdim=True)).clamp_min(0)  # rounding may put it below 0
                moved = torch.addmm(outside * rows.mean(0, keepdim=True), known, rows)
            else:
                moved = rotation @ rows
            moved = (moved if axis == 0 else moved.mT).contiguous().to(here.dtype)
            here.copy_(moved if sound is None else torch.where(sound, moved, here))


def narrow_state(inner: torch.optim.Optimizer, matrix: Matrix, before: int) -> None:
    """Cut state that was made for the largest rank to the rank that was chosen; the matrix is alone in its pack."""
    state = inner.state.get(matrix.pack.compact, {})
    for name, value in state.items():
        if isinstance(value, Tensor) and value.ndim == 2 and value.shape[matrix.projected_axis] == before:
            state[name] = value.narrow(matrix.projected_axis, 0, matrix.rank).clone()
