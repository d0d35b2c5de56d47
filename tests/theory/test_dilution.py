"""The law of focus and dilution against gradient flow of an attention layer, and its closed forms against steps.

The layer is a real one: softmax over all words by their frequencies, logits x A x, a square loss, its gradient by
autograd. It knows no closed form.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joma.theory import spread


class Layer:
    """One attention layer on words of which each is a query and a key; `share(t)` is the mean's share of its input."""

    def __init__(self, queries, keys, share, *, size, seed=0, overlap=None):
        draw = torch.Generator().manual_seed(seed)
        self.queries, self.keys = torch.tensor(queries).double(), torch.tensor(keys).double()
        self.share, self.words = share, len(keys)
        self.overlap = overlap
        size_of_input = self.words * (1 if overlap is None else 2) + 1
        self.basis = torch.linalg.qr(torch.randn(size_of_input, size_of_input, generator=draw).double()).Q
        self.v = torch.randn(self.words, 7, generator=draw).double()
        common, own = torch.randn(7, generator=draw).double(), torch.randn(self.words, 7, generator=draw).double()
        self.y = self.keys @ self.v + size * (common + 0.5 * own)

    def input(self, t):
        a, words = math.sqrt(self.share(t)), self.basis[1 : self.words + 1]
        if self.overlap is not None:
            r = self.overlap(t)
            words = r * words + math.sqrt(1 - r * r) * self.basis[self.words + 1 :]
        return a * self.basis[0] + math.sqrt(1 - a * a) * words

    def loss(self, z):
        read = (z + self.keys.log()).softmax(-1) @ self.v
        return (self.queries * (read - self.y).square().sum(-1)).sum() / 2

    def velocity(self, t, weights):
        weights = weights.detach().requires_grad_()
        x = self.input(t)
        return -torch.autograd.grad(self.loss(x @ weights @ x.T), weights)[0]

    def logits(self, t, steps):
        """(steps, queries, keys) at times t, by Runge and Kutta's rule from zero weights."""
        weights, found = torch.zeros_like(self.basis), []
        for start, end in zip([0.0, *t], t, strict=False):
            h = (end - start) / steps
            for i in range(steps if h else 0):
                at = start + i * h
                one = self.velocity(at, weights)
                two = self.velocity(at + h / 2, weights + h / 2 * one)
                three = self.velocity(at + h / 2, weights + h / 2 * two)
                four = self.velocity(at + h, weights + h * three)
                weights = weights + h / 6 * (one + 2 * two + 2 * three + four)
            found.append(self.input(end) @ weights @ self.input(end).T)
        return torch.stack(found)

    def push_and_curvature(self):
        """C and K, from the loss itself: its slope at uniform attention, its bend where there is nothing to gain."""
        zero = torch.zeros(self.words, self.words).double()
        push = -torch.autograd.functional.jacobian(self.loss, zero) / self.queries[:, None]
        mean = self.keys @ self.v
        one = lambda row: ((row + self.keys.log()).softmax(-1) @ self.v - mean).square().sum() / 2
        return push, torch.autograd.functional.hessian(one, zero[0])


def shared_of(z, queries):
    return torch.einsum("u,tuw->tw", queries, z)


def centred(b, keys):
    return b - (b * keys).sum(-1, keepdim=True)


def by_law(layer, t, fine, reads):
    """Shared (steps, words) and specific (steps, words, words) logits of the law, mode by mode of the curvature."""
    push, bend = layer.push_and_curvature()
    k, mode = torch.linalg.eigh(bend)
    grid = torch.linspace(0, t[-1], fine + 1, dtype=torch.float64)
    at = [round(each / t[-1] * fine) for each in t]
    f = reads(torch.tensor([layer.share(each) for each in grid.tolist()]).double(), grid)
    mean = layer.queries @ push
    gains = [spread.gain(grid, part, curvature=k.clamp(min=0))[:, at] for part in f]
    shared = torch.einsum("wk,kt,k->tw", mode, gains[0], mean @ mode)
    return shared, torch.einsum("wk,kt,uk->tuw", mode, gains[1], (push - mean) @ mode)


EVEN = [0.25] * 4
KEYS = [0.4, 0.3, 0.2, 0.1]
TIMES = [1.0, 4.0, 8.0, 16.0, 32.0]


