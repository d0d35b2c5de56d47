"""Theorem 5: its verdicts, and that they follow the numbers."""

from types import SimpleNamespace

import numpy as np
import pytest
from every_study import add, put
from records import altered, changed, verdicts

from joma.studies.hierarchy.thm5.run import orders
from joma.studies.hierarchy.thm5.study import STUDY

FIXED = "holds as corrected"


@pytest.mark.parametrize(
    ("series", "other", "claim"),
    [
        ("trees/printed", "trees/truth", "co-occurrence"),
        ("sampled/printed", "sampled/corrected", "co-occurrence-sampled"),
        ("root/alike printed", "root/alike truth", "any-pair"),
        ("eq8/printed", "eq8/corrected", "remainder"),
        ("limits/printed", "limits/corrected", "saturating-root"),
        ("chain/printed", "chain/truth", "chain"),
        ("latent/printed", "latent/truth", "marginal-of-a-latent"),
        ("latent/table printed", "latent/table truth", "table-of-the-root"),
    ],
)
def test_a_printed_form_that_is_right_holds(run, series, other, claim):
    kept = len(run.value(series)) if series.startswith("sampled") else None
    assert verdicts(STUDY, altered(run, series, lambda _: run.value(other)[:kept]))[claim] == "holds"


@pytest.mark.parametrize(
    ("series", "other", "claim", "verdict"),
    [
        ("sampled/printed", "sampled/corrected", "co-occurrence-sampled", FIXED),
        ("sampled/shuffled", "sampled/corrected", "co-occurrence-sampled", "not above its control"),
    ],
)
def test_every_height_has_a_say(run, series, other, claim, verdict):
    assert verdicts(STUDY, altered(run, series, put(0, run.value(other)[0])))[claim] == verdict


def test_a_distribution_that_is_wrong_for_one_tree_is_not_right(run):
    for sign in (1, -1):
        wrong = add((0, 0), 0.1 * sign)(run.value("latent/truth"))
        spoiled = altered(run, "latent/printed", lambda _, wrong=wrong: wrong)
        assert verdicts(STUDY, spoiled)["marginal-of-a-latent"] == FIXED


def test_a_matrix_is_no_distribution_whatever_its_columns(run):
    both = np.stack([run.value("latent/truth")] * 2, -1)
    assert verdicts(STUDY, altered(run, "latent/printed", lambda _: both))["marginal-of-a-latent"] == FIXED


@pytest.mark.parametrize(
    ("series", "other", "claim"),
    [
        ("trees/printed", "trees/truth", "root-through-one-number"),
        ("sparse/half", "sparse/gap", "sparse-root"),
        ("sampled/shuffled", "sampled/truth", "co-occurrence-sampled"),
    ],
)
def test_a_control_that_passes_too_confirms_nothing(run, series, other, claim):
    assert verdicts(STUDY, altered(run, series, lambda _: run.value(other)))[claim] == "not above its control"


def test_two_latents_that_are_alike_show_nothing_of_which_is_which(run):
    def symmetric(name, step, value):
        return (value + value.swapaxes(-1, -2)) / 2 if name.startswith("joint/") else value

    assert verdicts(STUDY, changed(run, symmetric))["joint-of-two-latents"] == "not above its control"


def test_an_order_is_the_slope_of_the_straight_line_through_all_points():
    """Of remainders that bend: least squares by hand. The last two points alone have another slope."""
    eps = 2.0 ** -np.arange(10.0, 15.0)
    off = np.array([3 * eps**2 + 1e-3 * eps, eps * np.array([1, 2, 1, 3, 1])])
    values = {"eq8/eps": eps, "eq8/truth": np.ones((2, 5)), "eq8/printed": 1 + off * np.array([[1], [-1]])}
    x, y = np.log(eps), np.log(off)
    wanted = ((x - x.mean()) * (y - y.mean(1, keepdims=True))).sum(1) / ((x - x.mean()) ** 2).sum()
    np.testing.assert_allclose(orders(SimpleNamespace(value=values.__getitem__), "printed"), wanted, rtol=1e-9)
    assert (np.abs(np.diff(y[:, -2:], axis=1)[:, 0] / np.diff(x[-2:]) - wanted) > 1e-3).all()
