"""The state of GaLore as plain tensors and numbers, and back; what does not fit or was cut short is refused.

The form is torch's: `state` by the number of the parameter, `param_groups` with the options. A projected matrix has
`basis`, `energies`, `count` and `refreshed` beside the inner optimizer's own state. The live `state[p]` and the live
groups have the same keys. Version 1 put `inner.` before the keys of the inner state; it is still read.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from joma.host.words import counted
from joma.optim._arguments import check_group
from joma.optim._inner import REQUIRED_STATE, join_states, state_of
from joma.optim._lowbit import has_rows, to_directions
from joma.optim._matrix import Matrix, Pack
from joma.optim.projector import Energy, Rank

INNER = "inner."  # before keys of the inner state in version 1
VERSION = 2
OF_GROUP = ("params", "rank", "galore_version", "galore_inner", "galore_skipped")  # in every group of a saved state
OF_MATRIX = ("basis", "energies", "count", "refreshed")  # of a saved matrix, beside the state of the inner optimizer

_MEMBER, _FIRST = "galore_member", "GaLore"  # of the family, in groups of those that came after GaLore
_ROUNDING = 0.05  # of lengths of columns; in bfloat16 they are 1 to a hundredth


class Parts(NamedTuple):
    """What a state is saved from and loaded into: the parts of a GaLore."""

    groups: list[dict[str, Any]]
    matrices: list[Matrix]
    inner: torch.optim.Optimizer

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters that the user gave, in their order."""
        compact = {id(matrix.pack.compact) for matrix in self.matrices}
        return [each for group in self.groups for each in group["params"] if id(each) not in compact]

    @property
    def numbers(self) -> dict[int, int]:
        """The number of each parameter, by its id."""
        return {id(each): number for number, each in enumerate(self.parameters)}


def of_every_group(inner: torch.optim.Optimizer, member: str) -> dict[str, Any]:
    """What is true of the optimizer and stands in every group: tools that pass a state on keep groups and states."""
    found = {"galore_version": VERSION, "galore_inner": type(inner).__name__, "galore_skipped": 0}
    return found if member == _FIRST else {**found, _MEMBER: member}


def state_of_matrix(inner: torch.optim.Optimizer, matrix: Matrix) -> dict[str, Any]:
    """The subspace, if there is one, and the inner state."""
    of_inner = state_of(inner, matrix)
    if taken := [key for key in OF_MATRIX if key in of_inner]:
        raise ValueError(f"inner {type(inner).__name__} has a state {taken[0]!r}, a name that GaLore uses itself")
    return ({key: getattr(matrix, key) for key in OF_MATRIX} if matrix.found else {}) | of_inner


def state_of_experts(inner: torch.optim.Optimizer, pack: Pack) -> dict[str, Any]:
    """The state of a weight of experts: the tensors of its pack, with one entry of each for every expert."""
    if not any(matrix.found for matrix in pack.matrices):
        return dict(inner.state.get(pack.compact, {}))
    refreshed = torch.tensor([matrix.refreshed for matrix in pack.matrices])
    own = {"basis": pack.basis, "energies": pack.energies, "count": pack.matrices[0].count, "refreshed": refreshed}
    return {**own, **inner.state.get(pack.compact, {})}


