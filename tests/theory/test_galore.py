"""The gradient form and its bounds: against real descent, autograd, and the cases that break what is printed."""

import pytest
import torch
from refusals import refusals
from theory.calls_of_galore import definite

from joma.theory import galore

torch.manual_seed(0)
A, B, C = torch.randn(3, 4, 5).double(), definite(1, 3, 4), definite(2, 3, 5)
W = torch.randn(4, 5).double()


def close(found, wanted, tolerance=1e-12):
    wanted = torch.as_tensor(wanted, dtype=torch.float64)
    torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)


def rank(g):
    values = torch.linalg.svdvals(g)
    return (values.square().sum(-1)) / values[..., 0].square()


def descent(w, rate, steps):
    """Gradients on the way of a real descent."""
    path = []
    for _ in range(steps):
        path.append(galore.gradient(w, A, B, C))
        w = w + rate * path[-1]
    return torch.stack(path)


def test_the_gradient_is_that_of_a_quadratic_loss():
    w = W.clone().requires_grad_()
    gain = sum((a * w).sum() - (w * (b @ w @ c)).sum() / 2 for a, b, c in zip(A, B, C, strict=True)) / 3
    (wanted,) = torch.autograd.grad(gain, w)
    close(galore.gradient(W, A, B, C), wanted)


def test_the_path_is_that_of_real_descent():
    wanted = descent(W, 0.2, 12)
    close(galore.gradient_path(wanted[0], B, C, torch.arange(12), rate=0.2), wanted, 1e-10)


def test_the_operator_does_what_the_form_does():
    close((galore.operator(B, C) @ W.flatten()).view(4, 5), (B @ W @ C).mean(0))


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.9])
def test_the_corrected_bound_holds_and_ends_at_the_lasting_part(rate):
    g = galore.gradient(W, A, B, C)
    t = torch.tensor([0, 1, 2, 5, 20, 100, 3000]).double()
    bound = galore.stable_rank_bound(g, B, C, t, rate=rate)
    assert bool((rank(galore.gradient_path(g, B, C, t[:-1], rate=rate)) <= bound[:-1] + 1e-9).all())
    assert bool((bound <= 4).all())
    close(bound[-1], rank(galore.lasting(g, B, C, rate=rate).part), 1e-6)


def test_parts_add_up_and_are_orthogonal_eigenvectors():
    for part, rest in (galore.split(W, B, C), galore.lasting(W, B, C, rate=0.3)):
        close(part + rest, W)
        assert abs((part * rest).sum()) < 1e-12
        image = (B @ part @ C).mean(0)
        value = (image * part).sum() / part.square().sum()
        close(image, value * part, 1e-9)


def test_a_high_rate_keeps_the_highest_part():
    values, vectors = torch.linalg.eigh(galore.operator(B, C))
    middle = 2 / (values[0] + values[-1])
    for rate, place in ((0.99 * middle, 0), (1.01 * middle, -1)):
        kept = galore.lasting(W, B, C, rate=float(rate)).part.flatten()
        close((kept @ vectors[:, place]).abs(), kept.norm(), 1e-9)


def test_the_printed_bound_is_infinite_where_no_part_is_lowest():
    f = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]).double()
    c, b = f[:, :, None] * f[:, None], torch.eye(2).double().expand(2, 2, 2)
    g = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    assert galore.split(g, b, c).part.abs().max() == 0
    assert galore.stable_rank_bound_as_printed(g, b, c, [0, 5], rate=0.1).isinf().all()
    close(galore.stable_rank_bound(g, b, c, [0, 5], rate=0.1), [2.0, 2.0], 1e-6)


