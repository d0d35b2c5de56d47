"""Reading and checking what a user gives to GaLore: options, parameters with their names and groups."""

import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from joma.host.words import counted
from joma.optim._inner import OnMove
from joma.optim._matrix import Matrix
from joma.optim.projector import Energy, Kind, Rank, check_rank, largest_rank

Decay = Literal["decoupled", "coupled"]
NonFinite = Literal["raise", "skip"]
Role = Literal["compact", "passing", "scaled"]
"""Of a parameter in the inner optimizer: in a subspace, as it is, or as it is at a rate times `scale`."""
Params = nn.Module | Iterable[Any]
_CHOSEN = {"projector": Kind, "on_move": OnMove, "decay": Decay, "nonfinite": NonFinite}
CHOICES = {name: get_args(kind) for name, kind in _CHOSEN.items()}
VOCABULARY = 8  # with more rows per column a matrix looks like a vocabulary: MLPs have 4, embeddings 10 to 100
_DEFAULT_NAME = "group {}, parameter {}"


@dataclass(frozen=True)
class Refresh:
    """When subspaces are found anew.

    - every: so many updates
    - stagger: spread the refreshes that follow the first over the updates between them, or make all together. None:
      they are spread, but for the projector exact, which is there to compare with

    >>> Refresh(every=50, stagger=False)
    Refresh(every=50, stagger=False)
    """

    every: int = 200
    stagger: bool | None = None

    def __post_init__(self) -> None:
        _check_refresh(self.every)
        if self.stagger not in (None, True, False):
            raise ValueError(f"stagger must be True, False or None, got {self.stagger!r}")


@dataclass(frozen=True)
class Projected:
    """Which weights are trained in subspaces beside what `skip` says, and in which precision.

    - smallest: matrices with a shorter side below this pass through
    - conv: kernels of convolutions too, each as a matrix, output channels x all the rest
    - experts: weights with three axes too, (experts, rows, columns), each expert in a subspace of its own; of a module,
      weights of one-dimensional convolutions are not taken for them
    - basis_dtype: of the bases and the products with them; the parameter's own, float32 for float16, if None. With
      torch.int8 bases are kept in 8 bits, and products are those of None
    - state_dtype: of the inner state of projected matrices; the parameter's own, float32 for float16, if None
    - decay: the inner optimizer's weight_decay acts on the matrix itself: decoupled shrinks it by lr * weight_decay,
      coupled adds weight_decay * W to the gradient
    """

    smallest: int | None = None
    conv: bool = False
    experts: bool = False
    basis_dtype: torch.dtype | None = None
    state_dtype: torch.dtype | None = None
    decay: Decay = "decoupled"

    def __post_init__(self) -> None:
        if self.smallest is not None and not (_is_number(self.smallest) and self.smallest >= 1):
            raise ValueError(f"smallest must be at least 1, or None, got {self.smallest!r}")
        if self.decay not in CHOICES["decay"]:
            raise ValueError(f"decay must be one of {', '.join(CHOICES['decay'])}, got {self.decay!r}")
        for name in ("basis_dtype", "state_dtype"):
            dtype, also = getattr(self, name), ", torch.int8" if name == "basis_dtype" else ""
            floating = dtype is None or (isinstance(dtype, torch.dtype) and dtype.is_floating_point)
            if not floating and not (also and dtype == torch.int8):
                raise ValueError(
                    f"{name} must be a floating-point torch.dtype{also}, or None for the parameter's, got {dtype!r}"
                )


_MOVED = {each.name: f"projected=Projected({each.name}=...)" for each in fields(Projected)} | {
    "stagger": "refresh=Refresh(every=..., stagger=...)",
    "project_in_backward": "per_layer='project'",
}


def check_moved(given: Iterable[str]) -> None:
    """Refuse options that were of the optimizer itself once; what is left belongs to the inner optimizer."""
    if moved := next((name for name in given if name in _MOVED), None):
        raise ValueError(f"{moved} is no option of the optimizer itself: give {_MOVED[moved]}")


def check_options(choices: dict[str, Any], clip: Any, inner: Any, skip: Any, seed: Any) -> None:
    """Refuse options of the optimizer that are not of the right kind; choices: words by the name of their option."""
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


