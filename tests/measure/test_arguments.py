"""Tensors, numpy arrays and lists: every public function of joma.measure gives the same answer to each of them."""

import inspect

import numpy as np
import pytest
from measure.calls import CALLS, parts

import joma.measure
from joma.measure import correlation, rebound, spectrum

IN_KIND = {correlation.pearson}
"""Answers arrays in arrays: it is for both, and says so."""
each_call = pytest.mark.parametrize("function", CALLS, ids=lambda function: function.__name__)


def test_every_public_function_is_here():
    functions = {getattr(joma.measure, name) for name in joma.measure.__all__}
    assert {one for one in functions if inspect.isfunction(one)} <= set(CALLS)


def assert_same(found, wanted, *, exact):
    for part, same in zip(parts(found), parts(wanted), strict=True):
        assert type(part) is type(same)
        if exact:
            assert getattr(part, "dtype", None) == getattr(same, "dtype", None)
        part, same = (np.asarray(one, dtype=np.float64) for one in (part, same))
        np.testing.assert_allclose(part, same, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6)


@each_call
def test_arrays_are_answered_as_tensors_are(function):
    arrays, others = CALLS[function]
    wanted = function(**arrays, **others)
    found = function(**{name: x.numpy() for name, x in arrays.items()}, **others)
    if function in IN_KIND:
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    else:
        assert_same(found, wanted, exact=True)


@each_call
def test_lists_are_answered_in_float64(function):
    arrays, others = CALLS[function]
    double = {name: x.double() if x.is_floating_point() else x for name, x in arrays.items()}
    wanted = function(**double, **others)
    found = function(**{name: x.tolist() for name, x in double.items()}, **others)
    if function in IN_KIND:
        np.testing.assert_allclose(found, wanted, atol=1e-12)
    else:
        assert_same(found, wanted, exact=True)


def test_whole_numbers_of_a_list_are_numbers():
    assert spectrum.stable_rank([[2, 0], [0, 1]]).item() == 1.25
    assert rebound.rebound(np.arange(20)).drop.item() == 0
