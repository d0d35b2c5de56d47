"""What every public function of the room does to its answer: half precision is widened, NaN is never silent."""

from collections.abc import Callable
from functools import reduce, wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from joma.host.arguments import as_tensor

HALF = (torch.float16, torch.bfloat16)

P = ParamSpec("P")
R = TypeVar("R")


def half_in_single(call: Callable[P, R], *, keep: str = "") -> Callable[P, R]:
    """Half precision is computed in float32, rounded once, and returned in its own type.

    Decorates functions that return a tensor or a named tuple of tensors. Which type comes back is decided, as in
    `together`, by the arguments that have dimensions; times, `t`, do not count. The argument called `keep` is handed
    on as it is, for a function that wants to know how it was rounded.
    """
    names = tuple(signature(call).parameters)

    @wraps(call)
    def widened(*args: P.args, **options: P.kwargs) -> R:
        if len(args) > len(names) or not any(map(_is_half, (*args, *options.values()))):
            return call(*args, **options)
        given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **options}
        halves = [name for name, value in given.items() if name != keep and _is_half(value)]
        wide: Any = {**given, **{name: as_tensor(given[name], "").float() for name in halves}}
        positional = [wide.pop(name) for name in names[: len(args)]]
        answer: Any = call(*positional, **wide)
        arrays = [as_tensor(x, "") for n, x in given.items() if n != "t" and isinstance(x, Tensor | np.ndarray)]
        tensors = [x for x in arrays if x.is_floating_point()]
        leading = [x.dtype for x in tensors if x.ndim] or [x.dtype for x in tensors]
        own = reduce(torch.promote_types, leading) if leading else torch.float64
        if own in HALF:
            answer = _each(answer, lambda part: part.to(own) if part.dtype == torch.float32 else part)
        return answer  # type: ignore[no-any-return]

    return widened


def guarded(call: Callable[P, R], *, keep: str = "") -> Callable[P, R]:
    """`half_in_single`, and no NaN is returned without a word."""
    # Finite arguments give NaN only where a number on the way leaves the range of its type, as infinity minus infinity.
    names = tuple(signature(call).parameters)

    @wraps(call)
    def checked(*args: P.args, **options: P.kwargs) -> R:
        answer: Any = call(*args, **options)
        _each(answer, lambda part: _no_nan(part, {**dict(zip(names, args, strict=False)), **options}))
        return answer  # type: ignore[no-any-return]

    return half_in_single(checked, keep=keep)


def _is_half(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.dtype in HALF
    return isinstance(value, np.ndarray | np.float16) and value.dtype == np.float16


def _each(answer: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The answer, a tensor or a named tuple of them, with every part changed."""
    return change(answer) if isinstance(answer, Tensor) else type(answer)(*map(change, answer))


def _no_nan(part: Tensor, given: dict[str, Any]) -> Tensor:
    if part.is_floating_point() and bool(part.isnan().any()):
        numbers = {n: x for n, x in given.items() if isinstance(x, Tensor | np.ndarray | float | int | list | tuple)}
        arrays = {name: as_tensor(value, name).detach().double() for name, value in numbers.items()}
        sizes = [f"{name} up to {x.abs().max().item():g}" for name, x in arrays.items() if x.numel()]
        raise ValueError(f"numbers on the way leave the range of {part.dtype}, take smaller ones: {', '.join(sizes)}")
    return part
