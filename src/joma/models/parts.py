"""The parts of a training step that are compiled, each on its own: all blocks of a network are alike, so one is enough.

A step compiled whole would take its compiler through every block: ten layers took ten times as long as one.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, TypeVar

import torch

_COMPILER: dict[str, str | None] = {"now": None}

F = TypeVar("F", bound=Callable[..., Any])


@contextmanager
def compiled_parts(compiler: str | None = "inductor") -> Iterator[None]:
    """Within, every `compiled_part` runs compiled by this backend of torch.compile; with None as it is.

    >>> twice = compiled_part(lambda x: 2 * x)
    >>> with compiled_parts("eager"):
    ...     twice(torch.ones(2))
    tensor([2., 2.])
    """
    before, _COMPILER["now"] = _COMPILER["now"], compiler
    try:
        yield
    finally:
        _COMPILER["now"] = before


def compiled_part(function: F) -> F:
    """Mark a function as a part. Shapes, strides and whatever is no tensor are fixed in what is compiled.

    A part that another one calls is compiled with it.
    """

    @cache  # at its first use: the compiler takes a second to import
    def compiled(by: str) -> Callable[..., Any]:
        return torch.compile(function, dynamic=False, backend=by)

    @wraps(function)
    def either(*args: Any, **options: Any) -> Any:
        compiler = None if torch.compiler.is_compiling() else _COMPILER["now"]
        return (function if compiler is None else compiled(compiler))(*args, **options)

    return either  # type: ignore[return-value]
