"""GaLore: any torch optimizer, trained in a low-rank subspace of each matrix's gradient.

For a matrix W (rows x columns) with gradient G, a basis P of r directions of the shorter side is found every
`refresh` updates. The inner optimizer holds a compact parameter C, r x columns (or rows x r), that is zero before
each step. It sees the gradient P^T G (or G P) and moves C; then W += scale * P C. So the inner optimizer is used
unchanged and its state has the compact shape: m r + 2 n r numbers for Adam (m the shorter side) instead of 2 m n.
"""

import inspect
import re
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from joma.host.words import counted
from joma.optim import _arguments, _matrix, _saving
from joma.optim._arguments import Decay, NonFinite, Params
from joma.optim._inner import Guard, OnMove, move_state, narrow_state
from joma.optim._matrix import Matrix, local
from joma.optim.projector import TOLERANCE, Energy, Kind, Rank

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
        choices = {"projector": projector, "on_move": on_move, "decay": decay, "nonfinite": nonfinite}
        _arguments.check_options(choices, clip, smallest, inner, skip, tolerance, seed)
        self.projector, self.on_move, self.decay, self.nonfinite = projector, on_move, decay, nonfinite
        self.per_layer, self.clip, self.tolerance, self.seed = per_layer, clip, tolerance, seed
        self.skip, self.smallest = tuple(skip), smallest
        self._skipped = 0
        self._batches: list[list[Matrix]] | None = None
        self.group: dist.ProcessGroup | None = None
        self.matrices: list[Matrix] = []
        self._unprojected: list[tuple[str, Tensor]] = []
        self._followers: list[tuple[dict[str, Any], dict[str, Any], bool]] = []
        self._embeddings = _arguments.embedding_names(params)
        self._own = {"rank": rank, "refresh": refresh, "scale": scale}
        groups = _arguments.read_groups(params)
        unnamed = _arguments.default_names(groups)
        inner_groups = [one for number, group in enumerate(groups) for one in self._make_matrices(group, number)]
        if not self.matrices:
            raise ValueError(_arguments.nothing_projected(groups))
        if self.skip:
            _arguments.warn_of_unnamed(unnamed, self.matrices)
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

    def _make_matrices(self, group: dict[str, Any], number: int) -> list[dict[str, Any]]:
        """Make the matrices of a group, and the inner optimizer's groups: of the compact parameters, of what passes."""
        explicit = "rank" in group
        for key, value in self._own.items():
            group.setdefault(key, value)
        _arguments.check_group(group)
        options = {key: value for key, value in group.items() if key not in (*self._own, "params", "param_names")}
        compact: list[Tensor] = []
        passing: list[Tensor] = []
        for name, each in zip(group["param_names"], group["params"], strict=True):
            words = (name, *re.split(r"[._]", name.lower()))  # lm_head is a head
            skipped = name in self._embeddings or not {*self.skip}.isdisjoint(words)
            if skipped or not _arguments.is_projected(name, each, group["rank"], self.smallest, explicit=explicit):
                passing.append(each)
                self._unprojected.append((name, each))
                continue
            kind = Matrix
            if _matrix.is_sharded(each):  # only then: the import loads torch.distributed.tensor
                from joma.optim._sharded import ShardedMatrix as kind
            self.matrices.append(kind(name, each, number, len(self.matrices), group["rank"]))
            compact.append(self.matrices[-1].compact)
        kinds = (("compact", compact), ("passing", passing))
        return [{**options, "params": each, "galore": (number, kind)} for kind, each in kinds if each]

    def _link(self, inner_groups: list[dict[str, Any]]) -> None:
        """Remember which group of the inner optimizer follows which of ours; start the hooks of new matrices."""
        self._batches = None
        for one in inner_groups:
            number, kind = one.pop("galore")
            for key, value in one.items():
                self.param_groups[number].setdefault(key, value)
                one[key] = value.clone() if isinstance(value, Tensor) else value  # several groups may share a tensor
            self._followers.append((self.param_groups[number], one, kind == "compact"))
        if self.per_layer:
            for matrix in (each for each in self.matrices if each.hook is None):
                matrix.project_in_backward(weakref.WeakMethod(self._take_gradient))
                # torch.amp.GradScaler looks here: it unscales compact gradients and sees an overflow in them.
                self.param_groups[matrix.group]["params"].append(matrix.compact)

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
        grown: tuple[list[Any], ...] = (self.inner.param_groups, self.param_groups, self.matrices, self._unprojected)
        before, unnamed = [len(each) for each in grown], _arguments.default_names([group], len(self.param_groups))
        try:
            for one in self._make_matrices(group, len(self.param_groups)):
                self.inner.add_param_group(one)
            if self.skip:
                _arguments.warn_of_unnamed(unnamed, self.matrices)
            super().add_param_group(group)
        except Exception:  # leave the optimizer as it was
            for each, length in zip(grown, before, strict=True):
                del each[length:]
            raise
        self._link(self.inner.param_groups[before[0] :])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient; returns what the closure gives.

        - closure: computes the loss and its gradients; it is evaluated once, before the update
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for matrix in self.matrices if self.per_layer else ():
            matrix.check_hook()
        self._look_back()
        ready = [m for m in self.matrices if (m.compact if self.per_layer else m.parameter).grad is not None]
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
                matrix.free()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, those already projected too.

        - set_to_none: free the gradients instead of filling them with zeros
        """
        super().zero_grad(set_to_none)
        for matrix in self.matrices:
            matrix.compact.grad = None

    def _project(self, ready: list[Matrix]) -> bool:
        """Project the gradients; False if one of those that a subspace is to be found from is not finite."""
        for matrix in ready:
            matrix.check_dense()
        due = [matrix for matrix in ready if matrix.is_due(self._option(matrix, "refresh"))]
        full = [(matrix.name, matrix.parameter.grad) for matrix in due if matrix.parameter.grad is not None]
        if not self._all_finite([name for name, _ in full], _matrix.are_finite([gradient for _, gradient in full])):
            return False
        for batch in _matrix.in_batches(due):
            self._refresh(batch, _matrix.full_gradients(batch))
        for batch in self._batched(ready):
            _matrix.add_compact_gradients(batch, [m.parameter.grad for m in batch if m.parameter.grad is not None])
        return True

    def _take_gradient(self, matrix: Matrix) -> None:
        """Of one matrix during backward, with per_layer.

        Projecting is linear: the compact gradients of microbatches add up to the projected sum, and nothing is updated
        before step(). A subspace that is due is found from the first microbatch, never from a gradient that is not
        finite.
        """
        matrix.check_dense()
        gradient = _matrix.full_gradients([matrix])
        if matrix.is_due(self._option(matrix, "refresh")) and bool(gradient.isfinite().all()):
            self._refresh([matrix], gradient)
        if matrix.basis is None:
            matrix.compact.grad = torch.full_like(matrix.compact, torch.nan)  # for step() to find
        else:
            _matrix.add_compact_gradients([matrix], gradient.unbind())

    def _refresh(self, batch: list[Matrix], gradients: Tensor) -> None:
        """Find the subspaces of alike matrices together, and move the inner state into them."""
        for matrix, found in _matrix.find_subspaces(
            batch, gradients, self.projector, seed=self.seed, tolerance=self.tolerance
        ):
            first = matrix.energies is None or not bool(matrix.energies.any())  # no gradient so far, or zeros
            before, matrix.basis = matrix.basis, self._agreed(matrix, found.basis)
            matrix.energies, matrix.refreshed = self._agreed(matrix, found.energies), matrix.count
            if before is not None:
                move_state(self.inner, matrix, before, self.on_move)
            rank = self._option(matrix, "rank")
            if first and isinstance(rank, Energy):  # the first subspace settles the rank
                largest, matrix.rank = matrix.rank, rank.choose(matrix.energies)
                matrix.basis = matrix.basis[:, : matrix.rank].clone()
                matrix.energies = matrix.energies[: matrix.rank].clone()
                narrow_state(self.inner, matrix, largest)
                self._batches = None
                matrix.free()
        self._fill_state(batch)

    def _fill_state(self, matrices: list[Matrix]) -> None:
        """state[p] says to those who look there whether a parameter has a state."""
        for matrix in matrices:
            if matrix.basis is None:
                self.state.pop(matrix.parameter, None)
            else:
                self.state[matrix.parameter] = {"basis": matrix.basis}

    def _agreed(self, matrix: Matrix, found: Tensor) -> Tensor:
        """What all processes that train this matrix use."""
        return matrix.agree(found) if self.group is None else _matrix.broadcast_from_first(found, self.group)

    def _all_finite(self, names: list[str], finite: Tensor) -> bool:
        """Whether all are finite; if not, raise or leave it to the caller. One wait for the device."""
        if bool(finite.all()):
            return True
        self._refuse(names[finite.tolist().index(False)])
        return False

    def _refuse(self, name: str) -> None:
        """Raise because of a gradient that is not finite, unless such steps are skipped."""
        if self.nonfinite == "raise":
            raise ValueError(
                f"the gradient of {name} is not finite: nothing was updated; nonfinite='skip' skips and counts such "
                "steps"
            )

    def _look_back(self) -> None:
        """At the step before, if it was left to the device whether it happens."""
        if (name := self._guard.look_back()) is not None:
            self._refuse(name)
            self._skipped += 1

    @property
    def skipped(self) -> int:
        """How many steps were skipped because a gradient was not finite."""
        self._look_back()
        return self._skipped

    def _option(self, matrix: Matrix, name: str) -> Any:
        return self.param_groups[matrix.group][name]

    def _advance(self, ready: list[Matrix]) -> bool:
        """One step of the inner optimizer, and its way back into the matrices; False if it is to be skipped."""
        named = [(m.name, m.compact.grad) for m in ready if m.compact.grad is not None]
        for name, each in self._unprojected:
            if each.grad is not None and each.grad.layout == torch.sparse_coo:  # the values, each place once
                each.grad = each.grad.coalesce()
                named.append((name, each.grad.values()))
            elif each.grad is not None:
                named.append((name, each.grad))
        names, gradients = [name for name, _ in named], [gradient for _, gradient in named]
        finite = _matrix.are_finite(gradients)
        self._hand_over_options()
        batches = self._batched(ready)
        allocated = [_matrix.allocate(batch) for batch in batches]
        acts: Tensor | float = 1.0
        if names and self._guard.serves(ready):
            acts = self._guard.hold(names, finite, ready)
        elif not self._all_finite(names, finite):
            return False
        if self.clip is not None and gradients:  # 1e-6 as in torch.nn.utils.clip_grad_norm_
            factor = (self.clip / (_matrix.total_norm(gradients) + 1e-6)).clamp(max=1.0)
            torch._foreach_mul_([local(one) for one in gradients], factor)
        for batch in batches:
            self._decay(batch, acts)
        self.inner.step()
        for batch, moved in zip(batches, allocated, strict=True):
            _matrix.apply_updates(batch, moved, self._option(batch[0], "scale"))
        return True

    def _batched(self, ready: list[Matrix]) -> list[list[Matrix]]:
        """Alike matrices together; of all matrices, which is the usual case, this is worked out once."""
        if len(ready) < len(self.matrices):
            return _matrix.in_batches(ready)
        if self._batches is None:
            self._batches = _matrix.in_batches(ready)
        return self._batches

    def _hand_over_options(self) -> None:
        """Hand options that a scheduler may have changed to the inner optimizer; decay of matrices stays here."""
        for ours, theirs, compact in self._followers:
            for key in theirs:
                if key in ("params", "param_names"):
                    continue
                if isinstance(theirs[key], Tensor) and theirs[key] is not ours[key]:
                    theirs[key].fill_(ours[key])  # a rate that torchao keeps in a tensor stays in that tensor
                else:
                    theirs[key] = ours[key]
            if compact and "weight_decay" in theirs:
                theirs["weight_decay"] = 0.0

    def _decay(self, batch: list[Matrix], acts: Tensor | float) -> None:
        """Decoupled: W -= lr * strength * W. Coupled: strength * W is added to the gradient, inside the subspace."""
        group = self.param_groups[batch[0].group]
        strength = group.get("weight_decay", 0)
        if not strength:
            return
        if self.decay == "decoupled":
            weights = [local(matrix.parameter.data) for matrix in batch]
            torch._foreach_mul_(weights, 1 - group["lr"] * strength * acts)
            return
        factor = -strength if group.get("maximize") else strength
        projected = _matrix.project_all(batch, [matrix.parameter.detach() for matrix in batch])
        for matrix, part in zip(batch, projected, strict=True):
            if matrix.compact.grad is not None:
                matrix.compact.grad.add_(part * factor)

    def captured(self) -> dict[str, float]:
        """The share of each matrix's squared gradient that its subspace held when it was found, by name."""
        return {m.name: float(m.energies.sum().clamp(max=1)) for m in self.matrices if m.energies is not None}

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors and numbers: torch.load(weights_only=True) reads them back."""
        self._look_back()
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        result = _saving.pack_state(_saving.Parts(self.param_groups, self.matrices, self.inner), self._skipped)
        for after in self._optimizer_state_dict_post_hooks.values():
            result = after(self, result) or result
        return result

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state, bit for bit; tensors come to the device of their parameter.

        - state_dict: what state_dict() gave; one that does not fit or is damaged is refused, a ValueError, and nothing
          is changed
        """
        self._guard.look_back()
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = before(self, state_dict) or state_dict
        parts = _saving.Parts(self.param_groups, self.matrices, self.inner)
        state_dict = _saving.read_state(parts, state_dict)
        before_loading = _saving.pack_state(parts, self._skipped)
        options = [[dict(group) for group in groups] for groups in (self.param_groups, self.inner.param_groups)]
        try:
            self._take_over(parts, state_dict)
        except Exception as error:  # what the inner optimizer, any of torch's, makes of a damaged state
            _saving.forget_options(parts, *options)
            self._take_over(parts, before_loading)
            said = " ".join(f"{type(error).__name__}: {error}".split())
            raise ValueError(f"the state was refused and nothing was changed ({said})") from error
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _take_over(self, parts: _saving.Parts, state_dict: dict[str, Any]) -> None:
        _saving.restore_matrices(parts, state_dict)
        self._fill_state(self.matrices)
        self._skipped = int(state_dict["param_groups"][0]["galore_skipped"])
        self._hand_over_options()
        _saving.restore_inner(parts, state_dict)
        # Loading gave the inner optimizer new group dictionaries, in the old order.
        self._batches = None
        pairs = zip(self._followers, self.inner.param_groups, strict=True)
        self._followers = [(ours, theirs, compact) for (ours, _, compact), theirs in pairs]

    def __repr__(self) -> str:
        inner, few = type(self.inner).__name__, counted(len(self.matrices), "matrix", "matrices")
        return f"GaLore({inner}, {few} projected, rank={self._own['rank']}, refresh={self._own['refresh']})"

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("GaLore is not pickled or copied: keep optimizer.state_dict() and load it into a new GaLore")