def test_the_printed_bound_misses_by_a_known_amount():
    """S with eigenvalues 0.5, along diag(2, 1), and 3, along diag(-1, 2); G = diag(5, 5)/3."""
    swap, one = torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.eye(2)
    corner, across = torch.diag(torch.tensor([0.0, 1.0])), torch.diag(torch.tensor([1.0, 0.0]))
    b = torch.stack([(one + swap) / 2, (one - swap) / 2, 1.5 * corner, 9 * across, 9 * corner]) * 5
    c = torch.stack([one - swap, one + swap, corner, corner, across])
    g = torch.eye(2) * 5 / 3
    close(galore.split(g, b, c).part, [[2.0, 0.0], [0.0, 1.0]], 1e-6)
    close(galore.stable_rank_bound_as_printed(g, b, c, 0, rate=0.1), [5 / 4 + 5 / 36], 1e-6)
    close(galore.stable_rank_bound(g, b, c, 0, rate=0.1), [2.0], 1e-6)


def test_a_relu_network_has_the_printed_gradient_and_a_square_its_degree():
    j, f, y, up = torch.randn(3, 4), torch.randn(5), torch.randn(3), torch.randn(4, 4)
    for act, degree in ((torch.relu, 1.0), (torch.square, 2.0)):
        above = lambda h, act=act: j.double() @ act(up.double() @ h)
        w = W.clone().requires_grad_()
        (wanted,) = torch.autograd.grad(-(y - above(w @ f.double())).square().sum() / 2, w)
        jacobian = torch.autograd.functional.jacobian(above, W @ f.double())
        close(galore.reversible_gradient(jacobian, W, f.double(), y.double(), degree=degree), wanted, 1e-5)


def test_a_degree_must_fit_whichever_argument_comes_in_several():
    given = {"jacobian": torch.ones(3, 4), "w": torch.ones(4, 5), "f": torch.ones(5), "y": torch.ones(3)}
    for name, alone in given.items():
        several = {**given, name: alone.expand(2, *alone.shape)}
        found = galore.reversible_gradient(**several, degree=torch.tensor([1.0, 2.0]))
        close(found, torch.stack([torch.full((4, 5), 3 * (1 - 20 / degree)) for degree in (1.0, 2.0)]), 1e-6)
        with pytest.raises(ValueError, match="degree"):
            galore.reversible_gradient(**several, degree=torch.ones(3))


def test_the_softmax_form_is_right_to_second_order():
    j, f, y = torch.randn(6, 4).double(), torch.randn(5).double(), torch.eye(6).double()[2]
    errors = []
    for size in (1e-2, 1e-3):
        w = (size * W).requires_grad_()
        (wanted,) = torch.autograd.grad((y * torch.log_softmax(j @ w @ f, -1)).sum(), w)
        errors.append((galore.softmax_gradient(j, w.detach(), f, y) - wanted).norm())
    assert 80 < errors[0] / errors[1] < 120


