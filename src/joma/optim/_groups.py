"""The groups of an optimizer and of the inner one: what a user gives, read and checked; who is trained how.

`Members` sorts parameters into matrices, which lie in packs, and those that pass to the inner optimizer as they are.
`Folded` has the matrices of a weight with more axes, in its memory. A kernel of a convolution (out, in, height, width)
is one matrix, out x (in height width). A weight of experts (experts, rows, columns) is one matrix per expert, each with
a subspace of its own: experts see different tokens, and one that sees none waits for its first gradient.
`Following` has the groups of the inner optimizer, each of which follows the options of a group of ours.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from joma.host.words import counted
from joma.optim import _matrix
from joma.optim._matrix import (
    Matrix,
    Pack,
    is_second_moment,
    is_sharded,
    join_states,
    make_pack,
    state_of,
    to_directions,
)
from joma.optim.projector import Kind, orthonormalize

OnMove = Literal["keep", "rotate", "reset"]
NonFinite = Literal["raise", "skip"]
Role = Literal["compact", "passing", "scaled"]
"""Of a parameter in the inner optimizer: in a subspace, as it is, or as it is at a rate times `scale`."""
Params = nn.Module | Iterable[Any]
CHOICES = {"projector": get_args(Kind), "on_move": get_args(OnMove), "nonfinite": get_args(NonFinite)}
STACK_SHARE = {True: 2, False: 16}  # of all entries a pack has one in so many: where products are stacked, elsewhere
SMALL_STACK = 1 << 18  # entries that may always be in one pack, however small the model is
Partner = Callable[[Matrix], object]
"""Matrices for which it gives the same may be in one pack; for None a matrix stays alone."""
ORIGIN = "galore"  # in a new group of the inner optimizer: the number of ours and the role of its parameters
Place = tuple[int, Role]
"""The number of a group of ours, and the role of some of its parameters: what a group of the inner optimizer has."""
FOREIGN = "update_proj_gap"  # what galore-torch calls `refresh`
FLATTENED = "parameters were flattened after the optimizer was made, as DeepSpeed's ZeRO 1 to 3 do: use ZeRO 0 or FSDP2"
_DEFAULT_NAME = "group {}, parameter {}"


@dataclass(frozen=True)
class Projected:
    """Which weights are trained in subspaces beside what `skip` says, and in which precision.

    - conv: kernels of convolutions too, each as a matrix, output channels x all the rest
    - experts: weights with three axes too, (experts, rows, columns), each expert in a subspace of its own; of a module,
      weights of one-dimensional convolutions are not taken for them. None: those whose name says that they are experts,
      where the other options allow it, with a warning about the others
    - basis_dtype: of the bases and the products with them; the parameter's own, float32 for float16, if None. With
      torch.int8 bases are kept in 8 bits, and products are those of None
    - state_dtype: of the inner state of projected matrices; the parameter's own, float32 for float16, if None
    """

    conv: bool = False
    experts: bool | None = None
    basis_dtype: torch.dtype | None = None
    state_dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        for name in ("basis_dtype", "state_dtype"):
            dtype, also = getattr(self, name), ", torch.int8" if name == "basis_dtype" else ""
            floating = dtype is None or (isinstance(dtype, torch.dtype) and dtype.is_floating_point)
            if not floating and not (also and dtype == torch.int8):
                raise ValueError(
                    f"{name} must be a floating-point torch.dtype{also}, or None for the parameter's, got {dtype!r}"
                )


def check_options(
    choices: dict[str, Any], clip: Any, inner: Any, skip: Any, seed: Any, per_layer: object, projected: Projected
) -> None:
    """Refuse options of the optimizer that are not of the right kind, or cannot be had together."""
    for name, value in choices.items():
        if value not in CHOICES[name]:
            raise ValueError(f"{name} must be one of {', '.join(CHOICES[name])}, got {value!r}")
    if clip is not None and not (_is_number(clip) and clip > 0):
        raise ValueError(f"clip must be positive, or None for no clipping, got {clip!r}")
    if not callable(inner):
        given = f"an object {type(inner).__name__}" if isinstance(inner, torch.optim.Optimizer) else repr(inner)
        raise ValueError(f"inner must make an optimizer, as the class torch.optim.AdamW does, got {given}")
    if isinstance(skip, str):
        raise ValueError(f"skip must be a list of names, got the text {skip!r}: write [{skip!r}]")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ValueError(f"seed must be a whole number, got {seed!r}")
    if per_layer not in (False, True, "project"):
        raise ValueError(f"per_layer must be False, True or 'project', got {per_layer!r}")
    if per_layer is True and clip is not None:
        raise ValueError(
            "clip needs the norm of all gradients, and per_layer updates before the last is known: leave one of them "
            "out, or give per_layer='project'"
        )
    if per_layer and (projected.conv or projected.experts):
        raise ValueError("per_layer takes gradients of matrices during backward: leave it out, or conv and experts")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_group(group: dict[str, Any]) -> None:
    """Refuse options of one group."""
    for key, what in (("rank", ""), ("refresh", " of updates")):
        if isinstance(group[key], bool) or not isinstance(group[key], int) or group[key] < 1:
            raise ValueError(f"{key} must be a whole number{what} of at least 1, got {group[key]!r}")
    scale = group["scale"]
    if not _is_number(scale) or not (isfinite(scale) and scale > 0):
        raise ValueError(f"scale must be a positive finite number, got {scale!r}")


def nothing_projected(groups: list[dict[str, Any]]) -> str:
    """Why no matrix is trained in a subspace."""
    sides = [min(each.shape) for group in groups for each in group["params"] if each.ndim == 2]
    if not sides:
        return "params holds no matrix: there is nothing to project"
    ranks = sorted({group["rank"] for group in groups})
    return (
        f"no matrix is projected: rank {', '.join(map(str, ranks))} must be below a shorter side, the largest of "
        f"{counted(len(sides), 'matrix', 'matrices')} is {max(sides)}, and skip must leave one"
    )


def read_groups(params: Params, first: int = 0) -> list[dict[str, Any]]:
    """Groups with `params` (a list) and `param_names`, in the order given; the number of the first one names them."""
    if isinstance(params, nn.Module):
        return [_read_group({"params": params}, first)]
    if isinstance(params, (Tensor, Mapping, str)) or not isinstance(params, Iterable):
        raise ValueError(f"params must be a module or an iterable of parameters or groups, got {type(params).__name__}")
    given = list(params)
    if not given:
        raise ValueError("params is empty: give a module, parameters, named parameters or groups")
    are_groups = [isinstance(one, Mapping) for one in given]
    if any(are_groups) and not all(are_groups):
        raise ValueError("params must hold groups alone or parameters alone, got both")
    listed = (
        [dict(group) for group in given]
        if all(are_groups)
        else [{"params": params if isinstance(params, (set, frozenset)) else given}]
    )
    groups = [_read_group(group, number) for number, group in enumerate(listed, first)]
    if not any(group["params"] for group in groups):
        raise ValueError("params is empty: no group has a parameter")
    seen: dict[int, str] = {}
    for group in groups:
        for name, each in zip(group["param_names"], group["params"], strict=True):
            if id(each) in seen:
                raise ValueError(f"params holds one parameter twice, as {seen[id(each)]} and as {name}")
            seen[id(each)] = name
    return groups


def _translate(group: dict[str, Any]) -> None:
    """Call what galore-torch's groups have as it is called here; what is not to be had is refused."""
    if FOREIGN in group and "refresh" in group:
        raise ValueError(f"a group has refresh and {FOREIGN}, galore-torch's name for it: give one")
    if FOREIGN in group:
        group["refresh"] = group.pop(FOREIGN)
    if (side := group.pop("proj_type", "std")) != "std":
        raise ValueError(f"proj_type must be 'std', which projects the shorter side as GaLore does, got {side!r}")


