# Copied from joma, src/joma/host/kernels.py (Apache-2.0). Change it there.
"""Kernels of triton, started again with few steps on the host.

Before each start triton looks at every argument, to find what it has compiled for such arguments. With the fifty of a
kernel here that takes the host several times as long as the start itself. So what was found is kept, by all that it
depends on: kinds of numbers, whether addresses are multiples of 16, whole numbers and constants.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
from torch import Tensor

MOST = 1024
"""Kernels that are kept: texts of very many lengths would fill the memory."""
ALIGNED = 16
"""Bytes: what triton wants to know of an address is whether it is a multiple of this."""
_SINCE = (3, 6)  # versions of triton whose compiled kernels take all arguments, constants too, in their order
_FOUND: dict[tuple[Any, ...], Any] = {}


def start(
    kernel: Any,
    grid: tuple[int, int],
    tensors: Sequence[Tensor],
    numbers: Sequence[int | float],
    constants: dict[str, Any],
    options: dict[str, int],
) -> Any:
    """Start a kernel whose arguments are tensors, numbers and constants, in this order; gives what was compiled for it.

    - tensors: on one device, which need not be the current one
    - numbers: those that are not whole may change from start to start
    - options: of the compiler

    None where triton compiles by itself.
    """
    if torch.compiler.is_compiling():  # torch knows triton's way, and asks tensors that have no address
        kernel[grid](*tensors, *numbers, **constants, **options)
        return None
    key = (
        kernel,
        tensors[0].device.index,
        *((each.dtype, each.data_ptr() % ALIGNED == 0) for each in tensors),
        *(each if isinstance(each, int) else float for each in numbers),
        *constants.values(),
        *options.items(),
    )
    with _current(tensors[0].device):
        if (found := _FOUND.get(key)) is not None:
            found[*grid, 1](*tensors, *numbers, *constants.values())
            return found
        found = kernel[grid](*tensors, *numbers, **constants, **options)
    if found is None or _version() < _SINCE:  # triton's interpreter compiles nothing
        return None
    if len(_FOUND) >= MOST:
        _FOUND.clear()
    _FOUND[key] = found
    return found


def repeated(
    kernel: Any, grid: tuple[int, int], numbers: Sequence[int | float], constants: dict[str, Any],
    options: dict[str, int],
) -> Callable[..., None]:  # fmt: skip
    """The same start again and again, with other tensors of the same kinds on the same device: only those are given."""
    rest = (*numbers, *constants.values())
    runs: dict[tuple[bool, ...], Any] = {}

    def again(*tensors: Tensor) -> None:
        aligned = tuple([each.data_ptr() % ALIGNED == 0 for each in tensors])
        if (run := runs.get(aligned)) is not None:
            with _current(tensors[0].device):
                run(*tensors, *rest)
        elif (found := start(kernel, grid, tensors, numbers, constants, options)) is not None:
            runs[aligned] = found[*grid, 1]

    return again


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Where triton starts kernels. It is mostly the right one, and to enter a device takes longer than to ask."""
    elsewhere = device.type == "cuda" and device.index != torch.cuda.current_device()
    return torch.cuda.device(device) if elsewhere else nullcontext()


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in triton.__version__.split(".")[:2])
