"""The state of GaLore as plain tensors and numbers, and back; what does not fit or was cut short is refused.

The form is torch's: `state` by the number of the parameter, `param_groups` with the options. A projected matrix has
`basis`, `energies`, `count` and `refreshed` beside the inner optimizer's own state. The live `state[p]` and the live
groups have the same keys.

What the inner state must look like is found by letting a small copy of that optimizer step. A copy with the same
options steps a parameter whose sides are 2, 3, 5, ... What it keeps then says which entries a state has and what shape
each has: a side of 2 stands for the first side of the parameter. So nothing here lists what the optimizers of torch
keep, and an option that makes a step impossible is seen too.

From a saved state the copy makes a step whose gradient is zero. Numbers that are finite by themselves need not give a
finite step: a second moment below zero, a step count of -1, a moment with one bit of its exponent turned.
"""

import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from joma.host.errors import JomaError
from joma.host.words import counted
from joma.optim._groups import Passing, Place, Role, check_group, is_entry_by_entry
from joma.optim._inner import OWN, Following, is_known
from joma.optim._matrix import (
    Matrix,
    Pack,
    is_sharded,
    join_states,
    local,
    one_number,
    part_of,
    state_of,
    to_directions,
)
from joma.optim._update import EARLIEST

Options = Mapping[str, Any]
State = Mapping[str, Any]
SIDES = (2, 3, 5, 7, 11, 13)  # of the parameter of a small copy: each is known again where a state has it
CHUNK = 1 << 20  # entries of a state that are tried together, so that trying takes little memory
MOST = 2**53  # of a counter
LONGEST = 400  # characters of a message
_WAYS = ("foreach", "fused", "capturable", "differentiable")  # options of how a step is computed, not of what
VERSION = 2
OF_GROUP = ("params", "rank", "galore_version", "galore_inner", "galore_skipped")  # in every group of a saved state
OF_MATRIX = ("basis", "energies", "count", "refreshed")  # of a saved matrix, beside the state of the inner optimizer

_MEMBER, _FIRST = "galore_member", "GaLore"  # of the family, in groups of those that came after GaLore
_RANKS = "galore_ranks"  # of matrices in a group, where one has not yet that of its group
_ROUNDING = 0.05  # of lengths of columns; in bfloat16 they are 1 to a hundredth


class StateError(JomaError, ValueError):
    """A saved state that cannot be loaded; the message says why, and the optimizer is as it was."""

    def __init__(self, message: str) -> None:
        """message: a sentence; one that is too long is cut."""
        words = " ".join(message.split())
        super().__init__(words if len(words) <= LONGEST else f"{words[:LONGEST]}...")


