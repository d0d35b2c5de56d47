"""The study of CDAG Theorem 1 on random signals: its verdicts, and that the verdicts follow the numbers."""

from dataclasses import replace

import numpy as np
import pytest
from every_study import draws_labelled_figures
from records import altered, carried_out, changed, verdicts

from joma.claims.contract import silent
from joma.claims.execute import judge, plain_config
from joma.runs import Run
from joma.studies.cdag import cdag_angles

STUDY = cdag_angles.STUDY
SIGNALS = replace(STUDY.quick, dimensions=(2, 3, 10), draws=10_000, angled=2_000, batches=2)
FIXED = "holds as corrected"


def contents(run):
    return {name: run.array(name) for name in run.names()}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return carried_out(STUDY, SIGNALS, tmp_path_factory.mktemp("runs") / "signals")


def test_verdicts(run):
    assert verdicts(STUDY, run) == {
        "three-signs": FIXED,
        "picture": "only qualitative",
        "positive-constant": FIXED,
        "same-latent": FIXED,
        "rest-of-the-activation": FIXED,
        "start-of-the-weight": FIXED,
        "backpropagated": "holds",
        "recursion": "only qualitative",
    }


def test_draws_that_contradict_either_form_are_counted(run):
    found = {finding.claim.name: finding.residuals for finding in judge(STUDY, run)}
    for name in ("three-signs", "same-latent", "start-of-the-weight"):
        assert found[name]["printed"] > 0.2
        assert found[name]["corrected"] == 0
    assert found["positive-constant"]["printed"] > 0.1
    assert found["positive-constant"]["corrected"] == 0


def test_shares_of_random_signals_are_those_that_are_known(run):
    for dim, share in ((2, 0.75), (3, 0.68), (10, 0.59)):
        seen = run.array(f"{dim}/sign/signs").sum() / run.array(f"{dim}/sign/draws").sum()
        assert seen == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize(
    ("series", "change", "claim", "verdict"),
    [
        ("3/angle/violated", lambda x: x + 1, "three-signs", "fails"),
        ("3/sign/signs", lambda x: x * 0, "picture", "fails"),
        ("3/sign/signs", lambda x: x * np.nan, "picture", "fails"),
        ("2/angle/least", lambda x: x - 0.5, "positive-constant", "fails"),
        ("2/angle/least", lambda x: np.where(np.arange(5) == 4, 0.4, x), "positive-constant", "fails"),  # C₄ is 0.47
        ("2/angle/slack", lambda x: x - 1e-9, "positive-constant", "fails"),
        ("3/angle/slack", lambda x: x * np.nan, "positive-constant", "fails"),
        ("plane/slack", lambda x: x + 1e-9, "positive-constant", "fails"),
        ("10/angle/same violated", lambda x: x + 1, "same-latent", "fails"),
        ("10/rest/paired off", lambda x: x + 1e-6, "rest-of-the-activation", "fails"),
        ("10/rest/independent gap", lambda x: x + 1e3, "rest-of-the-activation", "fails"),
        ("2/angle/start zero", lambda x: x - 1, "start-of-the-weight", "fails"),
        ("2/angle/start matched", lambda x: x - 1, "start-of-the-weight", "fails"),
        ("backprop/linear", lambda x: x + 1e-6, "backpropagated", "fails"),
        ("backprop/tanh", lambda x: x * 0, "backpropagated", "not above its control"),
        ("10/sign/gated", lambda x: x * 0, "recursion", "fails"),
        ("example/premises", lambda x: -x, "three-signs", "not above its control"),
    ],
)
def test_a_spoiled_draw_changes_its_verdict(run, tmp_path, series, change, claim, verdict):
    with altered(run, tmp_path / "run", series, change) as copy:
        assert verdicts(STUDY, copy)[claim] == verdict


@pytest.mark.parametrize("dim", [2, 3, 10])
@pytest.mark.parametrize(
    ("series", "claims"),
    [
        ("sign/control", {"three-signs": "not above its control", "same-latent": "not above its control"}),
        # The direction is a gain over the control: with a control of 1 there is none.
        ("sign/control", {"picture": "fails"}),
        ("sign/gated control", {"recursion": "fails"}),
    ],
)
def test_draws_without_the_premises_that_are_all_positive_turn_the_verdicts(run, tmp_path, dim, series, claims):
    full = run.array(f"{dim}/sign/draws")[0]
    with altered(run, tmp_path / "run", f"{dim}/{series}", lambda x: full) as copy:
        seen = verdicts(STUDY, copy)
    assert {name: seen[name] for name in claims} == claims


def test_premises_that_always_suffice_would_hold_as_printed(run, tmp_path):
    signs = [name for name in run.names() if name.endswith(("sign/signs", "sign/gated"))]

    def draws(name, step, value):
        return run.at(f"{name.split('/')[0]}/sign/draws", step) if name in signs else value

    def examples(name, step, value):
        return abs(value) if name.startswith("example/") else value

    with changed(run, tmp_path / "a", draws) as one, changed(one, tmp_path / "b", examples) as both:
        seen, whole = verdicts(STUDY, one), verdicts(STUDY, both)
    names = ("three-signs", "picture", "recursion")
    assert [whole[name] for name in names] == ["holds"] * 3
    # One example against it is enough.
    assert [seen[name] for name in names] == [FIXED, "holds", "only qualitative"]


def test_signs_that_agree_without_the_premises_as_well_show_nothing(run, tmp_path):
    both = [name for name in run.names() if name.endswith(("sign/signs", "sign/control"))]

    def draws(name, step, value):
        return run.at(f"{name.split('/')[0]}/sign/draws", step) if name in both else value

    with changed(run, tmp_path / "run", draws) as copy:
        assert verdicts(STUDY, copy)["picture"] == "not above its control"


def test_a_condition_beyond_which_nothing_is_negative_says_nothing(run, tmp_path):
    def positive(name, step, value):
        return run.at(name.removesuffix(" positive"), step) if name.endswith("binned positive") else value

    with changed(run, tmp_path / "run", positive) as copy:
        assert verdicts(STUDY, copy)["three-signs"] == "not above its control"


def test_no_draw_within_the_condition_proves_nothing(run, tmp_path):
    none = changed(run, tmp_path / "run", lambda name, step, value: value * 0 if name.endswith("inside") else value)
    seen = verdicts(STUDY, none)
    assert {seen[name] for name in ("three-signs", "same-latent", "start-of-the-weight")} == {"fails"}


def test_an_interrupted_run_ends_with_the_same_numbers(run, tmp_path):
    class Stop(Exception):
        pass

    def stop_later(share, doing):
        if share > 0.3:
            raise Stop

    path = tmp_path / "run"
    part = Run.create(path, study=STUDY.name, config=plain_config(SIGNALS))
    with pytest.raises(Stop):
        STUDY.run(SIGNALS, part, stop_later)
    assert 0 < len(part.names()) <= len(run.names())
    part.close()
    with Run.open(path, write=True) as part:
        STUDY.run(SIGNALS, part, silent)
        whole, resumed = contents(run), contents(part)
    assert resumed.keys() == whole.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(resumed[name], array, err_msg=name)


def test_figures(run):
    draws_labelled_figures(STUDY, run)


def test_sizes_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="dimensions must be at least 2, for angles to exist"):
        cdag_angles.CdagAnglesConfig(dimensions=(1, 2))
