"""Reading what a user gives as `params`: the parameters, their names and groups, and which of them are projected."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from joma.optim._matrix import Matrix
from joma.optim.ranks import Energy, Rank, checked_rank

OWN = ("rank", "refresh", "scale")
"""Options of a group that are GaLore's and not the inner optimizer's."""
VOCABULARY = 8
"""A matrix with more than so many rows per column looks like a vocabulary: MLPs have 4, embeddings 10 to 100."""
Params = nn.Module | Iterable[Any]


def groups_of(params: Params, first: int = 0) -> list[dict[str, Any]]:
    """Groups with `params` (a list) and `param_names`, in the order given; the number of the first one names them."""
    if isinstance(params, nn.Module):
        return [_named({"params": _of_module(params)}, first)]
    if isinstance(params, (Tensor, Mapping, str)) or not isinstance(params, Iterable):
        raise ValueError(f"params must be a module or an iterable of parameters or groups, got {type(params).__name__}")
    given = _listed(params)
    if not given:
        raise ValueError("params is empty: give a module, parameters, named parameters or groups")
    of_groups = [isinstance(one, Mapping) for one in given]
    if any(of_groups) and not all(of_groups):
        raise ValueError("params must hold groups alone or parameters alone, got both")
    if all(of_groups):
        groups = [_named(dict(group), number) for number, group in enumerate(given, first)]
    else:
        groups = [_named({"params": given}, first)]
    if not any(group["params"] for group in groups):
        raise ValueError("params is empty: no group has a parameter")
    _once(groups)
    return groups


def _of_module(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, each) for name, each in module.named_parameters() if each.requires_grad]


def _listed(given: Iterable[Any]) -> list[Any]:
    if isinstance(given, (set, frozenset)):
        raise ValueError("params must have an order, which a set has not: give a list")
    return list(given)


def _named(group: dict[str, Any], number: int) -> dict[str, Any]:
    given = group.get("params")
    if isinstance(given, nn.Module):
        given = _of_module(given)
    listed = [given] if isinstance(given, Tensor) else _listed(given or ())
    names = group.pop("param_names", None)
    if names and len(names) != len(listed):
        raise ValueError(
            f"group {number} has {len(names)} param_names for {len(listed)} params: give one per parameter"
        )
    pairs = list(_pairs(listed, names, number))
    return {**group, "params": [each for _, each in pairs], "param_names": [name for name, _ in pairs]}


def _pairs(listed: list[Any], names: Any, number: int) -> Iterator[tuple[str, nn.Parameter]]:
    for place, one in enumerate(listed):
        if isinstance(one, tuple) and len(one) != 2:
            raise ValueError(f"params must hold parameters or pairs of name and parameter, got a tuple of {len(one)}")
        name, each = one if isinstance(one, tuple) else (None, one)
        name = name or (names[place] if names else _placed(number, place))
        if not isinstance(each, Tensor):
            raise ValueError(f"params must hold parameters, got {type(each).__name__} for {name}")
        if each.is_complex():
            raise ValueError(f"{name} is complex: GaLore projects real parameters only")
        if not each.is_leaf:
            raise ValueError(f"{name} is not a leaf: give the parameter itself, not what was computed from it")
        yield str(name), each  # type: ignore[misc]


def _placed(number: int, place: int) -> str:
    """What a parameter is called that was given without a name."""
    return f"group {number}, parameter {place}"


def unnamed(groups: list[dict[str, Any]], first: int = 0) -> set[str]:
    """What stands for names in groups without names; not of groups that state their rank, which choose matrices."""
    chosen = [(number, group) for number, group in enumerate(groups, first) if "rank" not in group]
    return {_placed(number, place) for number, group in chosen for place in range(len(group["params"]))}


def warn_of_unnamed(bare: set[str], projected: Iterable[Matrix]) -> None:
    """Say once that embeddings and heads among matrices without names are projected like the others."""
    shapes = [tuple(each.parameter.shape) for each in projected if each.name in bare]
    if len(shapes) < 2:  # one matrix is a choice
        return
    alike = sorted({f"{rows} x {columns}" for rows, columns in shapes if rows > VOCABULARY * columns})
    seen = f" ({' and '.join(alike)} {'looks' if len(alike) == 1 else 'look'} like a vocabulary)" if alike else ""
    warnings.warn(
        f"params has {len(shapes)} matrices without names, so GaLore projects embeddings and heads among them{seen}: "
        "give the model or model.named_parameters() to leave those out, or skip=() to project all",
        stacklevel=3,
    )


def _once(groups: list[dict[str, Any]]) -> None:
    seen: dict[int, str] = {}
    for group in groups:
        for name, each in zip(group["param_names"], group["params"], strict=True):
            if id(each) in seen:
                raise ValueError(f"params holds one parameter twice, as {seen[id(each)]} and as {name}")
            seen[id(each)] = name


def embedding_names(params: Params) -> set[str]:
    """Of a module: the parameters that belong to an embedding, whatever their name."""
    if not isinstance(params, nn.Module):
        return set()
    found = [(name, each) for name, each in params.named_modules() if isinstance(each, (nn.Embedding, nn.EmbeddingBag))]
    return {f"{name}.weight".lstrip(".") for name, _ in found}


def named_so(name: str, words: Iterable[str]) -> bool:
    """Whether a part of the name, between dots and underscores, is one of the words: lm_head is a head."""
    return not set(words).isdisjoint(re.split(r"[._]", name.lower()))


def is_projected(name: str, parameter: Tensor, rank: Rank, *, explicit: bool, smallest: int | None) -> bool:
    """Whether a parameter is trained in a subspace.

    A group that states its rank has every matrix projected, so the rank must fit. Otherwise a matrix passes if the
    projection would save nothing, or if its shorter side is below `smallest`.
    """
    if parameter.ndim != 2 or not parameter.is_floating_point():
        return False
    shorter = min(parameter.shape)
    if smallest is not None and shorter < smallest:
        return False
    if explicit:
        checked_rank(rank, within=shorter, name=name)
        return True
    return shorter > (rank.least if isinstance(rank, Energy) else rank)
