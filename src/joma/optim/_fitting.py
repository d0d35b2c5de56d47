"""Whether a saved state fits an optimizer; what does not fit, or was cut short, is refused in one sentence."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from joma.host.words import counted
from joma.optim._checks import check_group
from joma.optim.ranks import Energy, Rank

if TYPE_CHECKING:
    from joma.optim._matrix import Matrix
    from joma.optim.galore import GaLore

INNER = "inner."
VERSION = 1
OF_GROUP = ("params", "rank", "galore_version", "galore_inner", "galore_skipped")
"""What every group of a saved state has."""
OF_MATRIX = ("basis", "energies", "count", "refreshed")
"""What a saved matrix has beside the state of the inner optimizer."""
_ADAM = ("step", "exp_avg", "exp_avg_sq")
_OF_INNER = {
    "Adam": _ADAM,
    "AdamW": _ADAM,
    "RAdam": _ADAM,
    "NAdam": (*_ADAM, "mu_product"),
    "Adamax": ("step", "exp_avg", "exp_inf"),
    "RMSprop": ("step", "square_avg"),
    "Adagrad": ("step", "sum"),
    "Muon": ("momentum_buffer",),
}
"""What torch's optimizers cannot go on without."""


def plain(rank: Rank) -> Any:
    """A rank as it is saved."""
    return dataclasses.asdict(rank) if isinstance(rank, Energy) else rank


def numbered(state_dict: Any) -> dict[str, Any]:
    """States by the place of their parameter, which some tools replace by its name, or by its number as text."""
    if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= set(state_dict):
        said = sorted(map(str, state_dict)) if isinstance(state_dict, Mapping) else type(state_dict).__name__
        raise ValueError(f"the state must be a dictionary with 'state' and 'param_groups', got {said}")
    groups = state_dict["param_groups"]
    for number, group in enumerate(groups):
        _refuse_cut_group(number, group)
    listed = [each for group in groups for each in group["params"]]
    places = {str(each): place for place, each in enumerate(listed)}
    unknown = [each for each in state_dict["state"] if str(each) not in places]
    if unknown:
        raise ValueError(f"the state has an entry for parameter {unknown[0]!r}, but no group of it has that parameter")
    return {**state_dict, "state": {places[str(each)]: state for each, state in state_dict["state"].items()}}


def _refuse_cut_group(number: int, group: dict[str, Any]) -> None:
    if "galore_inner" not in group:
        raise ValueError("the state is not one of GaLore: its groups have no entry 'galore_inner'")
    missing = [key for key in OF_GROUP if key not in group]
    if missing:
        raise ValueError(f"group {number} of the state has no entry {missing[0]!r}: the state is not whole")
    if group["galore_version"] != VERSION:
        raise ValueError(f"the state has version {group['galore_version']}, this GaLore reads version {VERSION}")


def refuse(optimizer: GaLore, parameters: list[Tensor], state_dict: dict[str, Any]) -> None:
    """Refuse a state that is not for this optimizer with these parameters."""
    groups, numbers = state_dict["param_groups"], {id(each): number for number, each in enumerate(parameters)}
    sizes = [len(group["params"]) for group in groups]
    mine = [sum(id(each) in numbers for each in group["params"]) for group in optimizer.param_groups]
    if sizes != mine:
        raise ValueError(f"the state has groups of {sizes} parameters, this optimizer has groups of {mine}")
    for ours, theirs in zip(optimizer.param_groups, groups, strict=True):
        _refuse_group(type(optimizer.inner).__name__, ours, theirs)
    _refuse_order(optimizer.param_groups, groups)
    projected = {numbers[id(matrix.parameter)]: matrix for matrix in optimizer.matrices}
    names = [name for group in optimizer.param_groups for name in group["param_names"]]
    for number, state in state_dict["state"].items():
        if not isinstance(state, Mapping):
            raise ValueError(f"the state of {names[number]} must be a dictionary, got {type(state).__name__}")
        _refuse_inner(optimizer, names[number], state)
        if (matrix := projected.get(number)) is None:
            _refuse_passing(names[number], parameters[number], state)
        else:
            flexible = isinstance(optimizer.param_groups[matrix.group]["rank"], Energy)
            _refuse_matrix(matrix, state, flexible=flexible)


