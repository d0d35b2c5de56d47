"""The study of the reversal curse: its verdicts, and that each follows the numbers of its claim and of its controls."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from records import changed, found, verdicts

from joma.data.facts import reversals
from joma.studies.reversal import _rows
from joma.studies.reversal import reversal as study
from joma.studies.reversal._rows import bounds, moments_of, power_of
from joma.studies.reversal.reversal import STUDY
from joma.theory.reversal import bilinear_losses, bound_power, row_loss

HOLDS, FIXED, FAILS, BLIND = "holds", "holds as corrected", "fails", "not above its control"


def test_a_printed_bound_that_held_would_be_recognised(run):
    kept = lambda name, step, value: np.minimum(value, 0.9) if name.endswith("missing, c = 1") else value
    assert verdicts(STUDY, changed(run, kept))["train-bound"] == HOLDS


def test_a_law_that_a_straight_line_obeys_too_says_nothing(run):
    near = lambda name, step, value: np.zeros_like(value) if name.endswith("off a straight line") else value
    assert verdicts(STUDY, changed(run, near))["row-law"] == BLIND


def test_what_is_measured(run):
    """SPEC: M p = 1 in A and 0.13 to 0.53 in B at the end; later, 1 - p is twice what c = 1 allows."""
    details = found(STUDY, run, "reverse-is-a-guess").details
    assert details["at the end, model A"]["smallest M p"] == pytest.approx(1, rel=1e-12)
    assert 0.13 < details["at the end, model B"]["smallest M p"] < 0.53
    assert 2 < found(STUDY, run, "train-bound").details["at the end, c = 1"]["model A"] < 5
    powers = found(STUDY, run, "train-bound").details
    assert powers["largest c that holds"]["model A"] >= powers["c of the row law"]["M = 102"]
    assert 0.5 < powers["largest c that holds"]["model B"] < powers["largest c that holds at the end"]["model B"] < 1
    assert found(STUDY, run, "row-law").residuals["printed"] < 0.013


@pytest.mark.parametrize("model", ["A", "B"])
def test_sgd_is_that_of_a_network_with_this_readout(model):
    facts = reversals(6, seed=3)
    tokens = facts.vocabulary
    *_, end = _rows.train([facts.train] * 2, model=model, tokens=tokens, rate=0.7, moments=[3, 60], seed=5)
    for member in range(2):
        y = torch.zeros(tokens, tokens, dtype=torch.float64, requires_grad=True)
        for which in facts.train.draw(60, seed=5 + member).tolist():
            x1, x2, x3 = facts.train.tokens[which]
            logits = y[x1] if model == "A" else (y[x1] + y[x2]) / 2**0.5
            (slope,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, x3), y)
            y = (y - 0.7 * slope).detach().requires_grad_(True)
        np.testing.assert_allclose(end.weights[member], y.detach(), rtol=0, atol=1e-13)
        assert end.visits[member].sum() == 60
    wanted = torch.nn.functional.cross_entropy(
        torch.as_tensor(_rows.logits_of(end.weights[1], facts.test, model)),
        facts.test.target[:, 0],
        reduction="none",
    )
    np.testing.assert_allclose(_rows.losses_of(end.weights[1], facts.test, model), wanted, rtol=1e-12)


@pytest.mark.parametrize("kind", study.TRAINED)
def test_descent_in_coefficients_is_descent_in_theta(kind):
    table = torch.randn(9, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    facts = torch.arange(6).reshape(3, 2)
    found = study.descend((table @ table.T)[None], 3, 20, kind)[:, 0]
    theta = torch.zeros(5, 5, dtype=torch.float64, requires_grad=True)
    for step in range(21):
        losses = bilinear_losses((theta + theta.T) / 2 if kind == "symmetric" else theta, table, facts)
        assert found[:, step].tolist() == pytest.approx([float(loss.detach()) for loss in losses], rel=1e-9)
        (slope,) = torch.autograd.grad(losses.forward + (losses.reverse if kind == "both" else 0), theta)
        theta = (theta - 3 * slope).detach().requires_grad_(True)


def test_the_power_comes_from_the_row_law():
    assert power_of(102) == pytest.approx(float(bound_power(np.log(102), tokens=102, rate=1.0)))
    loss, visits = row_loss([3, 20, 400], tokens=102, rate=0.5).numpy(), np.array([3, 20, 400])
    found = bounds(loss, visits, 30.0, 102, 0.5)
    wanted = [float(bound_power(s, tokens=102, rate=0.5)) for s in (20, 400)]  # 3 visits are too few
    assert found["largest c"] == pytest.approx(min(wanted))
    assert found["missing, c of the law"] <= 1 < found["missing, c = 1"]
    assert np.isnan(bounds(loss[:1], visits[:1], 3.0, 102, 0.5)["largest c"])


def test_a_bound_without_training_and_the_moments_by_hand():
    """At eta s = ln M 1 - p may be (M - 1) / (2 (M eta s)^c). Moments are even in ln t and pass through ln M."""
    tokens, rate = 102, 0.5
    allowed = (tokens - 1) / (2 * (tokens * np.log(tokens)) ** power_of(tokens))
    found = bounds(np.array([0.1]), np.array([20]), 30.0, tokens, rate)["missing untrained"]
    assert found == pytest.approx((1 - 1 / tokens) / allowed)
    steps = moments_of(40, tokens, rate, horizon=6.0, count=9)
    times = rate * np.array(steps) / 40 / np.log(tokens)
    assert np.abs(times - 1).min() < 0.003
    assert (times[0], times[-1]) == pytest.approx((0.1, 6.0), rel=0.02)
    early, late = np.diff(np.log(times[times < 1.001])), np.diff(np.log(times[times > 0.999]))
    assert np.ptp(early) < 0.05
    assert np.ptp(late) < 0.05
    assert early.mean() == pytest.approx(late.mean(), rel=0.3)
    many = np.diff(np.log(moments_of(10**9, tokens, rate, horizon=6.0, count=400)))
    assert many.max() < 1.02 * many.min()


def test_what_a_run_measures_is_what_its_name_says():
    """Model A on two pairs, one of them trained both ways, with weights drawn by hand."""
    facts = reversals(25, both=0.5, seed=3)
    weights = np.random.default_rng(0).standard_normal((2, facts.vocabulary, facts.vocabulary))
    visits = np.full((2, len(facts.with_reverses(1).train)), 5)
    moment = SimpleNamespace(weights=weights, visits=[visits[0][: len(facts.train)], visits[1]], step=50)
    found = study.seen(moment, 0, facts, "A", 0.5)
    p = np.exp(weights[0]) / np.exp(weights[0]).sum(-1, keepdims=True)

    def chances(some):
        return np.array([p[row[0], answer[0]] for row, answer in zip(some.tokens, some.target, strict=True)])

    reverse, m = chances(facts.test), facts.vocabulary
    wanted = {
        "train p": chances(facts.train).mean(), "least train p": chances(facts.train).min(),
        "reverse p": reverse.mean(), "largest reverse M p": m * reverse.max(), "least reverse M p": m * reverse.min(),
        "rows of A": min(np.abs(weights[0][row[0]]).max() for row in facts.one_way.tokens),
        "rows of B": max(np.abs(weights[0][row[2]]).max() for row in facts.one_way.tokens),
    }  # fmt: skip
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value), name
