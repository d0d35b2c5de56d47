"""How exact products of float32 are inside a block, however the program around us has set it. Loads no torch itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal


@contextmanager
def float32_products(precision: Literal["highest", "high"]) -> Iterator[None]:
    """Products of float32 as it is, or ("high") of factors rounded to ten bits (TF32), where the device can do that.

    torch has an older and a newer setting for this, and refuses to tell the first once a program has used the second.
    """
    import torch

    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:
        with _newer_setting(precision):
            yield
        return
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def _newer_setting(precision: str) -> Iterator[None]:
    import torch

    backends: list[Any] = [torch.backends.cuda.matmul, torch.backends.mkldnn.matmul]  # type: ignore[attr-defined]
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = "ieee" if precision == "highest" else "tf32"
        yield
    finally:
        for backend, own in zip(backends, before, strict=True):
            backend.fp32_precision = own
