"""GaLore's theory: the verdicts, that each follows its record, and the cases that break what is printed."""

import numpy as np
import pytest
import torch
from every_study import put, test_a_spoiled_series_changes_its_verdict  # noqa: F401
from records import found
from scipy.integrate import solve_ivp

from joma.studies.galore.galore_theory import run as problems
from joma.studies.galore.galore_theory.study import STUDY, descent
from joma.theory.attention import random_orthonormal

HOLDS, FAILS, BLIND = "holds", "fails", "not above its control"


@pytest.mark.parametrize(("shape", "size"), [((10_000,), 1.0), ((50, 400), 1 / 20)])
def test_only_matrices_are_scaled(shape, size):
    assert float(problems._normal(torch.Generator().manual_seed(0), *shape).std()) == pytest.approx(size, rel=0.05)


nothing = np.zeros_like
SPOILED = [
    ("network/ReLU", put((0, 1), np.nan), "reversible-gradient", "undecided"),
    ("softmax/1000/corrected", lambda x: x + 0.1, "softmax-small-logits", FAILS),
    ("softmax/1000/printed", nothing, "softmax-small-logits", HOLDS),
    ("half/orthonormal inputs/rank", lambda x: x / 2, "half-rank", HOLDS),
    ("rank one/late, high rate", lambda x: 1 + 0 * x, "rank-one", HOLDS),
    ("projection/peak/factor", lambda x: 1 + 0 * x, "projection-constant", HOLDS),
    ("projection/settle/worst factor", lambda x: x + 1, "projection-converges", BLIND),
    ("projection/cycle/size", lambda x: x * (np.arange(len(x)) < 9), "projection-converges", HOLDS),
    ("rows/off/eq. 43", nothing, "project-up-dynamics", HOLDS),
    ("rows/growth/low", nothing, "row-growth", HOLDS),
]


def test_each_premise_of_the_lemma_is_needed_and_together_they_do(run):
    tests = {test.what.split(", ")[-1]: test.value for test in found(STUDY, run, "stable-rank-bound").printed.tests}
    assert tests["one pair"] < 1e-12
    assert tests["several pairs"] > 0.4  # the 2 x 2 case: 2 against 25/18
    assert tests["high rate"] > 0.4
    assert tests["late start"] > 0.8  # 1 + 0.9² against 1


def test_the_counterexample_stays_at_the_rank_of_its_inputs(run):
    np.testing.assert_allclose(run.value("half/orthonormal inputs/rank"), run.config["inputs"] - 1, rtol=1e-9)


def test_the_peak_needs_twice_what_is_printed(run):
    peak = {name: run.value(f"projection/peak/{name}") for name in ("factor", "printed", "proof", "rate")}
    np.testing.assert_allclose((peak["factor"] - 1) / peak["rate"], 1.0, rtol=1e-2)
    assert (peak["factor"] > peak["printed"]).all()
    assert (peak["factor"] <= peak["proof"]).all()


def by_hand(before, after, rate):
    (w0, b0, c0), (w1, b1, c1) = before, after
    kappa, w, b, c = b0 * c0, max(abs(w0), abs(w1)), max(b0, b1), max(c0, c1)
    return abs(1 - rate * kappa) + rate * (0.3 + w * (0.5 * c + 0.2 * b))  # L_A, L_B and L_C


def test_a_step_is_bounded_by_the_largest_norms_before_and_after_it():
    """One number instead of matrices, from W = 0.1 upwards: B, C and |W| are all larger after the step."""
    one = torch.ones(1, 2, 1, 1, dtype=torch.float64)  # two equal pairs
    square, w = one[:, 0], 0.1 * one[:, 0]
    problem = problems.Problem(
        2 * one, 0.5 * one, 0.6 * one, one[:, None].expand(1, 3, 2, 1, 1), one, one, one,
        torch.tensor([[0.3, 0.5, 0.2]]).double(), square, square,
    )  # fmt: skip
    after, seen = problems._step(problem, w, torch.tensor([0.5]).double())
    gradient = 2 + 0.3 * np.sin(0.1) - (0.5 + 0.05) * 0.1 * (0.6 + 0.02)
    assert after.item() == pytest.approx(0.1 + 0.5 * gradient)
    w1 = after.item()
    assert 0.1 < 2 - w1 < w1 < 1.9  # the wave is past its top, and still higher than at 0.1
    b1, c1 = 0.5 + 0.5 * (2 - w1), 0.6 + 0.2 * (2 - w1)
    assert seen["corrected"].item() == pytest.approx(by_hand((0.1, 0.55, 0.62), (w1, b1, c1), 0.5))
    left = 2 + 0.3 * np.sin(w1) - b1 * w1 * c1
    assert seen["factor"].item() == pytest.approx(abs(left) / gradient)
    # Back again: now all are larger before the step.
    back, seen = problems._step(problem._replace(a0=-2 * one), after, torch.tensor([0.5]).double())
    w2 = back.item()
    b2, c2 = 0.5 + 0.5 * abs(w2), 0.6 + 0.2 * abs(w2)
    assert abs(w2) < 2 - w1
    assert seen["corrected"].item() == pytest.approx(by_hand((w1, b1, c1), (w2, b2, c2), 0.5))


