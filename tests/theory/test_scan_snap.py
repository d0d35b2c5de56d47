"""Scan and Snap: the flow against autograd and slow loops, Theorem 3 where its premise holds, and where it does not."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joma.theory import scan_snap
from joma.theory.flow import integrate
from joma.theory.scan_snap import ScanSnap

SIZES = st.tuples(st.integers(1, 3), st.integers(2, 5), st.integers(0, 2**16))


def drawn(classes, tokens, seed, queries=1, spare=3):
    generator = torch.Generator().manual_seed(seed)
    p = torch.rand(classes, tokens, generator=generator, dtype=torch.float64)
    p[:, 1:] *= torch.rand(classes, tokens - 1, generator=generator) > 0.3
    p = p / p.sum(-1, keepdim=True)
    prior = torch.rand(classes, generator=generator, dtype=torch.float64) + 0.1
    query = torch.arange(classes) % queries
    y = torch.randn(tokens, classes + spare, generator=generator, dtype=torch.float64)
    y[:, classes:] = y[:, classes : classes + 1]  # outputs that follow no class move as one
    z = torch.randn(int(query.max()) + 1, tokens, generator=generator, dtype=torch.float64)
    return p, prior / prior.sum(), query, y, z


def expected_loss(p, prior, query, y, z, norm):
    """The model as the slides write it, one class and one token at a time."""
    total = 0.0
    for n in range(len(p)):
        c = torch.stack([p[n, l] * torch.exp(z[query[n], l]) for l in range(p.shape[1])])
        if norm == "unit":
            c = c / torch.sqrt((c * c).sum())
        elif norm == "softmax":
            c = c / c.sum()
        logits = torch.stack([(c * y[:, j]).sum() for j in range(y.shape[1])])
        total = total + prior[n] * (torch.logsumexp(logits, 0) - logits[n])
    return total


@pytest.mark.parametrize("norm", ["unit", "softmax", "none"])
@pytest.mark.parametrize("queries", [1, 2])
@settings(max_examples=4, deadline=None)
@given(sizes=SIZES)
def test_the_flow_descends_the_loss(norm, queries, sizes):
    """Its right-hand side is minus the gradient by autograd, also where spare outputs share one column."""
    p, prior, query, y, z = drawn(*sizes, queries=queries)
    classes = len(p)
    model = ScanSnap(p, query, vocabulary=y.shape[1], prior=prior, norm=norm, rate_y=0.7, rate_z=0.2)
    moving = model.velocity(y[:, : classes + 1], z)
    y, z = y.requires_grad_(), z.requires_grad_()
    by_y, by_z = torch.autograd.grad(expected_loss(p, prior, query, y, z, norm), [y, z])
    torch.testing.assert_close(moving.y, -0.7 * by_y[:, : classes + 1], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(moving.z, -0.2 * by_z, rtol=1e-10, atol=1e-12)


@settings(max_examples=4, deadline=None)
@given(sizes=SIZES)
def test_the_sum_of_logits_is_conserved(sizes):
    p, prior, query, _, _ = drawn(*sizes, queries=2)
    path = ScanSnap(p, query, prior=prior, vocabulary=9, rate_z=2.0).solve([1.0, 5.0])
    assert path.z.sum(-1).abs().max() < 1e-10


def test_without_a_norm_it_is_not():
    path = ScanSnap([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5]], norm="none").solve([5.0])
    assert path.z.sum(-1).abs().max() > 1e-3


def test_systems_of_a_batch_are_those_alone():
    p, prior, query, _, _ = drawn(3, 5, 1, queries=2)
    ratios = torch.tensor([0.1, 1.0], dtype=torch.float64)
    both = ScanSnap(torch.stack([p, p.flip(0)]), query, prior=prior, vocabulary=7, rate_z=ratios).solve([0.5, 4.0])
    for i, own in enumerate((p, p.flip(0))):
        alone = ScanSnap(own, query, prior=prior, vocabulary=7, rate_z=float(ratios[i])).solve([0.5, 4.0])
        for part, whole in zip(alone, both, strict=True):
            torch.testing.assert_close(whole[:, i], part, rtol=0, atol=1e-9)


def test_rates_set_the_clock():
    p, prior, query, _, _ = drawn(2, 5, 3)
    slow, fast = (ScanSnap(p, query, prior=prior, rate_y=rate, rate_z=rate / 2) for rate in (1.0, 4.0))
    torch.testing.assert_close(slow.solve([8.0]).z, fast.solve([2.0]).z, rtol=0, atol=1e-9)


def test_a_start_is_taken_and_growth_counts_from_there():
    p, prior, query, y, z = drawn(2, 5, 4, spare=0)
    model = ScanSnap(p, query, prior=prior)
    whole = model.solve([1.0, 3.0], y0=y, z0=z)
    rest = model.solve([2.0], y0=whole.y[0], z0=whole.z[0])
    torch.testing.assert_close(rest.z[0], whole.z[1], rtol=0, atol=1e-8)
    torch.testing.assert_close(rest.growth[0], whole.growth[1] - whole.growth[0], rtol=0, atol=1e-6)


def test_growth_is_what_a_trajectory_gives_back():
    model = ScanSnap([[0.3, 0.2, 0.5, 0.0], [0.0, 0.0, 0.5, 0.5]], vocabulary=50, rate_z=0.5)
    path = model.solve(torch.linspace(0, 40, 2001))
    f = model.attended(path.z)[:, 0, :3]
    slow = f.square().reciprocal()  # B = ∫ dz / f², by the trapezoidal rule
    found = ((slow[1:] + slow[:-1]) / 2 * path.z[:, 0, :3].diff(dim=0)).cumsum(0)
    torch.testing.assert_close(found, path.growth[1:, 0, :3], rtol=1e-4, atol=1e-7)
    assert path.growth[:, 0, 3].abs().max() == 0  # a token that the class does not have


@settings(max_examples=4, deadline=None)
@given(tokens=st.integers(2, 5), speed=st.floats(0.1, 2.0), fall=st.floats(0.0, 1.0), seed=st.integers(0, 2**16))
def test_theorem_3_where_its_premise_is_true(tokens, speed, fall, seed):
    """z' = xi f^2 on the distinct tokens, whatever the common one does."""
    p = torch.rand(tokens + 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1
    own = torch.arange(tokens + 1) < tokens

    def field(time, z):
        return torch.where(own, speed * (1 + math.sin(time)) * scan_snap.attended(p, z).square(), -fall * (time + 1))

    t = torch.linspace(0, 3, 1501, dtype=torch.float64)
    z = integrate(field, torch.zeros(tokens + 1), t)
    growth = speed * (t + 1 - torch.cos(t))
    f = scan_snap.attended(p, z)
    chi = scan_snap.gain_factor(f, growth)[-1, :tokens]
    c = p * z[-1].exp()
    now, start = (scan_snap.relative_gain(x[:tokens]) for x in (c, p))
    torch.testing.assert_close(now, start * chi[:, None], rtol=1e-5, atol=1e-5)
    shown = scan_snap.clock(p[:tokens], z[-1, :tokens])
    torch.testing.assert_close(shown, shown[:1].expand(tokens), rtol=1e-6, atol=0)
    torch.testing.assert_close(1 / (1 - p[:tokens].square() * shown), chi, rtol=1e-5, atol=0)
    best = int(p[:tokens].argmax())
    if (f[:, best] >= f[0, best]).all():
        low, high = scan_snap.gain_bounds(f[0, best], growth[-1])
        assert low * (1 - 1e-9) <= chi[best] <= high * (1 + 1e-9)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=5))
