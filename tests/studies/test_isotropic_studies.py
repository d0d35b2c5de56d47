"""The studies of Lemmas 1-5 and of Theorem 3: their verdicts, and that the verdicts follow the numbers."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from records import altered, carried_out, verdicts

from joma.runs import Run
from joma.studies import critical_points, hyperplane_means, linearisation, mixture_dynamics
from joma.studies.contract import silent
from joma.studies.drawing import house_style
from joma.studies.execute import judge, plain_config

STUDIES = [
    (hyperplane_means.STUDY, replace(hyperplane_means.STUDY.quick, samples=60_000)),
    (mixture_dynamics.STUDY, replace(mixture_dynamics.STUDY.quick, samples=60_000)),
    (critical_points.STUDY, replace(critical_points.STUDY.quick, separations=(0.25, 1.0, 4.0), tails=(1.5, 3.0))),
    (linearisation.STUDY, replace(linearisation.STUDY.quick, separations=(1.0, 4.0), steps=120, starts=4)),
]
BY_NAME = {study.name: study for study, _ in STUDIES}
FIXED = "holds as corrected"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {study.name: carried_out(study, config, folder / study.name) for study, config in STUDIES}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "lemma1",
            {
                "hyperplane-mean": FIXED,
                "hyperplane-vector": FIXED,
                "theta-limits": FIXED,
                "marginal-density": "holds",
            },
        ),
        (
            "lemma2",
            {
                "mixture-weight": FIXED,
                "mixture-bias": FIXED,
                "f-derivative": "holds",
                "f-primitive": "holds",
                "f-increasing": FIXED,
                "growth": FIXED,
                "theta-slopes": FIXED,
            },
        ),
        (
            "lemma4",
            {
                "stationary-sum": FIXED,
                "critical-points": FIXED,
                "existence": FIXED,
                "existence-criterion": "holds",
                "ratio-band": FIXED,
                "active-shares": FIXED,
                "g-limit": "holds",
                "g-slope": "holds",
            },
        ),
        (
            "thm3",
            {
                "theta2-jacobian": FIXED,
                "beta1": FIXED,
                "beta2": FIXED,
                "positive-definite": FIXED,
                "sign-once": FIXED,
                "remainder": FIXED,
                "frozen-bias": FIXED,
                "convergence": FIXED,
                "direction": "holds",
            },
        ),
    ],
)
def test_verdicts(runs, name, expected):
    assert verdicts(BY_NAME[name], runs[name]) == expected


@pytest.mark.parametrize(
    ("name", "series", "change", "claim", "verdict"),
    [
        ("lemma1", "ball/corrected", lambda x: x + 0.05, "hyperplane-mean", "fails"),
        ("lemma1", "gaussian/sampled", lambda x: x * np.nan, "hyperplane-vector", "fails"),
        ("lemma1", "thetas", lambda x: -x, "theta-limits", "fails"),
        ("lemma1", "marginal error", lambda x: x + 1e-9, "marginal-density", "fails"),
        ("lemma2", "exponential/corrected", lambda x: x + 0.1, "mixture-weight", "fails"),
        ("lemma2", "exponential/corrected", lambda x: x + 0.1, "mixture-bias", "fails"),
        ("lemma2", "ball/F by differences", lambda x: x + 1e-6, "f-derivative", "fails"),
        ("lemma2", "ball/theta2 by quadrature", lambda x: x + 1e-6, "f-primitive", "fails"),
        ("lemma2", "slopes/ReLU/F", lambda x: -x, "f-increasing", "fails"),
        ("lemma2", "slopes/|x|/F", lambda x: np.arange(len(x)), "f-increasing", "holds"),
        ("lemma2", "ball/growth", lambda x: x * [[1], [1 + 1e-6], [1]], "growth", "fails"),
        ("lemma2", "slopes/|x|/corrected", lambda x: x + 1e-6, "theta-slopes", "fails"),
        ("lemma4", "3/sum", lambda x: x + 1e-6, "stationary-sum", "fails"),
        ("lemma4", "3/speed", lambda x: x + 1e-6, "critical-points", "fails"),
        ("lemma4", "Gaussian/life", lambda x: -x, "existence", "fails"),
        ("lemma4", "1.5/gap", lambda x: np.abs(x), "existence-criterion", "fails"),
        ("lemma4", "laplace", lambda x: x + 1e-6, "existence-criterion", "fails"),
        ("lemma4", "1.5/ray", lambda x: x * [[3], [1], [1]], "ratio-band", "fails"),
        ("lemma4", "3/line", lambda x: x + 1e-6, "active-shares", "fails"),
        ("lemma4", "1.5/far", lambda x: x + [[1e-6], [0]], "g-limit", "fails"),
        ("lemma4", "3/G slope", lambda x: x * [[1], [1 + 1e-6]], "g-slope", "fails"),
        ("thm3", "eq69", lambda x: x + 1e-6, "theta2-jacobian", "fails"),
        ("thm3", "decayed", lambda x: x * np.nan, "beta1", "fails"),
        ("thm3", "ray -1", lambda x: x * np.where(np.arange(x.shape[1]) == 3, 2, 1), "beta2", "fails"),
        ("thm3", "ray +1", lambda x: -x, "positive-definite", "fails"),
        ("thm3", "ray +1", lambda x: -x, "sign-once", "fails"),
        ("thm3", "remainder", lambda x: x * 0 + 0.5, "remainder", "fails"),
        ("thm3", "remainder", lambda x: x * [1, 1e-9], "remainder", "holds"),
        ("thm3", "ray +1", lambda x: x + 1e-6, "frozen-bias", "fails"),
        ("thm3", "flow/decayed", lambda x: np.repeat(x[:1], len(x), 0), "convergence", "fails"),
        ("thm3", "flow/decayed", lambda x: np.repeat(x[:1], len(x), 0), "direction", "fails"),
    ],
)
def test_a_spoiled_number_changes_its_verdict(runs, tmp_path, name, series, change, claim, verdict):
    with altered(runs[name], tmp_path / "run", series, change) as run:
        assert verdicts(BY_NAME[name], run)[claim] == verdict


@pytest.mark.parametrize(("study", "config"), STUDIES, ids=list(BY_NAME))
def test_an_interrupted_run_ends_with_the_same_numbers(runs, tmp_path, study, config):
    class Stop(Exception):
        pass

    def stop_later(share, doing):
        if share > 0.15:
            raise Stop

    path = tmp_path / "run"
    run = Run.create(path, study=study.name, config=plain_config(config))
    with pytest.raises(Stop):
        study.run(config, run, stop_later)
    whole = runs[study.name]
    assert 0 < len(run.names()) < len(whole.names())
    run.close()
    with Run.open(path, write=True) as run:
        study.run(config, run, silent)
        assert run.names() == whole.names()
        for name in whole.names():
            np.testing.assert_array_equal(run.value(name), whole.value(name), err_msg=name)


@pytest.mark.parametrize("name", list(BY_NAME))
def test_figures(runs, tmp_path, name):
    with house_style():
        drawings = BY_NAME[name].draw(runs[name])
        for drawing in drawings:
            drawing.figure.savefig(tmp_path / "figure.svg")
            assert drawing.caption
            assert all(axes.get_xlabel() and axes.get_ylabel() for axes in drawing.figure.axes)
    assert drawings


@pytest.mark.parametrize("name", ["lemma4", "thm3"])
def test_where_two_forms_compete_the_corrected_one_is_nearer(runs, name):
    fixed = [finding for finding in judge(BY_NAME[name], runs[name]) if finding.verdict == FIXED]
    assert len(fixed) >= 5
    for finding in fixed:
        assert finding.residuals["corrected"] < 0.1 * finding.residuals["printed"], finding.claim.name


def test_both_limits_of_eq_57_are_zero(runs):
    """Also where the approach is so slow that no float is far enough out."""
    far = runs["lemma4"].value("1.5/far")
    assert (far[0] > 0).all()
    assert (far[1] < 0).all()
    slow = np.array(critical_points.FAR[1:]) ** -0.02
    assert critical_points._limit(*slow) == pytest.approx(0, abs=1e-15)
    assert critical_points._limit(*(slow + 0.3)) == pytest.approx(0.3, abs=1e-14)


def test_they_run_without_scipy(monkeypatch, tmp_path):
    """On a bare GPU machine there is torch and numpy."""
    monkeypatch.setitem(sys.modules, "scipy", None)
    study, config = critical_points.STUDY, replace(critical_points.STUDY.quick, separations=(1.0,), tails=(3.0,))
    with carried_out(study, config, tmp_path / "run") as run:
        assert run.value("3/ray")[0] == pytest.approx(2.5295, abs=1e-4)


def test_sizes_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="grid must be at least 3"):
        critical_points.Config(grid=2)
    with pytest.raises(ValueError, match="ambient must be at least the dimension of the subspace, 5, got 2"):
        hyperplane_means.Config(ambient=2)