def off(found, wanted):
    return ((found - wanted).abs().amax() / wanted.abs().amax()).item()


def test_the_law_is_the_flow_of_a_layer_with_small_logits():
    """Keys differ in frequency. The error is of first order in the logits: a hundred times smaller for smaller ones."""
    errors = []
    for size in (1e-2, 1e-4):
        layer = Layer(EVEN, KEYS, lambda t: 0.7 * math.exp(-t / 5) + 0.01, size=size)
        z = layer.logits(TIMES, 6)
        shared, specific = by_law(layer, TIMES, 640, lambda share, grid: spread.reads(share, 4))
        b = shared_of(z, layer.queries)
        own = z - b[:, None]
        errors.append((off(centred(b, layer.keys), centred(shared, layer.keys)), off(own, specific)))
    assert max(errors[1]) < 2e-4
    assert min(errors[0]) > 10 * max(errors[1])


def test_shared_logits_rise_and_fall_as_the_mean_leaves_while_weights_grow():
    """The mean leaves faster than the layer learns: dilution. With the mean kept they only rise."""
    t, even = [0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0], [1 / 150] * 150
    fallen, kept = (
        Layer(even, even, share, size=1e-3, seed=1) for share in (lambda t: 0.4 * math.exp(-t), lambda t: 0.4)
    )
    variance = [centred(shared_of(l.logits(t, 2), l.queries), l.keys).square().mean(-1) for l in (fallen, kept)]
    top = variance[0].argmax().item()
    assert 0 < top < 4
    assert variance[0][-1] < 0.3 * variance[0][top]
    assert (variance[1].diff() > 0).all()
    shared, _ = by_law(fallen, t, 160, lambda share, grid: spread.reads(share, 150))
    law = centred(shared, fallen.keys).square().mean(-1)
    assert law.argmax() == top
    torch.testing.assert_close(law, variance[0], rtol=0.01, atol=0)


def test_a_mean_that_outweighs_the_words_needs_no_equal_frequencies():
    """Query words that differ: the shared part is right to the share of the path by words, (1 - a^2)/(V a^2)."""
    layer = Layer(KEYS, KEYS, lambda t: 0.95 - 0.3 * t / 32, size=1e-4)
    z = layer.logits(TIMES, 4)
    words = 1 / sum(p * p for p in KEYS)
    shared, _ = by_law(layer, TIMES, 160, lambda share, grid: spread.reads(share, words))
    assert off(centred(shared_of(z, layer.queries), layer.keys), centred(shared, layer.keys)) < 0.02


def test_words_that_turn_into_new_directions_are_components_of_what_is_read():
    """Each product of a component of the query with one of the key is one of f. Then the specific part fades too."""
    layer = Layer(EVEN, KEYS, lambda t: 0.3, size=1e-4, overlap=lambda t: math.exp(-t / 8))

    def products(share, grid):
        r = torch.exp(-grid / 8)
        own, key = (1 - share).sqrt(), torch.stack([r, (1 - r * r).sqrt()], -1) * (1 - share).sqrt()[:, None]
        word = (key[:, :, None] * key[:, None, :]).flatten(1) / 2  # over the root of four words
        assert torch.allclose(key.square().sum(-1), own.square())
        return torch.cat([share.sqrt()[:, None] * key, word], -1), word

    z = layer.logits(TIMES, 8)
    shared, specific = by_law(layer, TIMES, 640, products)
    b = shared_of(z, layer.queries)
    assert off(centred(b, layer.keys), centred(shared, layer.keys)) < 1e-3
    assert off(z - b[:, None], specific) < 1e-3


def test_large_logits_break_the_law():
    layer = Layer(EVEN, KEYS, lambda t: 0.5, size=1.0)
    z = layer.logits([16.0], 40)
    shared, _ = by_law(layer, [16.0], 100, lambda share, grid: spread.reads(share, 4))
    assert z.abs().max() > 1
    assert off(centred(shared_of(z, layer.queries), layer.keys), centred(shared, layer.keys)) > 0.1


