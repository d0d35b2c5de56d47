"""The study of CDAG Theorem 1 on random signals: its verdicts, and that the verdicts follow the numbers."""

import pytest
from records import altered, changed, verdicts

from joma.claims.execute import judge
from joma.studies.cdag import cdag_angles

STUDY = cdag_angles.STUDY
FIXED = "holds as corrected"


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
def test_draws_without_the_premises_that_are_all_positive_turn_the_verdicts(run, dim, series, claims):
    full = run.array(f"{dim}/sign/draws")[0]
    seen = verdicts(STUDY, altered(run, f"{dim}/{series}", lambda x: full))
    assert {name: seen[name] for name in claims} == claims


def test_premises_that_always_suffice_would_hold_as_printed(run):
    signs = [name for name in run.names() if name.endswith(("sign/signs", "sign/gated"))]

    def draws(name, step, value):
        return run.at(f"{name.split('/')[0]}/sign/draws", step) if name in signs else value

    def examples(name, step, value):
        return abs(value) if name.startswith("example/") else value

    one = changed(run, draws)
    both = changed(one, examples)
    seen, whole = verdicts(STUDY, one), verdicts(STUDY, both)
    names = ("three-signs", "picture", "recursion")
    assert [whole[name] for name in names] == ["holds"] * 3
    # One example against it is enough.
    assert [seen[name] for name in names] == [FIXED, "holds", "only qualitative"]


def test_signs_that_agree_without_the_premises_as_well_show_nothing(run):
    both = [name for name in run.names() if name.endswith(("sign/signs", "sign/control"))]

    def draws(name, step, value):
        return run.at(f"{name.split('/')[0]}/sign/draws", step) if name in both else value

    assert verdicts(STUDY, changed(run, draws))["picture"] == "not above its control"


def test_a_condition_beyond_which_nothing_is_negative_says_nothing(run):
    def positive(name, step, value):
        return run.at(name.removesuffix(" positive"), step) if name.endswith("binned positive") else value

    assert verdicts(STUDY, changed(run, positive))["three-signs"] == "not above its control"


def test_no_draw_within_the_condition_proves_nothing(run):
    none = changed(run, lambda name, step, value: value * 0 if name.endswith("inside") else value)
    seen = verdicts(STUDY, none)
    assert {seen[name] for name in ("three-signs", "same-latent", "start-of-the-weight")} <= {"fails", "undecided"}
