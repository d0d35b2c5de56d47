"""The study of eq. 6 and Figure 4: its verdicts, and that each follows the numbers of its claim and its controls."""

import numpy as np
import pytest
import torch
from records import altered, changed, found

from joma.studies.salience import eq6
from joma.studies.salience.eq6 import STUDY, TARGETS

HOLDS, FIXED, FAILS, BLIND = "holds", "holds as corrected", "fails", "not above its control"
QUALITATIVE, OPEN = "only qualitative", "undecided"
JITTER = np.tile([-1.0, 1.0], 3)


def test_figure_4_has_the_numbers_of_its_recipe(run):
    seen = [float(run.value(f"attention/{key}")[0]) for key in ("start", "lowest", "at", "end")]
    assert seen == pytest.approx([np.log(10), 0.9416, 669, 1.5493], abs=1e-4)


def put_in(run, spoiled):
    return changed(run, lambda name, step, value: spoiled.get(name, value))


@pytest.mark.parametrize(
    ("seen", "plain", "verdict"),
    [
        (0.95 + 0.02 * JITTER, 0.10 - 0.02 * JITTER, HOLDS),
        (0.50 + 0.02 * JITTER, 0.30 - 0.02 * JITTER, QUALITATIVE),
        (0.40 + 0.05 * JITTER, 0.40 - 0.05 * JITTER, BLIND),
        (0.40 + 0.30 * JITTER, 0.30 - 0.30 * JITTER, OPEN),
        (0.80 + 0.02 * JITTER, 0.60 - 0.02 * JITTER, OPEN),  # no room for a majority more
        (0.10 + 0.02 * JITTER, 0.40 - 0.02 * JITTER, BLIND),  # reversed, but not by a majority
        (0.10 + 0.02 * JITTER, 0.90 - 0.02 * JITTER, FAILS),
        (np.full(6, np.nan), 0.10 - 0.02 * JITTER, OPEN),
    ],
)
def test_the_order_is_judged_over_draws(run, seen, plain, verdict):
    copy = put_in(run, {"attention/in order": seen, "no attention/in order": plain})
    assert found(STUDY, copy, "salient-learned-first").verdict == verdict


@pytest.mark.parametrize(
    ("seen", "plain", "verdict"),
    [
        (1.30 + 0.10 * JITTER, 0.70 - 0.05 * JITTER, HOLDS),
        (0.80 + 0.01 * JITTER, 0.70 - 0.01 * JITTER, QUALITATIVE),
        (0.70 + 0.01 * JITTER, 0.70 - 0.01 * JITTER, BLIND),
        (0.80 + 0.50 * JITTER, 0.70 - 0.50 * JITTER, OPEN),
        (0.70 + 0.10 * JITTER, 1.70 - 0.05 * JITTER, FAILS),
    ],
)
def test_the_drop_is_judged_over_draws(run, seen, plain, verdict):
    top = np.full(6, np.log(10))
    spoiled = {"attention/start": top, "attention/lowest": top - seen}
    spoiled |= {"no attention/start": top, "no attention/lowest": top - plain}
    finding = found(STUDY, put_in(run, spoiled), "entropy-drops")
    assert finding.verdict == verdict
    assert finding.main.effect == pytest.approx(seen.mean())
    assert finding.main.control_effect == pytest.approx(plain.mean())


@pytest.mark.parametrize(
    ("seen", "plain", "verdict"),
    [
        (0.40 + 0.10 * JITTER, 0.00 * JITTER, HOLDS),
        (np.array([0.04, 0.04, 0.04, 0.04, 0.2, 0.2]), 0.00 * JITTER, QUALITATIVE),  # in a third of the draws
        (0.03 + 0.01 * JITTER, 0.00 * JITTER, QUALITATIVE),
        (0.40 + 0.01 * JITTER, 0.20 - 0.01 * JITTER, QUALITATIVE),  # in all draws, but without attention too
        (np.where(np.arange(6) == 2, np.nan, 0.4), 0.00 * JITTER, OPEN),
        (0.30 + 0.001 * JITTER, 0.30 - 0.001 * JITTER, BLIND),
        (0.30 + 0.20 * JITTER, 0.30 - 0.20 * JITTER, OPEN),
        (0.01 + 0.00 * JITTER, 0.30 + 0.05 * JITTER, FAILS),
    ],
)
def test_the_rise_is_judged_over_draws(run, seen, plain, verdict):
    low = np.ones(6)
    spoiled = {"attention/lowest": low, "attention/end": low + seen}
    spoiled |= {"no attention/lowest": low, "no attention/end": low + plain}
    assert found(STUDY, put_in(run, spoiled), "entropy-rebounds").verdict == verdict


EMPIRICAL = ("salient-learned-first", "entropy-drops", "entropy-rebounds")


