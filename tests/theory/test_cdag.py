"""CDAG Theorem 1: its counter-examples, and the condition on angles that repairs it."""

from math import pi

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusals

from joma.theory import cdag

seeds = st.integers(0, 2**31 - 1)


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def planar(*angles):
    return [torch.stack([angle.cos(), angle.sin()], -1) for angle in angles]


def test_counter_example():
    za, zb, f, delta = cdag.counter_example()
    condition = cdag.angle_condition(za, zb, f, delta)
    assert not condition.satisfied
    assert condition.lower_bound <= cdag.conclusion(zb, f, delta, normalised=True)


@settings(max_examples=25, deadline=None)
@given(seeds, st.sampled_from([2, 3, 10, 100]), st.floats(0.01, 3.0))
def test_bound_is_never_undercut_and_positive_exactly_where_satisfied(seed, samples, spread):
    za, zb, f, delta = draw(seed, 4, 200, samples) * spread + draw(seed + 1, samples)  # at all sizes of angles
    za = za * draw(seed + 2, 200, 1).sign()  # z_b may be anticorrelated with z_a
    delta = delta * cdag.correlation(za, delta).sign()[:, None]
    condition = cdag.angle_condition(za, zb, f, delta)
    value = cdag.conclusion(zb, f, delta, normalised=True)
    assert (value >= condition.lower_bound - 1e-12).all()
    assert torch.equal(condition.satisfied, condition.lower_bound > 0)
    a, b, c = condition.angles.unbind(-1)
    product = torch.cos(a + b + c) * torch.cos(a + c)
    inside = condition.satisfied
    torch.testing.assert_close(condition.lower_bound[inside], product[inside], rtol=0, atol=1e-14)


@settings(max_examples=30, deadline=None)
@given(seeds)
def test_bound_is_reached_in_the_plane(seed):
    share = torch.rand(3, 50, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    a, b, c = share / share.sum(0) * pi / 2 * 0.999
    zb, f, za, delta = planar(torch.zeros_like(a), -b, c, a + c)
    condition = cdag.angle_condition(za, zb, f, delta)
    assert condition.satisfied.all()
    torch.testing.assert_close(condition.angles, torch.stack([a, b, c], -1), rtol=0, atol=1e-14)
    torch.testing.assert_close(
        cdag.conclusion(zb, f, delta, normalised=True), condition.lower_bound, rtol=0, atol=1e-14
    )


def test_just_beyond_a_right_angle_the_conclusion_can_be_negative():
    third = torch.tensor(pi / 6 + 1e-6, dtype=torch.float64)
    zb, f, za, delta = planar(0 * third, -third, third, 2 * third)
    assert not cdag.angle_condition(za, zb, f, delta).satisfied
    assert (cdag.premises(za, zb, f, delta) > 0.86).all()
    assert cdag.conclusion(zb, f, delta) < 0


def test_angles_are_accurate_where_arccos_is_not():
    tiny = torch.tensor(1e-9, dtype=torch.float64)
    zb, f, za, delta = planar(0 * tiny, tiny, pi - tiny, pi - 3 * tiny)
    angles = cdag.angle_condition(za, zb, f, delta).angles
    assert angles.tolist() == pytest.approx([2e-9, 1e-9, 1e-9], rel=1e-6)


def test_independent_noise_leaves_a_square():
    zb, delta, noise = draw(0, 3, 5, 40)
    gain = 0.7
    # Each sample twice, with the noise once added and once taken away: E[f | zb, delta] = gain zb exactly.
    twice, pushed = torch.cat([zb, zb], -1), torch.cat([delta, delta], -1)
    f = gain * twice + torch.cat([noise, -noise], -1)
    expected = cdag.independent_conclusion(twice, pushed, gain)
    torch.testing.assert_close(cdag.conclusion(twice, f, pushed), expected, rtol=1e-12, atol=1e-12)
    assert (expected >= 0).all()


def test_the_product_is_what_backpropagation_sends():
    f, zb, g = draw(1, 3, 30)
    children = f.clone().requires_grad_()
    weight = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (step,) = torch.autograd.grad((g * weight * children).sum(), weight)
    (sent,) = torch.autograd.grad((g * step * children).sum(), children)
    torch.testing.assert_close(cdag.correlation(zb, sent), cdag.conclusion(zb, f, g), rtol=1e-13, atol=1e-13)


def test_scales_and_gradients():
    za, zb, f, delta = draw(2, 4, 3, 5, 7)
    huge = cdag.angle_condition(za * 1e200, zb * 1e-200, f, delta)
    torch.testing.assert_close(huge.angles, cdag.angle_condition(za, zb, f, delta).angles)
    inputs = tuple(x[0, 0].clone().requires_grad_() for x in (za, zb, f, delta))
    assert torch.autograd.gradcheck(lambda *s: cdag.angle_condition(*s).total, inputs)
    assert torch.autograd.gradcheck(lambda *s: cdag.conclusion(*s, normalised=True), inputs[1:])


test_bad_input_gets_one_sentence = refusals(
    (lambda: cdag.angle_condition([1.0], [0.0], [1.0], [1.0]), "zb must not be zero"),
)