def _read_group(group: dict[str, Any], number: int) -> dict[str, Any]:
    _translate(group)
    given = group.get("params")
    if isinstance(given, (set, frozenset)):
        raise ValueError("params must have an order, which a set has not: give a list")
    if isinstance(given, nn.Module):
        given = [(name, each) for name, each in given.named_parameters() if each.requires_grad]
    listed = [given] if isinstance(given, Tensor) else list(given or ())
    names = group.pop("param_names", None)
    if names and len(names) != len(listed):
        raise ValueError(
            f"group {number} has {len(names)} param_names for {len(listed)} params: give one per parameter"
        )
    read: dict[str, list[Any]] = {"params": [], "param_names": []}
    for place, one in enumerate(listed):
        if isinstance(one, tuple) and len(one) != 2:
            raise ValueError(f"params must hold parameters or pairs of name and parameter, got a tuple of {len(one)}")
        name, each = one if isinstance(one, tuple) else (None, one)
        name = name or (names[place] if names else _DEFAULT_NAME.format(number, place))
        if not isinstance(each, Tensor):
            raise ValueError(f"params must hold parameters, got {type(each).__name__} for {name}")
        if each.is_complex():
            raise ValueError(f"{name} is complex: GaLore projects real parameters only")
        if not each.is_leaf:
            raise ValueError(f"{name} is not a leaf: give the parameter itself, not what was computed from it")
        read["params"].append(each)
        read["param_names"].append(str(name))
    return {**group, **read}


