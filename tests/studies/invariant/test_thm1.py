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
HOLDS, FIXED, FAILS, BLIND = "holds", "holds as corrected", "fails", "not above its control"
OFF = add((-1, ..., 0), 0.01)  # the logits at the last moment
NAN = put((-1,), np.nan)
RANDOM, ZERO = 0, 1


def still(path):
    return np.broadcast_to(path[:1], path.shape).copy()


def one_still(i):
    """Only the i-th along the second dimension stays where it starts."""

    def change(path):
        path = np.array(path)
        path[:, i] = path[:1, i]
        return path

    return change


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


@pytest.mark.parametrize("change", [OFF, NAN], ids=["off", "not a number"])
@pytest.mark.parametrize(
    ("series", "failing"),
    [
        ("exp/1 nodes", {"exp-invariant", "stationary-gradient", "residual", "zero-start-exp"}),
        ("exp/2 nodes", {"exp-invariant", "stationary-gradient", "residual", "zero-start-exp"}),
        ("linear/1 nodes", {"linear-invariant", "stationary-gradient", "residual", "zero-start-linear"}),
        ("linear/2 nodes", {"linear-invariant", "stationary-gradient", "residual", "zero-start-linear"}),
        ("pull", {"pull-on-logits"}),
        ("sigma", {"any-sigma"}),
        ("ReLU/40 steps", {"relu"}),
        ("exp/other data", {"any-data"}),
        ("exp/no residual", {"residual"}),
        ("linear/no residual", {"residual"}),
    ],
)
def test_a_wrong_number_fails_its_claims_and_no_others(run, tmp_path, series, failing, change):
    with altered(run, tmp_path / "run", series, change) as copy:
        assert {claim for claim, verdict in verdicts(STUDY, copy).items() if verdict in (FAILS, "undecided")} == failing


@pytest.mark.parametrize("change", [add, put], ids=["off", "not a number"])
@pytest.mark.parametrize("member", [0, 1])
@pytest.mark.parametrize(("series", "claim"), [("sigma", "any-sigma"), ("ReLU/40 steps", "relu")])
def test_each_sigma_and_each_attention_counts(run, tmp_path, series, claim, member, change):
    one = change((-1, member, ..., 0), 0.01 if change is add else np.nan)
    with altered(run, tmp_path / "run", series, one) as copy:
        assert verdicts(STUDY, copy)[claim] == (FAILS if change is add else "undecided")


@pytest.mark.parametrize(
    ("series", "change", "blind"),
    [
        ("exp/1 nodes", still, {"exp-invariant", "zero-start-exp"}),
        ("exp/2 nodes", still, {"exp-invariant", "zero-start-exp"}),
        ("exp/2 nodes", one_still(ZERO), {"zero-start-exp"}),
        ("exp/1 nodes", lambda path: path[:, [ZERO, ZERO]], {"zero-start-exp"}),
        ("linear/1 nodes", still, {"linear-invariant", "zero-start-linear"}),
        ("linear/2 nodes", still, {"linear-invariant", "zero-start-linear"}),
        ("pull", lambda sides: 0 * sides, {"pull-on-logits"}),
        ("sigma", one_still(0), {"any-sigma"}),
        ("sigma", one_still(1), {"any-sigma"}),
        ("ReLU/40 steps", one_still(0), {"relu"}),
        ("ReLU/40 steps", one_still(1), {"relu"}),
        ("exp/two gradients", still, {"stationary-gradient"}),
        ("exp/other data", one_still(1), {"any-data"}),
        ("exp/overlapping query", still, {"residual"}),
    ],
)
def test_a_control_that_passes_as_well_says_that_nothing_was_seen(run, tmp_path, series, change, blind):
    with altered(run, tmp_path / "run", series, change) as copy:
        seen = verdicts(STUDY, copy)
    assert {claim for claim, verdict in seen.items() if verdict == BLIND} == blind


@pytest.mark.parametrize(
    ("series", "claim"), [("exp/two gradients", "stationary-gradient"), ("exp/overlapping query", "residual")]
)
def test_a_lost_control_leaves_its_claim_undecided(run, tmp_path, series, claim):
    with altered(run, tmp_path / "run", series, NAN) as copy:
        assert verdicts(STUDY, copy)[claim] == "undecided"


def test_relu_needs_a_small_drift_and_one_that_falls_with_the_step(run, tmp_path):
    def both_off(name, step, value):
        return OFF(value) if name == "ReLU/40 steps" else add((-1, ..., 0), 1.0)(value) if "ReLU/" in name else value

    with changed(run, tmp_path / "large", both_off) as copy:
        assert verdicts(STUDY, copy)["relu"] == FAILS
    with altered(run, tmp_path / "no fall", "ReLU/10 steps", still) as copy:
        assert verdicts(STUDY, copy)["relu"] == FAILS


def test_a_gradient_that_stays_constant_would_be_recognised(run, tmp_path):
    with altered(run, tmp_path / "run", "saliency", still) as copy:
        assert verdicts(STUDY, copy)["stationary-gradient"] == HOLDS


def test_linear_attention_that_learns_from_zero_would_be_recognised(run, tmp_path):
    """With z and one v in step, z² = Σv² while both move; z alone would not do, nor would one width of two."""

    def learns(name, step, value, part=slice(0, 2), widths=("linear/1 nodes", "linear/2 nodes")):
        if name not in widths:
            return value
        value = np.array(value)
        value[:, ZERO, ..., part] = np.linspace(0, 1, len(value))[:, None, None, None, None]
        return value

    with changed(run, tmp_path / "both", learns) as copy:
        assert verdicts(STUDY, copy)["zero-start-linear"] == HOLDS
    with changed(run, tmp_path / "logits", lambda *entry: learns(*entry, part=slice(0, 1))) as copy:
        assert verdicts(STUDY, copy)["zero-start-linear"] == FAILS
    for wide, narrow in (("linear/1 nodes", "linear/2 nodes"), ("linear/2 nodes", "linear/1 nodes")):

        def one_keeps_it(name, step, value, wide=wide, narrow=narrow):
            return learns(name, step, learns(name, step, value, widths=(wide,)), part=slice(0, 1), widths=(narrow,))

        with changed(run, tmp_path / wide.replace("/", " "), one_keeps_it) as copy:
            assert verdicts(STUDY, copy)["zero-start-linear"] == FAILS
    with changed(run, tmp_path / "one width", lambda *entry: learns(*entry, widths=("linear/1 nodes",))) as copy:
        assert verdicts(STUDY, copy)["zero-start-linear"] == FAILS


def test_residuals_of_both_forms_are_measured(run, tmp_path):
    gradient = found(STUDY, run, "stationary-gradient")
    assert gradient.residuals["printed"] > 1e3 * gradient.tolerance >= gradient.residuals["corrected"]
    assert found(STUDY, run, "zero-start-linear").residuals == {"printed": 1, "corrected": 0}
    with altered(run, tmp_path / "run", "saliency", lambda x: x[:1] + 0.5 * (x - x[:1])) as half:
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
