"""The state of GaLore as plain tensors and numbers, and back.

The form is torch's: `state` by the number of the parameter, `param_groups` with the options. A projected matrix has
`basis`, `energies`, `count` and `refreshed` beside the inner optimizer's own state, whose keys begin with `inner.`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from joma.optim.ranks import Energy

if TYPE_CHECKING:
    from joma.optim._matrix import Matrix
    from joma.optim.galore import GaLore

INNER = "inner."
VERSION = 1
NOT_OPTIONS = ("params", "param_names", "rank", "galore_version", "galore_inner", "galore_skipped")
"""Entries of a saved group that are not options to take over."""


def saved(optimizer: GaLore) -> dict[str, Any]:
    """The whole state; tensors are those of the optimizer, not copies, as torch does it."""
    for before in optimizer._optimizer_state_dict_pre_hooks.values():
        before(optimizer)
    numbers = {id(each): number for number, each in enumerate(_parameters(optimizer))}
    inner = type(optimizer.inner).__name__
    result: dict[str, Any] = {
        "state": _states(optimizer, numbers),
        "param_groups": [_packed(group, numbers, inner, optimizer._skipped) for group in optimizer.param_groups],
    }
    for after in optimizer._optimizer_state_dict_post_hooks.values():
        result = after(optimizer, result) or result
    return result


def _parameters(optimizer: GaLore) -> list[Tensor]:
    """The parameters that the user gave, in their order."""
    compact = {id(matrix.compact) for matrix in optimizer.matrices}
    return [each for group in optimizer.param_groups for each in group["params"] if id(each) not in compact]


def _packed(group: dict[str, Any], numbers: dict[int, int], inner: str, skipped: int) -> dict[str, Any]:
    """What is to be said once stands in every group: tools that pass a state on keep groups and states alone."""
    packed = {key: value for key, value in group.items() if key != "params"}
    if isinstance(packed["rank"], Energy):
        packed["rank"] = dataclasses.asdict(packed["rank"])
    packed |= {"galore_version": VERSION, "galore_inner": inner, "galore_skipped": skipped}
    return {**packed, "params": [numbers[id(each)] for each in group["params"] if id(each) in numbers]}


def _states(optimizer: GaLore, numbers: dict[int, int]) -> dict[int, dict[str, Any]]:
    matrices = {id(matrix.parameter): matrix for matrix in optimizer.matrices}
    found = {}
    for each in _parameters(optimizer):
        matrix = matrices.get(id(each))
        theirs = optimizer.inner.state.get(each if matrix is None else matrix.compact, {})
        state = ({} if matrix is None else _own(matrix)) | {INNER + key: value for key, value in theirs.items()}
        if state:
            found[numbers[id(each)]] = state
    return found


def _own(matrix: Matrix) -> dict[str, Any]:
    if matrix.basis is None or matrix.energies is None:
        return {}
    return {
        "basis": matrix.basis,
        "energies": matrix.energies,
        "count": matrix.count,
        "refreshed": matrix.refreshed,
    }


def load(optimizer: GaLore, state_dict: dict[str, Any]) -> None:
    """Check that the state fits, then take it over whole."""
    for before in optimizer._optimizer_load_state_dict_pre_hooks.values():
        state_dict = before(optimizer, state_dict) or state_dict
    state_dict = _numbered(state_dict)
    _refuse(optimizer, state_dict)
    parameters = _parameters(optimizer)
    states = {number: dict(state) for number, state in state_dict["state"].items()}
    for ours, theirs in zip(optimizer.param_groups, state_dict["param_groups"], strict=True):
        ours.update({key: value for key, value in theirs.items() if key not in NOT_OPTIONS})
    numbers = {id(each): number for number, each in enumerate(parameters)}
    for matrix in optimizer.matrices:
        _restore(matrix, states.get(numbers[id(matrix.parameter)], {}))
        if matrix.basis is not None:
            optimizer._show(matrix)
    optimizer._skipped = int(state_dict["param_groups"][0]["galore_skipped"])
    optimizer._lead()
    _load_inner(optimizer, states, numbers)
    for after in optimizer._optimizer_load_state_dict_post_hooks.values():
        after(optimizer)


def _numbered(state_dict: dict[str, Any]) -> dict[str, Any]:
    """States by the place of their parameter, which some tools replace by its name."""
    listed = [each for group in state_dict["param_groups"] for each in group["params"]]
    places = {each: place for place, each in enumerate(listed)}
    states = {places[each]: state for each, state in state_dict["state"].items() if each in places}
    return {**state_dict, "state": states}


def _restore(matrix: Matrix, state: dict[str, Any]) -> None:
    device = matrix.parameter.device
    basis, energies = state.get("basis"), state.get("energies")
    matrix.basis = None if basis is None else basis.to(device, matrix.dtype).clone()
    matrix.energies = None if energies is None else energies.to(device, matrix.dtype).clone()
    matrix.count, matrix.refreshed = int(state.get("count", 0)), int(state.get("refreshed", -1))
    if basis is not None:
        matrix.rank = basis.shape[1]
    matrix.rest()


def _load_inner(optimizer: GaLore, states: dict[int, dict[str, Any]], numbers: dict[int, int]) -> None:
    """Through the inner optimizer's own loading, which knows what its state needs."""
    outer = {id(matrix.compact): numbers[id(matrix.parameter)] for matrix in optimizer.matrices}
    packed = optimizer.inner.state_dict()
    order = [each for group in optimizer.inner.param_groups for each in group["params"]]
    packed["state"] = {}
    for place, each in enumerate(order):
        number = outer.get(id(each), numbers.get(id(each)))
        theirs = states.get(number, {}) if number is not None else {}
        mine = {key[len(INNER) :]: value for key, value in theirs.items() if key.startswith(INNER)}
        if mine:
            packed["state"][place] = mine
    optimizer.inner.load_state_dict(packed)
    optimizer._relink()