def default_names(groups: list[dict[str, Any]], first: int = 0) -> set[str]:
    """What stands for names; in groups that state their rank matrices are chosen, so nobody is warned of those."""
    sizes = {number: len(group["params"]) for number, group in enumerate(groups, first) if "rank" not in group}
    return {_DEFAULT_NAME.format(number, place) for number, size in sizes.items() for place in range(size)}


def warn_of_unnamed(unnamed: set[str], projected: Iterable[Matrix]) -> None:
    """Say once that embeddings and heads among matrices without names are projected like the others, and which."""
    nameless = [each for each in projected if each.name in unnamed]
    if len(nameless) < 2:  # one matrix is a choice
        return
    warnings.warn(
        f"params has {len(nameless)} matrices without names, so GaLore projects embeddings and heads among them: "
        "give the model or model.named_parameters() to leave those out, or skip=() to project all",
        stacklevel=3,
    )


def embedding_names(params: Params) -> set[str]:
    """Of a module: the parameters that belong to an embedding or to the head of a language model, by their kind."""
    modules = params.named_modules() if isinstance(params, nn.Module) else ()
    ends = {id(each) for each in _ends_of(params)}
    kinds = (nn.Embedding, nn.EmbeddingBag)
    found = [name for name, each in modules if isinstance(each, kinds) or id(each) in ends]
    return {f"{name}.weight".lstrip(".") for name in found}


def kernel_names(params: Params) -> set[str]:
    """Of a module: the weights of its convolutions."""
    modules = params.named_modules() if isinstance(params, nn.Module) else ()
    return {f"{name}.weight".lstrip(".") for name, each in modules if isinstance(each, nn.modules.conv._ConvNd)}


def check_experts(matrices: Iterable[Matrix], inner: torch.optim.Optimizer, on_move: str) -> None:
    """Refuse what experts of one weight, which have one state together, cannot have."""
    experts = [matrix for matrix in matrices if matrix.expert is not None]
    if experts and on_move == "reset":
        raise ValueError("experts of one weight have one step count, which on_move='reset' resets: use keep or rotate")
    if experts and not is_entry_by_entry(inner):
        raise ValueError(
            f"experts need an inner optimizer that updates each entry by itself, as AdamW, got {type(inner).__name__}: "
            "leave experts out"
        )


def _ends_of(model: Params) -> list[nn.Module]:
    """Embedding and head of a model of transformers, whatever their names; some models have none and say so."""
    found = []
    for name in ("get_input_embeddings", "get_output_embeddings"):
        with suppress(NotImplementedError, AttributeError):
            found.append(getattr(model, name)())
    return [each for each in found if isinstance(each, nn.Module)]


def is_named(name: str, words: Iterable[str]) -> bool:
    """Whether a parameter, or a part of the model that it is in, has one of these names.

    A word at an end of a name counts for the parameter and the layer that has it: `lm_head.weight` is a head,
    `embed_tokens.weight` an embedding. But `multi_head_attention.weight` is no head, as the word is in the midst, and
    `time_embedding.linear_1.weight` no embedding, as it belongs to a layer `linear_1`.
    """
    parts = name.lower().split(".")
    ends = [part.split("_")[end] for part in parts[-2:] for end in (0, -1)]
    return not {*words}.isdisjoint({name, *parts, *ends})


