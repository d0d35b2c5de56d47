"""Theorem 3: its verdicts, and that they follow the numbers."""

from types import SimpleNamespace

import numpy as np
import pytest
from every_study import add, put, test_a_spoiled_series_changes_its_verdict  # noqa: F401

from joma.studies.isotropic import thm3
from joma.studies.isotropic.thm3 import Record

STUDY = thm3.STUDY
FIXED = "holds as corrected"
# columns of a critical point
ACROSS, ALONG, ACROSS_CORRECTED, ALONG_CORRECTED, ACROSS_PRINTED, ALONG_PRINTED = range(6)
COUPLING, COUPLING_OFF, XI = 6, 7, 8


def column(which, change):
    def changed(rows):
        rows = np.array(rows)
        rows[:, which] = change(rows[:, which])
        return rows

    return changed


def printed_right_once(rows):
    rows = np.array(rows)
    rows[0, [ACROSS_PRINTED, ALONG_PRINTED]] = rows[0, [ACROSS, ALONG]]
    return rows


SPOILED = [
    ("eq69", put(0, 0.0), "theta2-jacobian", "holds"),
    ("ray +1", printed_right_once, "beta1", FIXED),  # one right point is not all
    ("own", add((0, 0), 1e-6), "beta2", FIXED),
    ("ray +1", printed_right_once, "beta2", FIXED),
    ("own", add((0, 1), 1e-6), "beta2", "not above its control"),
    ("ray +1", column(ALONG_PRINTED, np.abs), "positive-definite", "holds"),
    ("ray +1", put((0, [ACROSS_PRINTED, ALONG_PRINTED]), 0.1), "positive-definite", "holds"),  # it says "can be"
    ("ray +1", put((0, XI), 0.5), "positive-definite", "not above its control"),
    ("ray +1", column(XI, np.abs), "positive-definite", "not above its control"),
    ("ray -1", put((0, ACROSS), 0.1), "positive-definite", FIXED),  # along μ it is still unstable
    ("ray -1", column(ACROSS, np.abs), "sign-once", "holds"),
    ("remainder", lambda x: x * [1, 1e-9], "remainder", "holds"),
    ("remainder", put((4, slice(None), 1), 0.0), "remainder", "holds"),  # at 0.01, where it is read
    ("remainder", put((-1, slice(None), 1), 0.0), "remainder", FIXED),
    ("ray +1", lambda x: x + 1e-6, "frozen-bias", "fails"),
    ("ray +1", column(COUPLING_OFF, lambda x: x + 1e-6), "frozen-bias", "fails"),
    ("ray +1", put((0, COUPLING_OFF), 1e-6), "frozen-bias", "fails"),
    ("ray +1", put((0, COUPLING), 0.0), "frozen-bias", "fails"),
    ("ray +1", put((-1, COUPLING), 1e-6), "frozen-bias", "fails"),
    ("ray +1", column(COUPLING, lambda x: x * 0), "frozen-bias", "holds"),
    ("flow/ray", put((-1, slice(None), 0), 0.0), "convergence", "holds"),
]


def test_errors_are_relative_to_the_larger_rate():
    row = np.zeros((1, 14))
    row[0, [ACROSS, ALONG, ACROSS_CORRECTED, ALONG_PRINTED, COUPLING]] = 0.5, -2.0, 0.6, -1.0, 1.0
    record = Record(SimpleNamespace(value=lambda name: row), "ray +1")
    assert record.off(0) == pytest.approx(0.05)
    assert record.off(1, printed=True) == pytest.approx(0.5)
    assert record.coupling == pytest.approx(0.5)


def test_the_printed_form_is_asked_at_half_a_unit_of_length(monkeypatch):
    asked, form = [], thm3.isotropic.printed_linearisation
    monkeypatch.setattr(
        thm3.isotropic, "printed_linearisation", lambda mu, xi, *more: asked.append((mu, xi)) or form(mu, xi, *more)
    )
    thm3._own(4.0)
    ((mu, xi),) = asked
    assert mu.tolist() == pytest.approx([0.5] + [0.0] * (thm3.DIMENSION - 1))
    ratio = thm3.isotropic.critical_rays(2.0, thm3.LAW)  # |v| m = 2
    assert float(xi) == pytest.approx(float(ratio.rho_minus))
