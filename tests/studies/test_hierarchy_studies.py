"""The studies of Theorem 5 and of CDAG Theorem 1: their verdicts, and that the verdicts follow the numbers."""

from dataclasses import replace

import numpy as np
import pytest
from records import altered, carried_out, verdicts

from joma.runs import Run
from joma.studies import cdag_angles, cooccurrence
from joma.studies.contract import silent
from joma.studies.drawing import house_style
from joma.studies.execute import judge, plain_config

TREES = replace(cooccurrence.STUDY.quick, trees=20, samples=100_000)
SIGNALS = replace(cdag_angles.STUDY.quick, dimensions=(2, 3, 10), draws=10_000, angled=2_000, batches=2)
STUDIES = [(cooccurrence.STUDY, TREES), (cdag_angles.STUDY, SIGNALS)]
FIXED = "holds as corrected"


def contents(run):
    return {name: run.array(name) for name in run.names()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {study.name: carried_out(study, config, folder / study.name) for study, config in STUDIES}


def test_verdicts_of_theorem_5(runs):
    assert verdicts(cooccurrence.STUDY, runs["thm5"]) == {
        "co-occurrence": FIXED,
        "co-occurrence-sampled": FIXED,
        "any-pair": FIXED,
        "remainder": FIXED,
        "saturating-root": FIXED,
        "deep-and-shallow": "holds",
        "shallow-means-often": "holds",
        "sparse-root": "holds",
        "algebra": "holds",
        "chain": FIXED,
        "joint-of-two-latents": "holds",
        "table-of-the-root": FIXED,
        "marginal-of-a-latent": FIXED,
        "root-through-one-number": "holds",
    }


def test_verdicts_of_the_cdag_note(runs):
    assert verdicts(cdag_angles.STUDY, runs["cdag-angles"]) == {
        "three-signs": FIXED,
        "picture": "only qualitative",
        "positive-constant": FIXED,
        "same-latent": FIXED,
        "rest-of-the-activation": FIXED,
        "start-of-the-weight": FIXED,
        "backpropagated": "holds",
        "recursion": "only qualitative",
    }


def test_draws_that_contradict_either_form_are_counted(runs):
    found = {finding.claim.name: finding.residuals for finding in judge(cdag_angles.STUDY, runs["cdag-angles"])}
    for name in ("three-signs", "same-latent", "start-of-the-weight"):
        assert found[name]["printed"] > 0.2
        assert found[name]["corrected"] == 0
    assert found["positive-constant"]["printed"] > 0.1
    assert found["positive-constant"]["corrected"] <= cdag_angles.EXACT


def test_shares_of_random_signals_are_those_that_are_known(runs):
    run = runs["cdag-angles"]
    for dim, share in ((2, 0.75), (3, 0.68), (10, 0.59)):
        seen = run.array(f"{dim}/sign/signs").sum() / run.array(f"{dim}/sign/draws").sum()
        assert seen == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize(
    ("series", "change", "claim", "verdict"),
    [
        ("trees/corrected", lambda x: x + 1e-9, "co-occurrence", "fails"),
        ("trees/truth", lambda x: x * np.nan, "co-occurrence", "fails"),
        ("sampled/truth", lambda x: x + 0.05, "co-occurrence-sampled", "fails"),
        ("root/unlike corrected", lambda x: x * np.nan, "any-pair", "fails"),
        ("eq8/corrected", lambda x: x + 1e-4, "remainder", "fails"),
        ("limits/corrected", lambda x: x + 1e-3, "saturating-root", "fails"),
        ("deep/siblings", lambda x: x[::-1], "deep-and-shallow", "fails"),
        ("heights/negative", lambda x: x[:, ::-1], "shallow-means-often", "fails"),
        ("sparse/gap", lambda x: x * 2, "sparse-root", "fails"),
        ("algebra/off", lambda x: x + 1e-6, "algebra", "fails"),
        ("chain/merged", lambda x: x * np.nan, "chain", "fails"),
        ("latent/corrected", lambda x: x + 1e-6, "marginal-of-a-latent", "fails"),
        ("latent/table corrected", lambda x: x + 1e-6, "table-of-the-root", "fails"),
        ("joint/printed", lambda x: x + 1e-6, "joint-of-two-latents", "fails"),
        ("trees/summed root", lambda x: x + 1e-6, "root-through-one-number", "fails"),
        ("trees/printed", lambda x: x * np.nan, "co-occurrence", FIXED),
    ],
)
def test_a_spoiled_tree_changes_its_verdict(runs, tmp_path, series, change, claim, verdict):
    with altered(runs["thm5"], tmp_path / "run", series, change) as run:
        assert verdicts(cooccurrence.STUDY, run)[claim] == verdict


@pytest.mark.parametrize(
    ("series", "change", "claim", "verdict"),
    [
        ("3/angle/violated", lambda x: x + 1, "three-signs", "fails"),
        ("3/sign/signs", lambda x: x * 0, "picture", "fails"),
        ("2/angle/least", lambda x: x - 0.5, "positive-constant", "fails"),
        ("3/angle/slack", lambda x: x * np.nan, "positive-constant", "fails"),
        ("10/angle/same violated", lambda x: x + 1, "same-latent", "fails"),
        ("10/rest/paired off", lambda x: x + 1e-6, "rest-of-the-activation", "fails"),
        ("10/rest/independent gap", lambda x: x + 1e3, "rest-of-the-activation", "fails"),
        ("2/angle/start zero", lambda x: x - 1, "start-of-the-weight", "fails"),
        ("backprop/linear", lambda x: x + 1e-6, "backpropagated", "fails"),
        ("10/sign/gated", lambda x: x * 0, "recursion", "fails"),
    ],
)
def test_a_spoiled_draw_changes_its_verdict(runs, tmp_path, series, change, claim, verdict):
    with altered(runs["cdag-angles"], tmp_path / "run", series, change) as run:
        assert verdicts(cdag_angles.STUDY, run)[claim] == verdict


@pytest.mark.parametrize(("study", "config"), STUDIES)
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
    assert 0 < len(run.names()) <= len(runs[study.name].names())
    run.close()
    with Run.open(path, write=True) as run:
        study.run(config, run, silent)
        whole, resumed = contents(runs[study.name]), contents(run)
    assert resumed.keys() == whole.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(resumed[name], array, err_msg=name)


@pytest.mark.parametrize(("study", "config"), STUDIES)
def test_figures(runs, tmp_path, study, config):
    with house_style():
        drawings = study.draw(runs[study.name])
        for drawing in drawings:
            drawing.figure.savefig(tmp_path / "figure.svg")
            assert drawing.caption
            assert all(axes.get_xlabel() and axes.get_ylabel() for axes in drawing.figure.axes)
    assert drawings


def test_sizes_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="depth must be at least 2"):
        cooccurrence.Config(depth=1)
    for rho in (1.0, -1.0):
        with pytest.raises(ValueError, match="rho must lie between -1 and 1"):
            cooccurrence.Config(rho=rho)
    with pytest.raises(ValueError, match="samples must be at least 100"):
        cooccurrence.Config(samples=2)
    with pytest.raises(ValueError, match="dimensions must be 2 or more"):
        cdag_angles.Config(dimensions=(1, 2))
