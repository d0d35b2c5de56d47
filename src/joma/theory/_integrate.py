"""A solver tight enough to judge closed forms by. `joma.theory.flow` is the public face."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from joma.host.arguments import Number, described, integer, must_be_callable, number, real, shown, times
from joma.theory._dormand_prince import Field, Tolerance, TooStiff, solve

Method = Literal["DOP853", "Radau", "LSODA"]
"""DOP853 is built in, the others are scipy's."""
FINEST = 1e-14
"""The least rtol: float64 cannot tell smaller errors from its own rounding."""


def integrate(
    field: Callable[[float, Tensor], Tensor],
    y0: Number,
    t: Number,
    *,
    rtol: float = 1e-12,
    atol: float = 1e-13,
    method: Method = "DOP853",
    max_evaluations: int = 200_000,
) -> Tensor:
    """y(t) of y' = field(time, y), y(0) = y0, in float64 by an adaptive solver: the reference that closed forms meet.

    y0: any shape; t: (steps,), increasing. Returns (steps, *y0.shape) on y0's device. "DOP853" needs nothing but numpy.
    Use "Radau" where the flow is stiff; it and "LSODA" are scipy's. A flow that blows up before the last time, or that
    needs more than `max_evaluations` of the field, raises ValueError: the usual causes of the latter are a field that
    jumps, and one that is computed in float32.

    >>> integrate(lambda time, y: -y, torch.tensor([1.0]), [0.0, 1.0])
    tensor([[1.0000],
            [0.3679]], dtype=torch.float64)
    """
    must_be_callable(field, "field")
    at = times(t).double()
    if at.numel() == 0 or (at.diff() <= 0).any():
        raise ValueError("t must hold at least one time, in increasing order")
    start = real(y0, "y0").double().detach()
    tolerance = Tolerance(number(rtol, "rtol", least=FINEST), number(atol, "atol", least=0))
    if method not in ("DOP853", "Radau", "LSODA"):
        raise ValueError(f"method must be 'DOP853', 'Radau' or 'LSODA', got {shown(method)}")
    slope = _counted(field, start, integer(max_evaluations, "max_evaluations", 1), end=float(at[-1]))
    solver = solve if method == "DOP853" else partial(_solve_by_scipy, method)
    with _few_threads(start.numel()):
        try:
            path = solver(slope, start.reshape(-1).cpu().numpy().copy(), at.cpu().numpy(), tolerance)
        except TooStiff as reason:
            raise ValueError(f"the flow could not be followed to t = {float(at[-1]):g}: {reason}") from None
    return torch.from_numpy(path).to(start.device).view(len(at), *start.shape)


def _counted(field: Callable[[float, Tensor], Tensor], start: Tensor, most: int, *, end: float) -> Field:
    """The field as a solver wants it, on flat arrays; what it returns is checked, and how often it is asked."""
    calls = 0

    def slope(time: float, y: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        if calls > most:
            raise ValueError(
                f"the flow took {most} evaluations (max_evaluations) to get to t = {time:g} of {end:g}: "
                "the field is not smooth enough"
            )
        moving = field(time, torch.from_numpy(y).to(start.device).view(start.shape))
        if not isinstance(moving, Tensor) or moving.shape != start.shape:
            raise ValueError(f"field must return the shape {tuple(start.shape)} of y0, got {described(moving)}")
        found: np.ndarray = moving.detach().double().reshape(-1).cpu().numpy()
        if calls == 1 and not np.isfinite(found).all():
            raise ValueError(f"field must be finite at y0, got {found[~np.isfinite(found)][0]}")
        return found

    return slope


def _solve_by_scipy(method: str, field: Field, start: np.ndarray, at: np.ndarray, tolerance: Tolerance) -> np.ndarray:
    try:
        from scipy.integrate import solve_ivp
    except ImportError:
        raise ValueError(f"method {method!r} needs scipy, which is not installed; 'DOP853' does not") from None
    span = (0.0, max(float(at[-1]), 1e-300))
    options = {"rtol": tolerance.rtol, "atol": tolerance.atol, "t_eval": at}
    solution = solve_ivp(field, span, start, method=method, **options)  # type: ignore[call-overload]
    if not solution.success:
        raise TooStiff(solution.message)
    path: np.ndarray = solution.y.T.copy()
    return path


def integrate_together(
    field: Callable[..., Sequence[Tensor]],
    start: Sequence[Number],
    t: Number,
    *,
    rtol: float = 1e-12,
    atol: float = 1e-13,
) -> tuple[Tensor, ...]:
    """Several tensors of different shapes that flow as one: field(time, *parts) returns the velocity of each part.

    Returns the paths of the parts, each (steps, *its own shape); see `integrate`.

    >>> east, north = integrate_together(lambda time, x, y: (-y, x), (torch.ones(1), torch.zeros(1)), [torch.pi / 2])
    >>> north
    tensor([[1.0000]], dtype=torch.float64)
    """
    must_be_callable(field, "field")
    begin = [real(part, "start") for part in start]
    if not begin:
        raise ValueError("start must hold at least one part, got none")
    sizes, shapes = [part.numel() for part in begin], [part.shape for part in begin]

    def parts(y: Tensor) -> tuple[Tensor, ...]:
        pieces = torch.split_with_sizes(y, sizes, -1)
        return tuple(piece.view(*y.shape[:-1], *shape) for piece, shape in zip(pieces, shapes, strict=True))

    def flat(time: float, y: Tensor) -> Tensor:
        moving = field(time, *parts(y))
        if [one.shape for one in moving] != shapes:
            wanted, got = ([tuple(one.shape) for one in each] for each in (begin, moving))
            raise ValueError(f"field must return the velocity of each part, of shapes {wanted}, got {got}")
        return torch.cat([velocity.reshape(-1) for velocity in moving])

    return parts(integrate(flat, torch.cat([part.reshape(-1).double() for part in begin]), t, rtol=rtol, atol=atol))


@contextmanager
def _few_threads(size: int) -> Iterator[None]:
    """One thread while a small field is evaluated thousands of times: waking others costs more than they do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if size < 10_000 else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
