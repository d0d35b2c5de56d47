"""Stable rank against the two norms it is made of."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joma.measure import stable_rank


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31 - 1), st.integers(1, 6), st.integers(1, 6), st.floats(-30, 30))
def test_it_is_the_ratio_of_the_two_norms(seed, rows, columns, exponent):
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(2, 3, rows, columns, generator=generator, dtype=torch.float64) * 10**exponent
    expected = (torch.linalg.matrix_norm(w) / torch.linalg.matrix_norm(w, 2)) ** 2
    got = stable_rank(w)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=0)
    assert (got >= 1 - 1e-12).all()
    assert (got <= min(rows, columns) + 1e-12).all()


def test_known_matrices():
    assert stable_rank(torch.eye(5)).item() == pytest.approx(5)
    assert stable_rank(torch.outer(torch.arange(1.0, 4), torch.ones(7))).item() == pytest.approx(1)
    assert stable_rank(torch.stack([torch.zeros(2, 3), torch.ones(2, 3)])).tolist() == pytest.approx([0, 1])


def test_scale_does_not_matter_even_where_squares_overflow():
    w = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    for scale in (1e-30, 1e30):
        torch.testing.assert_close(stable_rank(w * scale), stable_rank(w))


def test_half_precision_is_measured_in_float32():
    w = torch.randn(64, 32, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert stable_rank(w).dtype == torch.float32
    assert stable_rank(w).item() == pytest.approx(stable_rank(w.double()).item(), rel=1e-5)


def test_gradient():
    w = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(stable_rank, (w,))


@pytest.mark.parametrize(
    ("w", "sentence"),
    [
        (torch.ones(3), "w must have shape"),
        (torch.ones(2, 0), "w must have shape"),
        (torch.ones(2, 2, dtype=torch.int64), "w must hold floating numbers"),
        (torch.tensor([[1.0, torch.nan]]), "w must be finite"),
    ],
)
def test_bad_input_gets_one_sentence(w, sentence):
    with pytest.raises(ValueError, match=sentence):
        stable_rank(w)
