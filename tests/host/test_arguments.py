"""Arguments of functions: what lies on a bound is taken, what is no number is not, and types are those of torch."""

import math

import pytest
import torch

from joma.host.arguments import as_numbers, integer, number, real, together, within


def test_the_ends_of_a_range_belong_to_it():
    assert within([-1.0, 0.5, 1.0], "rho", -1, 1).tolist() == [-1.0, 0.5, 1.0]
    for outside in (-1.001, 1.001):
        with pytest.raises(ValueError, match=rf"rho must lie in \[-1, 1\], got {outside}"):
            within([0.0, outside], "rho", -1, 1)


def test_truth_is_no_whole_number():
    assert integer(2, "depth", 2) == 2
    for bad in (True, 1, 2.5, math.nan, math.inf, "3"):
        with pytest.raises(ValueError, match="depth must be a whole number of at least"):
            integer(bad, "depth", 1 if bad is True else 2)


def test_a_number_may_be_the_least_but_not_what_it_must_be_above():
    assert (number(0, "rate", least=0.0), number(0.1, "rate", above=0.0)) == (0.0, 0.1)
    for bad, bound in ((0.0, {"above": 0.0}), (-0.1, {"least": 0.0}), (math.inf, {}), ("1", {})):
        with pytest.raises(ValueError, match="rate must be a finite number"):
            number(bad, "rate", **bound)


def test_the_finer_type_wins_whichever_comes_first_and_plain_numbers_follow():
    single, double = torch.ones(2, dtype=torch.float32), torch.ones(3, 1, dtype=torch.float64)
    for tensors in ({"a": single, "b": double}, {"a": double, "b": single}):
        assert [(one.dtype, one.shape) for one in together(**tensors)] == [(torch.float64, (3, 2))] * 2
    assert {one.dtype for one in together(a=single, b=torch.tensor(2.0, dtype=torch.float64))} == {torch.float32}


def test_whole_numbers_become_float64_where_real_ones_are_asked_for():
    large = 2**40 + 1  # float32 has no such number
    for found in (real(torch.tensor([large]), "w"), as_numbers([large], "w")):
        assert found.dtype == torch.float64
        assert found.tolist() == [large]


def test_what_is_no_real_number_is_refused_and_not_cut_to_one():
    for given in ([1 + 2j], torch.tensor([1.0]).numpy().astype("complex64"), ["1"], [None], [[1], [1, 2]]):
        with pytest.raises(ValueError, match="w must be a real number, a list or an array of them, or a tensor"):
            as_numbers(given, "w")