@pytest.mark.parametrize(("share", "queries"), [(0.3, 4), (0.8, 4), (0.0, 7), (0.05, 7)])
def test_focus_ratio_is_the_ratio_of_first_steps(share, queries):
    layer = Layer([1 / queries] * queries, [1 / queries] * queries, lambda t: share, size=1e-3)
    push, _ = layer.push_and_curvature()
    x = layer.input(0.0)
    step = x @ layer.velocity(0.0, torch.zeros_like(layer.basis)) @ x.T
    mean = layer.queries @ push
    shared, specific = layer.queries @ step, step - layer.queries @ step
    ratio = (shared @ mean / (mean @ mean)) / ((specific * (push - mean)).sum() / (push - mean).square().sum())
    torch.testing.assert_close(spread.focus_ratio(share, queries), ratio, rtol=1e-9, atol=0)


def by_steps(t, f, k, steps=400):
    """y at each t for a function f of time, by Runge and Kutta's rule on what is stored."""
    stored, found = 0.0, []
    speed = lambda at, b: f(at) * (1 - k * f(at) * b)
    for start, end in zip([0.0, *t], t, strict=False):
        h = (end - start) / steps
        for i in range(steps):
            at = start + i * h
            one = speed(at, stored)
            two = speed(at + h / 2, stored + h / 2 * one)
            three = speed(at + h / 2, stored + h / 2 * two)
            stored += h / 6 * (one + 2 * two + 2 * three + speed(at + h, stored + h * three))
        found.append(f(end) * stored)
    return np.array(found)


T = [0.3, 1.0, 2.5, 7.0]


@pytest.mark.parametrize("k", [0.0, 0.4, 9.0, 29.0, 31.0, 200.0])
def test_exponential_fall(k):
    tau, f0 = 1.7, 1.0
    found = spread.exponential_gain(T, f0, tau, curvature=k).numpy()
    np.testing.assert_allclose(found, by_steps(T, lambda t: f0 * math.exp(-t / tau), k, 800), rtol=1e-7)


@pytest.mark.parametrize("power", [0.0, 0.3, 0.5, 1.0, 1 + 1e-10, 2.5])
def test_power_fall(power):
    tau, f0 = 1.7, 0.8
    found = spread.power_gain(T, f0, tau, power).numpy()
    np.testing.assert_allclose(found, by_steps(T, lambda t: f0 * (1 + t / tau) ** -power, 0.0), rtol=1e-9)


@pytest.mark.parametrize("k", [0.0, 0.4, 9.0, 100.0])
def test_a_path_of_any_kind(k):
    grid = torch.linspace(0, 7, 701, dtype=torch.float64)
    fall = lambda t: 1 / (1 + t) + 0.3 * math.cos(t)
    path = torch.tensor([fall(t) for t in grid.tolist()], dtype=torch.float64)
    found = spread.gain(grid, path[:, None], curvature=k)[[round(t * 100) for t in T]]
    np.testing.assert_allclose(found.numpy(), by_steps(T, fall, k), rtol=4e-3, atol=1e-5)
    split = torch.stack([path * 0.6, path * 0.8], -1)  # the same direction in two components
    torch.testing.assert_close(spread.gain(grid, split, curvature=k), spread.gain(grid, path[:, None], curvature=k))


def test_a_constant_read_rises_to_the_optimum():
    t = torch.tensor([0.0, 0.5, 2.0, 50.0], dtype=torch.float64)
    still = torch.full((4, 1), 1.3, dtype=torch.float64)
    torch.testing.assert_close(spread.gain(t, still), 1.69 * t)
    torch.testing.assert_close(spread.gain(t, still, curvature=0.7), -torch.expm1(-0.7 * 1.69 * t) / 0.7)


def test_a_fall_as_the_root_of_time_leaves_a_share_for_ever():
    """f^2 = f0^2 tau/(tau + t): y tends to the balance of `turning_gain`, which then does not move."""
    tau, f0, k = 2.0, 1.1, 0.7
    pull = k * f0 * f0 * tau
    grid = torch.cat([torch.zeros(1), torch.logspace(-3, 4, 1000)]).double()
    found = spread.gain(grid, (f0 * (1 + grid / tau) ** -0.5)[:, None], curvature=k)
    wanted = f0 * f0 * tau * (1 - (1 + grid / tau) ** -(pull + 0.5)) / (pull + 0.5)
    torch.testing.assert_close(found, wanted, rtol=2e-4, atol=1e-5)
    balance = spread.turning_gain(f0 * (1 + grid / tau) ** -0.5, 0.5 / (tau + grid), curvature=k)
    torch.testing.assert_close(balance, torch.full_like(balance, 1 / k * pull / (pull + 0.5)))
    assert found[-1].item() == pytest.approx(balance[-1].item(), rel=1e-3)


