"""What can be done to a good argument, and how to tell a sentence of ours from an error of somebody else."""

import linecache
import re
from pathlib import Path

import numpy as np
import torch

import joma

HOUSE = str(Path(joma.__file__).parent)


def complaint(error, name):
    """Why this error is not a sentence of ours about `name`, or None.

    Ours is what a `raise` inside joma made, a ValueError, in one line.
    """
    last = error.__traceback__
    while last.tb_next is not None:  # traceback.extract_tb would look on the disk whether any of the files has changed
        last = last.tb_next
    file = last.tb_frame.f_code.co_filename
    ours = file.startswith(HOUSE) and linecache.getline(file, last.tb_lineno).strip().startswith("raise")
    if not ours or not isinstance(error, ValueError) or "\n" in str(error):
        return f"{type(error).__name__} that is no sentence of ours: {error}"
    return None if re.search(rf"\b{name}\b", str(error)) else f"does not name {name}: {error}"


def refusal(call, name):
    """What is wrong with how this call is refused, or None."""
    try:
        call()
    except Exception as error:
        return complaint(error, name)
    return "accepted"


def as_tensor(value):
    """An argument of a good call as a tensor: whole numbers stay whole."""
    return torch.tensor(value, dtype=torch.float64) if isinstance(value, float) else torch.as_tensor(value)


def with_last(x, value):
    y = x.double().flatten().clone()
    y[-1] = value
    return y.reshape(x.shape)


def not_numbers(value):
    x = as_tensor(value)
    yield from (("string", "many"), ("strings", ["many"]), ("object", object()), ("dict", {"a": 1}))
    yield from (("complex number", 1j), ("complex list", [1j]), ("ragged", [[1.0], [1.0, 2.0]]))
    yield from (("numpy strings", np.array(["many"])), ("numpy complex", np.array([1j])))
    yield from (("complex", x.to(torch.complex128)), ("sparse", x.to_sparse()))
    yield from (("8 bits", x.to(torch.float8_e4m3fn)), ("huge whole number", 10**400))


def not_finite(value):
    x = as_tensor(value)
    return [(str(number), with_last(x, number)) for number in (torch.inf, -torch.inf)]


def other_shapes(value):
    x = as_tensor(value)
    for n in range(x.ndim):
        yield f"empty in {n}", x.narrow(n, 0, 0)
        yield f"cut to one in {n}", x.narrow(n, 0, 1)
        yield f"without {n}", x.select(n, 0)
        yield f"longer in {n}", torch.cat([x, x], n)
    yield from (("seven ahead", x.expand(7, *x.shape)), ("one ahead", x[None]), ("one behind", x[..., None]))
    yield from (("a number", x.flatten()[0]), ("nothing", x.new_empty(0)), ("nothing of two", x.new_empty(0, 0)))


def extremes(value):
    x = as_tensor(value)
    for number in (1e300, -1e300, 1e-300, -1e-300, 1e5, 0.0, -1.0):
        if x.is_floating_point():
            yield f"one of {number}", with_last(x, number)
            yield f"all {number}", torch.full_like(x, number)
        elif abs(number) < 1e9:
            yield f"all {number}", torch.full_like(x, int(number))


def other_layouts(value):
    x = as_tensor(value)
    backwards = tuple(reversed(range(x.ndim)))
    yield "from Fortran", x.permute(backwards).contiguous().permute(backwards)
    yield "every second", torch.stack([x, x], -1).flatten(-2)[..., ::2] if x.ndim else torch.stack([x, x])[1]
    yield "expanded", x.expand(1, *x.shape)[0]
    yield "read-only numpy", np.broadcast_to(x.numpy(), x.shape)
    yield "reversed numpy", x.numpy()[..., ::-1].copy()[..., ::-1] if x.ndim else x.numpy()
    yield "list", x.tolist()


NO_CHOICES = ("string", None, 1.5, float("nan"), -3, object(), [1.0], torch.ones(2, 2), torch.ones(2, 2).to("meta"))
"""What no law, no function and no name of a method is."""


def no_choices(*, but_numbers=False):
    """NO_CHOICES without the one good number among them."""
    return [value for value in NO_CHOICES if not (but_numbers and isinstance(value, float) and value == 1.5)]
