"""GaLore: any torch optimizer, trained in a low-rank subspace of each matrix's gradient.

For a matrix W (rows x columns) with gradient G, a basis P of r directions of the shorter side is found every
`refresh` updates. The inner optimizer holds a compact parameter C, r x columns (or rows x r), that is zero before
each step. It sees the gradient P^T G (or G P) and moves C; then W += scale * P C. So the inner optimizer is used
unchanged and its state has the compact shape: m r + 2 n r numbers for Adam (m the shorter side) instead of 2 m n.
"""

import inspect
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from joma.host.words import counted
from joma.optim import _arguments, _saving
from joma.optim._arguments import Decay, NonFinite, Params
from joma.optim._backward import Bucket, InBackward, most_together, plan_buckets
from joma.optim._following import ORIGIN, Following
from joma.optim._guard import Guard, NameOf, are_finite
from joma.optim._inner import OnMove, is_entry_by_entry
from joma.optim._matrix import Matrix, Pack, broadcast_from_first, is_sharded
from joma.optim._members import Members, Partner, Passing
from joma.optim._refresh import (
    Outcomes,
    can_follow,
    find_subspaces,
    follow_subspaces,
    full_gradients,
    give_turns,
    refresh_batches,
    take_subspaces,
)
from joma.optim._step import Rounds, clip_gradients, project_first, seen_gradients, update
from joma.optim.projector import TOLERANCE, Kind, Rank

SKIP = ("embed", "embedding", "embeddings", "wte", "wpe", "head")
"""Words at the beginning or the end of the name of a weight, or of the layer that has it: such weights pass."""
NOT_CAPTURED = "a step that finds subspaces cannot be captured: capture one for which due() is empty"
NOT_PARTED = "a matrix has no gradient for the first time: make such a step as usual before you capture one"


