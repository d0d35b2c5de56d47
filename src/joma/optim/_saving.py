"""The state of GaLore as plain tensors and numbers, and back.

The form is torch's: `state` by the number of the parameter, `param_groups` with the options. A projected matrix has
`basis`, `energies`, `count` and `refreshed` beside the inner optimizer's own state, whose keys begin with `inner.`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from joma.optim._fitting import INNER, VERSION, numbered, plain, refuse

if TYPE_CHECKING:
    from joma.optim._matrix import Matrix
    from joma.optim.galore import GaLore

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
    packed |= {"rank": plain(group["rank"]), "galore_version": VERSION}
    packed |= {"galore_inner": inner, "galore_skipped": skipped}
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
    state_dict, parameters = numbered(state_dict), _parameters(optimizer)
    refuse(optimizer, parameters, state_dict)
    states = {number: dict(state) for number, state in state_dict["state"].items()}
    for ours, theirs in zip(optimizer.param_groups, state_dict["param_groups"], strict=True):
        ours.update({key: value for key, value in theirs.items() if key not in NOT_OPTIONS})
    numbers = {id(each): number for number, each in enumerate(parameters)}
    for matrix in optimizer.matrices:
        _restore(matrix, states.get(numbers[id(matrix.parameter)], {}))
        optimizer._show(matrix)
    optimizer._skipped = int(state_dict["param_groups"][0]["galore_skipped"])
    optimizer._lead()
    _load_inner(optimizer, states, numbers)
    for after in optimizer._optimizer_load_state_dict_post_hooks.values():
        after(optimizer)


def _restore(matrix: Matrix, state: dict[str, Any]) -> None:
    device = matrix.parameter.device
    basis, energies = state.get("basis"), state.get("energies")
    matrix.basis = None if basis is None else basis.to(device, matrix.dtype).clone()
    matrix.energies = None if energies is None else energies.to(device, matrix.dtype).clone()
    matrix.count, matrix.refreshed = int(state.get("count", 0)), int(state.get("refreshed", -1))
    matrix.rank = matrix.most if basis is None else basis.shape[1]
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
