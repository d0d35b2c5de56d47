"""Reading and checking what a user gives to GaLore: options, parameters with their names and groups."""

import warnings
from collections.abc import Iterable, Mapping
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
Params = nn.Module | Iterable[Any]
_CHOSEN = {"projector": Kind, "on_move": OnMove, "decay": Decay, "nonfinite": NonFinite}
CHOICES = {name: get_args(kind) for name, kind in _CHOSEN.items()}
VOCABULARY = 8  # with more rows per column a matrix looks like a vocabulary: MLPs have 4, embeddings 10 to 100
_DEFAULT_NAME = "group {}, parameter {}"


def check_options(
    choices: dict[str, Any], clip: Any, smallest: Any, inner: Any, skip: Any, tolerance: Any, seed: Any
) -> None:
    """Refuse options of the optimizer that are not of the right kind; choices: words by the name of their option."""
    for name, value in choices.items():
        if value not in CHOICES[name]:
            raise ValueError(f"{name} must be one of {', '.join(CHOICES[name])}, got {value!r}")
    if clip is not None and not (_is_number(clip) and clip > 0):
        raise ValueError(f"clip must be positive, or None for no clipping, got {clip!r}")
    if smallest is not None and not (_is_number(smallest) and smallest >= 1):
        raise ValueError(f"smallest must be at least 1, or None, got {smallest!r}")
    if not callable(inner):
        given = f"an object {type(inner).__name__}" if isinstance(inner, torch.optim.Optimizer) else repr(inner)
        raise ValueError(f"inner must make an optimizer, as the class torch.optim.AdamW does, got {given}")
    if isinstance(skip, str):
        raise ValueError(f"skip must be a list of names, got the text {skip!r}: write [{skip!r}]")
    if not (_is_number(tolerance) and tolerance >= 0):
        raise ValueError(f"tolerance must be a number of at least 0, got {tolerance!r}")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ValueError(f"seed must be a whole number, got {seed!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_group(group: dict[str, Any]) -> None:
    """Refuse options of one group."""
    check_rank(group["rank"])
    refresh, scale = group["refresh"], group["scale"]
    if isinstance(refresh, bool) or not isinstance(refresh, int) or refresh < 1:
        raise ValueError(f"refresh must be a whole number of updates of at least 1, got {refresh!r}")
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
    """What stands for names in groups without names; not of groups that state their rank, which choose matrices."""
    sizes = {number: len(group["params"]) for number, group in enumerate(groups, first) if "rank" not in group}
    return {_DEFAULT_NAME.format(number, place) for number, size in sizes.items() for place in range(size)}


def warn_of_unnamed(unnamed: set[str], projected: Iterable[Matrix]) -> None:
    """Say once that embeddings and heads among matrices without names are projected like the others."""
    shapes = [tuple(each.parameter.shape) for each in projected if each.name in unnamed]
    if len(shapes) < 2:  # one matrix is a choice
        return
    alike = sorted({f"{rows} x {columns}" for rows, columns in shapes if rows > VOCABULARY * columns})
    seen = f" ({' and '.join(alike)} {'looks' if len(alike) == 1 else 'look'} like a vocabulary)" if alike else ""
    warnings.warn(
        f"params has {len(shapes)} matrices without names, so GaLore projects embeddings and heads among them{seen}: "
        "give the model or model.named_parameters() to leave those out, or skip=() to project all",
        stacklevel=3,
    )


def embedding_names(params: Params) -> set[str]:
    """Of a module: the parameters that belong to an embedding, whatever their name."""
    modules = params.named_modules() if isinstance(params, nn.Module) else ()
    found = [name for name, each in modules if isinstance(each, (nn.Embedding, nn.EmbeddingBag))]
    return {f"{name}.weight".lstrip(".") for name in found}


def is_projected(name: str, parameter: Tensor, rank: Rank, smallest: int | None, *, explicit: bool) -> bool:
    """Whether a parameter is trained in a subspace.

    A group that states its rank has every matrix projected, so the rank must fit. Otherwise a matrix passes if the
    projection would save nothing, or if its shorter side is below `smallest`.
    """
    shorter = min(parameter.shape, default=0)
    if parameter.ndim != 2 or not parameter.is_floating_point() or shorter < (smallest or 0):
        return False
    if explicit:
        check_rank(rank, within=shorter, name=name)
    return explicit or shorter > (rank.least if isinstance(rank, Energy) else rank)
