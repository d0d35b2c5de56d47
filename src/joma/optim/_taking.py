"""Reading what a user gives as `params`: the parameters, their names and groups, and which of them are projected."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from joma.optim.ranks import Energy, Rank, checked_rank

OWN = ("rank", "refresh", "scale")
"""Options of a group that are GaLore's and not the inner optimizer's."""
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
        name = name or (names[place] if names else f"group {number}, parameter {place}")
        if not isinstance(each, Tensor):
            raise ValueError(f"params must hold parameters, got {type(each).__name__} for {name}")
        if each.is_complex():
            raise ValueError(f"{name} is complex: GaLore projects real parameters only")
        if not each.is_leaf:
            raise ValueError(f"{name} is not a leaf: give the parameter itself, not what was computed from it")
        yield str(name), each  # type: ignore[misc]


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