def test_paths_are_followed_for_as_many_steps_as_are_asked_for():
    still, one, two = (problems.settle(3, 3, 4, steps, seed=2) for steps in range(3))
    assert still["left"].tolist() == [1.0] * 3
    assert (two["left"] < 0.99 * one["left"]).all()
    assert (one["left"] < 0.99).all()


def test_memory_by_hand(run):
    """60M: 8 layers of four 512 x 512 and three 512 x 1376, two tables of 32000 x 512, rank 128, 2 bytes."""
    square, wide = 128 * (512 + 2 * 512), 128 * (512 + 2 * 1376)
    assert run.value("memory/galore matrices")[0] == 2 * 8 * (4 * square + 3 * wide)
    weights = 8 * (4 * 512 * 512 + 3 * 512 * 1376) + 2 * 32000 * 512 + 17 * 512
    assert run.value("memory/weights")[0] == 2 * weights == 116_147_200
    formula = found(STUDY, run, "memory-states").details["by the formula, G"]
    assert formula["1B"] == pytest.approx(2.036, abs=1e-3)


def test_the_residual_block_adds_its_input(monkeypatch):
    """The Jacobian of out relu(up relu(h) + up h), by hand, at the first draw: f, y, w, up, out in this order."""
    seen, form = [], problems.galore.reversible_gradient
    monkeypatch.setattr(
        problems.galore, "reversible_gradient", lambda j, *more, **options: seen.append(j) or form(j, *more, **options)
    )
    problems.errors("residual ReLU", 1, seed=3)
    generator = torch.Generator().manual_seed(3)
    f, _ = (torch.randn(size, generator=generator, dtype=torch.float64) for size in (5, 4))
    shapes = ((7, 5), (6, 7), (4, 6))
    w, up, out = (torch.randn(s, generator=generator, dtype=torch.float64) / s[1] ** 0.5 for s in shapes)
    h = w @ f
    on = (up @ (h.clamp(min=0) + h) > 0).double()
    assert on.any()
    torch.testing.assert_close(seen[0], out @ (on[:, None] * up * (1 + (h > 0).double())))


def normal(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64).numpy()


def test_bounds_of_rows_solve_their_equation():
    """x' = exp(s^2 x^2) from zero: s is max |delta| for the lower bound; for the upper, n times it, and n times x."""
    found = problems.rows(3, 2, 2, 6, seed=5)
    generator = torch.Generator().manual_seed(5)
    random_orthonormal(4, 4, generator=generator)  # what is drawn before
    x = torch.rand(2, 12, 3, generator=generator, dtype=torch.float64).numpy()
    delta = np.einsum("bst,bsn->btn", x, normal(generator, 2, 12, 2)) / 12
    delta *= np.sqrt(np.pi / 2) / np.sqrt((delta**2).sum(-1)).max(-1)[:, None, None]  # the first blow-up is at 1
    share = found["share"].numpy()
    for block, token in np.ndindex(2, 3):
        slope = np.abs(delta[block, token]).max()
        for name, factor in (("low", 1), ("high", 2)):
            inside = share[share < 0.9 * np.sqrt(np.pi) / (2 * factor * slope)]
            grow = solve_ivp(lambda _, x, s=factor * slope: np.exp((s * x) ** 2), (0, 1), [0.0], t_eval=inside,
                             rtol=1e-10, atol=1e-12, events=None if name == "low" else _large)  # fmt: skip
            path = found[f"growth/{name}"][block, : len(inside), token].numpy()
            np.testing.assert_allclose(path, factor * grow.y[0], rtol=1e-7)


def _large(_, x):
    return x[0] - 1e3


_large.terminal = True


def test_the_error_of_the_softmax_form_is_that_at_logits_of_the_asked_size():
    """At the first draw: j, f, w. Logits have that size around their mean. The class cancels."""
    sizes, classes = (0.1, 0.5), 4
    found = problems.softmax_errors(classes, torch.tensor(sizes).double(), 1, seed=7)[:, 0]
    generator = torch.Generator().manual_seed(7)
    j, f, w = normal(generator, classes, 6) / 6**0.5, normal(generator, 5), normal(generator, 6, 5) / 5**0.5
    centred = j @ w @ f - (j @ w @ f).mean()
    for size, error in zip(sizes, found.tolist(), strict=True):
        z = centred * size / np.abs(centred).max()
        chance = np.exp(z) / np.exp(z).sum()
        linear = z / classes / (1 + (z**2).sum() / (2 * classes))
        off = j.T @ (chance - 1 / classes - linear)  # form and truth both have J^T P y f^T
        assert error == pytest.approx(np.linalg.norm(off) / np.linalg.norm(j.T @ linear))


def test_descent_on_random_pairs_has_the_rate_at_which_the_second_and_the_highest_fall_alike():
    for family in (descent.ONE, descent.SEVERAL, descent.LATE):
        case = descent._drawn(family, 3, 4, torch.Generator().manual_seed(2))
        both = sum(np.kron(b, c) for b, c in zip(case.b.numpy(), case.c.numpy(), strict=True)) / len(case.b)
        values = np.linalg.eigvalsh(both)
        assert abs(1 - case.rate * values[1]) == pytest.approx(abs(1 - case.rate * values[-1]))
