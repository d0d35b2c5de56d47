"""GaLore: any torch optimizer, trained in a low-rank subspace of each matrix's gradient.

For a matrix W (rows x columns) with gradient G, a basis P of r directions of the shorter side is found every
`refresh` updates. The inner optimizer holds a compact parameter C, r x columns (or rows x r), that is zero before
each step. It sees the gradient P^T G (or G P) and moves C; then W += scale * P C. So the inner optimizer is used
unchanged and its state has the compact shape: m r + 2 n r numbers for Adam (m the shorter side) instead of 2 m n.

On several processes: with DistributedDataParallel the optimizer sees averaged gradients, so every process finds the
same subspaces; `same_subspaces` makes sure of it. With FSDP2 (`fully_shard`) nothing has to be called: GaLore takes the
sharded parameters as they are. Make it after fully_shard. Only a refresh gathers full gradients, one after the other.
"""

import inspect
from collections.abc import Iterable
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from joma.host.words import counted
from joma.optim import _groups, _inner, _state
from joma.optim._backward import Bucket, InBackward, give_turns
from joma.optim._groups import Members, NonFinite, OnMove, Params, Passing, Projected
from joma.optim._inner import Following, Make, Trial
from joma.optim._matrix import Pack
from joma.optim._state import Form, StateError
from joma.optim._step import Stepping
from joma.optim._update import Guard, Outcomes
from joma.optim.projector import Kind

SKIP = ("embed", "embedding", "embeddings", "wte", "wpe", "head")
"""Words at the beginning or the end of the name of a weight, or of the layer that has it: such weights pass."""
_OF_THE_COPIED = "step _clipping _backward _guard _outcomes _rounds _of_bucket _matrix_of group _make"
"""Attributes that a copy of an optimizer does not take over."""


