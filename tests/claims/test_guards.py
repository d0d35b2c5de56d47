"""A number with several controls: above all of them or above none."""

import math

import numpy as np
import pytest

from joma.claims.claim import Claim
from joma.claims.guards import beats_guessing, beyond, clears, hardest, no_more, of_learned, still_falls
from joma.claims.verdicts import by_effect
from joma.measure.intervals import Comparison, compare, seeds_to_decide

CLAIM = Claim("taught", "CDAG Thm 1", "Gradients teach.", matters=0.05, unit="%", ceiling=1.0)
SEEN = [0.80, 0.81, 0.79, 0.80]
CONTROLS = {
    "holds": [0.50, 0.51, 0.49, 0.50],
    "only qualitative": [0.77, 0.78, 0.76, 0.775],
    "undecided": [0.50, 0.90, 0.95, 0.40],
    "not above its control": [0.801, 0.81, 0.79, 0.799],
    "fails": [0.90, 0.91, 0.89, 0.90],
}


def verdict(found):
    return by_effect(CLAIM, found, expected="more").verdict


@pytest.mark.parametrize("name", CONTROLS)
def test_each_control_alone_gives_its_verdict(name):
    assert verdict(compare(SEEN, CONTROLS[name])) == name


def test_the_least_favourable_control_decides_whatever_the_order():
    worst_last = list(CONTROLS)
    for count in range(1, len(worst_last) + 1):
        some = {name: compare(SEEN, CONTROLS[name]) for name in worst_last[:count]}
        expected = {"undecided": 2, "not above its control": 1, "fails": 0, "only qualitative": 3, "holds": 4}
        worst = min(some, key=expected.__getitem__)
        for order in (some, dict(reversed(some.items()))):
            assert list(hardest(CLAIM, order)) == [worst]
            assert verdict(hardest(CLAIM, order)) == worst


def test_a_small_gain_is_harder_than_a_large_one_whose_interval_begins_lower():
    large, small = compare([0.52, 0.55, 0.58, 0.62, 0.65, 0.68], 0.5), compare(SEEN, [one - 0.04 for one in SEEN])
    assert large.difference_low < small.difference_low
    assert (verdict(large), verdict(small)) == ("holds", "only qualitative")
    assert list(hardest(CLAIM, {"large": large, "small": small})) == ["small"]


def test_among_equals_the_lower_interval_decides():
    found = {"far": compare(SEEN, [0.1] * 4), "near": compare(SEEN, [0.6] * 4)}
    assert list(hardest(CLAIM, found)) == ["near"]


def test_a_control_without_an_interval_leaves_it_undecided():
    found = {"good": compare(SEEN, CONTROLS["holds"]), "one seed": compare(SEEN, [0.4], paired=False)}
    assert verdict(hardest(CLAIM, found)) == "undecided"


def test_no_control_is_refused():
    with pytest.raises(ValueError, match="taught: at least one control is needed"):
        hardest(CLAIM, {})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("holds", "holds"),
        ("only qualitative", "not above its control"),
        ("undecided", "undecided"),
        ("not above its control", "not above its control"),
        ("fails", "not above its control"),
    ],
)
def test_a_further_control_is_part_of_the_verdict(name, expected):
    test = beyond(CLAIM, "gain", compare(SEEN, CONTROLS[name]))
    assert math.isnan(test.value) == (name == "undecided")
    assert test.unit == "%"
    found = by_effect(CLAIM, compare(SEEN, 0.5), expected="more", controls=[test])
    assert found.verdict == expected


def test_among_undecided_ones_a_control_without_an_interval_is_the_hardest():
    found = {"wide": compare(SEEN, CONTROLS["undecided"]), "one seed": compare(SEEN, [0.4], paired=False)}
    assert [verdict(one) for one in found.values()] == ["undecided", "undecided"]
    for order in (found, dict(reversed(found.items()))):
        assert list(hardest(CLAIM, order)) == ["one seed"]


@pytest.mark.parametrize("which", ["found", "corrected"])
def test_a_form_that_no_network_learned_makes_the_claim_not_run(which):
    forms = {"found": compare(SEEN, 0.5), "corrected": compare(SEEN, 0.5), which: compare([])}
    claim = Claim("taught", "CDAG Thm 1", "Gradients teach.", "Some gradients teach.", matters=0.05)
    made = of_learned(claim, **forms, expected="more", reason="no network learned", command="joma verify cdag")
    assert made.verdict == "not run"


