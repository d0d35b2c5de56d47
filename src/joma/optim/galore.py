"""GaLore: any torch optimizer, trained in a low-rank subspace of each matrix's gradient.

For a matrix W (rows x columns) with gradient G, a basis P of r directions of the shorter side is found every
`refresh` updates. The inner optimizer holds a compact parameter C, r x columns (or rows x r), that is zero before
each step. It sees the gradient P^T G (or G P) and moves C; then W += scale * P C. So the inner optimizer is used
unchanged and its state has the compact shape: m r + 2 n r numbers for Adam (m the shorter side) instead of 2 m n.
"""

import inspect
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from joma.host.words import counted
from joma.optim import _arguments, _matrix, _saving
from joma.optim._arguments import Decay, NonFinite, Params, Role
from joma.optim._gradients import BackwardHook, are_finite, total_norm
from joma.optim._inner import Guard, OnMove, is_entry_by_entry, move_state, narrow_state, only, regroup
from joma.optim._matrix import Matrix, Pack, broadcast_from_first, is_sharded, local
from joma.optim.projector import TOLERANCE, Energy, Kind, Rank

SKIP = ("embed", "embedding", "embeddings", "wte", "wpe", "head")
"""Words at the beginning or the end of the name of a weight, or of the layer that has it: such weights pass."""
UNFOLDED = 1 << 23  # compact entries that a device which likes large steps has at once: 32 MiB of float32
UNFOLDED_SHARE = 32  # elsewhere, and of large models: one in so many entries
UNFOLDED_LEAST = 1 << 17  # but always so many
WAITING_SHARE = 4  # with per_layer, on such a device: gradients wait until they are so large a part of the largest


class Passing(NamedTuple):
    """A parameter that the inner optimizer trains as it is; if `scaled`, at a rate times `scale`."""

    name: str
    parameter: nn.Parameter
    group: int
    role: Role