class GaLore(Stepping):
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

    member = "GaLore"  # of the family: a state is loaded by the member that saved it
    staggered = True  # refreshes after the first are spread over the updates between them; a subclass may say no

    def __init__(
        self,
        params: Params,
        inner: Make = torch.optim.AdamW,
        *,
        rank: int = 128,
        refresh: int = 200,
        scale: float = 0.25,
        projector: Kind = "randomized",
        on_move: OnMove = "keep",
        skip: Iterable[str] = SKIP,
        nonfinite: NonFinite = "raise",
        clip: float | None = None,
        per_layer: bool | Literal["project"] = False,
        seed: int = 0,
        projected: Projected = Projected(),  # noqa: B008
        **inner_options: Any,
    ) -> None:
        """Take the parameters and make the inner optimizer.

        - params: a module (what requires a gradient now), parameters, named parameters, or groups; a group may have its
          own rank, refresh and scale
        - inner: makes the inner optimizer from groups, for instance torch.optim.AdamW
        - rank: of the subspaces; matrices whose shorter side is not above it are trained whole, with
          `scale`, but a group that states its rank must fit
        - refresh: updates after which a subspace is found anew
        - scale: what the update is multiplied with on its way back
        - projector: randomized, exact or random, see `find_projector`
        - on_move: what becomes of the inner state when the subspace moves: keep, rotate or reset
        - skip: matrices with this name pass through, and those with one of these words at the beginning or the end of
          their own name or of that of their layer; embeddings of a module always do. Matrices without names cannot:
          several of them are projected with a warning, without it if skip=()
        - nonfinite: raise, or skip the whole step and count it in `skipped`
        - clip: the largest norm of all gradients together, as the inner optimizer sees them
        - per_layer: update each parameter during backward and free its gradient; step() then only counts. "project":
          project each gradient during backward and free it; the update follows in step()
        - seed: of the randomised and the random projector
        - projected: which weights are projected beside what `skip` says, and in which precision
        - inner_options: handed to the inner optimizer
        """
        self._made = False
        choices = {"projector": projector, "on_move": on_move, "nonfinite": nonfinite}
        _groups.check_options(choices, clip, inner, skip, seed, per_layer, projected)
        self.projector, self.on_move, self.nonfinite = projector, on_move, nonfinite
        self.per_layer, self.project_in_backward = per_layer is True, per_layer == "project"
        self.clip, self.seed = clip, seed
        self.group: dist.ProcessGroup | None = None
        kernels, embeddings = _groups.kernel_names(params), _groups.embedding_names(params)
        takes_experts = not per_layer and on_move != "reset" and _groups.is_entry_by_entry(inner)
        self._members = Members(tuple(skip), embeddings, kernels, projected, takes_experts=takes_experts)
        self._backward, self._rounds = InBackward(per_layer=self.per_layer), {}
        self._of_bucket: dict[Bucket, tuple[list[Pack], list[Passing]]] = {}
        self._options_seen = []
        self._own = {"rank": rank, "refresh": refresh, "scale": scale}
        accepted = inspect.signature(inner).parameters
        _inner.check_misspelt(inner_options, inspect.signature(type(self).__init__).parameters, accepted)
        self._make = partial(inner, **inner_options)
        groups = _groups.read_groups(params)
        unnamed = _groups.default_names(groups)
        inner_groups = [one for number, group in enumerate(groups) for one in self._init_group(group, number)]
        self._members.warn_of_experts()
        if not self.matrices:
            raise ValueError(_groups.nothing_projected(groups))
        if self._members.skip:
            _groups.warn_of_unnamed(unnamed, self.matrices)
        self.inner = inner(inner_groups, **inner_options)
        closure = inspect.signature(type(self.inner).step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:  # LBFGS takes the loss several times
            raise ValueError(
                f"inner {type(self.inner).__name__} needs a closure at each step: GaLore takes optimizers that step "
                "without one"
            )
        _groups.check_experts(self.matrices, self.inner, on_move)
        self._guard, self._following = Guard(self.inner), Following(self.inner)
        self._outcomes = Outcomes()
        trials = self._try(groups)
        kept = {key for trial in trials.values() for key in trial.writes}
        defaults = {key: value for key, value in self.inner.defaults.items() if key not in kept}
        super().__init__(groups, {**self._own, **defaults})
        self._link(self.inner.param_groups, trials)
        self._made = True

    # ---- groups, matrices and packs -----------------------------------------------------------------------------

    def _init_group(self, group: dict[str, Any], number: int) -> list[dict[str, Any]]:
        """Take the parameters of a group, and make the inner optimizer's groups: one for each role."""
        explicit = "rank" in group
        for key, value in self._own.items():
            group.setdefault(key, value)
        _groups.check_group(group)
        options = {key: value for key, value in group.items() if key not in (*self._own, "params", "param_names")}
        members = self._members.add_group(group, number, explicit=explicit)
        return [{**options, "params": each, _groups.ORIGIN: (number, role)} for role, each in members.items()]

    def _try(self, groups: list[dict[str, Any]]) -> dict[int, Trial]:
        """What the inner optimizer does with each of these groups; refuse what nobody reads in them, or cannot be."""
        first = len(self.param_groups) if self._made else 0
        trials: dict[int, Trial] = {}
        tried: dict[frozenset[str], Trial] = {}
        for number, group in enumerate(groups, first):
            given = {key: value for key, value in group.items() if key not in (*self._own, "params", "param_names")}
            if (kind := frozenset(given)) not in tried:
                tried[kind] = _inner.try_inner(getattr(self, "_make", type(self.inner)), self.inner, given)
            trials[number] = tried[kind]
            if self.per_layer and (counted := sorted(trials[number].counts)):
                raise ValueError(
                    f"inner {type(self.inner).__name__} keeps {counted[0]!r} for a group, and per_layer steps its "
                    "parameters one after the other: leave it out, or give per_layer='project'"
                )
        _inner.check_keys(groups, {*self._own, *self.inner.defaults}, trials)
        return trials

    def _link(self, inner_groups: list[dict[str, Any]], trials: dict[int, Trial]) -> None:
        """Let new groups of the inner optimizer follow ours; give their matrices turns, packs and hooks."""
        self._following.link(self.param_groups, inner_groups, trials)
        common = _state.of_every_group(self.inner, self.member)
        for group in self.param_groups:  # in the groups themselves: tools that flatten a state look at their keys
            group.update({key: value for key, value in common.items() if key not in group})
        everything = [each for group in self.param_groups for each in group["params"]]
        staggered = self.staggered and self.projector != "exact"
        give_turns(self.matrices, everything, staggered=staggered, alone=self.project_in_backward)
        self._start_hooks()
        self._form_packs(self.packs)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group later on; its matrices start with their own subspaces.

        - param_group: `params` (parameters, named parameters or a module) and options, as a group of the constructor
        """
        if not self._made:
            super().add_param_group(param_group)
            return
        (group,) = _groups.read_groups([param_group], len(self.param_groups))
        inner_groups, members, number = self.inner.param_groups, self._members, len(self.param_groups)
        before, sizes = len(inner_groups), members.sizes()
        unnamed = _groups.default_names([group], number)
        trials = self._try([group])
        try:
            for one in self._init_group(group, number):
                self.inner.add_param_group(one)
            _groups.check_experts(self.matrices, self.inner, self.on_move)
            members.warn_of_experts()
            if members.skip:
                _groups.warn_of_unnamed(unnamed, members.matrices[sizes[0] :])
            super().add_param_group(group)
        except Exception:  # leave the optimizer as it was
            members.cut(sizes)
            del inner_groups[before:], self.param_groups[number:]
            raise
        self._link(inner_groups[before:], trials)

    # ---- state ----------------------------------------------------------------------------------------------------

    def captured(self) -> dict[str, float]:
        """The share of each matrix's squared gradient that its subspace held when it was found, by name."""
        return {m.name: float(m.energies.sum().clamp(max=1)) for m in self.matrices if m.energies is not None}

    def _show_state(self, packs: list[Pack], passing: list[Passing]) -> None:
        """state[p] has the subspace and the inner state: the tensors themselves, or parts of those of a pack."""
        for pack in packs:
            _state.show(self.state, self.inner, pack)
        for each in passing:
            self.state[each.parameter] = self.inner.state[each.parameter]

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors and numbers: torch.load(weights_only=True) reads them back."""
        self._look_back()
        self._outcomes.read()
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        result = self._states().pack()
        for after in self._optimizer_state_dict_post_hooks.values():
            result = after(self, result) or result
        return result

    def _states(self) -> _state.States:
        return _state.States(self.param_groups, self.matrices, self.passing, self._following, self._extra_forms())

    def _extra_forms(self) -> dict[str, Form]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state, bit for bit; tensors come to the device of their parameter.

        - state_dict: what state_dict() gave; one that does not fit, is not whole or not finite is refused by a
          `StateError`, which is a ValueError, and nothing is changed
        """
        self._guard.look_back()
        self._guard.held_in_replays(wait=True)  # what was held back before is not of the state that comes
        self._outcomes.read()
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = before(self, state_dict) or state_dict
        self._hide_compact()
        states = self._states()
        state_dict, before_loading = states.read(state_dict), states.pack()
        options = [[dict(group) for group in groups] for groups in (self.param_groups, self.inner.param_groups)]
        try:
            self._take_over(state_dict)
        except Exception as error:  # what the inner optimizer, any of torch's, makes of a damaged state
            for groups, had in zip((self.param_groups, self.inner.param_groups), options, strict=True):
                for group, mine in zip(groups, had, strict=True):
                    group.clear()
                    group.update(mine)
            self._take_over(before_loading)
            why = " ".join(f"{type(error).__name__}: {error}".split())
            raise StateError(f"the state was refused and nothing was changed ({why})") from error
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _take_over(self, state_dict: dict[str, Any]) -> None:
        """Options, subspaces and inner state; matrices whose states go together are in one pack."""
        states = self._states()
        self._following.link_again()
        states.restore_options(state_dict)
        self._following.take_own()
        self._following.hand_over_options()
        signatures = states.restore_counts(state_dict)
        for pack in self.packs:
            self.inner.state.pop(pack.compact, None)
        self._form_packs(self.packs, lambda matrix: signatures[id(matrix)])
        states.restore_tensors(self.packs, state_dict)
        self._following.link_again()
        self._options_seen = []  # ranks may not be those of the groups yet
        self.state.clear()
        self._show_all()

    def _show_all(self) -> None:
        """Nothing before the first step: torch's checkpoints then make one, for the state to have all its entries."""
        begun = any(matrix.found for matrix in self.matrices)
        known = [each for each in self.passing if each.parameter in self.inner.state]
        self._show_state(self.packs, known if begun else [])

    def __repr__(self) -> str:
        inner, few = type(self.inner).__name__, counted(len(self.matrices), "matrix", "matrices")
        groups = (self._describe(number) for number in range(len(self.param_groups)))
        return "\n  ".join([f"{type(self).__name__}({inner}, {few} projected)", *groups])

    def _describe(self, number: int) -> str:
        group = self.param_groups[number]
        off = (key for key, value in group.items() if value is None or value is False)
        own = (key for key in group if key.startswith(("galore_", _inner.OWN)))
        hidden = {"params", "param_names", *off, *own}
        projected = sum(matrix.group == number for matrix in self.matrices)
        others = counted(sum(each.group == number for each in self.passing), "other")
        first = [*self._own, *(key for key in group if key not in self._own)]
        shown = ((key, group[key]) for key in first if key not in hidden)
        options = [f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={value!r}" for key, value in shown]
        return f"group {number}: {counted(projected, 'matrix', 'matrices')} and {others}, {', '.join(options)}"

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and deepcopy; hooks and processes belong to the one that is copied."""
        self._look_back()
        self._outcomes.read()
        left_out = _OF_THE_COPIED.split()
        return {key: value for key, value in vars(self).items() if key not in left_out and not key.startswith("_optim")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.group = None
        self._backward, self._guard = InBackward(per_layer=self.per_layer), Guard(self.inner)
        self._rounds, self._of_bucket, self._outcomes = {}, {}, Outcomes()
        for pack in self.packs:
            pack.fold()
        self._start_hooks()
        self._show_all()


def galore_for(model: nn.Module, arguments: Any, inner: Make = torch.optim.AdamW, **options: Any) -> GaLore:
    """GaLore for a model, with what transformers.TrainingArguments say: rate, weight decay, betas and epsilon.

    The Trainer hands groups of parameters without names to an optimizer class. Then nothing would tell embeddings and
    the head from other matrices. So GaLore is made from the model, in one of two ways:

        Trainer(model, arguments, ..., optimizers=(galore_for(model, arguments, rank=128), None))
        Trainer(model, arguments, ..., optimizer_cls_and_kwargs=(FromModel, {"rank": 128, "lr": 0.01}))

    The second needs transformers 5.22 or newer. It is the one for FSDP, where the optimizer is made after the model was
    wrapped.

    - model: what is trained
    - arguments: its learning_rate, weight_decay, adam_beta1, adam_beta2 and adam_epsilon are used where the inner
      optimizer has such options
    - inner: makes the inner optimizer
    - options: of GaLore and of the inner optimizer; they go before those of the arguments

    >>> from types import SimpleNamespace
    >>> args = SimpleNamespace(learning_rate=0.01, weight_decay=0.1, adam_beta1=0.9, adam_beta2=0.95, adam_epsilon=1e-8)
    >>> model = nn.Sequential(nn.Embedding(50, 64), nn.Linear(64, 64), nn.LayerNorm(64))
    >>> [group["weight_decay"] for group in galore_for(model, args, rank=4).param_groups]
    [0.1, 0.0]
    """
    if getattr(arguments, "fsdp", None):
        raise ValueError(
            "with FSDP the optimizer is made after wrapping: give optimizer_cls_and_kwargs=(FromModel, {...})"
        )
    asked = {
        "lr": arguments.learning_rate,
        "weight_decay": arguments.weight_decay,
        "betas": (arguments.adam_beta1, arguments.adam_beta2),
        "eps": arguments.adam_epsilon,
    }
    known = inspect.signature(inner).parameters
    return FromModel()(model, inner=inner, **{**{key: asked[key] for key in asked if key in known}, **options})


class FromModel:
    """Makes GaLore from a model: what the Trainer's optimizer_cls_and_kwargs takes, with GaLore's options.

    >>> model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64))
    >>> [group["weight_decay"] for group in FromModel()(model, rank=4, lr=0.01, weight_decay=0.1).param_groups]
    [0.1, 0.0]
    """

    def __call__(self, model: nn.Module, **options: Any) -> GaLore:
        """Two groups, as the Trainer has them: biases and norms are not decayed."""
        trained = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
        decayed: dict[str, Any] = {"params": [(name, each) for name, each in trained if each.ndim > 1]}
        others = {"params": [(name, each) for name, each in trained if each.ndim <= 1], "weight_decay": 0.0}
        skip = {*options.pop("skip", SKIP), *_groups.embedding_names(model)}
        return GaLore([group for group in (decayed, others) if group["params"]], skip=sorted(skip), **options)

    def __repr__(self) -> str:
        return "FromModel()"


def same_subspaces(optimizer: GaLore, group: dist.ProcessGroup | None = None) -> None:
    """Let all processes use the subspaces that the first of them finds.

    Equal gradients on equal machines give equal subspaces anyway. Different machines may round differently.

    - optimizer: the GaLore of this process
    - group: the processes; None for all
    """
    if not dist.is_initialized():
        raise ValueError("torch.distributed is not initialised: call init_process_group first")
    optimizer.group = dist.group.WORLD if group is None else group


def reduce_compact(model: DistributedDataParallel, optimizer: GaLore, group: dist.ProcessGroup | None = None) -> None:
    """Let DistributedDataParallel average only the compact gradients between two refreshes, m / r times less.

    After backward each process has P P^T G instead of G, with G averaged over the processes. The update is the same to
    rounding, because GaLore takes P^T of it again. The norm that clip_grad_norm_ sees is that of the projection.

    - model: what `optimizer` trains, wrapped in DistributedDataParallel
    - optimizer: made without per_layer, with floating bases
    - group: the processes; None for all
    """
    if not isinstance(model, DistributedDataParallel):
        raise ValueError(f"model must be wrapped in DistributedDataParallel, got {type(model).__name__}")
    if optimizer.per_layer or optimizer.project_in_backward:
        raise ValueError("per_layer takes gradients before DistributedDataParallel averages: use one of the two")
    if any(matrix.basis_dtype == torch.int8 for matrix in optimizer.matrices):
        raise ValueError(
            "reduce_compact projects twice, and bases in 8 bits are not orthonormal enough for that: leave it out, "
            "or give a floating basis_dtype"
        )
    same_subspaces(optimizer, group)
    model.register_comm_hook((optimizer, group or dist.group.WORLD), _average_compact)


def _average_compact(state: tuple[GaLore, dist.ProcessGroup], bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
    optimizer, group = state
    # A matrix that is due needs its full gradient; one that is frozen is not due, and may have no subspace.
    compact = {id(m.parameter): m for m in optimizer.matrices if m.found and not optimizer.is_due(m)}
    parts = [(compact.get(id(p)), grad) for p, grad in zip(bucket.parameters(), bucket.gradients(), strict=True)]
    small = [grad if matrix is None else matrix.project(grad).to(grad.dtype) for matrix, grad in parts]
    packed = torch.cat([each.flatten() for each in small]) / group.size()
    sent = dist.all_reduce(packed, group=group, async_op=True)
    assert sent is not None
    buffer: Tensor = bucket.buffer()

    def unpack(future: Any) -> Tensor:
        pieces = future.value()[0].split([each.numel() for each in small])
        for (matrix, grad), each, piece in zip(parts, small, pieces, strict=True):
            grad.copy_(piece.view(each.shape) if matrix is None else matrix.lift(piece.view(each.shape)))
        return buffer

    return sent.get_future().then(unpack)  # type: ignore[no-any-return]
