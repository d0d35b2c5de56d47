"""GaLore's step, and the updates and projections that are made during backward.

In one update, whenever it comes, subspaces that are due are found, and it is made or held back.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from joma.optim import _update
from joma.optim._backward import Bucket, ClippingWatch, InBackward, refresh_batches
from joma.optim._groups import Members, NonFinite, OnMove, Partner, Passing, check_group, is_entry_by_entry
from joma.optim._inner import Following
from joma.optim._matrix import Matrix, Pack, broadcast_from_first, is_sharded
from joma.optim._update import Guard, Kept, NameOf, Outcomes
from joma.optim.projector import Kind

NOT_CAPTURED = "a step that finds subspaces cannot be captured: capture one for which due() is empty"
_Seen = list[tuple[int, int, float]]
LOG = logging.getLogger("joma.optim")
NOT_PARTED = "a matrix has no gradient for the first time: make such a step as usual before you capture one"


def is_captured() -> bool:
    """Whether what is done now goes into a CUDA graph: nobody may wait for the device then."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def share_of_all(projected: int, entries: int) -> str:
    """How many parameters are projected, in words."""
    return f"{projected:,} of {entries:,} parameters are projected ({projected / max(entries, 1):.1%})"


class Stepping(torch.optim.Optimizer):
    """Steps as a whole, or takes gradients while backward goes on.

    `looks_at_gradients`: of the matrices, on the way back into them.
    """

    looks_at_gradients = False
    projector: Kind
    on_move: OnMove
    nonfinite: NonFinite
    per_layer: bool
    project_in_backward: bool
    clip: float | None
    seed: int
    group: dist.ProcessGroup | None
    inner: torch.optim.Optimizer
    _members: Members
    _following: Following
    _guard: Guard
    _outcomes: Outcomes
    _rounds: Kept
    _backward: InBackward
    _clipping: ClippingWatch | None = None
    _logged = False
    _options_seen: _Seen
    _of_bucket: dict[Bucket, tuple[list[Pack], list[Passing]]]

    def _show_state(self, packs: list[Pack], passing: list[Passing]) -> None:
        raise NotImplementedError

    @property
    def matrices(self) -> list[Matrix]:
        return self._members.matrices

    @property
    def packs(self) -> list[Pack]:
        return self._members.packs

    @property
    def passing(self) -> list[Passing]:
        return self._members.passing

    def _form_packs(
        self,
        packs: list[Pack],
        together: Partner = lambda matrix: matrix.found,
        ranks: Mapping[Matrix, int] = MappingProxyType({}),
    ) -> None:
        """Put the matrices of these packs into new ones, as many in one as may be, with ranks that have changed."""
        if is_captured():  # each replay would copy their states anew, from memory that others have by then
            raise ValueError(NOT_PARTED)
        entry_by_entry = is_entry_by_entry(self.inner) and self.on_move != "reset"

        def partner(matrix: Matrix) -> object:
            if matrix.expert is not None:
                return id(matrix.owner)
            alone = self.project_in_backward or is_sharded(matrix.parameter) or not entry_by_entry
            return None if alone else (self._backward.bucket_of(matrix.parameter), together(matrix), matrix.count)

        self._members.form_packs(self.inner, packs, partner, ranks)
        self._following.list_packs(self.packs)
        self._rounds.clear()
        self._of_bucket.clear()

    def _read_options(self, matrices: Iterable[Matrix]) -> None:
        """Take what somebody has written into the groups; a rank holds from the next refresh of each matrix.

        - matrices: those whose turn to be updated it is; of a weight of experts all or none
        """
        now = [(group["rank"], group["refresh"], group["scale"]) for group in self.param_groups]
        if now == self._options_seen:
            return
        for group in self.param_groups:
            check_group(group)
        asked = {each: min(int(self.param_groups[each.group]["rank"]), each.shorter) for each in self.matrices}
        waiting = {each: rank for each, rank in asked.items() if rank != each.rank}
        owners = {id(each.owner) for each in matrices if each in waiting and self.is_due(each)}
        changed = {each: rank for each, rank in waiting.items() if id(each.owner) in owners}
        if changed:
            numbers, theirs = {each.group for each in changed}, {id(each.pack) for each in changed}
            # Those that have it already are joined; with per_layer="project" all are alone, and others have gradients.
            near = numbers if not self.project_in_backward else set()
            packs = [pack for pack in self.packs if pack.group in near or id(pack) in theirs]
            self._form_packs(packs, ranks=changed)
            for matrix in changed:  # found anew from a subspace that is partly any
                matrix.refreshed = _update.SEARCHED_NEXT
        self._options_seen = now if len(changed) == len(waiting) else []

    def _packs_with_gradients(self) -> list[Pack]:
        """Matrices of a pack of which some have no gradient are parted: they have their own counts from now on."""
        if self.project_in_backward:
            return [pack for pack in self.packs if pack.compact.grad is not None or pack.parameters[0].grad is not None]
        present = [(pack, [each.grad is not None for each in pack.parameters]) for pack in self.packs]
        if not any(any(there) and not all(there) for _, there in present):
            return [pack for pack, there in present if there[0]]
        for pack, there in present:
            if any(there) and not all(there):
                self._form_packs([pack], lambda matrix: matrix.parameter.grad is not None)
        return [pack for pack in self.packs if pack.parameters[0].grad is not None]

    def _update(self, packs: list[Pack], passing: list[Passing], *, captured: bool) -> None:
        matrices = [matrix for pack in packs for matrix in pack.matrices]
        device = (packs[0].device if packs else passing[0].parameter.device).type
        try:
            with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
                refreshed = self._refresh_due([p for p in packs if p.compact.grad is None], captured=captured)
                if refreshed and self._advance(packs, passing, captured=captured) and not captured:
                    for matrix in matrices:
                        matrix.count += 1
        finally:
            self._guard.release()
            for pack in packs:
                pack.fold()
        self._show_state(packs, passing)

    def _refresh_due(self, packs: list[Pack], *, captured: bool) -> bool:
        """Find the subspaces that are due; False if a gradient that one is searched for in is not finite."""
        for pack in packs:
            pack.check_dense()
        due = [matrix for pack in packs for matrix in pack.due(self.param_groups[pack.group]["refresh"])]
        if not due:
            return True
        if captured:
            raise ValueError(NOT_CAPTURED)
        followed = [matrix for matrix in due if self._can_follow(matrix)]
        searched = [matrix for matrix in due if not self._can_follow(matrix)]
        full = [(matrix.name, matrix.parameter.grad) for matrix in searched if matrix.parameter.grad is not None]
        if full and not self._all_finite(
            lambda flag: full[flag][0], _update.are_finite([gradient for _, gradient in full])
        ):
            return False
        for batch in refresh_batches(searched):
            self._search(batch)
        for batch in refresh_batches(followed):
            self._follow(batch)
        return True

    def _can_follow(self, matrix: Matrix) -> bool:
        """Several processes would have to be of one mind about what has settled: they search."""
        return self.projector == "randomized" and self.group is None and _update.can_follow(matrix)

    def _follow(self, batch: list[Matrix]) -> None:
        """Find the subspaces of alike matrices from their last ones; the next update knows whether that was enough."""
        self._outcomes.send(batch, _update.follow_subspaces(batch, self.inner, seed=self.seed, on_move=self.on_move))

    def _search(self, batch: list[Matrix]) -> None:
        gradients = _update.full_gradients(batch)
        found = _update.find_subspaces(batch, gradients, self.projector, seed=self.seed)
        if found:
            _update.take_subspaces(found, self.inner, on_move=self.on_move, agree=self._agreed)

    def _agreed(self, matrix: Matrix, found: Tensor) -> Tensor:
        if self.group is None:
            return matrix.pack.agree(found)
        return broadcast_from_first(found, self.group)

    def is_due(self, matrix: Matrix) -> bool:
        """Whether the subspace of a matrix is found anew before its next update, as far as the host knows; see `due`.

        - matrix: one of `matrices`; one that is frozen has no update
        """
        return matrix.owner.requires_grad and matrix.is_due(self.param_groups[matrix.group]["refresh"])

    def due(self) -> list[str]:
        """Names of the matrices whose subspaces the next step finds anew; a step is captured only if there are none.

        On a GPU it waits for what the device says of subspaces that the last step followed.
        """
        if self._backward.begins:  # amid an update a question must not change what comes
            self._outcomes.read()
        return [matrix.name for matrix in self.matrices if self.is_due(matrix)]

    def count_replays(self) -> None:
        """Count a step that a CUDA graph has replayed, of which Python knows nothing: call it after each.

        What was held back in it, since a gradient was not finite, is known at the next call.
        """
        for matrix in self.matrices:
            matrix.count += 1
        self._show_state(self.packs, [])
        self._look_at_replays(wait=False)

    def _advance(self, packs: list[Pack], passing: list[Passing], *, captured: bool) -> bool:
        """Steps of the inner optimizer, and their way back into the matrices; False if all is to be skipped."""
        rounds = _update.rounds_of(self._rounds, packs, passing, together=self._following.counts)
        if len(rounds) == 1:
            _update.project_first(packs, free=self.per_layer and not self.looks_at_gradients)
        stacks, tensors, name_of = _update.seen_gradients(packs, passing)
        finite = _update.are_finite(tensors, stacks)
        self._following.hand_over_options()
        found_inf = None
        if self._guard.serves([pack.device for pack in packs] + [each.parameter.device for each in passing]):
            matrices = [matrix for pack in packs for matrix in pack.matrices]
            found_inf = self._guard.hold(name_of, finite, matrices, captured=captured)
        elif captured:
            raise ValueError("a step is captured with an inner optimizer that is fused and capturable: give both")
        elif not self._all_finite(name_of, finite):
            return False
        if self.clip is not None:
            _update.clip_gradients(packs, passing, self.clip)
        for one in rounds:
            _update.update(
                one,
                self._following,
                self.param_groups,
                found_inf=found_inf,
                write_back=self._write_back,
                free=not self.looks_at_gradients,
            )
        return True

    def _write_back(self, pack: Pack, scale: float, shrink: float | Tensor, found_inf: Tensor | None) -> None:
        """Bring what the inner optimizer did with a pack into its matrices, W = shrink * W + scale * P C.

        If the class `looks_at_gradients`, those of the matrices are still there, and `pack.compact.grad` is what the
        inner optimizer saw. Where `found_inf` is 1 on the device, the inner optimizer did nothing, and W must stay.
        """
        pack.apply(scale, shrink, found_inf)

    def _all_finite(self, name_of: NameOf, finite: Tensor) -> bool:
        """Whether all are finite; if not, raise or count a skipped step. One wait for the device."""
        if not (all_are := bool(finite.all())):
            self._skip(name_of(finite.tolist().index(False)))
        return all_are

    def _skip(self, name: str) -> None:
        """Raise because of a gradient that is not finite, or count the step that was skipped for it."""
        if self.nonfinite == "raise":
            nothing = "it was not updated" if self.per_layer else "nothing was updated"
            raise ValueError(
                f"the gradient of {name} is not finite: {nothing}; nonfinite='skip' skips and counts such steps"
            )
        for group in self.param_groups:
            group["galore_skipped"] += 1

    def _look_back(self, *, wait: bool = True) -> None:
        """At the step before, if it was left to the device whether it happens; wait for the last replay, or do not."""
        for name in self._guard.look_back():  # with per_layer one for each bucket
            self._skip(name)
        self._look_at_replays(wait=wait)

    def _look_at_replays(self, *, wait: bool) -> None:
        """At updates that replays of a CUDA graph held back; nobody knows which parameters those were of."""
        for _ in range(self._guard.held_in_replays(wait=wait)):
            self._skip("some parameter in a replay")

    @property
    def skipped(self) -> int:
        """How many steps were skipped: a gradient was not finite; with per_layer, updates of a few parameters."""
        self._look_back()
        return int(self.param_groups[0]["galore_skipped"])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient; returns what the closure gives.

        - closure: computes the loss and its gradients; it is evaluated once, before the update
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._step()
        return loss

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def _step(self) -> None:
        """torch.compile leaves this as it is: which packs step, and which are due, is not known when it compiles."""
        captured = is_captured()
        self._members.check_same(self.param_groups)
        if not self._logged:
            self._logged = True
            LOG.info("%s: %s", type(self).__name__, share_of_all(*self._members.projected_entries))
        if not captured and self._backward.begins:
            self._outcomes.read()
        try:
            self._update_buckets(self._backward.release(), captured=captured)
        except Exception:  # a gradient that is not finite: the next backward begins anew
            self._backward.forget()
            raise
        self._check_backward()
        if self._clipping is not None:
            self._clipping.check()
        if not captured and not self.per_layer:
            self._look_back(wait=False)
        folded = self._members.folded
        try:
            for each in folded:
                each.lend()
            if not self.per_layer:  # with per_layer="project" those that had one were looked at during backward
                self._read_options(each for each in self.matrices if each.parameter.grad is not None)
            packs = self._packs_with_gradients()
            passing = [each for each in self.passing if each.parameter.grad is not None]
            if packs or passing:
                self._update(packs, passing, captured=captured)
            else:
                self._following.hand_over_options()
        finally:
            for each in folded:
                each.give_back()
        self._hide_compact()

    def _start_hooks(self) -> None:
        """Of parameters that have none: of all with per_layer=True, of projected matrices with per_layer='project'."""
        named = [(each.name, each.parameter) for each in self.matrices]
        if self.per_layer:
            named += [(each.name, each.parameter) for each in self.passing]
            self._backward.start(named, self, Stepping._update_in_backward)
            self._backward.plan([each for group in self.param_groups for each in group["params"]])
        elif self.project_in_backward:
            self._backward.start(named, self, Stepping._project_in_backward)
            for one in (each.parameter for each in self.passing[:1] if self._clipping is None):
                self._clipping = ClippingWatch()
                self._clipping.start(one)
            self._matrix_of = {id(each.parameter): each for each in self.matrices}

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """torch.amp.GradScaler asks; with per_layer it then calls step(), which refuses it in one sentence."""
        return self.per_layer

    def _check_backward(self) -> None:
        """Refuse what cannot be right where gradients are taken during backward."""
        if self.per_layer and "grad_scale" in vars(self):
            for name in ("grad_scale", "found_inf"):
                vars(self).pop(name, None)
            self._backward.forget()
            raise ValueError(
                "per_layer updates during backward, before GradScaler could unscale: leave GradScaler out, or give "
                "per_layer='project'"
            )
        self._backward.check()

    def _update_in_backward(self, parameter: nn.Parameter) -> None:
        """Of one parameter and of those that have waited for it, with per_layer.

        What the updates of the last backward came to is looked at when the next one begins: amid one, or at its step, a
        GPU would still be at work on them.
        """
        if self._backward.begins:
            try:
                self._begin_backward()
            except Exception:  # backward ends here: the next one must not add to this gradient
                parameter.grad = None
                raise
        self._backward.take(parameter)
        if ready := self._backward.collect(parameter):
            with torch.no_grad():
                self._update_buckets(ready, captured=is_captured())

    def _begin_backward(self) -> None:
        """Refuse what cannot be right before anything is updated."""
        if not is_captured():
            self._outcomes.read()
            self._look_back(wait=False)
        elif any(map(self.is_due, self.matrices)):
            raise ValueError(NOT_CAPTURED)

    def _update_buckets(self, buckets: list[Bucket], *, captured: bool) -> None:
        """With the gradients that have waited; they are freed."""
        if not buckets:
            return
        try:
            there = {id(each) for bucket in buckets for each in bucket.parameters}
            self._read_options(each for each in self.matrices if id(each.parameter) in there)
            members = [self._members_of(bucket) for bucket in buckets]
            packs = [one for some, _ in members for one in some]
            self._update(packs, [one for _, some in members for one in some], captured=captured)
        finally:
            for each in (each for bucket in buckets for each in bucket.parameters):
                each.grad = None

    def _members_of(self, bucket: Bucket) -> tuple[list[Pack], list[Passing]]:
        """Packs and parameters that pass; packs of which only a part is in the bucket are parted."""
        if (found := self._of_bucket.get(bucket)) is None:
            inside = {id(each) for each in bucket.parameters}
            matrices = [each for each in self.matrices if id(each.parameter) in inside]
            packs = {id(each.pack): each.pack for each in matrices}
            if sum(len(pack.matrices) for pack in packs.values()) > len(matrices):
                self._form_packs(list(packs.values()))
                packs = {id(each.pack): each.pack for each in matrices}
            found = list(packs.values()), [each for each in self.passing if id(each.parameter) in inside]
            self._of_bucket[bucket] = found
        return found

    @torch.no_grad()
    def _project_in_backward(self, parameter: nn.Parameter) -> None:
        """Of one matrix, with per_layer='project'.

        Projecting is linear: the compact gradients of microbatches add up to the projected sum, and nothing is updated
        before step(). A subspace that is due is found from the first microbatch, never from a gradient that is not
        finite.
        """
        matrix = self._matrix_of[id(parameter)]
        if matrix.pack.compact.grad is None:  # the first microbatch
            self._read_options([matrix])
        pack = matrix.pack
        pack.check_dense()
        captured = is_captured()
        if self._backward.begins and not captured:
            self._outcomes.read()
        if captured and self.is_due(matrix):
            raise ValueError(NOT_CAPTURED)
        self._backward.take(parameter)
        with torch.autocast(parameter.device.type, enabled=False):
            if self.is_due(matrix) and self._can_follow(matrix):
                self._follow([matrix])
            elif self.is_due(matrix) and bool(_update.are_finite([parameter.grad]).all()):  # type: ignore[list-item]
                self._search([matrix])
            if matrix.found:
                pack.take_gradients()
            else:
                pack.compact.grad = torch.full(pack.shape, torch.nan, dtype=pack.zero.dtype, device=pack.device)
        # torch.amp.GradScaler looks here: it unscales compact gradients and sees an overflow in them.
        listed = self.param_groups[pack.group]["params"]
        if not any(each is pack.compact for each in listed):
            listed.append(pack.compact)
        parameter.grad = None
        if self._clipping is not None:
            self._clipping.note("compact", pack.compact)

    def _hide_compact(self) -> None:
        """Compact parameters are in the groups only while they have gradients."""
        if self.project_in_backward:
            compact = {id(pack.compact) for pack in self.packs}
            for group in self.param_groups:
                group["params"] = [each for each in group["params"] if id(each) not in compact]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, those already projected too.

        - set_to_none: free the gradients instead of filling them with zeros
        """
        super().zero_grad(set_to_none)
        if self.project_in_backward:  # what per_layer has updated cannot be forgotten
            self._backward.forget()
        for pack in self.packs:
            pack.compact.grad = None
        self._hide_compact()
