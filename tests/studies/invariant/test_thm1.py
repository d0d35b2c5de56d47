"""The study of Theorem 1: its verdicts, and that each verdict follows the numbers of its claim and of its controls."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from every_study import add, put
from records import altered, changed, found, verdicts
from small_runs import small

from joma.studies.invariant import thm1
from joma.studies.invariant._blocks import largest, smallest
from joma.studies.invariant.thm1 import STUDY
from joma.theory.attention import Attention
from joma.theory.flow import State

SMALL = small("thm1")
HOLDS, FAILS = "holds", "fails"
ZERO = 1


@dataclass
class Clockwork:
    """w' = t³ and z' = z: Runge-Kutta is exact for the first, and its factor of each step is known for the second."""

    attention: object
    activation: object = None

    def velocity(self, w, z, time):
        return State(time**3 + 0 * w, z)

    def project(self, w):
        return w


def test_kinks_are_passed_with_runge_kutta(monkeypatch):
    start = State(torch.ones(2, 3, 3, 1, 1).double(), torch.ones(2, 3, 3, 1, 1).double())
    monkeypatch.setattr(thm1, "_block", lambda config, kind: (Clockwork(Attention("exp", norm=1.0)), start))
    monkeypatch.setattr(thm1, "pack", lambda z, w: (z, w))
    h = 0.5
    z, w = thm1._through_kinks(replace(SMALL, horizon=2 * 3 * h), 3)
    assert w.shape == (4, 2, 3, 1, 1)
    for n in range(4):
        assert w[n].tolist() == pytest.approx(np.full((2, 3, 1, 1), 1 + (n * h) ** 4 / 4))
        factor = 1 + h + h**2 / 2 + h**3 / 6 + h**4 / 24
        assert z[n].tolist() == pytest.approx(np.full((2, 3, 1, 1), factor**n))


@pytest.mark.parametrize("change", [add, put], ids=["off", "not a number"])
@pytest.mark.parametrize("member", [0, 1])
@pytest.mark.parametrize(("series", "claim"), [("sigma", "any-sigma"), ("ReLU/40 steps", "relu")])
def test_each_sigma_and_each_attention_counts(run, series, claim, member, change):
    one = change((-1, member, ..., 0), 0.01 if change is add else np.nan)
    assert verdicts(STUDY, altered(run, series, one))[claim] == (FAILS if change is add else "undecided")


def test_linear_attention_that_learns_from_zero_would_be_recognised(run):
    """With z and one v in step, z² = Σv² while both move; z alone would not do, nor would one width of two."""

    def learns(name, step, value, part=slice(0, 2), widths=("linear/1 nodes", "linear/2 nodes")):
        if name not in widths:
            return value
        value = np.array(value)
        value[:, ZERO, ..., part] = np.linspace(0, 1, len(value))[:, None, None, None, None]
        return value

    assert verdicts(STUDY, changed(run, learns))["zero-start-linear"] == HOLDS
    assert verdicts(STUDY, changed(run, lambda *entry: learns(*entry, part=slice(0, 1))))["zero-start-linear"] == FAILS
    for wide, narrow in (("linear/1 nodes", "linear/2 nodes"), ("linear/2 nodes", "linear/1 nodes")):

        def one_keeps_it(name, step, value, wide=wide, narrow=narrow):
            return learns(name, step, learns(name, step, value, widths=(wide,)), part=slice(0, 1), widths=(narrow,))

        assert verdicts(STUDY, changed(run, one_keeps_it))["zero-start-linear"] == FAILS
    copy = changed(run, lambda *entry: learns(*entry, widths=("linear/1 nodes",)))
    assert verdicts(STUDY, copy)["zero-start-linear"] == FAILS


def test_residuals_of_both_forms_are_measured(run):
    gradient = found(STUDY, run, "stationary-gradient")
    assert gradient.residuals["printed"] > 1e3 * gradient.tolerance >= gradient.residuals["corrected"]
    assert found(STUDY, run, "zero-start-linear").residuals == {"printed": 1, "corrected": 0}
    half = altered(run, "saliency", lambda x: x[:1] + 0.5 * (x - x[:1]))
    halved = found(STUDY, half, "stationary-gradient").residuals["printed"]
    assert halved == pytest.approx(gradient.residuals["printed"] / 2)


@pytest.mark.parametrize("values", [[np.nan, 1.0], [1.0, np.nan]])
def test_what_is_not_a_number_is_never_passed_over(values):
    assert np.isnan(largest(values))
    assert np.isnan(smallest(values))


def test_largest_and_smallest():
    assert (largest(iter([1.0, 3.0, 2.0])), smallest(iter([2.0, 1.0, 3.0]))) == (3.0, 1.0)


def test_controls_and_other_data_draw_from_streams_of_their_own(monkeypatch):
    """Of each other, of the block's own seed, and of the next seed: seed 1 once repeated what seed 0 had drawn."""
    drawn, normal = [], thm1.blocks.normal

    def spy(*shape, generator):
        drawn.append(generator.initial_seed())
        return normal(*shape, generator=generator)

    monkeypatch.setattr(thm1.blocks, "normal", spy)
    monkeypatch.setattr(thm1, "_path", lambda *given: None)  # what is drawn before any step suffices
    last = []
    for seed in (0, 1):
        for draw in (thm1._other_data, thm1._two_gradients):
            draw(replace(SMALL, seed=seed))
            last.append(drawn[-1])
    assert len({0, 1, 2, *last}) == 7
    assert {0, 1} < {*drawn}  # the block is drawn by the config's seed