def role_of(name: str, parameter: Tensor, rank: int, *, explicit: bool, skipped: bool) -> Role:
    """How a parameter is trained.

    A group that states its rank has every matrix projected, so the rank must fit. Otherwise a matrix passes if it is
    skipped. One whose shorter side is not above the rank is trained whole,
    because a subspace would save nothing; its rate is scaled as if it were projected.
    """
    shorter = min(parameter.shape, default=0)
    if skipped or parameter.ndim != 2 or not parameter.is_floating_point() or not shorter:
        return "passing"
    if explicit and rank > shorter:
        raise ValueError(f"rank must be at most the shorter side of {name}, which is {shorter}, got {rank}")
    return "compact" if explicit or shorter > rank else "scaled"


class Folded:
    """The matrices of one weight: parameters that have its memory and, for the time of a step, its gradient."""

    def __init__(self, name: str, owner: nn.Parameter, *, experts: bool) -> None:
        self.owner, self.experts = owner, experts
        views = self._matrices_of(owner.detach())
        self.names = [f"{name}[{place}]" for place in range(len(views))] if experts else [name]
        self.parts = [nn.Parameter(one) for one in views]
        self._known: tuple[object, ...] = ()

    def _matrices_of(self, whole: Tensor) -> list[Tensor]:
        """Views, but for kernels whose channels come last in memory: those are copied."""
        return list(whole.unbind()) if self.experts else [whole.flatten(1)]

    @property
    def _copied(self) -> bool:
        whole = self.owner.detach()
        return not self.experts and whole.flatten(1).data_ptr() != whole.data_ptr()

    def lend(self) -> None:
        """Let the matrices have the memory of the weight, which may have moved, and its gradient."""
        whole, gradient = self.owner.detach(), self.owner.grad
        now = (whole.data_ptr(), whole.dtype, whole.device, whole.stride())
        if now != self._known or self._copied:
            for part, one in zip(self.parts, self._matrices_of(whole), strict=True):
                part.data = one
            self._known = now
        if gradient is not None and gradient.layout == torch.strided:
            for part, one in zip(self.parts, self._matrices_of(gradient), strict=True):
                part.grad = one
        elif gradient is not None:
            raise ValueError(f"the gradient of {self.names[0]} is sparse and cannot be projected: make it dense")

    def give_back(self) -> None:
        """The gradient is the weight's again; what was copied goes back into it, and its memory is freed."""
        if self._copied:
            (part,) = self.parts
            if part.grad is not None:
                self.owner.detach().copy_(part.detach().view_as(self.owner))
            part.data = part.detach().new_zeros(()).expand(part.shape)
        for part in self.parts:
            part.grad = None


def is_experts(name: str) -> bool:
    """Whether a part of a name says that a weight is one of experts, as transformers' names do."""
    return any("experts" in part.split("_") for part in name.lower().split("."))


def can_fold(name: str, weight: Tensor, kernels: set[str], *, conv: bool, experts: bool) -> bool | None:
    """Whether a weight is one of experts (True) or a kernel (False) to train as matrices; None if neither."""
    if weight.ndim < 3 or not weight.is_floating_point() or is_sharded(weight) or weight.numel() == 0:
        return None
    if weight.ndim > 3 or name in kernels or not experts:
        return False if conv else None
    return True


class Passing(NamedTuple):
    """A parameter that the inner optimizer trains as it is; if `scaled`, at a rate times `scale`."""

    name: str
    parameter: nn.Parameter
    group: int
    role: Role