def _refuse_group(inner: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    if theirs["galore_inner"] != inner:
        raise ValueError(f"the state was saved with inner {theirs['galore_inner']}, this optimizer has inner {inner}")
    if theirs["rank"] != plain(ours["rank"]):
        raise ValueError(f"the state was saved with rank {theirs['rank']}, this optimizer has rank {ours['rank']}")
    check_group({**ours, **theirs, "rank": ours["rank"]})


def _refuse_order(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    """The same names in another order; other names may be those of the same model inside a wrapper."""
    mine = [name for group in ours for name in group["param_names"]]
    saved = [name for group in theirs for name in group.get("param_names", ())]
    if sorted(saved) != sorted(mine) or saved == mine:
        return
    place = next(place for place, pair in enumerate(zip(saved, mine, strict=True)) if pair[0] != pair[1])
    raise ValueError(
        f"the state has its parameters in another order: parameter {place} is {saved[place]} there and {mine[place]} "
        "here"
    )


def _refuse_inner(optimizer: GaLore, name: str, state: Mapping[str, Any]) -> None:
    """A matrix may have no inner state at all: its first subspace was found, and the step was skipped."""
    if not any(key.startswith(INNER) for key in state):
        return
    kind = type(optimizer.inner)
    needed = _OF_INNER.get(kind.__name__, ()) if kind.__module__.startswith("torch.optim") else ()
    missing = [INNER + key for key in needed if INNER + key not in state]
    if missing:
        raise ValueError(f"the saved state of {name} has no {missing[0]!r}: the state is not whole")


def _refuse_passing(name: str, parameter: Tensor, state: Mapping[str, Any]) -> None:
    if any(key in state for key in OF_MATRIX):
        raise ValueError(f"the state of {name} is that of a projected matrix, here the parameter is not projected")
    _refuse_moments(name, state, tuple(parameter.shape))


def _refuse_matrix(matrix: Matrix, state: Mapping[str, Any], *, flexible: bool) -> None:
    """A flexible rank is one by energy. Adagrad has a state before the first subspace is found."""
    missing = [key for key in OF_MATRIX if key not in state]
    if len(missing) == len(OF_MATRIX):
        if any(_is_moment(value) and tuple(value.shape) == tuple(matrix.parameter.shape) for value in state.values()):
            raise ValueError(f"the state of {matrix.name} is not that of a projected matrix, here the parameter is one")
        return
    if missing:
        raise ValueError(f"the saved state of {matrix.name} has no {missing[0]!r}: the state is not whole")
    _refuse_subspace(matrix, state["basis"], state["energies"], flexible=flexible)
    for key in ("count", "refreshed"):
        if not (isinstance(state[key], int) or (isinstance(state[key], Tensor) and state[key].numel() == 1)):
            raise ValueError(f"the saved {key} of {matrix.name} must be a whole number, got {state[key]!r}")
    rank = state["basis"].shape[1]
    _refuse_moments(matrix.name, state, (rank, matrix.longer) if matrix.side == "left" else (matrix.longer, rank))


def _refuse_subspace(matrix: Matrix, basis: Any, energies: Any, *, flexible: bool) -> None:
    for key, value in (("basis", basis), ("energies", energies)):
        if not isinstance(value, Tensor):
            raise ValueError(f"the saved {key} of {matrix.name} must be a tensor, got {type(value).__name__}")
    if basis.ndim != 2 or basis.shape[0] != matrix.shorter:
        raise ValueError(
            f"the saved subspace of {matrix.name} has shape {tuple(basis.shape)}, its shorter side is {matrix.shorter}"
        )
    if not flexible and basis.shape[1] != matrix.rank:
        raise ValueError(
            f"the saved subspace of {matrix.name} has rank {basis.shape[1]}, this optimizer has rank {matrix.rank}"
        )
    if tuple(energies.shape) != (basis.shape[1],):
        raise ValueError(
            f"the saved energies of {matrix.name} have shape {tuple(energies.shape)}, its subspace has "
            f"{counted(basis.shape[1], 'direction')}"
        )


def _is_moment(value: Any) -> bool:
    return type(value) is Tensor and value.is_floating_point() and value.ndim > 1


def _refuse_moments(name: str, state: Mapping[str, Any], shape: tuple[int, ...]) -> None:
    """Sides of 1 are Adafactor's; vectors may be what an 8-bit optimizer keeps beside its states."""
    for key, value in state.items():
        if not (key.startswith(INNER) and _is_moment(value)):
            continue
        if value.ndim != len(shape) or any(one not in (1, side) for one, side in zip(value.shape, shape, strict=True)):
            raise ValueError(f"the saved {key} of {name} has shape {tuple(value.shape)}, expected {shape}")