def check_backward(per_layer: object, clip: Any) -> None:
    """Refuse what is no way to take gradients during backward, and what cannot be done in that way."""
    if per_layer not in (False, True, "project"):
        raise ValueError(f"per_layer must be False, True or 'project', got {per_layer!r}")
    if per_layer is True and clip is not None:
        raise ValueError(
            "clip needs the norm of all gradients, and per_layer updates before the last is known: leave one of them "
            "out, or give per_layer='project'"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_refresh(every: Any) -> None:
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ValueError(f"refresh must be a whole number of updates of at least 1, got {every!r}")


def check_group(group: dict[str, Any]) -> None:
    """Refuse options of one group."""
    check_rank(group["rank"])
    _check_refresh(group["refresh"])
    scale = group["scale"]
    if not _is_number(scale) or not (isfinite(scale) and scale > 0):
        raise ValueError(f"scale must be a positive finite number, got {scale!r}")


def nothing_projected(groups: list[dict[str, Any]]) -> str:
    """Why no matrix is trained in a subspace."""
    sides = [min(each.shape) for group in groups for each in group["params"] if each.ndim == 2]
    if not sides:
        return "params holds no matrix: there is nothing to project"
    ranks = sorted({largest_rank(group["rank"]) for group in groups})
    return (
        f"no matrix is projected: rank {', '.join(map(str, ranks))} must be below a shorter side, the largest of "
        f"{counted(len(sides), 'matrix', 'matrices')} is {max(sides)}, and skip and smallest must leave one"
    )


def read_groups(params: Params, first: int = 0) -> list[dict[str, Any]]:
    """Groups with `params` (a list) and `param_names`, in the order given; the number of the first one names them."""
    if isinstance(params, nn.Module):
        return [_read_group({"params": params}, first)]
    if isinstance(params, (Tensor, Mapping, str)) or not isinstance(params, Iterable):
        raise ValueError(f"params must be a module or an iterable of parameters or groups, got {type(params).__name__}")
    given = _to_list(params)
    if not given:
        raise ValueError("params is empty: give a module, parameters, named parameters or groups")
    are_groups = [isinstance(one, Mapping) for one in given]
    if any(are_groups) and not all(are_groups):
        raise ValueError("params must hold groups alone or parameters alone, got both")
    listed = [dict(group) for group in given] if all(are_groups) else [{"params": given}]
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


def _to_list(given: Iterable[Any]) -> list[Any]:
    if isinstance(given, (set, frozenset)):
        raise ValueError("params must have an order, which a set has not: give a list")
    return list(given)


def _read_group(group: dict[str, Any], number: int) -> dict[str, Any]:
    given = group.get("params")
    if isinstance(given, nn.Module):
        given = [(name, each) for name, each in given.named_parameters() if each.requires_grad]
    listed = [given] if isinstance(given, Tensor) else _to_list(given or ())
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
    """What stands for names in groups without names."""
    sizes = {number: len(group["params"]) for number, group in enumerate(groups, first)}
    return {_DEFAULT_NAME.format(number, place) for number, size in sizes.items() for place in range(size)}


def chosen_names(groups: list[dict[str, Any]]) -> set[str]:
    """Of groups that state their rank: their matrices are chosen, so nobody is warned of them."""
    return {name for group in groups if "rank" in group for name in group["param_names"]}


def warn_of_unnamed(unnamed: set[str], projected: Iterable[Matrix]) -> None:
    """Say once that embeddings and heads among matrices without names are projected like the others, and which."""
    nameless = [each for each in projected if each.name in unnamed]
    if len(nameless) < 2:  # one matrix is a choice
        return
    alike = [each for each in nameless if each.parameter.shape[-2] > VOCABULARY * each.parameter.shape[-1]]
    listed = [f"{each.name}, {' x '.join(map(str, each.parameter.shape))}" for each in alike]
    seen = (
        f" ({'; '.join(listed)}: {'it looks' if len(alike) == 1 else 'they look'} like a vocabulary)" if alike else ""
    )
    warnings.warn(
        f"params has {len(nameless)} matrices without names, so GaLore projects embeddings and heads among them{seen}: "
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


def check_folding(*, conv: bool, experts: bool, in_backward: bool) -> None:
    """Refuse what weights with more axes than a matrix cannot have."""
    if in_backward and (conv or experts):
        raise ValueError("per_layer takes gradients of matrices during backward: leave it out, or conv and experts")


def check_experts(inner: object, on_move: str, *, flexible: bool, entry_by_entry: bool) -> None:
    """Refuse what experts of one weight, which have one state together, cannot have."""
    if flexible:
        raise ValueError(
            "experts of one weight have one rank: give a number instead of an Energy, or leave experts out"
        )
    if on_move == "reset":
        raise ValueError("experts of one weight have one step count, which on_move='reset' resets: use keep or rotate")
    if not entry_by_entry:
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


def role_of(name: str, parameter: Tensor, rank: Rank, smallest: int | None, *, explicit: bool, skipped: bool) -> Role:
    """How a parameter is trained.

    A group that states its rank has every matrix projected, so the rank must fit. Otherwise a matrix passes if it is
    skipped or its shorter side is below `smallest`. One whose shorter side is not above the rank is trained whole,
    because a subspace would save nothing; its rate is scaled as if it were projected.
    """
    shorter = min(parameter.shape, default=0)
    if skipped or parameter.ndim != 2 or not parameter.is_floating_point() or shorter < (smallest or 0):
        return "passing"
    if explicit:
        check_rank(rank, within=shorter, name=name)
    return "compact" if explicit or shorter > (rank.least if isinstance(rank, Energy) else rank) else "scaled"