@pytest.mark.parametrize("count", [2, 4, 10])
def test_gamma_is_what_the_sum_of_exponentials_is_divided_by(count):
    """sum_i e^(z_i) of logits that cancel is K (1 + |z|^2 / 2K) to third order: with K for 2K half a square is left."""
    size = 1e-3
    z = size * torch.tensor([1.0, -1.0]).double().repeat(count // 2)
    found = galore.softmax_gradient(torch.eye(count).double(), z[:, None], [1.0], torch.zeros(count).double())[:, 0]
    gamma = -count * (found @ z) / (z @ z)
    exact = count / z.exp().sum()
    assert abs(gamma - exact) < 1e-3 * (1 - exact)


def test_the_softmax_form_term_by_term():
    """Against numpy, with one number at a time: P takes the mean away, of the target and of the logits."""
    j, w, f, y = (torch.randn(*shape).double() for shape in ((6, 4), (4, 5), (5,), (6,)))
    jacobian, logits = j.numpy(), j.numpy() @ w.numpy() @ f.numpy()
    logits = logits - logits.mean()
    gamma = 1 / (1 + sum(each**2 for each in logits) / 12)
    target = y.numpy() - y.numpy().mean()
    off = [target[k] - gamma * logits[k] / 6 for k in range(6)]
    wanted = [[sum(jacobian[k, i] * off[k] for k in range(6)) * float(each) for each in f] for i in range(4)]
    close(galore.softmax_gradient(j, w, f, y), wanted)


def test_contraction_has_every_term():
    terms = {"rate": 0.1, "la": 2.0, "lb": 3.0, "lc": 5.0, "w": 7.0, "b": 11.0, "c": 13.0}
    close(galore.contraction(0.5, 4.0, **terms), 0.95 + 0.1 * (2 + 7 * (3 * 13 + 5 * 11)))
    close(galore.contraction(0.5, 40.0, **terms), 3.0 + 0.1 * (2 + 7 * (3 * 13 + 5 * 11)))
    printed = {"rate": 0.1, "la": 2.0, "lb": 3.0, "lc": 5.0, "d": 7.0}
    close(galore.contraction_as_printed(0.5, **printed), 1 - 0.1 * (0.5 - 2 - 15 * 49))
    close(galore.contraction_as_printed(0.5, **printed, factor=2.0), 1 - 0.1 * (0.5 - 2 - 30 * 49))


def test_bytes_of_one_matrix():
    for m, n in ((3, 8), (8, 3)):
        assert [float(part) for part in galore.galore_bytes(m, n, 2)] == [48, 64, 12]
        assert float(galore.galore_bytes(m, n, 2, itemsize=4).total) == 248
        assert [float(part) for part in galore.lora_bytes(m, n, 2)] == [92, 88, 0]
    assert float(galore.adam_bytes(3, 8).total) == 144


test_bad_input_gets_its_sentence = refusals(
    (lambda: galore.galore_bytes(3, 8, 4), "rank must be at most the shorter of m and n, got 4"),
    (lambda: galore.split(W, -B, C), "b must hold positive semidefinite matrices"),
    (lambda: galore.split(W, B, torch.randn(3, 5, 5)), "c must hold symmetric matrices"),
    (lambda: galore.split(W, B[:2], C), "b and c must hold equally many matrices, got 2 and 3"),
    (lambda: galore.gradient(W, A[:2], B, C), "a, b and c must hold equally many matrices"),
    (lambda: galore.gradient_path(W, B, C, 0.5, rate=0.1), "t must hold whole numbers"),
    (lambda: galore.gradient_path(W, B, C, 1, rate=0.0), "rate must be a finite number above 0"),
    (lambda: galore.stable_rank_bound(0 * W, B, C, 1, rate=0.1), "g must not be zero"),
    (lambda: galore.split(torch.ones(70, 70), [torch.eye(70)], [torch.eye(70)]), "m n of at most 4,096"),
)


@pytest.mark.parametrize("side", [3, 8])
def test_a_part_of_1e13th_that_outlives_the_others_is_seen(side):
    """diag: G_t = (1 - rate lambda)^t g. The last part starts at 1e-13 of the whole and is of rank 2 in the end.

    What counts as rounding grows with the root of the number of entries, not with the number.
    """
    g = torch.zeros(side, side, dtype=torch.float64)
    g[0, 0], g[1, 1], g[2, 2] = 1.0, 1e-13, 0.6e-13
    slow = torch.full((side,), 0.01, dtype=torch.float64)
    slow[0] = 1.0
    b, c = torch.diag(slow)[None], torch.eye(side, dtype=torch.float64)[None]
    t = torch.tensor([0.0, 20.0, 200.0], dtype=torch.float64)
    factors = torch.stack([0.5**t, 0.995**t, 0.995**t], -1)
    numbers = factors * g.diagonal()[:3]
    true = numbers.square().sum(-1) / numbers.square().amax(-1)
    bound = galore.stable_rank_bound(g, b, c, t, rate=0.5)
    assert (bound >= true * (1 - 1e-9)).all(), (bound, true)
    assert bound[-1].item() == pytest.approx(1.36, rel=1e-6)