def test_relative_gains_one_by_one(c):
    found = scan_snap.relative_gain(c)
    for i, first in enumerate(c):
        for j, second in enumerate(c):
            assert found[i, j].item() == pytest.approx(first**2 / second**2 - 1, rel=1e-9, abs=1e-12)


def test_signs_and_order_of_the_specification():
    """K = 2, 10 + 10 + 10 tokens: common z <= 0, distinct z >= 0, ordered as P(l|n), at all times."""
    weights = torch.linspace(0.1, 1, 10, dtype=torch.float64)
    half = 0.5 * weights / weights.sum()
    p = torch.zeros(2, 30, dtype=torch.float64)
    p[0, :10], p[1, 10:20], p[:, 20:] = half, half, 0.05
    path = ScanSnap(p, vocabulary=30, rate_z=0.5).solve(torch.logspace(-1, 4, 30))
    z = path.z[:, 0]
    assert (z[:, 20:] <= 0).all()
    assert (z[:, :20] >= 0).all()
    assert (z[:, :10].diff(dim=-1) >= 0).all()
    assert path.z.sum(-1).abs().max() < 1e-10


def test_the_premise_needs_slow_attention_and_the_lower_bound_fails_without():
    """The orders of the specification: spread of chi 1e-4 at a ratio of 0.003, 5e-3 at 0.03; at 1 chi < its bound."""
    weights = torch.linspace(0.1, 1, 10, dtype=torch.float64)
    p = torch.zeros(2, 30, dtype=torch.float64)
    p[0, :10] = p[1, 10:20] = 0.5 * weights / weights.sum()
    p[:, 20:] = 0.05
    ratios = torch.tensor([0.003, 0.01, 0.03, 1.0], dtype=torch.float64)
    path = ScanSnap(p, vocabulary=1000, rate_z=ratios).solve([2e4], rtol=1e-9, atol=1e-11)
    c = p[0, :10] * path.z[0, :, 0, :10].exp()
    chi = scan_snap.relative_gain(c)[:, 9, :9] / scan_snap.relative_gain(p[0, :10])[9, :9]
    spread = chi.amax(-1) / chi.amin(-1) - 1
    np.testing.assert_allclose(spread[:3], [1e-4, 1e-3, 8e-3], rtol=0.15)
    low = scan_snap.gain_bounds(scan_snap.attended(p[0])[9], path.growth[0, :, 0, 9]).low
    assert chi[3].log().mean().exp() < low[3] - 0.05