class Members:
    """The parameters of an optimizer."""

    def __init__(
        self,
        skip: tuple[str, ...],
        embeddings: set[str],
        kernels: set[str],
        projected: Projected,
        *,
        takes_experts: bool = True,
    ) -> None:
        self.skip, self.embeddings, self.kernels, self.projected = skip, embeddings, kernels, projected
        self._takes_experts = takes_experts
        self.maybe_experts: list[Passing] = []  # that pass although nobody has said so
        self.folded: list[Folded] = []
        self.matrices: list[Matrix] = []
        self.packs: list[Pack] = []
        self.passing: list[Passing] = []

    def add_group(self, group: dict[str, Any], number: int, *, explicit: bool) -> dict[Role, list[Tensor]]:
        """Take the parameters of a group; what stands for them in the inner optimizer, by role.

        A group that states its rank is explicit: its matrices are projected whatever their size.
        """
        found: dict[Role, list[Tensor]] = {"compact": [], "passing": [], "scaled": []}
        asked = self.projected
        precision = {"basis_dtype": asked.basis_dtype, "state_dtype": asked.state_dtype}
        for name, each in zip(group["param_names"], group["params"], strict=True):
            skipped = self.is_skipped(name)
            experts = asked.experts or (asked.experts is None and self._takes_experts and is_experts(name))
            kind = can_fold(name, each, self.kernels, conv=asked.conv, experts=experts)
            folded = None if kind is None or skipped else Folded(name, each, experts=kind)
            names, parts = ([name], [each]) if folded is None else (folded.names, folded.parts)
            role = role_of(name, parts[0], group["rank"], explicit=explicit, skipped=skipped)
            if role != "compact":
                self.passing.append(Passing(name, each, number, role))
                found[role].append(each)
                stack = each.ndim == 3 and name not in self.kernels and not is_sharded(each)
                if asked.experts is None and not skipped and stack and min(each.shape[1:]) > group["rank"]:
                    self.maybe_experts.append(self.passing[-1])
                continue
            if folded is not None:
                self.folded.append(folded)
            for place, (one, part) in enumerate(zip(names, parts, strict=True)):
                of = {"owner": each, "expert": place if folded is not None and folded.experts else None, **precision}
                self.matrices.append(Matrix(one, part, number, len(self.matrices), group["rank"], **of))
                self.packs.append(make_pack(self.matrices[-1:]))
                found[role].append(self.packs[-1].compact)
        return {role: each for role, each in found.items() if each}

    def is_skipped(self, name: str) -> bool:
        return name in self.embeddings or is_named(name, self.skip)

    def is_matrix(self, name: str, each: Tensor) -> bool:
        """Whether a parameter is a matrix, or a stack of them for experts, and does not pass by its name."""
        stack = each.ndim == 3 and name not in self.kernels and is_experts(name)
        return (each.ndim == 2 or stack) and each.is_floating_point() and each.numel() > 0 and not self.is_skipped(name)

    def form_packs(
        self, inner: torch.optim.Optimizer, packs: list[Pack], partner: Partner, ranks: Mapping[Matrix, int]
    ) -> None:
        """Put the matrices of these packs into new ones, as many in one as may be; inner states go with them."""
        matrices = [matrix for pack in packs for matrix in pack.matrices]
        states = {matrix: _copied(state_of(inner, matrix)) for matrix in matrices}
        subspaces = {each: (each.basis, each.energies) for each in matrices}
        for pack in packs:
            inner.state.pop(pack.compact, None)
        for matrix, rank in ranks.items():
            states[matrix] = change_state_rank(matrix, rank, states[matrix])
            basis, energies = subspaces[matrix]
            if basis is not None and energies is not None:
                subspaces[matrix] = change_subspace_rank(to_directions(basis, matrix.product_dtype), energies, rank)
            matrix.rank = rank
        formed = form_packs(matrices, partner, sum(each.parameter.numel() for each in self.matrices))
        for pack in formed:
            for matrix in pack.matrices:
                basis, energies = subspaces[matrix]
                if basis is not None and energies is not None:
                    matrix.take_subspace(basis, energies)
            if state := join_states([states[matrix] for matrix in pack.matrices]):
                inner.state[pack.compact] = state
        gone = {id(pack) for pack in packs}
        self.packs = [pack for pack in self.packs if id(pack) not in gone] + formed

    @property
    def projected_entries(self) -> tuple[int, int]:
        projected = sum(each.parameter.numel() for each in self.matrices)
        return projected, projected + sum(each.parameter.numel() for each in self.passing)

    def warn_of_experts(self) -> None:
        """Say once that weights which may be experts pass, and how large a share they are."""
        passing, self.maybe_experts = self.maybe_experts, []
        if passing:
            share = sum(each.parameter.numel() for each in passing) / max(self.projected_entries[1], 1)
            warnings.warn(
                f"{counted(len(passing), 'weight')} with three axes, {passing[0].name} first, {share:.0%} of all "
                "parameters, are trained unprojected: projected=Projected(experts=True) projects each expert, "
                "experts=False leaves them without a word",
                stacklevel=4,
            )

    def check_same(self, groups: list[dict[str, Any]]) -> None:
        """Refuse groups whose first parameter is none of ours: gradients of ours would not come any more."""
        first = next((each for group in groups for each in group["params"]), None)
        known = (*(each.parameter for each in self.passing), *(each.owner for each in self.matrices))
        if not any(first is each for each in known):
            raise ValueError(FLATTENED)

    def sizes(self) -> tuple[int, int, int, int]:
        """How many there are; `cut` goes back to them."""
        return len(self.matrices), len(self.packs), len(self.passing), len(self.folded)

    def cut(self, sizes: tuple[int, int, int, int]) -> None:
        for each, size in zip((self.matrices, self.packs, self.passing, self.folded), sizes, strict=True):
            del each[size:]  # type: ignore[attr-defined]


