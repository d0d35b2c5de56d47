"""Words for curves say what the numbers do."""

import math

import numpy as np
import pytest

from joma.figures.reading import between, course, number

X = np.arange(0, 5000, 1000)


def test_one_turn_is_told_with_its_place():
    assert course(X, [1, 3, 5, 4, 2], "nats") == "rises from 1 to 5 nats at step 2,000, then falls to 2 nats"


def test_the_words_turn_with_the_curve():
    assert course(X, [5, 4, 1, 2, 3]) == "falls from 5 to 1 at step 2,000, then rises to 3"
    assert course(X, [1, 2, 3, 4, 5]) == "rises from 1 to 5"
    assert course(X, [5, 4, 3, 2, 1], at="epoch") == "falls from 5 to 1"


def test_small_turns_are_not_told():
    assert course(X, [10, 8, 8.2, 4, 0]) == "falls from 10 to 0"
    assert "then" in course(X, [10, 6, 8.2, 4, 0])


def test_many_turns_are_summed_up():
    y = [0, 1] * 5
    assert course(range(10), y) == "goes up and down between 0 and 1, from 0 to 1"


def test_values_that_are_no_numbers_are_left_out():
    assert course(X, [math.nan, 1, math.inf, 2, 3]) == "rises from 1 to 3"
    assert course([], []) == course([1.0], [math.nan]) == "has no values"


def test_flat_curves_stay():
    assert course(X, [2.0] * 5, "nats") == "stays at 2 nats"
    assert course(X, [2.0, 2.0, 2.01, 2.0, 2.0]) == "stays near 2"


def test_on_a_log_scale_small_numbers_count():
    y = [1.0, 1e-8, 1e-12, 1e-8, 1e-6]
    assert course(X, y) == "falls from 1 to 1e-6"
    assert course(X, y, log=True) == "falls from 1 to 1e-12 at step 2,000, then rises to 1e-6"
    assert course(X, [0.0, *y[1:]], log=True).startswith("falls from 1e-8")


def test_rows_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="one length"):
        course([1, 2], [1])


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (-0.5, "", "−0.5"),
        (1234.6, "", "1,235"),
        (2.5e7, "", "2.5e7"),
        (-2e-9, "", "−2e-9"),
        (math.inf, "", "infinity"),
        (-math.inf, "", "minus infinity"),
        (math.nan, "nats", "no number"),
        (0.0, "%", "0 %"),
    ],
)
def test_numbers(value, unit, words):
    assert number(value, unit) == words


def test_between_counts_numbers_only():
    assert between([math.nan, 2.0, -1.0]) == "between −1 and 2"
    assert between([math.nan]) == "without a value"
