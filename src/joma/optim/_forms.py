"""What the state of an optimizer must look like, found by letting a small copy of that optimizer step.

A copy with the same options steps a parameter whose sides are 2, 3, 5, ... What it keeps then says which entries a
state has and what shape each has: a side of 2 stands for the first side of the parameter. So nothing here lists what
the optimizers of torch keep, and an option that makes a step impossible is seen too.

From a saved state the copy makes a step whose gradient is zero. Numbers that are finite by themselves need not give a
finite step: a second moment below zero, a step count of -1, a moment with one bit of its exponent turned.
"""

import inspect
from collections.abc import Mapping
from math import isfinite
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from joma.host.errors import JomaError
from joma.optim._inner import is_entry_by_entry
from joma.optim._matrix import is_sharded, local, one_number

Options = Mapping[str, Any]
State = Mapping[str, Any]
SIDES = (2, 3, 5, 7, 11, 13)  # of the parameter of a small copy: each is known again where a state has it
CHUNK = 1 << 20  # entries of a state that are tried together, so that trying takes little memory
MOST = 2**53  # of a counter
LONGEST = 400  # characters of a message
_WAYS = ("foreach", "fused", "capturable", "differentiable")  # options of how a step is computed, not of what


class StateError(JomaError, ValueError):
    """A saved state that cannot be loaded; the message says why, and the optimizer is as it was."""

    def __init__(self, message: str) -> None:
        """In one line, whatever stands in the state that the message quotes."""
        words = " ".join(message.split())
        super().__init__(words if len(words) <= LONGEST else f"{words[:LONGEST]}...")


class Form(NamedTuple):
    """One entry of a state: its sides in the small copy, and whether it must be there."""

    sides: tuple[int, ...]
    needed: bool = True

    def shape_for(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of that entry for a parameter of a shape."""
        return tuple(shape[SIDES.index(side)] if side in SIDES else side for side in self.sides)


class Forms:
    """What the states of one optimizer look like, by options and kind of parameter.

    - kind: the class of the optimizer; of one that is not known to step alone, nothing is known
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.kind = type(optimizer)
        self.known = self.kind.__module__.startswith(("torch.optim", "joma.optim"))
        self.entry_by_entry = is_entry_by_entry(optimizer)

    def of(self, options: Options, like: Tensor, scale: float = 1.0) -> dict[str, Form] | None:
        """The entries of a parameter's state; None if they are not known.

        An error of any kind means that no step can be made with these options.

        - options: of the group of the parameter
        - like: a tensor with its axes, precision and device
        - scale: what the step is multiplied with
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
        """Whether the next step from a state is finite, tried with a gradient of zeros.

        - options, state: of the parameter
        - like: a tensor with its shape and precision
        """
        if not self.known or (not self.entry_by_entry and any(map(is_sharded, state.values()))):
            return True
        plain = {key: _plain(value) for key, value in options.items()} | dict.fromkeys({*_WAYS} & {*options}, False)
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


def _plain(value: Any) -> Any:
    return one_number(value).item() if isinstance(value, Tensor) and value.numel() == 1 else value


def _own(value: Any, dtype: torch.dtype) -> Any:
    """A copy that a step may change; counters stay on the host and as they are."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().to(dtype, copy=True) if value.ndim else value.detach().cpu().clone()


def read_structure(state_dict: Any, sizes: list[int]) -> tuple[list[dict[str, Any]], dict[int, Any]]:
    """Groups of a saved state, and the states of parameters by their places; refused if the parameters are others.

    - state_dict: what was saved; a parameter may stand in it by its number, by that as text, or by its name
    - sizes: how many parameters each group of the optimizer has
    """
    if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= set(state_dict):
        given = sorted(map(str, state_dict)) if isinstance(state_dict, Mapping) else type(state_dict).__name__
        raise StateError(f"the state must be a dictionary with 'state' and 'param_groups', got {given}")
    groups, states = state_dict["param_groups"], state_dict["state"]
    for number, group in enumerate(groups):
        if "params" not in group:
            raise StateError(f"group {number} of the state has no entry 'params': the state is not whole")
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
    """Refuse the state of one parameter that is not whole, of other shapes or kinds of numbers, or not finite.

    - name, shape: of the parameter
    - forms: what its state has, if that is known
    """
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
        elif not isinstance(value, Tensor | int | float | None):
            raise StateError(f"{of} must be a tensor or a number, got {type(value).__name__}")


def check_plain_state(optimizer: torch.optim.Optimizer, state_dict: Any) -> None:
    """Refuse a state that an optimizer of ours, which is loaded as torch does it, could not go on from."""
    try:
        groups, states = read_structure(state_dict, [len(group["params"]) for group in optimizer.param_groups])
        forms, number = Forms(optimizer), 0
        for place, (ours, theirs) in enumerate(zip(optimizer.param_groups, groups, strict=True)):
            if missing := [key for key in ours if key not in theirs and key != "param_names"]:
                raise StateError(f"group {place} of the state has no entry {missing[0]!r}: the state is not whole")
            for each in ours["params"]:
                name, like, state = f"parameter {number}", each.detach(), states.get(number, {})
                check_entries(name, state, forms.of(theirs, like), tuple(like.shape))
                if state and not forms.goes_on(theirs, state, like):
                    raise StateError(f"the saved state of {name} is damaged: the next step would not be finite")
                number += 1
    except StateError:
        raise
    except Exception as error:  # damage puts anything in the place of anything
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise StateError(f"the state is damaged or not one of {type(optimizer).__name__} ({why})") from error


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
        expected = given if fits else shape
    if expected is not None and given != expected:
        raise StateError(f"{of} has shape {given}, expected {expected}")
    if not bool(local(value).isfinite().all()):
        raise StateError(f"{of} is not finite")


def _is_plain(value: Any) -> bool:
    return isinstance(value, Tensor) and (type(value) is Tensor or is_sharded(value)) and value.is_floating_point()


def _brief(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')} with shape {tuple(value.shape)}"
    return f"{value!r}" if isinstance(value, float) else type(value).__name__