@pytest.mark.parametrize("name", ["attention/v", "no attention/v"])
@pytest.mark.parametrize("claim", EMPIRICAL)
def test_a_run_that_ends_before_anything_is_learned_is_not_judged(run, claim, name):
    finding = found(STUDY, altered(run, name, lambda v: v[:5]), claim)
    assert finding.verdict == "not run"
    # with the 5,000 steps that it has by itself
    assert finding.command == "joma run eq6 --draws 6 --checked 2 --seed 1"


def test_a_rebound_is_asked_for_only_once_most_components_are_learned(run):
    with altered(run, "attention/v", lambda v: v[:35]) as copy:  # the minimum of entropy is at 33
        assert found(STUDY, copy, "entropy-rebounds").verdict == "not run"
        assert found(STUDY, copy, "entropy-drops").verdict == HOLDS


@pytest.mark.parametrize(
    ("claim", "spoiled"),
    [
        ("speed-factor", {"flow": lambda run: 0 * run.value("flow")}),
        ("entropy-exponent", {"flow": lambda run: 0 * run.value("flow") + [[1.0], [0.5]]}),
        ("figure-is-eq-6", {"no attention/lowest": lambda run: np.tile(run.value("closed form/lowest"), 3)}),
    ],
)
def test_what_is_true_of_the_control_too_shows_nothing(run, claim, spoiled):
    assert found(STUDY, put_in(run, {name: value(run) for name, value in spoiled.items()}), claim).verdict == BLIND


def test_the_critical_point_of_another_component_must_not_do(run, monkeypatch):
    monkeypatch.setattr(eq6, "TARGETS", (1.0, 1.0, 1.0))
    assert found(STUDY, altered(run, "long run", lambda x: 0 * x + 1), "critical-point").verdict == BLIND


@pytest.mark.parametrize(
    ("claim", "series", "value", "form"),
    [
        ("critical-point", "long run", lambda run: 0 * run.value("long run") + TARGETS - 0.25, "printed"),
        ("speed-factor", "flow", lambda run: 0 * run.value("flow") + [[1.0], [0.75]], "printed"),
        ("speed-factor", "flow", lambda run: 0 * run.value("flow") + [[1.0], [0.25]], "corrected"),
        ("figure-is-eq-6", "closed form/lowest", lambda run: _limit(run) - 0.25, "corrected"),
        ("figure-is-eq-6", "eq. 6/entropy", lambda run: 9 + 0 * run.value("eq. 6/entropy"), "printed"),
    ],
)
def test_residuals_are_those_of_the_record(run, claim, series, value, form):
    expected = 9 - _limit(run)[0] if series == "eq. 6/entropy" else 0.25
    assert found(STUDY, altered(run, series, lambda _: value(run)), claim).residuals[form] == pytest.approx(expected)


@pytest.mark.parametrize("claim", ["speed-factor", "entropy-exponent"])
def test_the_printed_exponent_would_be_recognised(run, claim):
    v = run.value("flow")[:, 0]
    assert found(STUDY, altered(run, "flow", lambda _: np.stack([v, v**2], 1)), claim).verdict == HOLDS


def _limit(run):
    half = run.value("half step/lowest")
    return 2 * half - run.value("attention/lowest")[: len(half)]


def test_order_counts_pairs_that_were_learned():
    learned = np.array([[np.inf, np.inf, 5.0, 3.0], [1.0, 2.0, 3.0, 4.0], [2.0, 2.0, 2.0, 2.0]])
    assert eq6.in_order(learned).tolist() == [1.0, 0.0, 0.0]


def test_without_attention_the_components_move_alike():
    path = eq6.figure_4(torch.tensor([[1.0, 4.0]], dtype=torch.float64), 50, 0.1, attention=False)
    left = (np.array([1.0, 4.0]) - path.v) / (np.array([1.0, 4.0]) - eq6.START)
    np.testing.assert_allclose(left[:, 0], left[:, 1], rtol=1e-12)


def test_the_long_run_follows_eq_6(monkeypatch):
    fields = []
    monkeypatch.setattr(eq6, "integrate", lambda field, v0, t: fields.append((field, v0, t)) or [v0])
    for attention in (True, False):
        eq6.long_run((0.5, 2.0), (-2.0, 3.0), attention=attention)
    v = torch.tensor([[-1.0, 0.3], [1.5, 2.5]], dtype=torch.float64)
    for (field, v0, t), factor in zip(fields, (np.exp(v.numpy() ** 2 / 2), 1.0), strict=True):
        np.testing.assert_allclose(field(0.0, v), (np.array([0.5, 2.0]) - v.numpy()) * factor, rtol=1e-12)
        assert v0.tolist() == [[-2.0, -2.0], [3.0, 3.0]]
        assert list(t) == [0.0, 30.0]