def form_packs(matrices: Iterable[Matrix], partner: Partner, entries: int) -> list[Pack]:
    """Packs of alike matrices for which `partner` gives the same; None: a matrix stays alone. `entries`: of the model.

    A pack has no more entries than one product may copy, so that little memory is needed beside the gradients.
    A weight of experts is one pack, whatever its size: its state is saved as one.
    """
    found: dict[object, list[list[Matrix]]] = {}
    for matrix in matrices:
        more = partner(matrix)
        lists = found.setdefault((matrix.kind, more) if more is not None else id(matrix), [[]])
        share = STACK_SHARE[_matrix.is_stacked_on(matrix.parameter.device)]
        most = min(_matrix.STACK, max(SMALL_STACK, entries // share))
        if matrix.expert is None and lists[-1] and (len(lists[-1]) + 1) * matrix.parameter.numel() > most:
            lists.append([])
        lists[-1].append(matrix)
    return [make_pack(alike) for lists in found.values() for alike in lists]


def is_entry_by_entry(inner: Any) -> bool:
    """Whether each entry is updated by itself, so that several compact parameters can be one; known of torch's own."""
    kind = type(inner) if isinstance(inner, torch.optim.Optimizer) else getattr(inner, "func", inner)
    names = "Adam AdamW NAdam RAdam Adamax Adagrad Adadelta RMSprop Rprop SGD ASGD"
    return kind in [getattr(torch.optim, name) for name in names.split()]


def change_subspace_rank(basis: Tensor, energies: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """A basis (side, rank) with its first directions, or with further ones that nothing is known of."""
    further = max(rank - basis.shape[1], 0)
    if further:
        precise = basis.to(torch.promote_types(basis.dtype, torch.float32))
        basis = orthonormalize(torch.cat([precise, precise.new_zeros(len(basis), further)], 1))
    return basis[:, :rank], torch.cat([energies, energies.new_zeros(further)])[:rank]


def change_state_rank(matrix: Matrix, rank: int, state: dict[str, Any]) -> dict[str, Any]:
    """The inner state of a matrix at another rank; none where something in it cannot be cut: it begins anew.

    The first directions keep theirs. A further one has no momentum, and the mean of the second moments of the others:
    with none it would make a long first step.
    """
    axis, known = matrix.projected_axis, matrix.compact_shape
    changed: dict[str, Any] = {}
    for name, value in state.items():
        if not isinstance(value, Tensor) or value.numel() == 1:
            changed[name] = value
            if isinstance(value, list | tuple | dict):
                return {}
            continue
        sides = (type(value) is Tensor or is_sharded(value)) and value.is_floating_point() and tuple(value.shape)
        if not sides or len(sides) != 2 or any(one not in (1, side) for one, side in zip(sides, known, strict=True)):
            return {}
        changed[name] = value if sides[axis] == 1 else _change_rows(value, axis, rank, is_second_moment(name))
    return changed


def _change_rows(value: Tensor, axis: int, rank: int, filled: bool) -> Tensor:
    """Of an entry of a state, whose other axis may lie on several processes."""
    here = _matrix.local(value)
    further = max(rank - here.shape[axis], 0)
    mean = here.mean(axis, keepdim=True) if filled else torch.zeros_like(here.narrow(axis, 0, 1))
    shape = (further, -1) if axis == 0 else (-1, further)
    changed = torch.cat([here, mean.expand(shape)], axis).narrow(axis, 0, rank).contiguous()
    if not is_sharded(value):
        return changed
    size = torch.Size([rank if one == axis else side for one, side in enumerate(value.shape)])
    there: Any = value
    found: Tensor = type(there).from_local(
        changed, there.device_mesh, there.placements, shape=size, stride=(size[1], 1)
    )
    return found


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    """With memory of its own, so that nobody keeps that of a pack which is gone."""
    return {key: value.clone() if isinstance(value, Tensor) else value for key, value in state.items()}