def _saved_of(matrix: Matrix, numbers: dict[int, int], state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """What is saved of one matrix: its weight's state, or one expert's part of that."""
    state = state_dict["state"].get(numbers[id(matrix.owner)], {})
    return state if matrix.expert is None else _part_of(state, matrix.expert)


def _part_of(state: Mapping[str, Any], expert: int) -> dict[str, Any]:
    """Of one expert; what has no axes, as a step count, is shared."""
    return {key: value[expert] if isinstance(value, Tensor) and value.ndim else value for key, value in state.items()}


def show(shown: dict[Tensor, dict[str, Any]], inner: torch.optim.Optimizer, pack: Pack) -> None:
    """Let shown[p] have the subspace and inner state of each matrix of a pack; work only where tensors changed."""
    kept = (pack.basis, *inner.state.get(pack.compact, {}).values())
    known = len(kept) == len(pack.shown) and all(one is other for one, other in zip(kept, pack.shown, strict=True))
    pack.shown = kept
    if pack.matrices[0].expert is not None:
        shown[pack.matrices[0].owner] = state_of_experts(inner, pack)
        return
    for matrix in pack.matrices:
        entry = shown.get(matrix.owner) if known else None
        if not matrix.found:
            shown.pop(matrix.owner, None)
        elif entry is None:
            shown[matrix.owner] = state_of_matrix(inner, matrix)
        else:
            entry["count"], entry["refreshed"] = matrix.count, matrix.refreshed


def pack_state(parts: Parts) -> dict[str, Any]:
    """The state of all parameters; tensors are those of the optimizer, not copies, as torch does it."""
    matrices, states = {id(matrix.owner): matrix for matrix in parts.matrices}, {}
    begun = any(matrix.found for matrix in parts.matrices)
    for number, each in enumerate(parts.parameters):
        matrix = matrices.get(id(each))
        of_inner = parts.inner.state.get(each, {})
        state = dict(of_inner) if matrix is None else _state_of_weight(parts.inner, matrix)
        if state or begun:  # torch's checkpoints miss a parameter without an entry where others have one
            states[number] = state
    numbers, packed = parts.numbers, []
    for group in parts.groups:
        options = {key: value for key, value in group.items() if key != "params"}
        listed = [numbers[id(each)] for each in group["params"] if id(each) in numbers]
        packed.append({**options, "rank": _plain_rank(group["rank"]), "params": listed})
    return {"state": states, "param_groups": packed}


def _state_of_weight(inner: torch.optim.Optimizer, matrix: Matrix) -> dict[str, Any]:
    return state_of_matrix(inner, matrix) if matrix.expert is None else state_of_experts(inner, matrix.pack)


def _plain_rank(rank: Rank) -> Any:
    return dataclasses.asdict(rank) if isinstance(rank, Energy) else rank


def restore_options(parts: Parts, state_dict: dict[str, Any]) -> None:
    """Take over the options of the groups."""
    for ours, theirs in zip(parts.groups, state_dict["param_groups"], strict=True):
        left_out = ("params", "rank", "galore_version", "galore_inner", "param_names")
        ours.update({key: value for key, value in theirs.items() if key not in left_out})


def restore_counts(parts: Parts, state_dict: dict[str, Any]) -> dict[int, object]:
    """Ranks and counts of the matrices; for each what others must share to be in one pack with it."""
    numbers = parts.numbers
    signatures: dict[int, object] = {}
    for matrix in parts.matrices:
        state = _saved_of(matrix, numbers, state_dict)
        basis = state.get("basis")
        matrix.count, matrix.refreshed = int(state.get("count", 0)), int(state.get("refreshed", -1))
        matrix.rank = matrix.largest_rank if basis is None else basis.shape[1]
        matrix.found = False  # until it has its own
        inner = sorted((key, value) for key, value in state.items() if key not in OF_MATRIX)
        signatures[id(matrix)] = (basis is not None, *((key, _sign(value)) for key, value in inner))
    return signatures


def _sign(value: Any) -> object:
    """What must be the same for two states to be one tensor: shapes of tensors, step counts, anything else."""
    if isinstance(value, Tensor):
        return (tuple(value.shape), value.dtype) if value.ndim else value.item()
    return repr(value)


def restore_subspaces(parts: Parts, state_dict: dict[str, Any]) -> None:
    """Bases and their energies."""
    numbers = parts.numbers
    for matrix in parts.matrices:
        state = _saved_of(matrix, numbers, state_dict)
        if "basis" in state:
            matrix.take_subspace(state["basis"], state["energies"])


def forget_options(parts: Parts, mine: list[dict[str, Any]], inners: list[dict[str, Any]]) -> None:
    """Give the groups, and those of the inner optimizer, the options that they had."""
    for groups, before in ((parts.groups, mine), (parts.inner.param_groups, inners)):
        for group, options in zip(groups, before, strict=True):
            group.clear()
            group.update(options)


def restore_inner(parts: Parts, packs: list[Pack], state_dict: dict[str, Any]) -> None:
    """Through the inner optimizer's own loading, which knows what its state needs."""
    numbers = parts.numbers

    def of_inner_in(state: Mapping[str, Any]) -> dict[str, Any]:
        # Matrices that were in one pack share its count of steps: two packs would each add to it.
        single = {key: value.clone() for key, value in state.items() if isinstance(value, Tensor) and not value.ndim}
        return {key: value for key, value in {**state, **single}.items() if key not in OF_MATRIX}

    def of_pack(pack: Pack) -> dict[str, Any]:
        return join_states([of_inner_in(_saved_of(matrix, numbers, state_dict)) for matrix in pack.matrices])

    of_packs = {id(pack.compact): pack for pack in packs}
    packed = parts.inner.state_dict()
    packed["state"] = {}
    for place, each in enumerate(each for group in parts.inner.param_groups for each in group["params"]):
        pack = of_packs.get(id(each))
        alone = state_dict["state"].get(numbers[id(each)], {}) if pack is None else {}
        of_inner = of_inner_in(alone) if pack is None else of_pack(pack)
        if of_inner:
            packed["state"][place] = of_inner
    parts.inner.load_state_dict(packed)


def read_state(parts: Parts, state_dict: Any) -> dict[str, Any]:
    """A saved state, by the number of each parameter; a ValueError if it is not for this optimizer, or damaged."""
    try:
        return _read_state(parts, state_dict)
    except (TypeError, AttributeError, KeyError, IndexError, RuntimeError, OverflowError) as error:
        # Damage puts anything in the place of anything.
        raise ValueError(f"the state is damaged or not one of GaLore ({type(error).__name__}: {error})") from error


def _read_state(parts: Parts, state_dict: Any) -> dict[str, Any]:
    if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= set(state_dict):
        given = sorted(map(str, state_dict)) if isinstance(state_dict, Mapping) else type(state_dict).__name__
        raise ValueError(f"the state must be a dictionary with 'state' and 'param_groups', got {given}")
    groups = state_dict["param_groups"]
    for number, group in enumerate(groups):
        if "galore_inner" not in group:
            raise ValueError("the state is not one of GaLore: its groups have no entry 'galore_inner'")
        if missing := [key for key in OF_GROUP if key not in group]:
            raise ValueError(f"group {number} of the state has no entry {missing[0]!r}: the state is not whole")
        if group["galore_version"] not in range(1, VERSION + 1):
            raise ValueError(
                f"the state has version {group['galore_version']}, this GaLore reads versions up to {VERSION}"
            )
    # Some tools replace the place of a parameter by its name, or by its number as text.
    places = {str(each): place for place, each in enumerate(each for group in groups for each in group["params"])}
    if unknown := [each for each in state_dict["state"] if str(each) not in places]:
        raise ValueError(f"the state has an entry for parameter {unknown[0]!r}, but no group of it has that parameter")
    states = {places[str(each)]: state for each, state in state_dict["state"].items()}
    if any(group["galore_version"] == 1 for group in groups):
        states = {number: _without_prefix(state) for number, state in states.items()}
    _check_fit(parts, groups, states)
    return {**state_dict, "state": {number: dict(state) for number, state in states.items()}}


def _without_prefix(state: Any) -> Any:
    return {key.removeprefix(INNER): value for key, value in state.items()} if isinstance(state, Mapping) else state


def _check_fit(parts: Parts, groups: list[dict[str, Any]], states: dict[int, Any]) -> None:
    numbers, parameters = parts.numbers, parts.parameters
    sizes = [len(group["params"]) for group in groups]
    mine = [sum(id(each) in numbers for each in group["params"]) for group in parts.groups]
    if sizes != mine:
        raise ValueError(f"the state has groups of {sizes} parameters, this optimizer has groups of {mine}")
    kind = type(parts.inner)
    for ours, theirs in zip(parts.groups, groups, strict=True):
        saved_by, here = (one.get(_MEMBER, _FIRST) for one in (theirs, ours))
        if saved_by != here:
            raise ValueError(f"the state was saved by {saved_by}, this optimizer is {here}")
        if (inner := theirs["galore_inner"]) != kind.__name__:
            raise ValueError(f"the state was saved with inner {inner}, this optimizer has inner {kind.__name__}")
        if theirs["rank"] != _plain_rank(ours["rank"]):
            raise ValueError(f"the state was saved with rank {theirs['rank']}, this optimizer has rank {ours['rank']}")
        check_group({**ours, **theirs, "rank": ours["rank"]})
    names, saved = ([one for group in each for one in group.get("param_names", ())] for each in (parts.groups, groups))
    # Other names may be those of the same model inside a wrapper.
    if sorted(saved) == sorted(names) and saved != names:
        place = next(place for place, name in enumerate(saved) if name != names[place])
        raise ValueError(
            f"the state has its parameters in another order: parameter {place} is {saved[place]} there and "
            f"{names[place]} here"
        )
    needed = REQUIRED_STATE.get(kind.__name__, ()) if kind.__module__.startswith("torch.optim") else ()
    projected: dict[int, list[Matrix]] = {}
    for matrix in parts.matrices:
        projected.setdefault(numbers[id(matrix.owner)], []).append(matrix)
    for number, state in states.items():
        if not isinstance(state, Mapping):
            raise ValueError(f"the state of {names[number]} must be a dictionary, got {type(state).__name__}")
        # A matrix may have no inner state at all: its first subspace was found, and the step was skipped.
        begun = any(key not in OF_MATRIX for key in state)
        if missing := [key for key in needed if begun and key not in state]:
            raise ValueError(f"the saved state of {names[number]} has no {missing[0]!r}: the state is not whole")
        if (matrices := projected.get(number)) is not None:
            _check_weight(matrices, state, flexible=isinstance(parts.groups[matrices[0].group]["rank"], Energy))
            continue
        if any(key in state for key in OF_MATRIX):
            raise ValueError(
                f"the state of {names[number]} is that of a projected matrix, here the parameter is not projected"
            )
        _check_moments(names[number], state, tuple(parameters[number].shape))


def _check_weight(matrices: list[Matrix], state: Mapping[str, Any], *, flexible: bool) -> None:
    """Of a matrix, or of one with an expert in each entry of its tensors."""
    if matrices[0].expert is None:
        _check_matrix(matrices[0], state, flexible=flexible)
        return
    for key, value in state.items():
        if isinstance(value, Tensor) and value.ndim and len(value) != len(matrices):
            name = matrices[0].name.rpartition("[")[0]
            raise ValueError(f"the saved {key} of {name} has {len(value)} experts, this optimizer has {len(matrices)}")
    for place, matrix in enumerate(matrices):
        _check_matrix(matrix, _part_of(state, place), flexible=flexible)


def _check_matrix(matrix: Matrix, state: Mapping[str, Any], *, flexible: bool) -> None:
    """A flexible rank is one by energy. Adagrad has a state before the first subspace is found."""
    missing = [key for key in OF_MATRIX if key not in state]
    if len(missing) == len(OF_MATRIX):
        if any(_is_moment(value) and tuple(value.shape) == tuple(matrix.parameter.shape) for value in state.values()):
            raise ValueError(f"the state of {matrix.name} is not that of a projected matrix, here the parameter is one")
        return
    if missing:
        raise ValueError(f"the saved state of {matrix.name} has no {missing[0]!r}: the state is not whole")
    for key in ("basis", "energies"):
        if not isinstance(state[key], Tensor):
            raise ValueError(f"the saved {key} of {matrix.name} must be a tensor, got {type(state[key]).__name__}")
    basis, energies = state["basis"], state["energies"]
    of = f"the saved subspace of {matrix.name} has"
    if not has_rows(basis, matrix.shorter):
        raise ValueError(f"{of} shape {tuple(basis.shape)}, its shorter side is {matrix.shorter}")
    rank = basis.shape[1]
    if not flexible and rank != matrix.rank:
        raise ValueError(f"{of} rank {rank}, this optimizer has rank {matrix.rank}")
    if tuple(energies.shape) != (rank,):
        raise ValueError(
            f"the saved energies of {matrix.name} have shape {tuple(energies.shape)}, its subspace has "
            f"{counted(rank, 'direction')}"
        )
    _check_subspace(matrix.name, to_directions(basis.detach(), matrix.shorter, torch.float64), energies)
    for key in ("count", "refreshed"):
        if not (isinstance(state[key], int) or (isinstance(state[key], Tensor) and state[key].numel() == 1)):
            raise ValueError(f"the saved {key} of {matrix.name} must be a whole number, got {state[key]!r}")
    _check_moments(matrix.name, state, (rank, matrix.longer) if matrix.side == "left" else (matrix.longer, rank))


def _check_subspace(name: str, basis: Tensor, energies: Tensor) -> None:
    """A basis has columns of length 1 and its energies are shares. One bit in an exponent changes that, and every step
    from then on would be scaled by it without a word.
    """
    lengths = torch.linalg.vector_norm(basis, dim=0)
    if not bool(((lengths - 1).abs() < _ROUNDING).all()):  # NaN is not near 1 either
        raise ValueError(
            f"the saved subspace of {name} is damaged, or was copied into another basis_dtype: its directions do not "
            "have length 1"
        )
    if not bool(((energies >= 0) & (energies <= 1 + _ROUNDING)).all()):
        raise ValueError(f"the saved energies of {name} are damaged: they are no shares between 0 and 1")


def _is_moment(value: Any) -> bool:
    return type(value) is Tensor and value.is_floating_point() and value.ndim > 1


def _check_moments(name: str, state: Mapping[str, Any], shape: tuple[int, ...]) -> None:
    """Sides of 1 are Adafactor's; vectors may be what an 8-bit optimizer keeps beside its states."""
    for key, value in state.items():
        if key in OF_MATRIX or not _is_moment(value):
            continue
        if value.ndim != len(shape) or any(one not in (1, side) for one, side in zip(value.shape, shape, strict=True)):
            raise ValueError(f"the saved {key} of {name} has shape {tuple(value.shape)}, expected {shape}")