def is_captured() -> bool:
    """Whether what is done now goes into a CUDA graph: nobody may wait for the device then."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


class GaLore(torch.optim.Optimizer):
    """Trains matrices in a low-rank subspace of their gradients with any torch optimizer.

    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 64))
    >>> optimizer = GaLore(model, torch.optim.AdamW, rank=4, lr=0.01)
    >>> model(torch.ones(3, 64)).square().mean().backward()
    >>> optimizer.step()
    >>> sorted(optimizer.captured())
    ['0.weight', '2.weight']
    >>> sorted(optimizer.state[model[0].weight])
    ['basis', 'count', 'energies', 'exp_avg', 'exp_avg_sq', 'refreshed', 'step']

    With subspaces in 8 bits, on the same gradients:

    >>> optimizer = GaLore(model, torch.optim.AdamW, rank=4, lr=0.01, basis_dtype=torch.int8)
    >>> optimizer.step()
    >>> optimizer.state[model[0].weight]["basis"].dtype
    torch.int8
    """

    member = "GaLore"  # of the family: a state is loaded by the member that saved it
    looks_at_gradients = False  # on the way back into the matrices

    def __init__(
        self,
        params: Params,
        inner: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
        *,
        rank: Rank = 128,
        refresh: int = 200,
        scale: float = 0.25,
        projector: Kind = "randomized",
        on_move: OnMove = "keep",
        skip: Iterable[str] = SKIP,
        smallest: int | None = None,
        decay: Decay = "decoupled",
        nonfinite: NonFinite = "raise",
        basis_dtype: torch.dtype | None = None,
        state_dtype: torch.dtype | None = None,
        stagger: bool | None = None,
        per_layer: bool = False,
        project_in_backward: bool = False,
        conv: bool = False,
        experts: bool = False,
        clip: float | None = None,
        tolerance: float = TOLERANCE,
        seed: int = 0,
        **inner_options: Any,
    ) -> None:
        """Take the parameters and make the inner optimizer.

        - params: a module (what requires a gradient now), parameters, named parameters, or groups; a group may have its
          own rank, refresh and scale
        - inner: makes the inner optimizer from groups, for instance torch.optim.AdamW
        - rank: of the subspaces, or an `Energy`; matrices whose shorter side is not above it are trained whole, with
          `scale`, but a group that states its rank must fit
        - refresh: updates after which a subspace is found anew
        - scale: what the update is multiplied with on its way back
        - projector: randomized, exact or random, see `find_projector`
        - on_move: what becomes of the inner state when the subspace moves: keep, rotate or reset
        - skip: matrices with this name pass through, and those with one of these words at the beginning or the end of
          their own name or of that of their layer; embeddings of a module always do. Matrices without names cannot:
          several of them are projected with a warning, without it if skip=()
        - smallest: matrices with a shorter side below this pass through
        - decay: the inner optimizer's weight_decay acts on the matrix itself: decoupled shrinks it by
          lr * weight_decay, coupled adds weight_decay * W to the gradient
        - nonfinite: raise, or skip the whole step and count it in `skipped`
        - basis_dtype: of the bases and the products with them; the parameter's own, float32 for float16, if None. With
          torch.int8 or torch.int4 bases are kept in 8 or 4 bits, and products are those of None
        - state_dtype: of the inner state of projected matrices; the parameter's own, float32 for float16, if None
        - stagger: spread the refreshes that follow the first over the updates between them. None: with the projector
          exact, which is there to compare with, all are made together; otherwise they are spread
        - per_layer: update each parameter during backward and free its gradient; step() then only counts
        - project_in_backward: project each gradient during backward and free it; the update follows in step()
        - conv: train kernels of convolutions too, each as a matrix, output channels x all the rest
        - experts: train weights with three axes too, (experts, rows, columns), each expert in a subspace of its own; of
          a module, weights of one-dimensional convolutions are not taken for them
        - clip: the largest norm of all gradients together, as the inner optimizer sees them
        - tolerance: of the randomised projector
        - seed: of the randomised and the random projector
        - inner_options: handed to the inner optimizer
        """
        self._made = False
        choices = {"projector": projector, "on_move": on_move, "decay": decay, "nonfinite": nonfinite}
        _arguments.check_options(choices, clip, smallest, inner, skip, tolerance, seed)
        _arguments.check_precision(basis_dtype=basis_dtype, state_dtype=state_dtype)
        _arguments.check_backward(per_layer=per_layer, project_in_backward=project_in_backward, clip=clip)
        _arguments.check_folding(conv=conv, experts=experts, in_backward=per_layer or project_in_backward)
        self.projector, self.on_move, self.decay, self.nonfinite = projector, on_move, decay, nonfinite
        self.stagger = projector != "exact" if stagger is None else bool(stagger)
        self.per_layer, self.project_in_backward = per_layer, project_in_backward
        self.clip, self.tolerance, self.seed = clip, tolerance, seed
        self.group: dist.ProcessGroup | None = None
        kinds: dict[str, Any] = {"kernels": _arguments.kernel_names(params), "conv": conv, "experts": experts}
        embeddings = _arguments.embedding_names(params)
        self._members = Members(tuple(skip), embeddings, smallest, basis_dtype, state_dtype, **kinds)
        self._backward, self._rounds = InBackward(per_layer=per_layer), Rounds()
        self._of_bucket: dict[Bucket, tuple[list[Pack], list[Passing]]] = {}
        self._own = {"rank": rank, "refresh": refresh, "scale": scale}
        groups = _arguments.read_groups(params)
        unnamed, chosen = _arguments.default_names(groups), _arguments.chosen_names(groups)
        inner_groups = [one for number, group in enumerate(groups) for one in self._init_group(group, number)]
        if not self.matrices:
            raise ValueError(_arguments.nothing_projected(groups))
        if self._members.skip:
            _arguments.warn_of_unnamed(unnamed, [each for each in self.matrices if each.name not in chosen])
        self.inner = inner(inner_groups, **inner_options)
        closure = inspect.signature(type(self.inner).step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:  # LBFGS takes the loss several times
            raise ValueError(
                f"inner {type(self.inner).__name__} needs a closure at each step: GaLore takes optimizers that step "
                "without one"
            )
        self._check_experts()
        self._guard, self._following = Guard(self.inner), Following(self.inner)
        self._outcomes = Outcomes()
        super().__init__(groups, {**self._own, **self.inner.defaults})
        self._link(self.inner.param_groups)
        self._made = True

    # ---- groups, matrices and packs -----------------------------------------------------------------------------

    @property
    def matrices(self) -> list[Matrix]:
        """The projected ones, in the order of the parameters."""
        return self._members.matrices

    @property
    def packs(self) -> list[Pack]:
        """Alike matrices that share a compact parameter of the inner optimizer."""
        return self._members.packs

    @property
    def passing(self) -> list[Passing]:
        """Parameters that the inner optimizer trains as they are."""
        return self._members.passing

    def _init_group(self, group: dict[str, Any], number: int) -> list[dict[str, Any]]:
        """Take the parameters of a group, and make the inner optimizer's groups: one for each role."""
        explicit = "rank" in group
        for key, value in self._own.items():
            group.setdefault(key, value)
        _arguments.check_group(group)
        options = {key: value for key, value in group.items() if key not in (*self._own, "params", "param_names")}
        members = self._members.add_group(group, number, explicit=explicit)
        return [{**options, "params": each, ORIGIN: (number, role)} for role, each in members.items()]

    def _check_experts(self) -> None:
        flexible = [matrix.flexible for matrix in self.matrices if matrix.expert is not None]
        if flexible:
            entry_by_entry = is_entry_by_entry(self.inner)
            _arguments.check_experts(self.inner, self.on_move, flexible=any(flexible), entry_by_entry=entry_by_entry)

    def _link(self, inner_groups: list[dict[str, Any]]) -> None:
        """Let new groups of the inner optimizer follow ours; give their matrices turns, packs and hooks."""
        self._following.link(self.param_groups, inner_groups)
        common = _saving.of_every_group(self.inner, self.member)
        for group in self.param_groups:  # in the groups themselves: tools that flatten a state look at their keys
            group.update({key: value for key, value in common.items() if key not in group})
        self._give_turns()
        self._start_hooks()
        self._form_packs(self.packs)

    def _give_turns(self) -> None:
        """The same with per_layer and without, so that both give the same weights."""
        everything = [each for group in self.param_groups for each in group["params"]]
        buckets = plan_buckets(everything, most_together(everything))
        bucket_of = {id(each): bucket for bucket in buckets for each in bucket.parameters}
        give_turns(
            self.matrices,
            staggered=self.stagger,
            alone=self.project_in_backward,
            place=lambda matrix: bucket_of[id(matrix.owner)],
        )

    def _form_packs(self, packs: list[Pack], together: Partner = lambda matrix: matrix.found) -> None:
        """Put the matrices of these packs into new ones, as many in one as may be."""
        if is_captured():  # each replay would copy their states anew, from memory that others have by then
            raise ValueError(NOT_PARTED)
        entry_by_entry = is_entry_by_entry(self.inner) and self.on_move != "reset"

        def partner(matrix: Matrix) -> object:
            if matrix.expert is not None:
                return id(matrix.owner)
            alone = matrix.flexible or self.project_in_backward or is_sharded(matrix.parameter) or not entry_by_entry
            return None if alone else (self._backward.bucket_of(matrix.parameter), together(matrix), matrix.count)

        self._members.form_packs(self.inner, packs, partner)
        self._following.list_packs(self.packs)
        self._rounds.forget()
        self._of_bucket.clear()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group later on; its matrices start with their own subspaces.

        - param_group: `params` (parameters, named parameters or a module) and options, as a group of the constructor
        """
        if not self._made:
            super().add_param_group(param_group)
            return
        (group,) = _arguments.read_groups([param_group], len(self.param_groups))
        known = {id(each) for one in self.param_groups for each in one["params"]}
        if any(id(each) in known for each in group["params"]):
            raise ValueError("params holds a parameter that another group has already")
        inner_groups, members, number = self.inner.param_groups, self._members, len(self.param_groups)
        before, sizes, chosen = len(inner_groups), members.sizes(), "rank" in group
        unnamed = _arguments.default_names([group], number)
        try:
            for one in self._init_group(group, number):
                self.inner.add_param_group(one)
            self._check_experts()
            if members.skip and not chosen:
                _arguments.warn_of_unnamed(unnamed, members.matrices[sizes[0] :])
            super().add_param_group(group)
        except Exception:  # leave the optimizer as it was
            members.cut(sizes)
            del inner_groups[before:], self.param_groups[number:]
            raise
        self._link(inner_groups[before:])

    # ---- a step ---------------------------------------------------------------------------------------------------

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
        if not captured and self._backward.begins:
            self._outcomes.read()
        try:
            self._update_buckets(self._backward.release(), captured=captured)
        except Exception:  # a gradient that is not finite: the next backward begins anew
            self._backward.forget()
            raise
        self._check_backward()
        if not captured and not self.per_layer:
            self._look_back(wait=False)
        folded = self._members.folded
        try:
            for each in folded:
                each.lend()
            packs = self._packs_with_gradients()
            passing = [each for each in self.passing if each.parameter.grad is not None]
            if packs or passing:
                self._update(packs, passing, captured=captured)
            else:
                self._following.hand_over_options(self.decay)
        finally:
            for each in folded:
                each.give_back()
        self._hide_compact()

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
        """One update of these parameters, counted or skipped."""
        matrices = [matrix for pack in packs for matrix in pack.matrices]
        device = (packs[0].device if packs else passing[0].parameter.device).type
        try:
            with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
                refreshed = self._refresh_due([p for p in packs if p.compact.grad is None], captured=captured)
                if not (refreshed and self._advance(packs, passing, captured=captured)):
                    self._count_skipped()
                elif not captured:
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
        if full and not self._all_finite(lambda flag: full[flag][0], are_finite([gradient for _, gradient in full])):
            return False
        for batch in refresh_batches(searched):
            self._search(batch)
        for batch in refresh_batches(followed):
            self._follow(batch)
        return True

    def _can_follow(self, matrix: Matrix) -> bool:
        """Several processes would have to be of one mind about what has settled: they search."""
        return self.projector == "randomized" and self.group is None and can_follow(matrix)

    def _follow(self, batch: list[Matrix]) -> None:
        """Find the subspaces of alike matrices from their last ones; the next update knows whether that was enough."""
        options: dict[str, Any] = {"seed": self.seed, "tolerance": self.tolerance, "on_move": self.on_move}
        self._outcomes.send(batch, follow_subspaces(batch, self.inner, **options))

    def _search(self, batch: list[Matrix]) -> None:
        """Find the subspaces of alike matrices together, whatever it takes."""
        gradients = full_gradients(batch)
        found = find_subspaces(batch, gradients, self.projector, seed=self.seed, tolerance=self.tolerance)
        if found:
            rank = self.param_groups[batch[0].group]["rank"]
            take_subspaces(found, self.inner, rank=rank, on_move=self.on_move, agree=self._agreed)

    def _agreed(self, matrix: Matrix, found: Tensor) -> Tensor:
        """What all processes that train this matrix use."""
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

    def count_replays(self, steps: int = 1) -> None:
        """Count steps that a CUDA graph has replayed, of which Python knows nothing.

        What was held back in them, since a gradient was not finite, is known at the next call.

        - steps: how many
        """
        for matrix in self.matrices:
            matrix.count += steps
        self._show_state(self.packs, [])
        self._look_at_replays(wait=False)

    def _advance(self, packs: list[Pack], passing: list[Passing], *, captured: bool) -> bool:
        """Steps of the inner optimizer, and their way back into the matrices; False if all is to be skipped."""
        rounds = self._rounds.of(packs, passing)
        if len(rounds) == 1:
            project_first(packs, free=self.per_layer and not self.looks_at_gradients)
        seen = seen_gradients(packs, passing)
        finite = are_finite(seen.tensors, seen.stacks)
        self._following.hand_over_options(self.decay)
        found_inf = None
        if self._guard.serves([pack.device for pack in packs] + [each.parameter.device for each in passing]):
            matrices = [matrix for pack in packs for matrix in pack.matrices]
            found_inf = self._guard.hold(seen.name_of, finite, matrices, captured=captured)
        elif captured:
            raise ValueError("a step is captured with an inner optimizer that is fused and capturable: give both")
        elif not self._all_finite(seen.name_of, finite):
            return False
        if self.clip is not None:
            clip_gradients(packs, passing, self.clip)
        for one in rounds:
            update(
                one,
                self._following,
                self.param_groups,
                decay=self.decay,
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

    # ---- during backward ------------------------------------------------------------------------------------------

    def _start_hooks(self) -> None:
        """Of parameters that have none: of all with per_layer, of projected matrices with project_in_backward."""
        named = [(each.name, each.parameter) for each in self.matrices]
        if self.per_layer:
            named += [(each.name, each.parameter) for each in self.passing]
            self._backward.start(named, self, GaLore._update_in_backward)
            self._backward.plan([each for group in self.param_groups for each in group["params"]])
        elif self.project_in_backward:
            self._backward.start(named, self, GaLore._project_in_backward)
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
                "project_in_backward instead of per_layer"
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
        """Of one matrix, with project_in_backward.

        Projecting is linear: the compact gradients of microbatches add up to the projected sum, and nothing is updated
        before step(). A subspace that is due is found from the first microbatch, never from a gradient that is not
        finite.
        """
        matrix = self._matrix_of[id(parameter)]
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
            elif self.is_due(matrix) and bool(are_finite([parameter.grad]).all()):  # type: ignore[list-item]
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

    # ---- gradients that are not finite ----------------------------------------------------------------------------

    def _all_finite(self, name_of: NameOf, finite: Tensor) -> bool:
        """Whether all are finite; if not, raise or leave it to the caller. One wait for the device."""
        if bool(finite.all()):
            return True
        self._refuse(name_of(finite.tolist().index(False)))
        return False

    def _refuse(self, name: str) -> None:
        """Raise because of a gradient that is not finite, unless such steps are skipped."""
        if self.nonfinite == "raise":
            nothing = "it was not updated" if self.per_layer else "nothing was updated"
            raise ValueError(
                f"the gradient of {name} is not finite: {nothing}; nonfinite='skip' skips and counts such steps"
            )

    def _look_back(self, *, wait: bool = True) -> None:
        """At the step before, if it was left to the device whether it happens; wait for the last replay, or do not."""
        for name in self._guard.look_back():  # with per_layer one for each bucket
            self._refuse(name)
            self._count_skipped()
        self._look_at_replays(wait=wait)

    def _look_at_replays(self, *, wait: bool) -> None:
        """At updates that replays of a CUDA graph held back; nobody knows which parameters those were of."""
        for _ in range(self._guard.held_in_replays(wait=wait)):
            self._refuse("some parameter in a replay")
            self._count_skipped()

    def _count_skipped(self) -> None:
        for group in self.param_groups:
            group["galore_skipped"] += 1

    @property
    def skipped(self) -> int:
        """How many steps were skipped: a gradient was not finite; with per_layer, updates of a few parameters."""
        self._look_back()
        return int(self.param_groups[0]["galore_skipped"])

    # ---- state ----------------------------------------------------------------------------------------------------

    def captured(self) -> dict[str, float]:
        """The share of each matrix's squared gradient that its subspace held when it was found, by name."""
        return {m.name: float(m.energies.sum().clamp(max=1)) for m in self.matrices if m.energies is not None}

    def _show_state(self, packs: list[Pack], passing: list[Passing]) -> None:
        """state[p] has the subspace and the inner state: the tensors themselves, or parts of those of a pack."""
        for pack in packs:
            _saving.show(self.state, self.inner, pack)
        for each in passing:
            self.state[each.parameter] = self.inner.state[each.parameter]

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors and numbers: torch.load(weights_only=True) reads them back."""
        self._look_back()
        self._outcomes.read()
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        result = _saving.pack_state(self._parts())
        for after in self._optimizer_state_dict_post_hooks.values():
            result = after(self, result) or result
        return result

    def _parts(self) -> _saving.Parts:
        return _saving.Parts(self.param_groups, self.matrices, self.inner)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state, bit for bit; tensors come to the device of their parameter.

        - state_dict: what state_dict() gave; one that does not fit or is damaged is refused, a ValueError, and nothing
          is changed
        """
        self._guard.look_back()
        self._guard.held_in_replays(wait=True)  # what was held back before is not of the state that comes
        self._outcomes.read()
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = before(self, state_dict) or state_dict
        self._hide_compact()
        parts = self._parts()
        state_dict = _saving.read_state(parts, state_dict)
        before_loading = _saving.pack_state(parts)
        options = [[dict(group) for group in groups] for groups in (self.param_groups, self.inner.param_groups)]
        try:
            self._take_over(state_dict)
        except Exception as error:  # what the inner optimizer, any of torch's, makes of a damaged state
            _saving.forget_options(parts, *options)
            self._take_over(before_loading)
            said = " ".join(f"{type(error).__name__}: {error}".split())
            raise ValueError(f"the state was refused and nothing was changed ({said})") from error
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _take_over(self, state_dict: dict[str, Any]) -> None:
        """Options, subspaces and inner state; matrices whose states go together are in one pack."""
        parts = self._parts()
        self._following.link_again()
        _saving.restore_options(parts, state_dict)
        self._following.hand_over_options(self.decay)
        signatures = _saving.restore_counts(parts, state_dict)
        for pack in self.packs:
            self.inner.state.pop(pack.compact, None)
        self._form_packs(self.packs, lambda matrix: signatures[id(matrix)])
        _saving.restore_subspaces(parts, state_dict)
        _saving.restore_inner(parts, self.packs, state_dict)
        self._following.link_again()
        self.state.clear()
        self._show_all()

    def _show_all(self) -> None:
        """Nothing before the first step: torch's checkpoints then make one, for the state to have all its entries."""
        begun = any(matrix.found for matrix in self.matrices)
        known = [each for each in self.passing if each.parameter in self.inner.state]
        self._show_state(self.packs, known if begun else [])

    def __repr__(self) -> str:
        inner, few = type(self.inner).__name__, counted(len(self.matrices), "matrix", "matrices")
        return (
            f"{type(self).__name__}({inner}, {few} projected, rank={self._own['rank']}, refresh={self._own['refresh']})"
        )

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and deepcopy; hooks and processes belong to the one that is copied."""
        self._look_back()
        self._outcomes.read()
        left_out = ("step", "_backward", "_guard", "_outcomes", "_rounds", "_of_bucket", "_matrix_of", "group")
        return {key: value for key, value in vars(self).items() if key not in left_out and not key.startswith("_optim")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.group = None
        self._backward, self._guard = InBackward(per_layer=self.per_layer), Guard(self.inner)
        self._rounds, self._of_bucket, self._outcomes = Rounds(), {}, Outcomes()
        for pack in self.packs:
            pack.fold()
        self._start_hooks()
        self._show_all()
