"""The study of Section 5: where attention ends, what it reaches in turn, levels from below, the pull of the data."""

import numpy as np
import pytest
from records import verdicts
from studies.hierarchy.shallow_first_records import CLASS, PERMUTED, TOKEN, TRUE, as_permuted, rewritten, spoiled

from joma.studies.hierarchy.shallow_first import study as claims
from joma.studies.hierarchy.shallow_first.study import STUDY


@pytest.fixture(scope="module")
def run(shallow_first_run):
    return shallow_first_run


@pytest.mark.parametrize(("claim", "column"), [("weak-pairs-in-the-end", claims.FAR), ("not-picked-up", claims.ALONE)])
@pytest.mark.parametrize(
    ("by", "verdict"),
    [
        ([0.07, 0.3, -0.2], "undecided"),
        ([0.03, 0.031, 0.029], "only qualitative"),
        ([0.001, -0.001, 0.0], "not above its control"),
        ([-0.2, -0.21, -0.19], "fails"),
        ([0.2, 0.21, 0.19], "holds"),
    ],
)
def test_attention_in_the_end_is_judged_by_its_interval(run, tmp_path, claim, column, by, verdict):
    def spoil(values):
        values[-1, :, TRUE, column] = values[-1, :, PERMUTED, column].mean() + np.array(by)

    assert spoiled(run, tmp_path / "both", TOKEN, CLASS, spoil=spoil)[claim] == verdict
    for network in (TOKEN, CLASS):  # either alone keeps it from holding
        one = spoiled(run, tmp_path / network, network, spoil=spoil)[claim]
        known = {"holds": "holds", "undecided": "undecided", "fails": "mixed"}
        assert one == known.get(verdict, "only qualitative")


def test_attention_must_reach_out_height_by_height(run, tmp_path):
    def middle_first(values):
        values[:, :, TRUE, :2] = values[:, :, TRUE, 1::-1]

    def flat_siblings(values):
        values[:, :, TRUE, 0] = values[:, :, PERMUTED, 0] + 1e-5 * np.array([1, 0, -1])

    def flat_far(values):
        values[:, :, TRUE, claims.FAR] = values[:, :, PERMUTED, claims.FAR]
        values[-1, :, TRUE, claims.FAR] += 1e-3 + 1e-5 * np.array([3, 2, 1])  # the peak is late, and chance

    for network in (TOKEN, CLASS):
        seen = spoiled(run, tmp_path / f"middle {network}", network, spoil=middle_first)
        assert seen["reaches-out"] == "only qualitative"
        for spoil in (flat_siblings, flat_far):
            seen = spoiled(run, tmp_path / f"{spoil.__name__} {network}", network, spoil=spoil)
            assert seen["reaches-out"] == "not above its control", (network, spoil)


def test_a_rise_that_chance_may_hide_leaves_it_undecided(run, tmp_path):
    def unsteady(values):
        values[:, :, TRUE, 0] = 1 + (values[:, :, TRUE, 0] - 1) * np.array([2.0, 0.5, 0.1])

    assert spoiled(run, tmp_path / "r", TOKEN, spoil=unsteady)["reaches-out"] == "undecided"


def test_a_delay_that_the_permuted_tree_has_too_proves_nothing(run, tmp_path):
    def lower(values):
        values[:, :, PERMUTED, :3] = 1 + 0.5 * (values[:, :, TRUE, :3] - 1)

    seen = spoiled(run, tmp_path / "r", TOKEN, CLASS, spoil=lower, further=1)
    assert seen["reaches-out"] == "not above its control"


def test_peaks_at_any_time_are_undecided(run, tmp_path):
    def anywhere(values):
        for member, point in enumerate((1, 3, len(values) - 1)):
            values[:, member, TRUE, claims.FAR] = 1.1
            values[point, member, TRUE, claims.FAR] = 1.9

    seen = spoiled(run, tmp_path / "r", TOKEN, CLASS, spoil=anywhere)
    assert seen["reaches-out"] == "undecided"


