"""The study of Theorem 2: its verdicts, and that the verdicts follow the numbers."""

import numpy as np
import pytest

from joma.runs import Run
from joma.studies.contract import silent
from joma.studies.execute import judge, plain_config
from joma.studies.winner_take_all import EXACT, STUDY, Config

SMALL = Config(tokens=4, draws=6, steps=8)
FIXED = "holds as corrected"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "thm2"
    run = Run.create(path, study=STUDY.name, config=plain_config(SMALL), version=STUDY.version)
    STUDY.run(SMALL, run, silent)
    return run


def verdicts(run):
    return {finding.claim.name: finding.verdict for finding in judge(STUDY, run)}


def test_verdicts(run):
    assert verdicts(run) == {
        "erf-invariant": FIXED,
        "erf-invariant-any-start": FIXED,
        "closed-form": "holds",
        "finite-blow-up": FIXED,
        "losers-stop": "holds",
        "who-wins": FIXED,
        "one-hot": "only qualitative",
        "shared-normaliser": FIXED,
    }


def test_where_two_forms_compete_both_are_measured(run):
    found = {finding.claim.name: finding.residuals for finding in judge(STUDY, run)}
    assert found["finite-blow-up"]["printed"] == 1
    assert found["finite-blow-up"]["corrected"] <= EXACT
    assert found["who-wins"]["printed"] > 0
    assert found["who-wins"]["corrected"] == 0


@pytest.mark.parametrize(
    ("series", "change", "claim", "verdict"),
    [
        ("zero/v", lambda x: x * np.linspace(1, 1.01, x.shape[-1]), "erf-invariant", "fails"),
        ("random/v", lambda x: x + 1e-6, "closed-form", "fails"),
        ("random/v", lambda x: x * np.linspace(1, 1.01, x.shape[-1]), "erf-invariant-any-start", "fails"),
        ("random/blow-up by quadrature", lambda x: x * np.inf, "finite-blow-up", "holds"),
        ("random/blow-up", lambda x: x * 1.001, "finite-blow-up", "fails"),
        ("limits", lambda x: x * 1.001, "losers-stop", "fails"),
        ("random/blow-up", lambda x: -x, "who-wins", "fails"),
        ("growth/share of weight", lambda x: np.linspace(0.5, 1, len(x))[:, None], "one-hot", "holds"),
        ("growth/share of weight", lambda x: x[::-1], "one-hot", "fails"),
        ("normalised/v", lambda x: x * np.linspace(1, 1.01, x.shape[-1]), "shared-normaliser", "fails"),
    ],
)
def test_a_spoiled_number_changes_its_verdict(run, tmp_path, series, change, claim, verdict):
    copy = Run.create(tmp_path / "run", study=run.study, config=run.config, version=run.version)
    for name in run.names():
        copy.append(name, 0, change(run.value(name)) if name == series else run.value(name))
    with copy:
        assert verdicts(copy)[claim] == verdict


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [({"tokens": 1}, "tokens must be at least 2"), ({"steps": 1}, "steps must be at least 2")],
)
def test_refusals(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        Config(**changes)
