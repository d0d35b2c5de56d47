"""Cases that are shared out: none is lost, and the first is always among those of every run."""

import pytest
from later import some_now

LONG = pytest.mark.long.mark


def marked(cases):
    return [LONG in [mark.mark for mark in case.marks] for case in cases]


def test_the_first_and_every_third_run_now():
    assert marked(some_now("abcdefg", every=3)) == [False, True, True, False, True, True, False]


def test_no_case_is_lost_or_changed():
    given = [(1, "one"), pytest.param(2, "two", id="second"), [3, "three"]]
    shared = some_now(given, every=2)
    assert [case.values for case in shared] == [(1, "one"), (2, "two"), (3, "three")]
    assert [case.id for case in shared] == [None, "second", None]


def test_marks_that_a_case_has_stay():
    (case,) = some_now([pytest.param(1, marks=pytest.mark.browser)], every=1)
    assert [mark.name for mark in case.marks] == ["browser"]
