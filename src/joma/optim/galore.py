"""GaLore: any torch optimizer, trained in a low-rank subspace of each matrix's gradient.

For a matrix W (rows x columns) with gradient G, a basis P of r directions of the shorter side is found every
`refresh` updates. The inner optimizer holds a compact parameter C, r x columns (or rows x r), that is zero before
each step. It sees the gradient P^T G (or G P) and moves C; then W += scale * P C. So the inner optimizer is used
unchanged and its state has the compact shape: m r + 2 n r numbers for Adam (m the shorter side) instead of 2 m n.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from joma.host.words import counted
from joma.optim import _per_layer, _saving, _update
from joma.optim._checks import (
    Decay,
    NonFinite,
    check_group,
    check_options,
    check_others,
    not_finite,
    nothing_projected,
    steps_without_closure,
)
from joma.optim._guard import Guard
from joma.optim._matrix import Matrix, together
from joma.optim._moving import OnMove, move, narrow
from joma.optim._places import first_word, local, matrix_of, on_all
from joma.optim._refresh import seeing, subspaces
from joma.optim._taking import OWN, Params, embedding_names, groups_of, is_projected, named_so, unnamed, warn_of_unnamed
from joma.optim.projector import TOLERANCE, Kind
from joma.optim.ranks import Energy, Rank

SKIP = ("embed", "embedding", "embeddings", "wte", "wpe", "head")
"""Parts of names, between dots and underscores, of what is not projected."""


class GaLore(torch.optim.Optimizer):
    """Trains matrices in a low-rank subspace of their gradients with any torch optimizer.

    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 64))
    >>> optimizer = GaLore(model, torch.optim.AdamW, rank=4, lr=0.01)
    >>> model(torch.ones(3, 64)).square().mean().backward()
    >>> optimizer.step()
    >>> sorted(optimizer.captured())
    ['0.weight', '2.weight']
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
        per_layer: bool = False,
        clip: float | None = None,
        tolerance: float = TOLERANCE,
        seed: int = 0,
        **inner_options: Any,
    ) -> None:
        """Take the parameters and make the inner optimizer.

        - params: a module (what requires a gradient now), parameters, named parameters, or groups; a group may have its
          own rank, refresh and scale
        - inner: makes the inner optimizer from groups, for instance torch.optim.AdamW
        - rank: of the subspaces, or an `Energy`; matrices whose shorter side is not above it pass through, but a group
          that states its rank must fit
        - refresh: updates after which a subspace is found anew
        - scale: what the update is multiplied with on its way back
        - projector: randomized, exact or random, see `find_projector`
        - on_move: what becomes of the inner state when the subspace moves: keep, rotate or reset
        - skip: matrices with this name, or one of these words in their name, pass through; embeddings of a module
          always do. Matrices without names cannot: several of them are projected with a warning, without it if skip=()
        - smallest: matrices with a shorter side below this pass through
        - decay: the inner optimizer's weight_decay acts on the matrix itself: decoupled shrinks it by
          lr * weight_decay, coupled adds weight_decay * W to the gradient
        - nonfinite: raise, or skip the whole step and count it in `skipped`
        - per_layer: project each gradient during backward and free it; the update follows in step()
        - clip: the largest norm of all gradients together, as the inner optimizer sees them
        - tolerance: of the randomised projector
        - seed: of the randomised and the random projector
        - inner_options: handed to the inner optimizer
        """
        self._made = False
        check_options(projector, on_move, decay, nonfinite, clip, smallest)
        check_others(inner, skip, tolerance, seed)
        self.projector, self.on_move, self.decay, self.nonfinite = projector, on_move, decay, nonfinite
        self.per_layer, self.clip, self.tolerance, self.seed = per_layer, clip, tolerance, seed
        self.skip, self.smallest = tuple(skip), smallest
        self._skipped = 0
        self._batches: list[list[Matrix]] | None = None
        self.group: dist.ProcessGroup | None = None
        self.matrices: list[Matrix] = []
        self._unprojected: list[tuple[str, Tensor]] = []
        self._followers: list[tuple[dict[str, Any], dict[str, Any], bool]] = []
        self._embeddings = embedding_names(params)
        self._own = {"rank": rank, "refresh": refresh, "scale": scale}
        groups = groups_of(params)
        bare = unnamed(groups)
        inside = [one for number, group in enumerate(groups) for one in self._take(group, number)]
        if not self.matrices:
            raise ValueError(nothing_projected(groups))
        if self.skip:
            warn_of_unnamed(bare, self.matrices)
        self.inner = inner(inside, **inner_options)
        steps_without_closure(self.inner)
        self._guard = Guard(self.inner)
        super().__init__(groups, {**self._own, **self.inner.defaults})
        self._link(self.inner.param_groups)
        self._made = True

    def _take(self, group: dict[str, Any], number: int) -> list[dict[str, Any]]:
        """Make the matrices of a group, and the inner optimizer's groups: of the compact parameters, of what passes."""
        explicit = "rank" in group
        for key, value in self._own.items():
            group.setdefault(key, value)
        check_group(group)
        options = {key: value for key, value in group.items() if key not in (*OWN, "params", "param_names")}
        compact: list[Tensor] = []
        passing: list[Tensor] = []
        for name, each in zip(group["param_names"], group["params"], strict=True):
            if not self._is_projected(name, each, group["rank"], explicit=explicit):
                passing.append(each)
                self._unprojected.append((name, each))
                continue
            matrix = matrix_of(name, each, number, len(self.matrices), group["rank"])
            self.matrices.append(matrix)
            compact.append(matrix.compact)
        kinds = (("compact", compact), ("passing", passing))
        return [{**options, "params": each, "galore": (number, kind)} for kind, each in kinds if each]

    def _is_projected(self, name: str, each: Tensor, rank: Rank, *, explicit: bool) -> bool:
        if name in self.skip or named_so(name, self.skip) or name in self._embeddings:
            return False
        return is_projected(name, each, rank, explicit=explicit, smallest=self.smallest)

    def _link(self, inside: list[dict[str, Any]]) -> None:
        """Remember which group of the inner optimizer follows which of ours; start the hooks of new matrices."""
        self._batches = None
        for one in inside:
            number, kind = one.pop("galore")
            for key, value in one.items():
                self.param_groups[number].setdefault(key, value)
                one[key] = value.clone() if isinstance(value, Tensor) else value  # several groups may share a tensor
            self._followers.append((self.param_groups[number], one, kind == "compact"))
        if self.per_layer:
            for matrix in (each for each in self.matrices if each.hook is None):
                _per_layer.attach(self, matrix)

    def _relink(self) -> None:
        """After the inner optimizer has loaded a state: its groups are new dictionaries, in the old order."""
        self._batches = None
        pairs = zip(self._followers, self.inner.param_groups, strict=True)
        self._followers = [(ours, theirs, compact) for (ours, _, compact), theirs in pairs]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group later on, with parameters or named parameters; its matrices start with their own subspaces."""
        if not self._made:
            super().add_param_group(param_group)
            return
        (group,) = groups_of([param_group], len(self.param_groups))
        known = {id(each) for one in self.param_groups for each in one["params"]}
        if any(id(each) in known for each in group["params"]):
            raise ValueError("params holds a parameter that another group has already")
        grown: tuple[list[Any], ...] = (self.inner.param_groups, self.param_groups, self.matrices, self._unprojected)
        before, bare = [len(each) for each in grown], unnamed([group], len(self.param_groups))
        try:
            for one in self._take(group, len(self.param_groups)):
                self.inner.add_param_group(one)
            if self.skip:
                warn_of_unnamed(bare, self.matrices)
            super().add_param_group(group)
        except Exception:
            for each, length in zip(grown, before, strict=True):
                del each[length:]
            raise
        self._link(self.inner.param_groups[before[0] :])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient. A closure is evaluated once, before the update."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.per_layer:
            _per_layer.refuse_taken(self.matrices)
        self._look_back()
        ready = [matrix for matrix in self.matrices if self._has_gradient(matrix)]
        try:
            with torch.autocast(self.matrices[0].parameter.device.type, enabled=False):
                if (self.per_layer or self._project(ready)) and self._advance(ready):
                    for matrix in ready:
                        matrix.count += 1
                else:
                    self._skipped += 1
        finally:
            self._guard.release()
            for matrix in ready:
                matrix.rest()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, those already projected too."""
        super().zero_grad(set_to_none)
        for matrix in self.matrices:
            matrix.compact.grad = None

    def _has_gradient(self, matrix: Matrix) -> bool:
        return (matrix.compact if self.per_layer else matrix.parameter).grad is not None

    def _passing(self) -> list[tuple[str, Tensor]]:
        """Names and gradients of parameters that are not projected and have a gradient; of sparse ones the values."""
        with_gradient = [(name, each) for name, each in self._unprojected if each.grad is not None]
        return [(name, _update.entries(each)) for name, each in with_gradient]

    def _project(self, ready: list[Matrix]) -> bool:
        """Project the gradients; False if one of those that a subspace is to be found from is not finite."""
        _update.refuse_sparse(ready)
        due = [matrix for matrix in ready if matrix.due(self._option(matrix, "refresh"))]
        full = [(matrix.name, matrix.parameter.grad) for matrix in due if matrix.parameter.grad is not None]
        if not self._is_fine(*self._flags(full)):
            return False
        for batch in together(due, _update.TOGETHER):
            self._find(batch, _update.whole_gradients(batch))
        for batch in self._batched(ready):
            _update.project(batch, _update.gradients(batch))
        return True

    def _take_gradient(self, matrix: Matrix) -> None:
        """Of one matrix during backward; a subspace is never found from a gradient that is not finite."""
        _update.refuse_sparse([matrix])
        whole = _update.whole_gradients([matrix])
        if matrix.due(self._option(matrix, "refresh")) and bool(whole.isfinite().all()):
            self._find([matrix], whole)
        if matrix.basis is None:
            matrix.compact.grad = torch.full_like(matrix.compact, torch.nan)  # for step() to find
        else:
            _update.project([matrix], whole.unbind())

    def _find(self, batch: list[Matrix], whole: Tensor) -> None:
        """Find the subspaces of alike matrices together, and move the inner state into them."""
        seen, gradients = seeing(batch, whole)
        found = subspaces(seen, gradients, self.projector, seed=self.seed, tolerance=self.tolerance)
        for matrix, one in zip(seen, found, strict=True):
            blind, before, matrix.basis = matrix.blind, matrix.basis, self._agreed(matrix, one.basis)
            matrix.energies, matrix.refreshed = self._agreed(matrix, one.energies), matrix.count
            if before is not None:
                move(self.inner, matrix, before, self.on_move)
            if blind:
                self._settle_rank(matrix)
        for matrix in batch:
            self._show(matrix)

    def _show(self, matrix: Matrix) -> None:
        """Let those who look at `state` see whether there is one."""
        if matrix.basis is None:
            self.state.pop(matrix.parameter, None)
        else:
            self.state[matrix.parameter] = {"basis": matrix.basis}

    def _settle_rank(self, matrix: Matrix) -> None:
        """With the first subspace: the rank by energy, if that was asked for."""
        rank = self._option(matrix, "rank")
        if not isinstance(rank, Energy) or matrix.basis is None or matrix.energies is None:
            return
        before, matrix.rank = matrix.rank, rank.choose(matrix.energies)
        matrix.basis, matrix.energies = matrix.basis[:, : matrix.rank].clone(), matrix.energies[: matrix.rank].clone()
        narrow(self.inner.state, matrix, before)
        self._batches = None
        matrix.rest()

    def _agreed(self, matrix: Matrix, found: Tensor) -> Tensor:
        """What all processes that train this matrix use."""
        return matrix.agree(found) if self.group is None else first_word(found, self.group)

    def _flags(self, gradients: list[tuple[str, Tensor]]) -> tuple[list[str], Tensor]:
        """Names, and for each whether it is finite."""
        if not gradients:
            return [], torch.ones(0, dtype=torch.bool)
        tensors = [gradient for _, gradient in gradients]
        return [name for name, _ in gradients], on_all(_update.are_finite(tensors), tensors)

    def _is_fine(self, names: list[str], fine: Tensor) -> bool:
        """Whether all are finite; if not, raise or leave it to the caller. One wait for the device."""
        if bool(fine.all()):
            return True
        if self.nonfinite == "raise":
            raise ValueError(not_finite(names[fine.tolist().index(False)]))
        return False

    def _look_back(self) -> None:
        """At the step before, if it was left to the device whether it happens."""
        name = self._guard.look()
        if name is not None and self.nonfinite == "raise":
            raise ValueError(not_finite(name))
        self._skipped += name is not None

    @property
    def skipped(self) -> int:
        """How many steps were skipped because a gradient was not finite."""
        self._look_back()
        return self._skipped

    def _option(self, matrix: Matrix, name: str) -> Any:
        return self.param_groups[matrix.group][name]

    def _advance(self, ready: list[Matrix]) -> bool:
        """One step of the inner optimizer, and its way back into the matrices; False if it is to be skipped."""
        seen = [(m.name, m.compact.grad) for m in ready if m.compact.grad is not None] + self._passing()
        names, fine = self._flags(seen)
        self._lead()
        batches = self._batched(ready)
        unfolded = [_update.unfold(batch) for batch in batches]
        acts: Tensor | float = 1.0
        if names and self._guard.serves(ready):
            acts = self._guard.hold(names, fine, ready)
        elif not self._is_fine(names, fine):
            return False
        if self.clip is not None:
            self._clip(ready, self.clip)
        for batch in batches:
            self._decay(batch, acts)
        self.inner.step()
        for batch, moved in zip(batches, unfolded, strict=True):
            _update.fold(batch, moved, self._option(batch[0], "scale"))
        return True

    def _batched(self, ready: list[Matrix]) -> list[list[Matrix]]:
        """Alike matrices together; of all matrices, which is the usual case, this is worked out once."""
        if len(ready) < len(self.matrices):
            return together(ready, _update.TOGETHER)
        if self._batches is None:
            self._batches = together(ready, _update.TOGETHER)
        return self._batches

    def _lead(self) -> None:
        """Hand options that a scheduler may have changed to the inner optimizer; decay of matrices stays here."""
        for ours, theirs, compact in self._followers:
            for key in theirs:
                if key not in ("params", "param_names"):
                    _update.set_option(theirs, key, ours[key])
            if compact and "weight_decay" in theirs:
                theirs["weight_decay"] = 0.0

    def _decay(self, batch: list[Matrix], acts: Tensor | float) -> None:
        group = self.param_groups[batch[0].group]
        strength = group.get("weight_decay", 0)
        if not strength:
            return
        if self.decay == "decoupled":
            _update.shrink([matrix.parameter.data for matrix in batch], group["lr"] * strength * acts)
        else:
            _update.add_decay(batch, -strength if group.get("maximize") else strength)

    def _clip(self, ready: list[Matrix], most: float) -> None:
        found = [matrix.compact.grad for matrix in ready if matrix.compact.grad is not None]
        found += [gradient for _, gradient in self._passing()]
        if found:
            torch._foreach_mul_(
                [local(one) for one in found], (most / (_update.whole_norm(found) + 1e-6)).clamp(max=1.0)
            )

    def captured(self) -> dict[str, float]:
        """The share of each matrix's squared gradient that its subspace held when it was found, by name."""
        return {m.name: float(m.energies.sum().clamp(max=1)) for m in self.matrices if m.energies is not None}

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors and numbers: torch.load(weights_only=True) reads them back."""
        self._look_back()
        return _saving.saved(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state, bit for bit; tensors come to the device of their parameter."""
        self._guard.look()
        _saving.load(self, state_dict)

    def __repr__(self) -> str:
        inner, few = type(self.inner).__name__, counted(len(self.matrices), "matrix", "matrices")
        return f"GaLore({inner}, {few} projected, rank={self._own['rank']}, refresh={self._own['refresh']})"

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("GaLore is not pickled or copied: keep optimizer.state_dict() and load it into a new GaLore")
