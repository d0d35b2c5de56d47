"""The study of Theorem 2: its verdicts, and that each follows the numbers of its claim and of its controls."""

import numpy as np
import pytest
import torch
from every_study import put, test_a_spoiled_series_changes_its_verdict  # noqa: F401
from records import altered, changed, found, verdicts
from small_runs import small

from joma.claims.execute import judge
from joma.studies.linear.thm2 import EXACT, STUDY

SMALL = small("thm2")
HOLDS, FAILS, BLIND = "holds", "fails", "not above its control"


def judged(run, changes):
    return verdicts(STUDY, changed(run, lambda name, step, value: changes.get(name, value)))


def with_erf(run, scale, start=0.0):
    """A flow on which erf(v/scale)/Δ grows by the same amount at all tokens, (draws, steps, tokens)."""
    delta = run.value("delta")
    grown = run.value("share")[:, None] * (0.3 * delta / np.abs(delta).max(-1, keepdims=True))[:, None]
    return scale * torch.erfinv(torch.as_tensor(grown + start)).numpy()


SPOILED = [
    ("random/blow-up by quadrature", lambda t: t * np.inf, "finite-blow-up", HOLDS),
    ("growth/share of weight", lambda x: np.linspace(0.5, 1, len(x))[:, None], "one-hot", HOLDS),
]


def test_printed_invariants_would_be_recognised(run):
    start = torch.erf(torch.as_tensor(run.value("random/v"))[:, :1] / 4).numpy()
    true = {"zero/v": with_erf(run, 2), "normalised/v": with_erf(run, 2), "random/v": with_erf(run, 2, start)}
    seen = judged(run, true)
    assert [seen[claim] for claim in ("erf-invariant", "shared-normaliser", "erf-invariant-any-start")] == [HOLDS] * 3


def test_a_winner_by_saliency_would_be_recognised(run):
    by_saliency = dict.fromkeys(("random/blow-up", "random/blow-up by quadrature"), 1 / np.abs(run.value("delta")))
    assert judged(run, by_saliency)["who-wins"] == HOLDS


def test_where_two_forms_compete_both_are_measured(run):
    residuals = {finding.claim.name: finding.residuals for finding in judge(STUDY, run)}
    assert residuals["finite-blow-up"]["printed"] == pytest.approx(1, abs=EXACT)
    assert residuals["who-wins"]["corrected"] == 0
    for claim in ("erf-invariant", "erf-invariant-any-start", "shared-normaliser", "finite-blow-up", "who-wins"):
        assert residuals[claim]["printed"] > 1e-2 > EXACT >= residuals[claim]["corrected"]


@pytest.mark.parametrize(
    ("claim", "series"),
    [("erf-invariant", "zero/v"), ("shared-normaliser", "normalised/v"), ("erf-invariant-any-start", "random/v")],
)
def test_the_error_of_the_printed_invariant_comes_from_the_record(run, claim, series):
    """Where all weights are small, erf(v/2) and erf(v/√2) are both nearly linear: the printed form is off by less."""
    whole = found(STUDY, run, claim).residuals["printed"]
    copy = altered(run, series, lambda v: 0.5 * v)
    assert 0 < found(STUDY, copy, claim).residuals["printed"] != pytest.approx(whole, rel=1e-3)


def test_the_error_of_an_infinite_time_comes_from_the_record(run):
    residuals = found(STUDY, altered(run, "random/blow-up by quadrature", lambda t: 2 * t), "finite-blow-up").residuals
    assert residuals == pytest.approx({"printed": 0.5, "corrected": 0.5})


def test_invariants_that_v_alone_obeys_say_nothing_of_the_error_function(run):
    tiny = 1e-8 * run.value("share")[:, None] * run.value("delta")[:, None]
    seen = judged(run, {"zero/v": tiny, "normalised/v": tiny})
    assert seen["erf-invariant"] == seen["shared-normaliser"] == BLIND


def test_tokens_of_one_constant_say_nothing_of_the_factor(run):
    alike = {"random/v": run.value("zero/v"), "random/constant": run.value("zero/constant")}
    assert judged(run, alike)["erf-invariant-any-start"] == BLIND


@pytest.mark.parametrize("start", ["zero", "random"])
def test_a_flow_that_stands_still_says_nothing_of_the_closed_form(run, start):
    still = np.repeat(run.value(f"{start}/v")[:, :1], SMALL.steps, 1)
    assert judged(run, {f"{start}/v": still, f"{start}/v closed": still})["closed-form"] == BLIND


def test_losers_must_be_finite_and_winners_infinite(run):
    infinite, share = 10 * np.sign(run.value("limits")), run.value("share") / SMALL.horizon
    all_infinite = np.repeat(infinite[:, None], SMALL.steps, 1)
    changes = {"zero/v": all_infinite, "limits": infinite, "share": share}
    assert judged(run, changes)["losers-stop"] == FAILS
    delta, v = run.value("delta"), run.value("zero/v")
    size = np.abs(delta)
    winner = (size == size.max(-1, keepdims=True))[:, None]
    one = v.copy()
    one[0, :, size[0].argmin()] *= 0.5
    assert judged(run, {"zero/v": one})["losers-stop"] == FAILS
    assert judged(run, {"zero/v": np.where(winner, 0.5 * v, v)})["losers-stop"] == BLIND
    assert judged(run, {"zero/v": np.where(winner, np.nan, v)})["losers-stop"] == "undecided"


@pytest.mark.parametrize("last", [0.9, 1.0], ids=["in direction", "as printed"])
def test_a_share_that_the_saliencies_have_already_is_no_effect(run, last):
    shares = np.linspace(0.5, last, 45)[:, None] * np.ones(SMALL.draws)
    one_hot = np.full((SMALL.draws, SMALL.tokens), 1e-6)
    one_hot[:, 0] = 1.0
    seen = judged(run, {"growth/share of weight": shares * (1 - 1e-5), "delta": one_hot})
    assert seen["one-hot"] == BLIND