@settings(max_examples=10, deadline=None)
@given(st.floats(0.2, 3), st.floats(0.2, 5), st.one_of(st.just(0.0), st.floats(1e-3, 300)))
def test_where_an_exponential_fall_turns(f0, tau, k):
    turn = spread.exponential_turn(f0, tau, curvature=k)
    assert 0 < turn.item() <= tau * math.log(2) * (1 + 1e-12)
    near = turn.item() * np.array([0.97, 1.0, 1.03])
    low, top, high = spread.exponential_gain(near, f0, tau, curvature=k).tolist()
    assert top > low
    assert top > high
    at = f0 * math.exp(-turn.item() / tau)
    assert spread.turning_gain(at, 1 / tau, curvature=k).item() == pytest.approx(top, rel=1e-11)


def test_where_a_power_fall_turns():
    assert spread.power_turn(3.0, [0.0, 0.3, 0.5]).tolist() == [math.inf] * 3
    assert spread.power_turn(3.0, 1.0).item() == pytest.approx(3 * (math.e - 1), rel=1e-14)
    assert spread.exponential_turn(1.3, 3.0).item() == pytest.approx(3 * math.log(2), rel=1e-14)
    # a fast power over a long time is an exponential
    assert spread.power_turn(3e6, 1e6).item() == pytest.approx(3 * math.log(2), rel=1e-5)
    for power in (0.55, 0.8, 1.0, 1 + 1e-9, 1.5, 4.0):
        turn = spread.power_turn(3.0, power).item()
        read = 0.9 * (1 + turn / 3) ** -power
        top = spread.turning_gain(read, power / (3 + turn)).item()
        assert spread.power_gain(turn, 0.9, 3.0, power).item() == pytest.approx(top, rel=1e-7)


def test_gradients():
    f, tau, k, power = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (0.9, 1.4, 0.6, 0.8))
    assert torch.autograd.gradcheck(lambda *a: spread.exponential_gain(T, a[0], a[1], curvature=a[2]), (f, tau, k))
    assert torch.autograd.gradcheck(lambda *a: spread.exponential_turn(a[0], a[1], curvature=a[2]), (f, tau, k))
    assert torch.autograd.gradcheck(lambda *a: spread.power_gain(T, *a), (f, tau, power))
    assert torch.autograd.gradcheck(spread.power_turn, (tau, power))
    path = torch.rand(2, 4, 2, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda *a: spread.gain(T, a[0], curvature=a[1]), (path, k))
    none = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(spread.exponential_turn(0.9, 1.4, curvature=none), none)
    eps = (spread.exponential_turn(0.9, 1.4, curvature=1e-6) - spread.exponential_turn(0.9, 1.4)).item() / 1e-6
    assert slope.item() == pytest.approx(eps, rel=1e-4)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: spread.focus_ratio(1.0, 5),
            "share must be below 1: words that are all the same have no specific part",
        ),
        (lambda: spread.focus_ratio(1.5, 5), "share must lie in [0, 1], got 1.5"),
        (lambda: spread.focus_ratio(0.5, 0.5), "words must be at least 1, got 0.5"),
        (lambda: spread.reads(0.5, 5), "share must have shape (..., steps), got ()"),
        (lambda: spread.gain([0.0, 1.0], [[1.0]]), "read must have 2 steps like t, got 1"),
        (lambda: spread.gain([1.0, 0.0], [[1.0], [1.0]]), "t must not fall"),
        (lambda: spread.gain(0.0, [1.0]), "read must have shape (..., steps, components), got (1,)"),
        (lambda: spread.gain(0.0, [[1.0]], curvature=-1.0), "curvature must not be negative, got -1"),
        (lambda: spread.turning_gain(1.0, 0.0), "fall must be positive, got 0"),
        (lambda: spread.exponential_turn(1.0, -2.0), "tau must be positive, got -2"),
        (lambda: spread.power_gain(1.0, 1.0, 1.0, -0.5), "power must not be negative, got -0.5"),
    ],
)
def test_bad_input_gets_one_sentence(call, said):
    with pytest.raises(ValueError) as refused:
        call()
    assert str(refused.value) == said
