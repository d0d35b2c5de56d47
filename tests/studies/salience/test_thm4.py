"""The study of Theorem 4: its verdicts, and that each follows the numbers of its claim and its controls."""

from dataclasses import replace

import numpy as np
import pytest
from every_study import test_a_spoiled_series_changes_its_verdict  # noqa: F401
from records import altered, changed, found

from joma.studies.salience import thm4 as study
from joma.studies.salience.thm4 import STUDY

HOLDS, FIXED, FAILS, BLIND, OPEN = "holds", "holds as corrected", "fails", "not above its control", "undecided"


def test_linear_attention_leaves_the_whole_way_from_zero(run):
    printed, corrected = (form.tests for form in _forms(found(STUDY, run, "linear-attention-start")))
    assert printed[0].value == 1
    assert corrected[0].value == 0
    assert 0 < corrected[1].value <= study.EXACT


def _forms(finding):
    return finding.printed, finding.corrected


SPOILED = [
    ("squared error/depth", lambda x: x[:, ::-1], "ratio-in-training", "mixed"),
    ("cross-entropy/depth", lambda x: x[:, ::-1], "ratio-in-training", "mixed"),
    ("squared error/depth", lambda x: x[..., ::-1], "ratio-in-training", "mixed"),
]


@pytest.mark.parametrize(
    ("series", "change", "verdict"),
    [
        ("eq. 7", lambda depth: depth[:, 0], HOLDS),
        ("eq. 7", lambda depth: depth[:, 0] * np.where(np.arange(depth.shape[-1]), 2, 1), "only qualitative"),
        ("depth", lambda depth: depth[:, [0, 0]], BLIND),
    ],
)
def test_blocks_that_follow_eq_7_hold_and_need_attention(run, series, change, verdict):
    spoiled = {f"{loss}/{series}": change(run.value(f"{loss}/depth")) for loss in study.RATES}
    copy = changed(run, lambda name, step, value: spoiled.get(name, value))
    assert found(STUDY, copy, "ratio-in-training").verdict == verdict


@pytest.mark.parametrize("loss", study.RATES)
def test_blocks_end_where_they_are_taught_to(loss, monkeypatch):
    """Their V has the lengths of the teacher's, because logits grow with it as Theorem 1 says."""
    config = replace(STUDY.quick, strengths=(0.7, 1.2), seeds=2, training=1200)
    seen = []
    monkeypatch.setattr(study, "_deviation", lambda own, weakest, depth: seen.append(own) or 0 * own)
    study._train(config, loss, study.RATES[loss])
    assert np.allclose(seen[0], [[0.7, 1.2]] * 2, rtol=0.03)


def test_linear_attention_that_converged_from_zero_would_hold(run):
    copy = altered(run, "linear/v from zero", lambda _: run.value("linear/v"))
    assert found(STUDY, copy, "linear-attention-start").verdict == HOLDS


def test_a_flow_that_never_rises_shows_nothing_of_the_start(run):
    stays = np.full_like(run.value("linear/v"), 1e-3)
    spoiled = {"linear/v": stays, "linear/v closed": stays}
    copy = changed(run, lambda name, step, value: spoiled.get(name, value))
    assert found(STUDY, copy, "linear-attention-start").verdict == BLIND


def test_a_clock_that_runs_without_attention_too_shows_nothing(run):
    t, mu = run.value("early t")[:, None], run.value("mu")
    spoiled = {"v": -mu * np.expm1(-t), "F of v": t + 0 * mu}
    assert found(STUDY, changed(run, lambda name, step, value: spoiled.get(name, value)), "equal-f").verdict == BLIND


def test_curves_are_drawn_over_times_of_double_precision(run):
    np.testing.assert_allclose(run.value("curve/t"), 10 ** np.linspace(-1, 3, 200), rtol=1e-12)


def test_a_ratio_without_deviation_shows_nothing_of_it(run):
    mu = run.value("mu")
    leading = np.exp(mu**2 / 2) * np.ones((len(run.value("t")), 1))
    spoiled = {"depth": leading, "predicted ratio": (leading[1:, :, None] / leading[1:, None, :])}
    copy = changed(run, lambda name, step, value: spoiled.get(name, value))
    assert found(STUDY, copy, "depth-ratio").verdict == BLIND


def test_the_ratio_of_exp_attention_must_be_another(run, monkeypatch):
    """With targets so close that both attentions have one ratio, nothing can be told apart."""
    monkeypatch.setattr(study, "LINEAR_PAIR", (1.01, 1.0))
    copy = altered(run, "linear/depth", lambda x: 0 * x + [1.01, 1.0])
    assert found(STUDY, copy, "linear-attention-ratio").verdict == BLIND


@pytest.mark.parametrize(
    ("claim", "series", "change"),
    [
        ("equal-f", "F of v", lambda run: run.value("early t")[:, None] + 0 * run.value("v") + 0.25),
        ("depth-ratio", "predicted ratio", lambda run: _ratios(run) / 1.25),
    ],
)
def test_residuals_are_those_of_the_record(run, claim, series, change):
    assert found(STUDY, altered(run, series, lambda _: change(run)), claim).residuals["printed"] == pytest.approx(0.25)


def _ratios(run):
    depth = run.value("depth")[1:]
    return depth[:, :, None] / depth[:, None, :]
