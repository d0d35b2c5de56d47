"""Lemma 4: its verdicts, and that they follow the numbers."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from every_study import add, put, test_a_spoiled_series_changes_its_verdict  # noqa: F401
from records import altered, carried_out, changed, found, verdicts

from joma.studies.isotropic import lemma4
from joma.studies.isotropic.lemma4 import FAR, LENGTHS, STUDY

FIXED = "holds as corrected"
UNIT = LENGTHS.index(1.0)


SPOILED = [
    ("3/sum", add((1, UNIT, 0), 1e-6), "stationary-sum", "not above its control"),
    ("3/speed as printed", put((0, 0), 0.0), "critical-points", FIXED),  # one right point is not all
    ("3/gap", put(0, 0.1), "existence", FIXED),  # it still falls over another distance
    ("Gaussian/criterion", lambda x: x * 0 + 0.3, "existence-criterion", "fails"),
    ("3/gap", np.abs, "existence-criterion", "holds"),  # it does not reach one quarter
    ("1.5/ray", put((0, 0), np.nan), "ratio-band", "undecided"),
    ("1.5/ray", put((1, 0), np.nan), "ratio-band", FIXED),  # a distance alone is no ratio
    ("1.5/ray", lambda x: -np.abs(x), "ratio-band", "not run"),
    ("1.5/far", lambda x: x + [[1e-6], [0]], "g-limit", "fails"),
    ("1.5/far", lambda x: x - [[1e-6], [0]], "g-limit", "fails"),
    ("3/far", lambda x: put((0, 0), x[1, 0])(x), "g-limit", "holds"),  # another law is still apart on the way
    ("3/G slope", lambda x: x * 0 + 1, "g-slope", "not above its control"),
]


@pytest.mark.parametrize(
    ("series", "change", "claim"),
    [
        ("/sum", put(1, 0.0), "stationary-sum"),
        ("/speed as printed", lambda x: x * 0, "critical-points"),
        ("/gap", lambda x: -np.abs(x), "existence"),
        ("/ray", put(0, 1.5), "ratio-band"),
        ("/shares as printed", lambda x: np.full_like(x, 0.5), "active-shares"),
    ],
)
def test_a_printed_form_that_is_right_holds(run, series, change, claim):
    assert verdicts(STUDY, changed(run, lambda n, _, x: change(x) if n.endswith(series) else x))[claim] == "holds"


def test_rays_that_all_lie_in_the_band_do_not_show_that_others_leave_it(run):
    """Without a printed form to hold, the corrected one needs a ray outside."""
    inside = put((0, slice(1, None)), 1.9)

    def change(name, step, value):
        return put((0, 0), 2.5)(inside(value)) if name == "1.5/ray" else inside(value) if name == "3/ray" else value

    assert verdicts(STUDY, changed(run, change))["ratio-band"] == "fails"


def test_limits_that_were_never_apart_confirm_nothing(run):
    spoiled = changed(run, lambda n, _, x: x[[1, 1]] if n.endswith("/far") else x)
    assert verdicts(STUDY, spoiled)["g-limit"] == "not above its control"


def test_both_limits_of_eq_57_are_zero(run):
    """Also where the approach is so slow that no float is far enough out."""
    far = run.value("1.5/far")
    assert (far[0] > 0).all()
    assert (far[1] < 0).all()
    limits = found(STUDY, run, "g-limit").details["limits"]
    assert all(0 <= limit < 1e-25 for limit in limits.values())
    slow = np.array(FAR[1:]) ** -0.02
    assert lemma4._limit(*slow) == pytest.approx(0, abs=1e-15)
    assert lemma4._limit(*(slow + 0.3)) == pytest.approx(0.3, abs=1e-14)


def test_without_a_law_that_reaches_one_quarter_the_laplace_law_decides(run):
    finding = found(STUDY, altered(run, "1.5/criterion", lambda x: x * 0 + 0.2), "existence-criterion")
    assert finding.verdict == "holds"
    assert [test.what for test in finding.printed.tests] == ["speed at critical points of the Laplace law"]


def test_it_runs_without_scipy(monkeypatch, tmp_path):
    """On a bare GPU machine there is torch and numpy."""
    monkeypatch.setitem(sys.modules, "scipy", None)
    config = replace(STUDY.quick, separations=(1.0,), tails=(3.0,))
    with carried_out(STUDY, config, tmp_path / "run") as run:
        assert run.value("3/ray")[0] == pytest.approx(2.5295, abs=1e-4)
