"""The studies of Lemma 6, Theorem 4 and eq. 6: their verdicts, and that the verdicts follow the numbers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from records import altered, verdicts

from joma.runs import Run
from joma.studies import _rebound, convergence_bounds, entropy_rebound, salient_first
from joma.studies.contract import silent
from joma.studies.drawing import house_style
from joma.studies.execute import judge, plain_config

BOUNDS = replace(convergence_bounds.STUDY.quick, targets=12, depths=6)
PAIRS = replace(salient_first.STUDY.quick, mu=(2.0, 0.5, 3.0), steps=10, horizon=5.0, grid=8)
FIGURE = replace(entropy_rebound.STUDY.quick, draws=6, checked=2)
STUDIES = [(convergence_bounds.STUDY, BOUNDS), (salient_first.STUDY, PAIRS), (entropy_rebound.STUDY, FIGURE)]
FIXED = "holds as corrected"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    done = {}
    for study, config in STUDIES:
        done[study.name] = Run.create(folder / study.name, study=study.name, config=plain_config(config))
        study.run(config, done[study.name], silent)
    return done


def test_verdicts_of_the_bounds(runs):
    assert verdicts(convergence_bounds.STUDY, runs["lemma6"]) == {
        "lemma-6": "holds",
        "lemma-6-maximum": "holds",
        "lemma-7": "holds",
        "dF-dmu": "holds",
        "zeta-bound": "holds",
        "F-by-zeta": "holds",
        "mean-value": "holds",
        "F-bound": "holds",
        "late-form": FIXED,
    }


def test_sharp_constants(runs):
    known = {
        "g": (1.120906, 0.638173),
        "G": (1.306930, 0.765152),
        "zeta": (2.161788, 1.632791),
        "R": (1.872200, 0.864325),
    }
    for name, top in known.items():
        assert runs["lemma6"].value(f"{name}/top") == pytest.approx(top, abs=1e-6)


def test_verdicts_of_theorem_4(runs):
    assert verdicts(salient_first.STUDY, runs["thm4"]) == {
        "equal-F": "holds",
        "depth-ratio": "holds",
        "lambda-bound": "holds",
        "lambda-condition": FIXED,
        "salient-first": "holds",
        "linear-attention-ratio": "holds",
        "linear-attention-start": FIXED,
    }
    assert abs(float(runs["thm4"].value("printed/Lambda of the pair"))) == pytest.approx(0.58, abs=0.005)


def test_linear_attention_leaves_the_whole_way_from_zero(runs):
    found = {finding.claim.name: finding.residuals for finding in judge(salient_first.STUDY, runs["thm4"])}
    assert found["linear-attention-start"]["printed"] == 1
    assert found["linear-attention-start"]["corrected"] <= salient_first.EXACT


def test_verdicts_of_figure_4(runs):
    assert verdicts(entropy_rebound.STUDY, runs["eq6"]) == {
        "critical-point": "holds",
        "speed-factor": FIXED,
        "entropy-exponent": FIXED,
        "salient-learned-first": "holds",
        "entropy-drops": "holds",
        "entropy-rebounds": "holds",
        "figure-is-eq-6": FIXED,
        "rank-rebounds": FIXED,
        "only-nonlinear-rebounds": "holds",
    }


def test_figure_4_has_the_numbers_of_its_recipe(runs):
    run = runs["eq6"]
    seen = [float(run.value(f"attention/{key}")[0]) for key in ("start", "lowest", "at", "end")]
    assert seen == pytest.approx([np.log(10), 0.9416, 669, 1.5493], abs=1e-4)


@pytest.mark.parametrize(
    ("study", "series", "change", "claim", "verdict"),
    [
        ("lemma6", "g/top", lambda x: x + [0, 0.1], "lemma-6", "fails"),
        ("lemma6", "g/top", lambda x: x + [0.01, 0], "lemma-6-maximum", "fails"),
        ("lemma6", "G", lambda x: x - 0.1, "lemma-7", "fails"),
        ("lemma6", "slope", lambda x: x * np.nan, "dF-dmu", "fails"),
        ("lemma6", "zeta", lambda x: x + 1, "zeta-bound", "fails"),
        ("lemma6", "zeta integral", lambda x: x + 1e-6, "F-by-zeta", "fails"),
        ("lemma6", "zeta range", lambda x: x * 0, "mean-value", "fails"),
        ("lemma6", "R/top", lambda x: x * 3, "F-bound", "fails"),
        ("lemma6", "late F", lambda x: x + 2, "late-form", "fails"),
        ("thm4", "F of v", lambda x: x + 1e-6, "equal-F", "fails"),
        ("thm4", "predicted ratio", lambda x: x * (1 + 1e-6), "depth-ratio", "fails"),
        ("thm4", "lambda", lambda x: x + 5, "lambda-bound", "fails"),
        ("thm4", "corrected/Lambda", lambda x: x + 0.3, "lambda-condition", "fails"),
        ("thm4", "printed/Lambda", lambda x: x * 0, "lambda-condition", "holds"),
        ("thm4", "depth", lambda x: x[:, ::-1], "salient-first", "fails"),
        ("thm4", "linear/depth", lambda x: x * [1.1, 1], "linear-attention-ratio", "fails"),
        ("thm4", "linear/v from zero", lambda x: x + 1e-3, "linear-attention-start", "holds"),
        ("thm4", "linear/v closed", lambda x: x + 1e-3, "linear-attention-start", "fails"),
        ("eq6", "long run", lambda x: x + 1e-6, "critical-point", "fails"),
        ("eq6", "flow", lambda x: x * 1.01, "speed-factor", "fails"),
        ("eq6", "flow", lambda x: x * 1.01, "entropy-exponent", "fails"),
        ("eq6", "attention/in order", lambda x: x * 0.4, "salient-learned-first", "not above its control"),
        ("eq6", "no attention/lowest", lambda x: x - 1, "entropy-drops", "not above its control"),
        ("eq6", "attention/end", lambda x: x * 0, "entropy-rebounds", "not above its control"),
        ("eq6", "no attention/end", lambda x: x + 1, "entropy-rebounds", "not above its control"),
        ("eq6", "closed form/lowest", lambda x: x + 1e-3, "figure-is-eq-6", "fails"),
        ("eq6", "rank/stable without attention", lambda x: x * np.linspace(0.5, 1, len(x)), "rank-rebounds", "fails"),
        ("eq6", "rank/exact", lambda x: np.where(np.arange(len(x)) == 5, 3, x), "rank-rebounds", "holds"),
        ("eq6", "linear MLP/entropy", lambda x: x[::-1], "only-nonlinear-rebounds", "not above its control"),
    ],
)
def test_a_spoiled_record_changes_its_verdict(runs, tmp_path, study, series, change, claim, verdict):
    (tested,) = (s for s, _ in STUDIES if s.name == study)
    with altered(runs[study], tmp_path / "run", series, change) as run:
        assert verdicts(tested, run)[claim] == verdict


@pytest.mark.parametrize(("study", "config"), STUDIES, ids=lambda x: getattr(x, "name", ""))
def test_an_interrupted_run_ends_with_the_same_numbers(runs, tmp_path, study, config):
    class Stop(Exception):
        pass

    def stop_later(share, doing):
        if share > 0.3:
            raise Stop

    path = tmp_path / "run"
    run = Run.create(path, study=study.name, config=plain_config(config))
    with pytest.raises(Stop):
        study.run(config, run, stop_later)
    assert 0 < len(run.names()) < len(runs[study.name].names())
    run.close()
    with Run.open(path, write=True) as run:
        study.run(config, run, silent)
        assert set(run.names()) == set(runs[study.name].names())
        for name in run.names():
            np.testing.assert_array_equal(run.array(name), runs[study.name].array(name), err_msg=name)


@pytest.mark.parametrize(("study", "config"), STUDIES, ids=lambda x: getattr(x, "name", ""))
def test_figures(runs, tmp_path, study, config):
    with house_style():
        drawings = study.draw(runs[study.name])
        for drawing in drawings:
            drawing.figure.savefig(tmp_path / "figure.svg")
            assert drawing.caption
            assert all(axes.get_xlabel() and axes.get_ylabel() for axes in drawing.figure.axes)
    assert drawings


def test_order_counts_pairs_that_were_learned():
    learned = np.array([[np.inf, np.inf, 5.0, 3.0], [1.0, 2.0, 3.0, 4.0], [2.0, 2.0, 2.0, 2.0]])
    assert _rebound.in_order(learned).tolist() == [1.0, 0.0, 0.0]


def test_without_attention_the_components_move_alike():
    path = _rebound.figure_4(torch.tensor([[1.0, 4.0]], dtype=torch.float64), 50, 0.1, attention=False)
    left = (np.array([1.0, 4.0]) - path.v) / (np.array([1.0, 4.0]) - _rebound.START)
    np.testing.assert_allclose(left[:, 0], left[:, 1], rtol=1e-12)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (lambda: convergence_bounds.Config(targets=1), "targets and depths must be 2 or more"),
        (lambda: convergence_bounds.Config(largest_mu=0.0), "largest_mu must lie in"),
        (lambda: salient_first.Config(mu=(1.0, 1.0)), "mu must hold two or more different targets"),
        (lambda: salient_first.Config(linear_start=0.0), "linear_start must lie between"),
        (lambda: entropy_rebound.Config(draws=0), "draws, checked and steps 1 or more"),
        (lambda: entropy_rebound.Config(rate=0.0), "rate must lie in"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(config, sentence):
    with pytest.raises(ValueError, match=sentence):
        config()