def test_a_bound_on_a_gain_is_on_what_is_beyond_the_control():
    small, large = (no_more("gain", compare([seen] * 3, [0.5] * 3), 0.2) for seen in (0.6, 0.8))
    assert (small.passes, large.passes) == (True, False)
    assert (small.value, large.value) == pytest.approx((0.1, 0.3))


def test_a_network_learned_if_it_is_a_tenth_below_guessing():
    losses = np.array([0.0, 0.89 * np.log(7), 0.91 * np.log(7), np.nan])
    assert beats_guessing(losses, 7).tolist() == [True, True, False, False]


def test_what_chance_leaves_open_has_no_value_and_tells_the_seeds():
    """Beside a bound, and beside others' seeds: the level is none of the usual, the freedom Welch's."""
    others = compare([0.1, 0.0, 0.4, 0.2], [0.02, 0.01, 0.0], paired=False, level=0.999)
    for found in (compare([0.1, 0.0, 0.4], level=0.999), others):
        now = (found.difference, found.half_width, found.seeds)
        known = {"level": 0.999, "freedom": found.freedom}
        for test, between in (
            (no_more("gain", found, 0.2), (0.2, 0.2)),
            (clears("gain", found, matters=0.05), (0.0, 0.05)),
            (beyond(CLAIM, "gain", found), (0.0, 0.05)),
        ):
            assert math.isnan(test.value)
            assert test.seeds_to_decide == seeds_to_decide(*now, between, **known) > found.seeds
            assert test.seeds_to_decide != seeds_to_decide(*now, between)  # as if it were an interval of the usual kind


def test_what_is_known_for_certain_is_not_open():
    """In numbers that float64 has: an end on the bound."""
    assert no_more("gain", compare([0.5] * 3, [0.25] * 3), 0.25).passes
    touches = Comparison(0.375, 0.25, 0.25, 0.5, 0.25, 0.25, 0.0, 0.25, 5, freedom=4)
    assert math.isnan(clears("gain", touches, matters=0.25).value)
    assert clears("gain", touches, matters=0.5).value == 0.0
    assert clears("gain", touches._replace(difference_low=0.05, control_high=0.3), matters=0.25).passes
    for test in (no_more("gain", touches, 1.0), clears("gain", touches)):
        assert test.seeds_to_decide is None


def test_a_control_that_few_seeds_equal_to_the_last_digit_is_open():
    for seeds in (2, 9, 10):
        same, more, less = (compare([seen] * seeds, [0.5] * seeds) for seen in (0.5, 0.75, 0.25))
        for test in (clears("gain", same, matters=0.05), beyond(CLAIM, "gain", same)):
            assert math.isnan(test.value) == (seeds < 10)
            assert test.seeds_to_decide is None
        assert clears("gain", more, matters=0.05).passes
        assert clears("gain", less, matters=0.05).value == -0.25
        assert clears("gain", same).value == 0.0  # of a size, nothing is said to matter


def test_a_further_control_that_leaves_no_room_is_open():
    near = compare([0.98, 0.981, 0.979, 0.98, 0.98], [0.97, 0.971, 0.969, 0.97, 0.97])
    assert math.isnan(beyond(CLAIM, "gain", near).value)
    assert beyond(Claim("taught", "CDAG Thm 1", "Gradients teach.", matters=0.05), "gain", near).value < 0.05


def test_so_many_networks_must_have_learned():
    words = {"expected": "more", "reason": "too few networks learned", "command": "joma verify cdag"}
    for seeds, fewest, run in ((2, 3, False), (3, 3, True), (2, 1, True)):
        found = of_learned(CLAIM, compare(SEEN[:seeds], 0.5), fewest=fewest, **words)
        assert (found.verdict != "not run") == run


def test_a_curve_that_still_falls_with_every_seed_says_nothing_of_a_turn():
    """Of its last step every seed loses more than a hundredth of its fall, and the mean is lowest there."""
    falling = np.array([[9.0, 5.0, 3.0], [9.0, 6.0, 2.0]])
    settled, back, one = falling.copy(), falling.copy(), falling.copy()
    settled[1] = [9.0, 2.07, 2.0]
    back[0, 2] = 5.5
    one[0] = [9.0, 1.0, 0.9]
    assert [bool(still_falls(curves)) for curves in (falling, settled, back)] == [True, False, False]
    assert still_falls(np.stack([falling, back, falling])).tolist() == [True, False, True]
    assert still_falls(one)
    assert not still_falls(falling[:, :1])  # one point does not fall
    assert not still_falls(9.0 - falling)
    assert not still_falls(np.full((3, 4), np.nan))