class Form(NamedTuple):
    """One entry of a state: its sides in the small copy, and whether it must be there."""

    sides: tuple[int, ...]
    needed: bool = True

    def shape_for(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(shape[SIDES.index(side)] if side in SIDES else side for side in self.sides)


class Forms:
    """What the states of one optimizer look like, by options and kind of parameter.

    - kind: the class of the optimizer; of one that is not known to step alone, nothing is known
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.kind = type(optimizer)
        self.known = is_known(optimizer)
        self.entry_by_entry = is_entry_by_entry(optimizer)

    def of(self, options: Options, like: Tensor, scale: float = 1.0) -> dict[str, Form] | None:
        """The entries of a parameter's state; None if they are not known.

        An error of any kind means that no step can be made with these options.
        """
        if not self.known:
            return None
        small = nn.Parameter(torch.ones(SIDES[: like.ndim], dtype=like.dtype, device=like.device))
        small.grad = torch.ones_like(small)
        copy = self._copy(small, options)
        for _ in range(2):  # what the first step keeps is used in the second
            copy.step()
        if not bool((small.detach() * scale).isfinite().all()):
            raise ValueError("the next step would not be finite")
        kept = copy.state[small].items()
        return {key: Form(tuple(value.shape)) for key, value in kept if isinstance(value, Tensor)}

    def goes_on(self, options: Options, state: State, like: Tensor) -> bool:
        """Whether the next step from a state is finite, tried with a gradient of zeros."""
        if not self.known or (not self.entry_by_entry and any(map(is_sharded, state.values()))):
            return True
        numbers = {
            key: one_number(each).item()
            for key, each in options.items()
            if isinstance(each, Tensor) and each.numel() == 1
        }
        plain = {**options, **numbers, **dict.fromkeys({*_WAYS} & {*options}, False)}
        values = {key: local(value) if isinstance(value, Tensor) else value for key, value in state.items()}
        return all(self._is_finite_after(plain, piece) for piece in self._pieces(values, like))

    def _pieces(self, values: State, like: Tensor) -> list[tuple[Tensor, State]]:
        """Parameters of zeros with their states: parts of flat ones where each entry is updated by itself."""
        precise = torch.promote_types(like.dtype, torch.float32)
        full = {key for key, value in values.items() if isinstance(value, Tensor) and value.ndim == like.ndim > 0}
        rest = {key: value for key, value in values.items() if key not in full}
        cast = {key: values[key].detach().to(like.dtype) for key in full}
        if not self.entry_by_entry or not full:
            device = next((one.device for one in cast.values()), None)
            return [(torch.zeros(like.shape, dtype=precise, device=device), {**rest, **cast})] if values else []
        parts = zip(*(cast[key].flatten().split(CHUNK) for key in full), strict=True)
        return [
            (torch.zeros_like(part[0], dtype=precise), {**rest, **dict(zip(full, part, strict=True))}) for part in parts
        ]

    def _is_finite_after(self, options: Options, piece: tuple[Tensor, State]) -> bool:
        zeros, state = piece
        parameter = nn.Parameter(zeros)
        parameter.grad = torch.zeros_like(zeros)
        copy = self._copy(parameter, options)
        copy.state[parameter] = {key: _own(value, zeros.dtype) for key, value in state.items()}
        copy.step()
        return bool(torch.linalg.vector_norm(parameter.detach()) < torch.inf)

    def _copy(self, parameter: nn.Parameter, options: Options) -> torch.optim.Optimizer:
        known = inspect.signature(self.kind).parameters
        copy = self.kind(
            [parameter], **{key: value for key, value in options.items() if key in known and key != "params"}
        )
        (group,) = copy.param_groups
        group.update({key: value for key, value in options.items() if key in group and key != "params"})
        return copy


def _own(value: Any, dtype: torch.dtype) -> Any:
    """A copy that a step may change; counters stay on the host and as they are."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().to(dtype, copy=True) if value.ndim else value.detach().cpu().clone()


def read_structure(state_dict: Any, sizes: list[int]) -> tuple[list[dict[str, Any]], dict[int, Any]]:
    """Groups of a saved state, and the states of parameters by their places; refused if the parameters are others."""
    if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= set(state_dict):
        given = sorted(map(str, state_dict)) if isinstance(state_dict, Mapping) else type(state_dict).__name__
        raise StateError(f"the state must be a dictionary with 'state' and 'param_groups', got {given}")
    groups, states = state_dict["param_groups"], state_dict["state"]
    for number, group in enumerate(groups):
        if "params" not in group:
            raise StateError(f"group {number} of the state has no entry 'params': the state is not whole")
        for key, value in group.items():
            if isinstance(value, Tensor) and value.numel() != 1 and key != "params":
                raise StateError(f"{key} of group {number} of the state must be one number, got {_brief(value)}")
    listed = [str(each) for group in groups for each in group["params"]]
    places = {each: place for place, each in enumerate(listed)}
    if len(places) < len(listed):
        raise StateError("the state has a parameter twice in its groups")
    if unknown := [each for each in states if str(each) not in places]:
        raise StateError(f"the state has an entry for parameter {unknown[0]!r}, but no group of it has that parameter")
    if (saved := [len(group["params"]) for group in groups]) != sizes:
        raise StateError(f"the state has groups of {saved} parameters, this optimizer has groups of {sizes}")
    found = {places[str(each)]: state for each, state in states.items()}
    if len(found) < len(states):
        raise StateError("the state has two entries for one parameter")
    return list(groups), found


def check_entries(name: str, state: State, forms: Mapping[str, Form] | None, shape: tuple[int, ...]) -> None:
    """Refuse the state of one parameter that is not whole, of other shapes or kinds of numbers, or not finite."""
    if not isinstance(state, Mapping):
        raise StateError(f"the state of {name} must be a dictionary, got {type(state).__name__}")
    if state:
        for key, needed in ((key, form.needed) for key, form in (forms or {}).items()):
            if needed and key not in state:
                raise StateError(f"the saved state of {name} has no {key!r}: the state is not whole")
    for key, value in state.items():
        of = f"the saved {key} of {name}"
        form = None if forms is None else forms.get(key)
        if form is not None and not form.sides:
            _check_number(of, value, counts=key == "step")
        elif form is not None or _is_plain(value):
            _check_tensor(of, value, None if form is None else form.shape_for(shape), shape, known=forms is not None)
        elif not (isinstance(value, Tensor | int | float | None) or (forms is None and _is_sound(value))):
            raise StateError(f"{of} must be a tensor or a number, got {type(value).__name__}")


def check_plain_state(
    optimizer: torch.optim.Optimizer, state_dict: Any, of: Callable[[dict[str, Any]], torch.optim.Optimizer]
) -> None:
    """Refuse a state that an optimizer of ours, which is loaded as torch does it, could not go on from."""
    with _damage_refused(type(optimizer).__name__):
        groups, states = read_structure(state_dict, [len(group["params"]) for group in optimizer.param_groups])
        number = 0
        for place, (ours, theirs) in enumerate(zip(optimizer.param_groups, groups, strict=True)):
            if missing := [key for key in ours if key not in theirs and key != "param_names"]:
                raise StateError(f"group {place} of the state has no entry {missing[0]!r}: the state is not whole")
            forms = Forms(of(ours))
            for each in ours["params"]:
                name, like, state = f"parameter {number}", each.detach(), states.get(number, {})
                check_entries(name, state, forms.of(theirs, like), tuple(like.shape))
                if state and not forms.goes_on(theirs, state, like):
                    raise StateError(f"the saved state of {name} is damaged: the next step would not be finite")
                number += 1


@contextmanager
def _damage_refused(kind: str) -> Iterator[None]:
    """Damage puts anything in the place of anything."""
    try:
        yield
    except StateError:
        raise
    except Exception as error:
        name = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise StateError(f"the state is damaged or not one of {kind} ({name}{' '.join(str(error).split())})") from error


def whole_number(value: Any) -> int | None:
    """A number that counts something, which some tools keep in a tensor; None if it is no such number."""
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value != int(value):
        return None
    return int(value)


def _check_number(of: str, value: Any, *, counts: bool) -> None:
    single = isinstance(value, Tensor) and value.ndim == 0 and not (value.is_complex() or value.dtype == torch.bool)
    number = value.item() if single else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not isfinite(number):
        raise StateError(f"{of} must be a finite number, got {_brief(value)}")
    if counts and not ((whole := whole_number(number)) is not None and 0 <= whole < MOST):
        raise StateError(f"{of} must be a whole number of at least 0, got {number}")


def _check_tensor(
    of: str, value: Any, expected: tuple[int, ...] | None, shape: tuple[int, ...], *, known: bool
) -> None:
    """Of the shape that is expected. Otherwise sides of 1 are factors, and a foreign optimizer may keep vectors."""
    if not (isinstance(value, Tensor) and value.is_floating_point() and value.layout == torch.strided):
        raise StateError(f"{of} must be a tensor of floating-point numbers, got {_brief(value)}")
    given = tuple(value.shape)
    if expected is None and not (value.numel() == 1 or (value.ndim < 2 and not known)):
        fits = len(given) == len(shape) and all(one in (1, side) for one, side in zip(given, shape, strict=True))
        expected = given if fits or (not known and {*given} & {*shape}) else shape  # Shampoo has squares of one side
    if expected is not None and given != expected:
        raise StateError(f"{of} has shape {given}, expected {expected}")
    if not bool(local(value).isfinite().all()):
        raise StateError(f"{of} is not finite")


def _is_sound(value: Any) -> bool:
    """Whether all numbers are finite in what a foreign optimizer keeps: tensors and numbers, or lists of them."""
    if isinstance(value, Mapping):
        return all(_is_sound(one) for one in value.values())
    if isinstance(value, list | tuple | deque):
        return all(_is_sound(one) for one in value)
    if isinstance(value, Tensor):
        return bool(value.isfinite().all()) if _is_plain(value) else True
    return isfinite(value) if isinstance(value, int | float) else isinstance(value, str | None)


def _is_plain(value: Any) -> bool:
    return isinstance(value, Tensor) and (type(value) is Tensor or is_sharded(value)) and value.is_floating_point()


def _brief(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')} with shape {tuple(value.shape)}"
    return f"{value!r}" if isinstance(value, float) else type(value).__name__


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


def _taken_over(group: Mapping[str, Any]) -> dict[str, Any]:
    """Of a saved group: what was chosen anew when this optimizer was made is left out."""
    left_out = ("params", "rank", "galore_version", "galore_inner", "param_names", _RANKS)
    return {key: value for key, value in group.items() if key not in left_out}


def _sign(value: Any) -> object:
    """What must be the same for two states to be one tensor: shapes of tensors, step counts, anything else."""
    if isinstance(value, Tensor):
        return (tuple(value.shape), value.dtype) if value.ndim else value.item()
    return repr(value)


class States:
    """The states of all parameters, saved from and loaded into the parts of a GaLore."""

    def __init__(
        self,
        groups: list[dict[str, Any]],
        matrices: list[Matrix],
        passing: list[Passing],
        following: Following,
        extra: dict[str, Form],
    ) -> None:
        self._groups, self._matrices, self._passing, self._following = groups, matrices, passing, following
        self._extra, self.inner = extra, following.inner
        compact = {id(matrix.pack.compact) for matrix in matrices}
        self._parameters = [each for group in groups for each in group["params"] if id(each) not in compact]
        self._numbers = {id(each): number for number, each in enumerate(self._parameters)}
        self._known: dict[object, dict[str, Form] | None] = {}
        self._stepped: set[Place] = set()  # of the inner groups in a state that is read

    def pack(self) -> dict[str, Any]:
        """The state of all parameters; tensors are those of the optimizer, not copies, as torch does it."""
        matrices, states = {id(matrix.owner): matrix for matrix in self._matrices}, {}
        begun = any(matrix.found for matrix in self._matrices)
        for number, each in enumerate(self._parameters):
            matrix = matrices.get(id(each))
            if matrix is None:
                state = dict(self.inner.state.get(each, {}))
            elif matrix.expert is None:
                state = state_of_matrix(self.inner, matrix)
            else:
                state = state_of_experts(self.inner, matrix.pack)
            if state or begun:  # torch's checkpoints miss a parameter without an entry where others have one
                states[number] = state
        packed = []
        for group in self._groups:
            options = {key: value for key, value in group.items() if key != "params"}
            listed = [self._numbers[id(each)] for each in group["params"] if id(each) in self._numbers]
            ranks = {one.rank for one in self._matrices if self._groups[one.group] is group and one.found}
            if ranks - {group["rank"]}:  # some wait for a refresh to have the rank of the group
                options[_RANKS] = sorted(ranks)
            packed.append({**options, "params": listed})
        return {"state": states, "param_groups": packed}

    def restore_options(self, state_dict: dict[str, Any]) -> None:
        for ours, theirs in zip(self._groups, state_dict["param_groups"], strict=True):
            for key in [key for key in ours if key.startswith(OWN)]:
                del ours[key]
            ours.update(_taken_over(theirs))

    def restore_counts(self, state_dict: dict[str, Any]) -> dict[int, object]:
        """Ranks and counts of the matrices; for each what others must share to be in one pack with it."""
        signatures: dict[int, object] = {}
        for matrix in self._matrices:
            state = self._saved_of(matrix, state_dict)
            basis = state.get("basis")
            matrix.count, matrix.refreshed = int(state.get("count", 0)), int(state.get("refreshed", -1))
            matrix.found = False  # until it has its own
            whole = min(int(self._groups[matrix.group]["rank"]), matrix.shorter)
            matrix.rank = whole if basis is None else int(basis.shape[1])
            inner = sorted((key, value) for key, value in state.items() if key not in OF_MATRIX)
            signatures[id(matrix)] = (basis is not None, *((key, _sign(value)) for key, value in inner))
        return signatures

    def restore_tensors(self, packs: list[Pack], state_dict: dict[str, Any]) -> None:
        """Bases and their energies; the rest by the inner optimizer's own loading, which knows what its state needs."""
        for matrix in self._matrices:
            state = self._saved_of(matrix, state_dict)
            if "basis" in state:
                matrix.take_subspace(state["basis"], state["energies"])

        def of_inner_in(state: Mapping[str, Any]) -> dict[str, Any]:
            # Matrices that were in one pack share its count of steps: two packs would each add to it.
            single = {key: one.clone() for key, one in state.items() if isinstance(one, Tensor) and not one.ndim}
            return {key: value for key, value in {**state, **single}.items() if key not in OF_MATRIX}

        of_packs = {id(pack.compact): pack for pack in packs}
        packed = self.inner.state_dict()
        packed["state"] = {}
        for place, each in enumerate(each for group in self.inner.param_groups for each in group["params"]):
            if (pack := of_packs.get(id(each))) is None:
                of_inner = of_inner_in(state_dict["state"].get(self._numbers[id(each)], {}))
            else:
                of_inner = join_states([of_inner_in(self._saved_of(one, state_dict)) for one in pack.matrices])
            if of_inner:
                packed["state"][place] = of_inner
        self.inner.load_state_dict(packed)

    def _saved_of(self, matrix: Matrix, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        """What is saved of one matrix: its weight's state, or one expert's part of that."""
        state = state_dict["state"].get(self._numbers[id(matrix.owner)], {})
        return state if matrix.expert is None else part_of(state, matrix.expert)

    def read(self, state_dict: Any) -> dict[str, Any]:
        """A saved state, by the number of each parameter; a StateError if it is not for this optimizer, or damaged."""
        with _damage_refused("GaLore"):
            sizes = [sum(id(each) in self._numbers for each in group["params"]) for group in self._groups]
            groups, states = read_structure(state_dict, sizes)
            self._check_groups(groups)
            both = [*zip(self._groups, groups, strict=True)]
            self._options = [{**ours, **_taken_over(theirs)} for ours, theirs in both]
            self._forms = Forms(self.inner)
            self._ranks = [[ours["rank"], *theirs.get(_RANKS, ())] for ours, theirs in both]
            found = self._read_all(states)
            self._check_own(groups)
            return {**state_dict, "state": found}

    def _check_groups(self, groups: list[dict[str, Any]]) -> None:
        kind = type(self.inner).__name__
        for number, (ours, theirs) in enumerate(zip(self._groups, groups, strict=True)):
            if "galore_inner" not in theirs:
                raise StateError("the state is not one of GaLore: its groups have no entry 'galore_inner'")
            if missing := [key for key in OF_GROUP if key not in theirs]:
                raise StateError(f"group {number} of the state has no entry {missing[0]!r}: the state is not whole")
            if theirs["galore_version"] != VERSION:
                raise StateError(f"the state has version {theirs['galore_version']}, this GaLore reads {VERSION}")
            saved_by, here = (one.get(_MEMBER, _FIRST) for one in (theirs, ours))
            if saved_by != here:
                raise StateError(f"the state was saved by {saved_by}, this optimizer is {here}")
            if (inner := theirs["galore_inner"]) != kind:
                raise StateError(f"the state was saved with inner {inner}, this optimizer has inner {kind}")
            if theirs["rank"] != ours["rank"]:
                raise StateError(
                    f"the state was saved with rank {theirs['rank']}, this optimizer has rank {ours['rank']}"
                )
            if (whole_number(theirs["galore_skipped"]) or -1) < 0 and theirs["galore_skipped"] != 0:
                raise StateError(
                    f"galore_skipped of the state must be a whole number, got {theirs['galore_skipped']!r}"
                )
            check_group({**ours, **theirs, "rank": ours["rank"]})
        names, saved = (
            [one for group in each for one in group.get("param_names", ())] for each in (self._groups, groups)
        )
        # Other names may be those of the same model inside a wrapper.
        if sorted(saved) == sorted(names) and saved != names:
            place = next(place for place, name in enumerate(saved) if name != names[place])
            raise StateError(
                f"the state has its parameters in another order: parameter {place} is {saved[place]} there and "
                f"{names[place]} here"
            )

    def _check_own(self, groups: list[dict[str, Any]]) -> None:
        """What the inner optimizer keeps in its groups: whole where it has stepped, and finite."""
        for place in self._stepped:
            if missing := self._following.missing_own(place, groups[place[0]]):
                raise StateError(f"group {place[0]} of the state has no entry {missing[0]!r}: the state is not whole")
        for number, group in enumerate(groups):
            for key, value in group.items():
                if key.startswith(OWN) and not _is_sound(value):
                    raise StateError(f"{key} of group {number} of the state must be finite, got {_brief(value)}")

    def _read_all(self, states: Mapping[int, Any]) -> dict[int, dict[str, Any]]:
        found = {}
        matrices: dict[int, list[Matrix]] = {}
        for matrix in self._matrices:
            matrices.setdefault(id(matrix.owner), []).append(matrix)
        passing = {id(each.parameter): each for each in self._passing}
        names = [name for group in self._groups for name in group["param_names"]]
        begun = any(isinstance(state, Mapping) and "basis" in state for state in states.values())
        for number, parameter in enumerate(self._parameters):
            if number not in states:
                if begun:
                    raise StateError(f"the state has no entry for {names[number]}: the state is not whole")
                continue
            state = states[number]
            if not isinstance(state, Mapping):
                raise StateError(f"the state of {names[number]} must be a dictionary, got {type(state).__name__}")
            if (of_weight := matrices.get(id(parameter))) is not None:
                found[number] = self._read_weight(of_weight, state)
            else:
                found[number] = self._read_passing(passing[id(parameter)], state)
        return found

    def _read_weight(self, matrices: list[Matrix], state: Mapping[str, Any]) -> dict[str, Any]:
        first = matrices[0]
        if first.expert is None:
            self._check_matrix(first, state)
        else:
            for key, value in state.items():
                if isinstance(value, Tensor) and value.ndim and len(value) != len(matrices):
                    name = first.name.rpartition("[")[0]
                    raise StateError(
                        f"the saved {key} of {name} has {len(value)} experts, this optimizer has {len(matrices)}"
                    )
            for place, matrix in enumerate(matrices):
                self._check_matrix(matrix, part_of(state, place))
        return self._counted(state, self._forms_for(first.group, "compact", first.pack.zero, 2))

    def _read_passing(self, one: Passing, state: Mapping[str, Any]) -> dict[str, Any]:
        if any(key in state for key in OF_MATRIX):
            raise StateError(
                f"the state of {one.name} is that of a projected matrix, here the parameter is not projected"
            )
        parameter = one.parameter.detach()
        forms = self._check_inner(one.name, state, one.group, one.role, parameter, tuple(parameter.shape))
        return self._counted(state, forms)

    @staticmethod
    def _counted(state: Mapping[str, Any], forms: dict[str, Form] | None) -> dict[str, Any]:
        counters = [key for key, form in (forms or {}).items() if not form.sides and key in state]
        return {**state, **{key: torch.as_tensor(state[key], dtype=torch.float32) for key in counters}}

    def _forms_for(self, group: int, role: Role, like: Tensor, axes: int) -> dict[str, Form] | None:
        key = (group, role, like.dtype, like.device, axes)
        if key not in self._known:
            self._known[key] = self._derive(group, role, like.new_empty((1,) * axes))
        return self._known[key]

    def _derive(self, group: int, role: Role, like: Tensor) -> dict[str, Form] | None:
        following = self._following
        here, saved = self._groups[group], self._options[group]
        scale = saved["scale"] if role == "compact" else 1.0
        try:
            self._forms.of(following.options_of(group, role, here), like)
        except Exception:  # cannot be made to step alone: nothing is known, and nothing is the fault of the state
            self._forms.known = False
            return None
        try:
            found = self._forms.of(following.options_of(group, role, saved), like, scale)
        except Exception as error:
            what = " ".join(f"{type(error).__name__}: {error}".split())
            kind = type(self.inner).__name__
            raise StateError(f"the options of group {group} of the state do not work with {kind} ({what})") from error
        return found if found is None or role != "compact" else {**found, **self._extra}

    def _check_inner(
        self, name: str, state: Mapping[str, Any], group: int, role: Role, like: Tensor, shape: tuple[int, ...]
    ) -> dict[str, Form] | None:
        """What the inner optimizer keeps: whole, of the right shapes, finite, and good for a next step."""
        forms = self._forms_for(group, role, like, len(shape))
        check_entries(name, state, forms, shape)
        if state:
            self._stepped.add((group, role))
        options = self._following.options_of(group, role, self._options[group])
        try:
            goes_on = not state or self._forms.goes_on(
                options, self._counted(state, forms), like.new_empty(()).expand(shape)
            )
        except (ArithmeticError, ValueError, RuntimeError):
            goes_on = False
        if not goes_on:
            raise StateError(f"the saved state of {name} is damaged: the next step from it would not be finite")
        return forms

    def _check_matrix(self, matrix: Matrix, state: Mapping[str, Any]) -> None:
        missing = [key for key in OF_MATRIX if key not in state]
        if missing and len(missing) < len(OF_MATRIX):
            raise StateError(f"the saved state of {matrix.name} has no {missing[0]!r}: the state is not whole")
        whole = tuple(matrix.parameter.shape)
        if missing and any(isinstance(one, Tensor) and tuple(one.shape) == whole for one in state.values()):
            raise StateError(f"the state of {matrix.name} is not that of a projected matrix, here the parameter is one")
        rank = matrix.rank
        if not missing:
            rank = _check_subspace(matrix, state, self._ranks[matrix.group])
        of_inner = {key: value for key, value in state.items() if key not in OF_MATRIX}
        self._check_inner(
            matrix.name, of_inner, matrix.group, "compact", matrix.pack.zero, matrix.compact_shape_of(rank)
        )


def _check_subspace(matrix: Matrix, state: Mapping[str, Any], ranks: Iterable[int]) -> int:
    """Columns of a basis have length 1, energies are shares, and counts fit each other.

    One bit in an exponent changes a length, and every step from then on would be scaled by it without a word.
    """
    for key in ("basis", "energies"):
        if not (isinstance(state[key], Tensor) and state[key].layout == torch.strided):
            raise StateError(f"the saved {key} of {matrix.name} must be a tensor, got {type(state[key]).__name__}")
    basis, energies = state["basis"], state["energies"]
    if not energies.is_floating_point() or not (basis.is_floating_point() or basis.dtype == torch.int8):
        raise StateError(f"the saved subspace of {matrix.name} has numbers of {basis.dtype} and {energies.dtype}")
    of = f"the saved subspace of {matrix.name} has"
    if basis.ndim != 2 or len(basis) != matrix.shorter:
        raise StateError(f"{of} shape {tuple(basis.shape)}, its shorter side is {matrix.shorter}")
    rank = int(basis.shape[1])
    if rank not in {min(one, matrix.shorter) for one in ranks}:
        raise StateError(f"{of} rank {rank}, this optimizer has rank {matrix.rank}")
    if tuple(energies.shape) != (rank,):
        raise StateError(
            f"the saved energies of {matrix.name} have shape {tuple(energies.shape)}, its subspace has "
            f"{counted(rank, 'direction')}"
        )
    directions = to_directions(basis.detach(), torch.float64)
    lengths = torch.linalg.vector_norm(directions, dim=0)
    if not bool(((lengths - 1).abs() < _ROUNDING).all()):  # NaN is not near 1 either
        raise StateError(
            f"the saved subspace of {matrix.name} is damaged, or was copied into another basis_dtype: its directions "
            "do not have length 1"
        )
    if not bool(((energies >= 0) & (energies <= 1 + _ROUNDING)).all()):
        raise StateError(f"the saved energies of {matrix.name} are damaged: they are no shares between 0 and 1")
    count, refreshed = (_check_count(matrix, key, state[key]) for key in ("count", "refreshed"))
    if not (0 <= count < MOST and EARLIEST <= refreshed <= count):
        raise StateError(f"the saved counts of {matrix.name} are damaged: count {count}, refreshed {refreshed}")
    return rank


def _check_count(matrix: Matrix, key: str, value: Any) -> int:
    if (found := whole_number(value)) is None:
        raise StateError(f"the saved {key} of {matrix.name} must be a whole number, got {value!r}")
    return found