def test_levels_must_be_learned_from_below(run, tmp_path):
    def in_order(*order):
        def spoil(values):
            contrast = -np.diff(values[:, :, TRUE, :4], axis=-1)[..., list(order)]
            values[:, :, TRUE, 1:4] = -np.cumsum(contrast, -1)

        return spoil

    def verdict(name, spoil):
        return spoiled(run, tmp_path / name, claims.DECODER, spoil=spoil, what=("says",))["bottom-up"]

    assert verdict("same", in_order(0, 1, 2)) == "holds"
    assert verdict("top down", in_order(2, 1, 0)) == "fails"

    def middle_last(values):
        t = np.arange(len(values))
        contrast = np.stack([t >= 1, t >= len(t) - 1, t >= len(t) - 2], -1).astype(float)
        values[:, :, TRUE, 1:4] = -np.cumsum(contrast, -1)[:, None]

    assert verdict("middle last", middle_last) == "only qualitative"
    assert verdict("untold", as_permuted) == "not run"
    for untold in (0, 2):  # one end alone is not told from the next level

        def half(values, untold=untold):
            contrast = -np.diff(values[:, :, TRUE, :4], axis=-1)
            contrast[..., untold] = 1e-6 * np.array([1, 0, -1])
            values[:, :, TRUE, 1:4] = -np.cumsum(contrast, -1)

        assert verdict(f"half {untold}", half) == "not run"


def test_levels_learned_at_any_time_are_undecided(run, tmp_path):
    def unsteady(values):
        late = len(values) - 1
        for member, (low, high) in enumerate([(1, late), (late, 1), (2, 2)]):
            t = np.arange(len(values))
            contrast = np.stack([t >= low, t >= 2, t >= high], -1).astype(float)
            values[:, member, TRUE, 1:4] = -np.cumsum(contrast, -1)

    assert spoiled(run, tmp_path / "r", claims.DECODER, spoil=unsteady, what=("says",))["bottom-up"] == "undecided"


# The pull of the data, by height: siblings, H = 2, H = 3, through the root
SMALL = 1e-3 * np.array([1.0, 0.0, -1.0])[:, None]  # members differ a little, in another order in a permuted tree


def pulled(run, path, pull, permuted=(1.0, 1.0, 1.0, 1.0), spread=SMALL):
    """Verdicts where both pulls are these, beside a co-occurrence of 1, 0.9, 0.8, 0.3."""
    rows = {"co-occurrence": (1.0, 0.9, 0.8, 0.3), "pull": pull, "permuted": permuted}

    def change(name, values):
        end = next((end for end in rows if name.startswith("data/") and name.endswith(end)), None)
        own = np.roll(spread, end == "permuted", axis=0)
        return values if end is None else (np.array(rows[end]) + own * np.arange(4))[None]

    seen = verdicts(STUDY, rewritten(run, path, change))
    return seen["pull-towards-a-token"], seen["pull-towards-the-class"]


@pytest.mark.parametrize(
    ("pull", "of_token", "of_class"),
    [
        ((1.0, 0.9, 0.8, 0.3), "holds", "holds"),  # as co-occurrence
        ((1.0, 0.95, 0.9, 0.3), "only qualitative", "only qualitative"),  # it falls, more slowly
        ((1.0, 1.0, 1.0, 0.1), "not above its control", "holds as corrected"),
        ((1.0, 1.0, 1.0, 1.0), "not above its control", "not above its control"),  # as in a permuted tree
        ((1.0, 1.1, 1.2, 0.1), "fails", "only qualitative"),  # not the same at every height, smaller through the root
        ((1.0, 0.8, 0.9, 0.3), "only qualitative", "only qualitative"),  # not from height to height
    ],
)
def test_the_pull_is_judged_by_its_form(run, tmp_path, pull, of_token, of_class):
    assert pulled(run, tmp_path / "r", pull) == (of_token, of_class)


def test_a_pull_that_falls_in_the_permuted_tree_too_proves_nothing(run, tmp_path):
    falls = (1.0, 0.9, 0.8, 0.3)
    assert pulled(run, tmp_path / "r", falls, permuted=falls) == ("not above its control",) * 2


def test_a_level_pull_in_the_permuted_tree_is_no_correction(run, tmp_path):
    """Level below the root and through it: what every permuted tree looks like."""
    level = (1.0, 1.0, 1.0, 0.1)
    assert pulled(run, tmp_path / "r", level, permuted=level)[1] == "not above its control"


def test_a_pull_that_few_sequences_leave_open_is_undecided(run, tmp_path):
    assert pulled(run, tmp_path / "r", (1.0, 0.9, 0.8, 0.8), spread=200 * SMALL) == ("undecided",) * 2
