"""Change allocation where the answer is known: it is exact, knows no order of groups, and intervals add up."""

import itertools

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joma.measure.allocation import allocate


def polynomial(p):
    return torch.stack([(p["a"] ** 2).sum() + (p["a"] * p["b"]).sum(), p["b"].sum() ** 2, p["c"].sum()])


numbers = st.lists(st.floats(-3, 3), min_size=2, max_size=2)
state = st.fixed_dictionaries({"a": numbers, "b": numbers, "c": numbers, "d": numbers})
EACH = {"A": ["a"], "B": ["b"], "C": ["c"]}


@given(st.lists(state, min_size=2, max_size=4))
@settings(max_examples=6)
def test_quadratic_functions_are_exact_with_two_nodes(states):
    found = allocate(polynomial, states, EACH)
    assert found.closed.all()
    assert found.nodes.max() <= 2
    a, b, c = (torch.tensor([s[name] for s in states], dtype=torch.float64) for name in "abc")
    middle = [(x[1:] + x[:-1]) / 2 for x in (a, b)]
    wanted = {
        "A": [(a.diff(dim=0) * (2 * middle[0] + middle[1])).sum(1), 0, 0],
        "B": [(b.diff(dim=0) * middle[0]).sum(1), (b.sum(1) ** 2).diff(), 0],
        "C": [0, 0, c.sum(1).diff()],
        "rest": [0, 0, 0],
    }
    assert found.groups == tuple(wanted)
    for n, (group, parts) in enumerate(wanted.items()):
        for measure, part in enumerate(parts):
            np.testing.assert_allclose(found.parts[:, n, measure], part, rtol=0, atol=1e-12, err_msg=group)
            assert isinstance(part, torch.Tensor) or not found.parts[:, n, measure].any()


@given(st.lists(state, min_size=3, max_size=5))
@settings(max_examples=4)
def test_intervals_are_independent_and_add_up(states):
    def smooth(p):
        return torch.stack([torch.tanh(p["a"] * p["b"]).sum(), p["c"].cos().sum() * p["d"].sum()])

    found = allocate(smooth, states, EACH, most=6)
    alone = [allocate(smooth, pair, EACH, most=6) for pair in itertools.pairwise(states)]
    assert torch.equal(found.parts, torch.cat([one.parts for one in alone]))
    assert torch.equal(found.total, found.parts.sum(0))
    ends = allocate(smooth, [states[0], states[-1]], EACH).change[0]
    torch.testing.assert_close(found.change.sum(0), ends)
    torch.testing.assert_close(found.error, (found.total.sum(0) - ends).abs(), atol=1e-12, rtol=0)


@given(state, state, st.integers(0, 1))
@settings(max_examples=4)
def test_a_group_may_be_a_part_of_a_parameter(start, end, cut):
    def whole(p):
        return (p["a"].prod() + p["b"].sum()).sin()

    split = {"one": [("a", cut)], "other": [("a", 1 - cut)], "b": ["b", "c", "d"]}
    parts = allocate(whole, [start, end], split)
    together = allocate(whole, [start, end], {"a": ["a"], "b": ["b", "c", "d"]})
    torch.testing.assert_close(parts.parts[0, :2].sum(), together.parts[0, 0], atol=1e-9, rtol=1e-9)
    left = allocate(whole, [start, end], {"one": [("a", cut)], "b": ["b", "c", "d"]})
    assert left.groups == ("one", "b", "rest")
    torch.testing.assert_close(left.parts[0, 2], parts.parts[0, 1], atol=1e-9, rtol=1e-9)