class Follower(NamedTuple):
    """A group of the inner optimizer, and ours whose options it follows."""

    ours: dict[str, Any]
    theirs: dict[str, Any]
    role: Role


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
    """

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
        - basis_dtype: of the bases and the products with them; the parameter's own, float32 for float16, if None
        - state_dtype: of the inner state of projected matrices; the parameter's own, float32 for float16, if None
        - stagger: spread the refreshes that follow the first over the updates between them. None: with the projector
          exact, which is there to compare with, all are made together; otherwise they are spread
        - per_layer: update each parameter during backward and free its gradient; step() then only counts
        - project_in_backward: project each gradient during backward and free it; the update follows in step()
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
        self.projector, self.on_move, self.decay, self.nonfinite = projector, on_move, decay, nonfinite
        self.basis_dtype, self.state_dtype = basis_dtype, state_dtype
        self.stagger = projector != "exact" if stagger is None else bool(stagger)
        self.per_layer, self.project_in_backward = per_layer, project_in_backward
        self.clip, self.tolerance, self.seed = clip, tolerance, seed
        self.skip, self.smallest = tuple(skip), smallest
        self.group: dist.ProcessGroup | None = None
        self.matrices: list[Matrix] = []
        self.packs: list[Pack] = []
        self.passing: list[Passing] = []
        self._followers: list[Follower] = []
        self._hooks: dict[int, BackwardHook] = {}
        self._taken: set[int] = set()  # parameters whose gradient was taken during the backward before a step
        self._waiting: list[nn.Parameter] = []  # those with a gradient that is updated with the next ones
        self._embeddings = _arguments.embedding_names(params)
        self._own = {"rank": rank, "refresh": refresh, "scale": scale}
        groups = _arguments.read_groups(params)
        unnamed, chosen = _arguments.default_names(groups), _arguments.chosen_names(groups)
        inner_groups = [one for number, group in enumerate(groups) for one in self._init_group(group, number)]
        if not self.matrices:
            raise ValueError(_arguments.nothing_projected(groups))
        if self.skip:
            _arguments.warn_of_unnamed(unnamed, [each for each in self.matrices if each.name not in chosen])
        self.inner = inner(inner_groups, **inner_options)
        closure = inspect.signature(type(self.inner).step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:  # LBFGS takes the loss several times
            raise ValueError(
                f"inner {type(self.inner).__name__} needs a closure at each step: GaLore takes optimizers that step "
                "without one"
            )
        self._guard = Guard(self.inner)
        super().__init__(groups, {**self._own, **self.inner.defaults})
        self._link(self.inner.param_groups)
        self._made = True

    # ---- groups, matrices and packs -----------------------------------------------------------------------------

    def _init_group(self, group: dict[str, Any], number: int) -> list[dict[str, Any]]:
        """Make the matrices of a group, and the inner optimizer's groups: of the compact parameters, of what passes."""
        explicit = "rank" in group
        for key, value in self._own.items():
            group.setdefault(key, value)
        _arguments.check_group(group)
        options = {key: value for key, value in group.items() if key not in (*self._own, "params", "param_names")}
        members: dict[Role, list[Tensor]] = {"compact": [], "passing": [], "scaled": []}
        for name, each in zip(group["param_names"], group["params"], strict=True):
            skipped = name in self._embeddings or _arguments.is_named(name, self.skip)
            role = _arguments.role_of(name, each, group["rank"], self.smallest, explicit=explicit, skipped=skipped)
            if role != "compact":
                self.passing.append(Passing(name, each, number, role))
                members[role].append(each)
                continue
            precision = {"basis_dtype": self.basis_dtype, "state_dtype": self.state_dtype}
            self.matrices.append(Matrix(name, each, number, len(self.matrices), group["rank"], **precision))
            self.packs.append(_make_pack(self.matrices[-1:]))
            members[role].append(self.packs[-1].compact)
        return [{**options, "params": each, "galore": (number, role)} for role, each in members.items() if each]

    def _link(self, inner_groups: list[dict[str, Any]]) -> None:
        """Remember which group of the inner optimizer follows which of ours; start the hooks of new parameters."""
        for one in inner_groups:
            number, role = one.pop("galore")
            for key, value in one.items():
                self.param_groups[number].setdefault(key, value)
                one[key] = value.clone() if isinstance(value, Tensor) else value  # several groups may share a tensor
            self._followers.append(Follower(self.param_groups[number], one, role))
        common = _saving.of_every_group(self.inner)
        for group in self.param_groups:  # in the groups themselves: tools that flatten a state look at their keys
            group.update({key: value for key, value in common.items() if key not in group})
        _matrix.give_turns(self.matrices, staggered=self.stagger)
        self._form_packs(self.packs)
        self._start_hooks()

    def _form_packs(
        self, packs: list[Pack], together: Callable[[Matrix], object] = lambda matrix: matrix.found
    ) -> None:
        """Put the matrices of these packs into new ones, as many in one as may be."""
        entry_by_entry = is_entry_by_entry(self.inner) and self.on_move != "reset"

        def partner(matrix: Matrix) -> object:
            alone = matrix.flexible or self._in_backward or is_sharded(matrix.parameter) or not entry_by_entry
            return None if alone else (together(matrix), matrix.count)

        gone = {id(pack) for pack in packs}
        formed = regroup(self.inner, packs, lambda matrices: _matrix.form_packs(matrices, _make_pack, partner))
        self.packs = [pack for pack in self.packs if id(pack) not in gone] + formed
        for number, _ in enumerate(self.param_groups):
            if theirs := self._inner_group(number, "compact"):
                theirs["params"] = [pack.compact for pack in self.packs if pack.group == number]

    def _inner_group(self, number: int, role: Role) -> dict[str, Any]:
        """The inner optimizer's group for the parameters of this role in one of our groups."""
        ours = self.param_groups[number]
        return next((one.theirs for one in self._followers if one.ours is ours and one.role == role), {})

    @property
    def _in_backward(self) -> bool:
        return self.per_layer or self.project_in_backward

    def _start_hooks(self) -> None:
        """Of parameters that have none: of all with per_layer, of projected matrices with project_in_backward."""
        named = [(each.name, each.parameter) for each in self.matrices] if self._in_backward else []
        named += [(each.name, each.parameter) for each in self.passing] if self.per_layer else []
        take = self._update_in_backward if self.per_layer else self._project_in_backward
        for name, parameter in named:
            if id(parameter) not in self._hooks:
                self._hooks[id(parameter)] = BackwardHook(name, parameter, take)
        self._packs_of = {id(matrix.parameter): matrix.pack for matrix in self.matrices}
        self._passing_of = {id(each.parameter): each for each in self.passing}
        stacked = self.matrices[0].parameter.device.type in _matrix.STACKED_ON
        sizes = [each.parameter.numel() for each in self.matrices] + [each.parameter.numel() for each in self.passing]
        self._most_waiting = max(sizes) // WAITING_SHARE if stacked else 0

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
        grown: tuple[list[Any], ...] = (
            self.inner.param_groups, self.param_groups, self.matrices, self.packs, self.passing,
        )  # fmt: skip
        before, unnamed = [len(each) for each in grown], _arguments.default_names([group], len(self.param_groups))
        chosen = "rank" in group
        try:
            for one in self._init_group(group, len(self.param_groups)):
                self.inner.add_param_group(one)
            if self.skip and not chosen:
                _arguments.warn_of_unnamed(unnamed, self.matrices[before[2] :])
            super().add_param_group(group)
        except Exception:  # leave the optimizer as it was
            for each, length in zip(grown, before, strict=True):
                del each[length:]
            raise
        self._link(self.inner.param_groups[before[0] :])

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
        if self._waiting:
            self._update_waiting()
        self._check_hooks()
        captured = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
        if not captured:  # while a graph is captured nobody may wait for the device
            self._look_back()
        packs = self._packs_with_gradients()
        passing = [each for each in self.passing if each.parameter.grad is not None]
        if packs or passing:
            self._update(packs, passing, captured=captured)
        else:
            self._hand_over_options()
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
        self._start_hooks()
        return [pack for pack in self.packs if pack.parameters[0].grad is not None]

    def _update(self, packs: list[Pack], passing: list[Passing], *, captured: bool = False) -> None:
        """One update of these parameters, counted or skipped."""
        matrices = [matrix for pack in packs for matrix in pack.matrices]
        device = (packs[0].device if packs else passing[0].parameter.device).type
        try:
            with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
                unprojected = [m for pack in packs if pack.compact.grad is None for m in pack.matrices]
                refreshed = self._refresh_due(unprojected, captured=captured)
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

    def _refresh_due(self, matrices: list[Matrix], *, captured: bool) -> bool:
        """Find the subspaces that are due; False if a gradient that one is to be found from is not finite."""
        for matrix in matrices:
            matrix.check_dense()
        due = [matrix for matrix in matrices if self.is_due(matrix)]
        if not due:
            return True
        if captured:
            raise ValueError("a step that finds subspaces cannot be captured: capture one for which due() is empty")
        full = [(matrix.name, matrix.parameter.grad) for matrix in due if matrix.parameter.grad is not None]
        if not self._all_finite([name for name, _ in full], are_finite([gradient for _, gradient in full])):
            return False
        for batch in _matrix.refresh_batches(due):
            self._refresh(batch)
        return True

    def _refresh(self, batch: list[Matrix]) -> None:
        """Find the subspaces of alike matrices together, and move the inner state into them."""
        gradients = _matrix.full_gradients(batch)
        for matrix, found in _matrix.find_subspaces(
            batch, gradients, self.projector, seed=self.seed, tolerance=self.tolerance
        ):
            first = matrix.energies is None or not bool(matrix.energies.any())  # no gradient so far, or zeros
            before = matrix.basis.clone() if matrix.basis is not None else None
            matrix.take_subspace(self._agreed(matrix, found.basis), self._agreed(matrix, found.energies))
            matrix.refreshed = matrix.count
            if before is not None:
                move_state(self.inner, matrix, before, self.on_move)
            rank = self.param_groups[matrix.group]["rank"]
            if first and isinstance(rank, Energy):  # the first subspace settles the rank
                assert matrix.energies is not None
                largest = matrix.rank
                matrix.pack.narrow(rank.choose(matrix.energies))
                narrow_state(self.inner, matrix, largest)

    def _agreed(self, matrix: Matrix, found: Tensor) -> Tensor:
        """What all processes that train this matrix use."""
        if self.group is None:
            return matrix.pack.agree(found)
        return broadcast_from_first(found, self.group)

    def is_due(self, matrix: Matrix) -> bool:
        """Whether the subspace of a matrix is found anew before its next update.

        - matrix: one of `matrices`
        """
        return matrix.is_due(self.param_groups[matrix.group]["refresh"])

    def due(self) -> list[str]:
        """Names of the matrices whose subspaces the next step finds anew; a step is captured only if there are none."""
        return [matrix.name for matrix in self.matrices if self.is_due(matrix)]

    def count_replays(self, steps: int = 1) -> None:
        """Count steps that a CUDA graph has replayed, of which Python knows nothing.

        - steps: how many
        """
        for matrix in self.matrices:
            matrix.count += steps
        self._show_state(self.packs, [])

    def _advance(self, packs: list[Pack], passing: list[Passing], *, captured: bool) -> bool:
        """Steps of the inner optimizer, and their way back into the matrices; False if all is to be skipped."""
        names, gradients = self._seen_gradients(packs, passing)
        finite = are_finite(gradients)
        self._hand_over_options()
        acts: Tensor | float = 1.0
        if self._guard.serves([pack.device for pack in packs] + [each.parameter.device for each in passing]):
            matrices = [matrix for pack in packs for matrix in pack.matrices]
            acts = self._guard.hold(names, finite, matrices, captured=captured)
        elif captured:
            raise ValueError("a step is captured with an inner optimizer that is fused and capturable: give both")
        elif not self._all_finite(names, finite):
            return False
        if self.clip is not None:
            self._clip(packs, passing)
        for some, others in self._rounds(packs, passing):
            self._advance_round(some, others, acts)
        return True

    def _seen_gradients(self, packs: list[Pack], passing: list[Passing]) -> tuple[list[str], list[Tensor]]:
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
            gradients.append(_values(each.parameter.grad))
        return names, gradients

    def _clip(self, packs: list[Pack], passing: list[Passing]) -> None:
        """Scale all gradients, as the inner optimizer sees them, if their norm together is too large."""
        for pack in packs:
            if pack.compact.grad is None:
                pack.take_gradients()
        seen = [each.grad for each in (*(pack.compact for pack in packs), *(each.parameter for each in passing))]
        gradients = [_values(each) for each in seen if each is not None]
        assert self.clip is not None
        factor = (self.clip / (total_norm(gradients) + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_
        torch._foreach_mul_([local(one) for one in gradients], factor)

    def _rounds(self, packs: list[Pack], passing: list[Passing]) -> list[tuple[list[Pack], list[Passing]]]:
        """Packs that are unfolded together: one round on a device that likes large steps, if the memory is small."""
        if not packs:
            return [([], passing)]
        stacked = packs[0].device.type in _matrix.STACKED_ON
        entries = sum(each.numel() for pack in packs for each in pack.parameters)
        entries += sum(each.parameter.numel() for each in passing)
        most = max(entries // UNFOLDED_SHARE, UNFOLDED if stacked else UNFOLDED_LEAST)
        rounds: list[list[Pack]] = [[]]
        held = 0
        for pack in packs:
            size = torch.Size(pack.shape).numel()
            if rounds[-1] and held + size > most:
                rounds.append([])
                held = 0
            rounds[-1].append(pack)
            held += size
        if len(rounds) == 1:
            return [(packs, passing)]
        return [*((some, []) for some in rounds), *([([], passing)] if passing else [])]

    def _advance_round(self, packs: list[Pack], passing: list[Passing], acts: Tensor | float) -> None:
        """Project, step and lift some packs, and step some parameters that pass."""
        for pack, memory in zip(packs, _zeros(packs), strict=True):
            if pack.compact.grad is None:
                pack.take_gradients()
            pack.unfold(memory)
            if self.decay == "coupled":
                self._couple_decay(pack)
        members: dict[tuple[int, Role], list[Tensor]] = {}
        for pack in packs:
            members.setdefault((pack.group, "compact"), []).append(pack.compact)
        for each in passing:
            members.setdefault((each.group, each.role), []).append(each.parameter)
        shrinks = self._decay(packs, passing, acts)
        with only(self.inner, [(self._inner_group(*key), some) for key, some in members.items()]):
            self.inner.step()
        for pack, shrink in zip(packs, shrinks, strict=True):
            pack.apply(self.param_groups[pack.group]["scale"], shrink)
            pack.fold()

    def _decay(self, packs: list[Pack], passing: list[Passing], acts: Tensor | float) -> list[float]:
        """Decoupled decay of what is projected or scaled; for each pack what is left to do with its update."""
        if self.decay == "coupled":
            return [1.0] * len(packs)
        apart: dict[int, list[Tensor]] = {}
        factors = [self._shrink(number, acts) for number, _ in enumerate(self.param_groups)]
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

    def _shrink(self, number: int, acts: Tensor | float) -> Tensor | float:
        """What decoupled decay multiplies the weights of a group with; 1 where the step does not happen."""
        group = self.param_groups[number]
        strength = group.get("weight_decay", 0)
        return 1 - group["lr"] * strength * acts if strength else 1.0

    def _couple_decay(self, pack: Pack) -> None:
        """Add weight_decay * W to the gradient, inside the subspace."""
        group = self.param_groups[pack.group]
        strength = group.get("weight_decay", 0)
        if strength and pack.compact.grad is not None:
            factor = -strength if group.get("maximize") else strength
            pack.compact.grad.add_(pack.project([each.detach() for each in pack.parameters]) * factor)

    def _hand_over_options(self) -> None:
        """Hand options that a scheduler may have changed to the inner optimizer; decay of matrices stays here."""
        for ours, theirs, role in self._followers:
            for key in theirs:
                if key in ("params", "param_names"):
                    continue
                value = ours[key]
                if role == "scaled" and key == "lr":
                    value = value * ours["scale"]
                if isinstance(theirs[key], Tensor) and theirs[key] is not value:
                    theirs[key].fill_(value)  # a rate that torchao keeps in a tensor stays in that tensor
                else:
                    theirs[key] = value
            if "weight_decay" in theirs and (role == "compact" or (role == "scaled" and self.decay == "decoupled")):
                theirs["weight_decay"] = 0.0

    # ---- during backward ------------------------------------------------------------------------------------------

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """torch.amp.GradScaler asks; with per_layer it then calls step(), which refuses it in one sentence."""
        return self.per_layer

    def _check_hooks(self) -> None:
        """Refuse what cannot be right where gradients are taken during backward."""
        if self.per_layer and "grad_scale" in vars(self):
            for name in ("grad_scale", "found_inf"):
                vars(self).pop(name, None)
            self._taken.clear()
            raise ValueError(
                "per_layer updates during backward, before GradScaler could unscale: leave GradScaler out, or give "
                "project_in_backward instead of per_layer"
            )
        for key, hook in self._hooks.items():
            hook.check(taken=key in self._taken)
        self._taken.clear()

    def _update_in_backward(self, parameter: nn.Parameter) -> None:
        """Of one parameter, with per_layer."""
        if id(parameter) in self._taken:
            raise ValueError(
                f"{self._hooks[id(parameter)].name} has a second gradient before step(): per_layer updates in every "
                "backward, so microbatches cannot add up; give project_in_backward instead"
            )
        self._taken.add(id(parameter))
        self._waiting.append(parameter)
        if sum(each.numel() for each in self._waiting) >= self._most_waiting:
            self._update_waiting()

    def _update_waiting(self) -> None:
        """Of the parameters whose gradients have waited: a few large steps are faster than many small ones."""
        waiting, self._waiting = self._waiting, []
        packs = [self._packs_of[id(each)] for each in waiting if id(each) in self._packs_of]
        passing = [self._passing_of[id(each)] for each in waiting if id(each) in self._passing_of]
        try:
            self._update(packs, passing)
        finally:
            for each in waiting:
                each.grad = None

    def _project_in_backward(self, parameter: nn.Parameter) -> None:
        """Of one matrix, with project_in_backward.

        Projecting is linear: the compact gradients of microbatches add up to the projected sum, and nothing is updated
        before step(). A subspace that is due is found from the first microbatch, never from a gradient that is not
        finite.
        """
        pack = self._packs_of[id(parameter)]
        (matrix,) = pack.matrices
        matrix.check_dense()
        self._taken.add(id(parameter))
        if self.is_due(matrix) and bool(are_finite([parameter.grad]).all()):  # type: ignore[list-item]
            self._refresh([matrix])
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
            self._taken.clear()
        for pack in self.packs:
            pack.compact.grad = None
        self._hide_compact()

    # ---- gradients that are not finite ----------------------------------------------------------------------------

    def _all_finite(self, names: list[str], finite: Tensor) -> bool:
        """Whether all are finite; if not, raise or leave it to the caller. One wait for the device."""
        if bool(finite.all()):
            return True
        self._refuse(names[finite.tolist().index(False)])
        return False

    def _refuse(self, name: str) -> None:
        """Raise because of a gradient that is not finite, unless such steps are skipped."""
        if self.nonfinite == "raise":
            nothing = "it was not updated" if self.per_layer else "nothing was updated"
            raise ValueError(
                f"the gradient of {name} is not finite: {nothing}; nonfinite='skip' skips and counts such steps"
            )

    def _look_back(self) -> None:
        """At the step before, if it was left to the device whether it happens."""
        if (name := self._guard.look_back()) is not None:
            self._refuse(name)
            self._count_skipped()

    def _count_skipped(self) -> None:
        for group in self.param_groups:
            group["galore_skipped"] += 1

    @property
    def skipped(self) -> int:
        """How many steps were skipped because a gradient was not finite; with per_layer, updates of one parameter."""
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
        self._follow_again()
        _saving.restore_options(parts, state_dict)
        self._hand_over_options()
        signatures = _saving.restore_counts(parts, state_dict)
        for pack in self.packs:
            self.inner.state.pop(pack.compact, None)
        self._form_packs(self.packs, lambda matrix: signatures[id(matrix)])
        _saving.restore_subspaces(parts, state_dict)
        _saving.restore_inner(parts, self.packs, state_dict)
        self._follow_again()
        self._start_hooks()
        self.state.clear()
        self._show_all()

    def _show_all(self) -> None:
        """Nothing before the first step: torch's checkpoints then make one, for the state to have all its entries."""
        begun = any(matrix.found for matrix in self.matrices)
        known = [each for each in self.passing if each.parameter in self.inner.state]
        self._show_state(self.packs, known if begun else [])

    def _follow_again(self) -> None:
        """Loading gives the inner optimizer new group dictionaries, in the old order."""
        pairs = zip(self._followers, self.inner.param_groups, strict=True)
        self._followers = [one._replace(theirs=theirs) for one, theirs in pairs]

    def __repr__(self) -> str:
        inner, few = type(self.inner).__name__, counted(len(self.matrices), "matrix", "matrices")
        return f"GaLore({inner}, {few} projected, rank={self._own['rank']}, refresh={self._own['refresh']})"

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and deepcopy; hooks and processes belong to the one that is copied."""
        left_out = ("step", "_hooks", "_taken", "_waiting", "_guard", "_packs_of", "_passing_of", "group")
        return {key: value for key, value in vars(self).items() if key not in left_out and not key.startswith("_optim")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._hooks, self._taken, self._waiting, self.group = {}, set(), [], None
        self._guard = Guard(self.inner)
        for pack in self.packs:
            pack.fold()
        self._start_hooks()
        self._show_all()


def _make_pack(matrices: list[Matrix]) -> Pack:
    if is_sharded(matrices[0].parameter):  # only then: the import loads torch.distributed.tensor
        from joma.optim._sharded import ShardedPack

        return ShardedPack(matrices)
    return Pack(matrices)


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


def _values(gradient: Tensor) -> Tensor:
    """All numbers of a gradient; of a sparse one, which is coalesced by then, those that are kept."""
    return gradient.values() if gradient.layout == torch.sparse_coo else gradient