def _refuse(optimizer: GaLore, state_dict: dict[str, Any]) -> None:
    groups = state_dict["param_groups"]
    if not all("galore_inner" in group for group in groups):
        raise ValueError("the state is not one of GaLore: its groups have no entry 'galore_inner'")
    kind, mine = groups[0]["galore_inner"], type(optimizer.inner).__name__
    if kind != mine:
        raise ValueError(f"the state was saved with inner {kind}, this optimizer has inner {mine}")
    if [len(group["params"]) for group in groups] != _sizes(optimizer):
        raise ValueError(
            f"the state has groups of {[len(group['params']) for group in groups]} parameters, "
            f"this optimizer has groups of {_sizes(optimizer)}"
        )
    for ours, theirs in zip(optimizer.param_groups, groups, strict=True):
        rank = Energy(**theirs["rank"]) if isinstance(theirs["rank"], dict) else theirs["rank"]
        if rank != ours["rank"]:
            raise ValueError(f"the state was saved with rank {rank}, this optimizer has rank {ours['rank']}")
    _refuse_shapes(optimizer, state_dict["state"])


def _sizes(optimizer: GaLore) -> list[int]:
    given = {id(each) for each in _parameters(optimizer)}
    return [sum(id(each) in given for each in group["params"]) for group in optimizer.param_groups]


def _refuse_shapes(optimizer: GaLore, states: dict[int, dict[str, Any]]) -> None:
    numbers = {id(each): number for number, each in enumerate(_parameters(optimizer))}
    projected = {numbers[id(matrix.parameter)]: matrix for matrix in optimizer.matrices}
    for number, state in states.items():
        matrix, basis = projected.get(number), state.get("basis")
        if (matrix is None) != (basis is None):
            raise ValueError(
                f"the state of parameter {number} is {'not ' if basis is None else ''}that of a projected matrix, "
                f"here the parameter is{' ' if basis is None else ' not '}projected"
            )
        if matrix is not None and basis is not None:
            rank = optimizer.param_groups[matrix.group]["rank"]
            _refuse_shape(matrix, basis, state, flexible=isinstance(rank, Energy))


def _refuse_shape(matrix: Matrix, basis: Tensor, state: dict[str, Any], *, flexible: bool) -> None:
    """A flexible rank is one by energy."""
    if not isinstance(basis, torch.Tensor) or basis.ndim != 2 or basis.shape[0] != matrix.shorter:
        raise ValueError(
            f"the saved subspace of {matrix.name} has shape {tuple(basis.shape)}, its shorter side is {matrix.shorter}"
        )
    if not flexible and basis.shape[1] != matrix.rank:
        raise ValueError(
            f"the saved subspace of {matrix.name} has rank {basis.shape[1]}, this optimizer has rank {matrix.rank}"
        )
    compact = (basis.shape[1], matrix.longer) if matrix.side == "left" else (matrix.longer, basis.shape[1])
    for key, value in state.items():
        moment = type(value) is Tensor and value.is_floating_point() and value.ndim == 2 and 1 not in value.shape
        if key.startswith(INNER) and moment and tuple(value.shape) != compact:
            raise ValueError(f"the saved {key} of {matrix.name} has shape {tuple(value.shape)}, expected {compact}")