@pytest.mark.parametrize(("classes", "vocabulary"), [(2, 30), (2, 1000), (5, 1000)])
def test_the_transition_is_on_its_scale(classes, vocabulary):
    """Right output above one half at 1.09 to 1.30 K ln M / eta_Y, or a little later where few outputs compete."""
    p = torch.cat([0.5 * torch.eye(classes), torch.full((classes, 4), 0.125)], -1).double()
    rate = 0.5
    t = scan_snap.transition_time(classes, vocabulary, rate) * torch.linspace(0.5, 2, 61, dtype=torch.float64)
    model = ScanSnap(p, vocabulary=vocabulary, rate_y=rate, rate_z=rate / 100)
    path = model.solve(t, rtol=1e-8, atol=1e-9)
    passed = t[model.predicted(path.y, path.z)[:, 0, 0] > 0.5][0]
    assert 1.0 < passed / scan_snap.transition_time(classes, vocabulary, rate) < 1.5


def test_late_growth_to_the_letter():
    found = scan_snap.late_growth_as_printed(
        [10.0, 1e4], classes=2, vocabulary=100, rate_y=0.5, rate_z=0.05, constant=1.2
    )
    by_hand = [math.log(1.2 + 4 * 0.1 * math.log(100 * 0.5 * t / 2) ** 2) for t in (10.0, 1e4)]
    np.testing.assert_allclose(found, by_hand, rtol=1e-12)


def test_functions_are_differentiable():
    p = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64, requires_grad=True)
    z = torch.tensor([0.1, -0.2, 0.4], dtype=torch.float64, requires_grad=True)
    for norm in ("unit", "softmax", "none"):
        assert torch.autograd.gradcheck(lambda p, z, norm=norm: scan_snap.attended(p, z, norm=norm), (p, z))
    assert torch.autograd.gradcheck(scan_snap.relative_gain, (p,))
    assert torch.autograd.gradcheck(scan_snap.clock, (p, z))


def test_a_token_that_a_class_lacks_has_no_part_in_it():
    assert scan_snap.attended([0.0, 1.0], [500.0, 0.0]).tolist() == [0.0, 1.0]
    p = torch.tensor([[0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    z = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    for gradient in torch.autograd.grad(scan_snap.attended(p, z).sum(), [p, z]):
        assert gradient.isfinite().all()


GOOD = [[0.5, 0.5, 0.0], [0.5, 0.0, 0.5]]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"p": [[0.5, 0.4]]}, "p must sum to 1 in every class, class 0 sums to 0.9"),
        ({"p": [[1.0, 0.0], [0.0, 0.0]]}, "p must give every class at least one token, class 1 has none"),
        ({"p": [[1.5, -0.5]]}, "p must not be negative, got -0.5"),
        ({"p": [0.5, 0.5]}, r"p must have shape \(..., classes, tokens\), got \(2,\)"),
        ({"rate_y": -1.0}, "rate_y must not be negative, got -1"),
        ({"rate_z": [0.1, -0.2]}, "rate_z must not be negative, got -0.2"),
        ({"prior": [0.5, 0.6]}, "prior must sum to 1"),
        ({"prior": [1.0]}, r"prior must have shape \(2,\), one number per class, got \(1,\)"),
        ({"vocabulary": 1}, "vocabulary must be a whole number of at least 2, got 1"),
        ({"query": [0]}, r"query must have shape \(2,\), a whole number from 0 on for each class"),
        ({"query": [0, -1]}, "query must have shape"),
        ({"norm": "layer"}, "norm must be 'unit', 'softmax' or 'none', got 'layer'"),
    ],
)
def test_bad_classes_get_one_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence) as refused:
        ScanSnap(**{"p": GOOD, **options})
    assert "\n" not in str(refused.value)


def test_bad_weights_get_one_sentence():
    model = ScanSnap(GOOD)
    with pytest.raises(ValueError, match=r"y must have shape \(..., 3, 2\), got \(2, 2\)"):
        model.velocity(torch.zeros(2, 2).double(), torch.zeros(1, 3).double())
    with pytest.raises(ValueError, match=r"z must have shape \(..., 1, 3\), got \(3,\)"):
        model.attended(torch.zeros(3).double())
    with pytest.raises(ValueError, match="a flow is followed in float64: p must be float64"):
        ScanSnap(torch.tensor(GOOD)).solve([1.0])
