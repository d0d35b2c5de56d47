"""When an interval of a change allocation closes, what that costs, and what is said where it does not."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joma.measure.allocation import allocate


@given(st.floats(0.05, 0.95), st.floats(0.1, 10))
@settings(max_examples=4)
def test_a_kink_is_closed_in(place, slope):
    states = [{"x": [-place, 0.0]}, {"x": [1 - place, 1.0]}]
    found = allocate(lambda p: slope * p["x"][0].relu() + p["x"][1] ** 2, states, {"k": [("x", 0)], "s": [("x", 1)]})
    assert found.closed.all()
    assert abs(found.parts[0, 0] - slope * (1 - place)) <= 1.01e-3 * found.change[0]
    assert abs(found.parts[0, 1] - 1) < 1e-9


def test_what_does_not_close_is_said():
    kink = [{"x": [-0.37]}, {"x": [0.63]}]
    few = allocate(lambda p: p["x"].relu(), kink, {"x": ["x"]}, most=14, tolerance=1e-6)
    assert not few.closed.any()
    assert few.nodes.tolist() == [14]
    assert (few.gaps > few.allowed).all()
    assert few.reasons[0].startswith("interval 0, measure 0: the parts miss the change by ")
    assert few.reasons[0].endswith("after 14 nodes; more nodes would help: raise most, or give absolute")
    assert allocate(lambda p: p["x"].relu(), kink, {"x": ["x"]}, most=14, absolute=0.2).closed.all()


def test_jumps_noise_and_missing_gradients_are_told_apart():
    line = [{"x": [0.0]}, {"x": [1.0]}, {"x": [1.0]}]
    jump = allocate(lambda p: p["x"].detach().round() + 0.1 * p["x"], line, {"x": ["x"]})
    assert jump.closed.tolist() == [[False], [True]]
    assert len(jump.reasons) == 1
    assert "more nodes hardly help" in jump.reasons[0]
    cut = allocate(lambda p: torch.stack([p["x"].sum(), p["x"].sum().detach()]), line, {"x": ["x"]})
    assert cut.closed.tolist() == [[True, False], [True, True]]
    assert "measure 1" in cut.reasons[0]
    assert "no gradient by any parameter" in cut.reasons[0]
    count = itertools.count()
    noise = allocate(lambda p: p["x"] + 0.1 * (next(count) % 7), line, {"x": ["x"]}, most=14)
    assert all("other numbers when it is called again" in reason for reason in noise.reasons)
    assert noise.reasons


def test_parts_whose_errors_cancel_are_found_when_asked():
    def cancelling(p):
        return torch.sin(9 * p["a"]) - torch.sin(9 * p["b"]) + p["a"] * 0

    states = [{"a": 0.0, "b": 0.0}, {"a": 1.0, "b": 1.0}]
    trusting = allocate(cancelling, states, {"A": ["a"], "B": ["b"]})
    asking = allocate(cancelling, states, {"A": ["a"], "B": ["b"]}, each=True)
    assert trusting.nodes.tolist() == [2]
    assert trusting.moved.isinf().all()
    assert asking.closed.all()
    assert abs(asking.parts[0, 0] - np.sin(9)) < 1e-3
    assert abs(trusting.parts[0, 0] - np.sin(9)) > 0.1
    assert (asking.moved <= 1e-3).all()
    short = allocate(cancelling, states, {"A": ["a"], "B": ["b"]}, each=True, most=6)
    assert not short.closed.any()
    assert "their sum is closed, but a part moved by 1.2 when nodes were last added" in short.reasons[0]


def test_nothing_that_moves_costs_nothing():
    calls = []

    def function(p):
        calls.append(1)
        return p["x"].sum()

    found = allocate(function, [{"x": [1.0]}] * 3, {"x": ["x"], "none": []})
    assert (len(calls), found.nodes.tolist(), found.parts.any().item()) == (3, [0, 0], False)
    assert found.closed.all()


def test_the_cost_is_what_is_stated():
    forwards = []

    def function(p):
        forwards.append(1)
        return torch.stack([p["x"].sin().sum(), p["x"].sum()])

    found = allocate(function, [{"x": [0.0, 1.0]}, {"x": [0.1, 1.1]}, {"x": [0.2, 1.0]}], {"x": ["x"]})
    assert len(forwards) == 3 + found.nodes.sum()


KINK = 0.37


def kinked(most):
    return allocate(
        lambda p: p["x"].relu(), [{"x": [-KINK]}, {"x": [1 - KINK]}], {"x": ["x"]}, most=most, tolerance=1e-9
    )


def by_gauss(start, end, count):
    x, w = np.polynomial.legendre.leggauss(count)
    return (end - start) / 2 * w[(start + end) / 2 + (end - start) / 2 * x > KINK].sum()


def test_no_more_nodes_are_spent_than_allowed_and_none_are_left():
    """2, 4 and 8 on all of the interval, then 4 on each half of a piece."""
    most = (2, 5, 6, 13, 14, 21, 22, 29, 30)
    assert [kinked(one).nodes.item() for one in most] == [2, 2, 6, 6, 14, 14, 22, 22, 30]


def test_the_worst_piece_is_halved_and_parts_and_moves_are_sums_over_pieces():
    once, twice = kinked(22), kinked(30)
    left, right = by_gauss(0, 0.5, 4), by_gauss(0.5, 1, 4)
    moved = abs(left + right - by_gauss(0, 1, 8))
    assert once.parts.item() == pytest.approx(left + right, abs=1e-12)
    assert once.moved.item() == pytest.approx(moved, abs=1e-12)
    low, high = by_gauss(0, 0.25, 4), by_gauss(0.25, 0.5, 4)  # the kink is in the left half, and then in its right one
    assert twice.parts.item() == pytest.approx(low + high + right, abs=1e-12)
    assert twice.moved.item() == pytest.approx(moved / 2 + abs(low + high - left), abs=1e-12)
    for found in (once, twice):
        assert found.gaps.item() == pytest.approx(abs(found.parts.item() - (1 - KINK)), abs=1e-12)
    assert moved > 1e-3 < abs(low + high - left)


@pytest.mark.parametrize(("parameters", "measure", "eps"), [
    (torch.float64, torch.float64, 2.0**-52),
    (torch.float32, torch.float64, 2.0**-23),
    (torch.float64, torch.float32, 2.0**-23),
])  # fmt: skip
def test_rounding_is_that_of_the_coarser_type(parameters, measure, eps):
    """What may be missed is 16 eps of the largest of both ends and the sum of all parts, without their signs."""
    states = [{"x": torch.tensor(one, dtype=parameters)} for one in ([1.0, 2.0, 1.0], [3.0, 0.0, 2.0])]
    groups = {"a": [("x", 0)], "b": [("x", 1)], "c": [("x", 2)]}
    cancelling = allocate(lambda p: p["x"].to(measure).sum(), states, groups, tolerance=1e-18)  # from 4 to 5
    assert cancelling.allowed.item() == pytest.approx(16 * eps * 5, rel=1e-6, abs=0)
    third = allocate(lambda p: (p["x"].to(measure) - 1.5).sum(), states, groups, tolerance=1e-18)  # parts 2, -2, 1
    assert third.allowed.item() == pytest.approx(16 * eps * 5, rel=1e-6, abs=0)
    ends = allocate(lambda p: (p["x"].to(measure) + 5).sum(), states[::-1], groups, tolerance=1e-18)  # from 20 to 19
    assert ends.allowed.item() == pytest.approx(16 * eps * 20, rel=1e-6, abs=0)
    assert allocate(lambda p: p["x"].to(measure).sum(), states, groups, absolute=0.25).allowed.item() == 0.25
    assert allocate(lambda p: p["x"].to(measure).sum(), states, groups, tolerance=0.5).allowed.item() == 0.5
