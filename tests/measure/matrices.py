"""Matrices made to deceive, and the statement that `Spectrum` makes, against a full SVD in float64."""

from contextlib import contextmanager
from functools import cache, lru_cache

import pytest
import torch

from joma.measure import _factor


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


WAYS = ["factor", "factor of an accelerator", "lanczos"]


@contextmanager
def going(way):
    with pytest.MonkeyPatch.context() as patch:
        if way == "lanczos":
            patch.setattr("joma.measure.spectrum.FACTOR_SIDE_CPU", 0)
        elif way == "factor of an accelerator":
            patch.setattr(_factor, "on_cpu", lambda _: False)
        yield


def with_values(sigma, columns, seed=0, dtype=torch.float32):
    sigma = torch.as_tensor(sigma, dtype=torch.float64)
    left = torch.linalg.qr(torch.randn(len(sigma), len(sigma), generator=rng(seed), dtype=torch.float64))[0]
    right = torch.linalg.qr(torch.randn(columns, len(sigma), generator=rng(seed + 1), dtype=torch.float64))[0]
    return ((left * sigma) @ right.mT).to(dtype)


@lru_cache(maxsize=32)  # several ways are compared with the same, which takes longer than any of them
def _exact(w, version):
    return torch.linalg.svdvals(w.double()), torch.linalg.matrix_norm(w.double())


def assert_certified(found, w, tolerance=1e-3):
    values, frobenius = _exact(w, w._version)
    true = values[..., : found.values.shape[-1]]
    gap = (true**2 - found.values.double() ** 2) / true[..., :1] ** 2
    assert (gap.abs() <= found.error).all(), (gap, found.error)
    assert (found.error <= max(tolerance, 1e-6)).all()
    torch.testing.assert_close(found.frobenius.double(), frobenius, rtol=1e-6, atol=0)
    rank = (frobenius / true[..., 0]) ** 2
    assert ((found.stable_rank / rank - 1).abs() <= found.error[..., 0] + 1e-6).all()


LARGE = {  # made when first asked for
    "gaussian": lambda: torch.randn(320, 500, generator=rng()),
    "gaussian, tall": lambda: torch.randn(500, 320, generator=rng()),
    "gaussian, square": lambda: torch.randn(384, 384, generator=rng()),
    "transposed view": lambda: torch.randn(500, 320, generator=rng()).mT,
    "common mean": lambda: torch.randn(300, 500, generator=rng()) + 1,
    "power law": lambda: with_values(torch.arange(1, 321) ** -1.0, 500),
    "nearly flat": lambda: with_values(1 - 0.1 * torch.arange(320) / 320, 400),
    "two equal leaders": lambda: with_values([2.0, 2.0] + [1.0] * 318, 400),
    "twenty equal leaders": lambda: with_values([2.0] * 20 + [1.0] * 300, 400),
    "rank one": lambda: torch.outer(torch.arange(1.0, 401), torch.ones(600)),
    "rank forty": lambda: torch.randn(320, 40, generator=rng()) @ torch.randn(40, 500, generator=rng()),
    "identity": lambda: torch.eye(320),
    "one entry": lambda: torch.zeros(400, 500).index_put((torch.tensor(3), torch.tensor(7)), torch.tensor(5.0)),
    "bfloat16": lambda: torch.randn(320, 500, generator=rng()).bfloat16(),
    "float16": lambda: torch.randn(320, 500, generator=rng()).half(),
    "float64": lambda: torch.randn(320, 500, generator=rng(), dtype=torch.float64),
    "stack": lambda: torch.stack([torch.randn(300, 400, generator=rng()), torch.ones(300, 400), torch.eye(300, 400)]),
}
LARGE = {name: cache(make) for name, make in LARGE.items()}


def alone_in_its_row(value):
    w = torch.zeros(300, 320)
    w[0, 0] = value
    w[1:, 1:] = with_values([1.0] * 299, 319)
    return w


HIDDEN = {
    "above the rest": lambda: with_values([1.05] + [1.0] * 299, 300),
    "just above the bound": lambda: with_values([1.0007] + [1.0] * 299, 300),
    "above a cluster": lambda: with_values([1.002] + [1.0] * 40 + [0.5] * 259, 300),
    "alone in its row": lambda: alone_in_its_row(1.05),
}
