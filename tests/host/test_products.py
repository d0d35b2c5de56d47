"""How exact products are inside a block, and that the program around it finds its own settings again."""

from contextlib import suppress

import pytest
import torch

from joma.host.products import float32_products


@pytest.mark.parametrize(("precision", "inside"), [("highest", "ieee"), ("high", "tf32")])
def test_a_program_with_the_newer_setting_finds_it_again_also_after_an_error(precision, inside):
    backends = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    own = [backend.fp32_precision for backend in backends]
    try:
        for mine in (("tf32", "ieee"), ("ieee", "tf32")):
            for backend, setting in zip(backends, mine, strict=True):
                backend.fp32_precision = setting
            with pytest.raises(RuntimeError, match="matmul precision"):  # else this test tells nothing
                torch.get_float32_matmul_precision()
            with suppress(KeyError), float32_products(precision):
                assert [backend.fp32_precision for backend in backends] == [inside] * 2
                raise KeyError
            assert tuple(backend.fp32_precision for backend in backends) == mine
    finally:
        for backend, setting in zip(backends, own, strict=True):
            backend.fp32_precision = setting
    assert torch.get_float32_matmul_precision() == "highest"
