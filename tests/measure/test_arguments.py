"""Tensors, numpy arrays and lists: every public function of joma.measure gives the same answer to each of them."""

import inspect

import numpy as np
import pytest
import torch
from measure.calls import CALLS, WITHOUT_ARRAYS, parts, public_functions

import joma.measure
from joma.measure import correlation, rebound, spectrum

IN_KIND = {correlation.pearson}
"""Answers arrays in arrays: it is for both, and says so."""
each_call = pytest.mark.parametrize("function", CALLS, ids=lambda function: function.__name__)


def test_every_public_function_is_here():
    assert set(public_functions()) == set(CALLS) | set(WITHOUT_ARRAYS)
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


@each_call
@pytest.mark.parametrize(
    "bad",
    ["many", [[1.0], [1.0, 2.0]], np.array([1j]), np.array([object()])],
    ids=["text", "ragged", "complex", "objects"],
)
def test_what_is_no_number_is_refused_by_name(function, bad):
    arrays, others = CALLS[function]
    for name in arrays:
        with pytest.raises(
            ValueError, match=rf"^{name} must be a real number, a list or an array of them, or a tensor"
        ):
            function(**{**arrays, name: bad}, **others)


@each_call
def test_complex_tensors_are_refused_by_name(function):
    arrays, others = CALLS[function]
    for name, x in arrays.items():
        with pytest.raises(ValueError, match=rf"^{name} (must be|cannot)"):
            function(**{**arrays, name: x.to(torch.complex64)}, **others)


def test_a_changed_number_changes_the_answer():
    arrays, _ = CALLS[spectrum.stable_rank]
    assert not torch.equal(spectrum.stable_rank(arrays["w"].numpy() + 1), spectrum.stable_rank(arrays["w"]))


def test_whole_numbers_of_a_list_are_numbers():
    assert spectrum.stable_rank([[2, 0], [0, 1]]).item() == 1.25
    assert rebound.rebound(np.arange(20)).drop.item() == 0
