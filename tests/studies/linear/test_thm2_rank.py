"""More than one node: the verdicts, and that each follows the numbers of its claim, its controls and its intervals."""

import numpy as np
import pytest
import torch
from every_study import put, test_a_spoiled_series_changes_its_verdict  # noqa: F401
from records import altered, changed, found, verdicts

from joma.studies.linear.thm2_rank import EXACT, SHARE, STUDY

HOLDS, FAILS, BLIND = "holds", "fails", "not above its control"
QUALITATIVE, OPEN = "only qualitative", "undecided"
SOON = 8  # of the 49 moments: 1 − t/t* = 0.01
UNLIKE = np.array([1.8, 0.4, 1.6, 0.2])  # matrices that do not agree on the direction


def judged(run, changes):
    return verdicts(STUDY, changed(run, lambda name, step, value: changes.get(name, lambda x: x)(value)))


def losing(share):
    return lambda path: path[:1] * np.linspace(1, 1 - share, len(path))[:, None]


SPOILED = [
    ("block/velocity off/any A", lambda x: 0 * x, "nodes-dynamics", HOLDS),
    ("block/velocity off/printed", lambda x: 0 * x, "nodes-dynamics", HOLDS),
]


def test_errors_of_both_equations_come_from_the_record(run):
    seen = found(STUDY, run, "nodes-dynamics")
    assert seen.residuals["printed"] > 0.01 > EXACT >= seen.residuals["corrected"]
    assert seen.details["the printed equation"]["with A = 1"] > seen.residuals["printed"]
    copy = altered(run, "block/velocity off/any A", lambda x: x / 2)
    assert found(STUDY, copy, "nodes-dynamics").residuals["printed"] == seen.residuals["printed"] / 2


@pytest.mark.parametrize("scale", [2.0, np.sqrt(2)])
def test_one_value_at_all_tokens_of_a_node_would_be_recognised(run, scale):
    def same(v):
        delta = run.value("block/delta")[:, None]
        grown = np.linspace(0, 0.5, v.shape[1])[:, None, None] * delta / np.abs(delta).max()
        return scale * torch.erfinv(torch.as_tensor(grown)).numpy()

    assert judged(run, {"block/v": same})["nodes-closed-form"] == HOLDS


def test_a_block_that_stands_still_says_nothing_of_the_closed_form(run):
    def still(v):
        return np.full_like(v, 0.1)

    changes = {"block/v": still, "block/v closed": still}
    assert judged(run, changes)["nodes-closed-form"] == BLIND


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"rank of V": lambda rank: rank - np.arange(len(rank))[:, None] // 10}, HOLDS),
        ({"rank of V": put((20, 0), 14)}, QUALITATIVE),
        ({"V": losing(SHARE / 2)}, QUALITATIVE),
        ({"V": lambda path: path[[0, 2, 1, *range(3, len(path))]]}, QUALITATIVE),
        ({"V": lambda path: path * np.where(np.arange(len(path)) < SOON, 1, 0.4)[:, None]}, QUALITATIVE),
        ({"V": lambda path: np.broadcast_to(path[:1], path.shape)}, BLIND),
        ({"V without attention": losing(0.9), "V": losing(0.9)}, BLIND),
        ({"V": lambda path: path[::-1]}, BLIND),  # neither of them falls: the rank stays, the stable rank rises
        ({"V": lambda path: path[::-1], "rank of V": lambda rank: rank + np.arange(len(rank))[:, None]}, FAILS),
        ({"V": lambda path: losing(0.2)(path) * np.linspace(1, UNLIKE, len(path))}, OPEN),
        ({"V": losing(0.99), "V without attention": losing(0.97)}, OPEN),  # what matters does not fit below the ceiling
        ({"V": put((20, 0), np.nan)}, OPEN),
        ({"V": lambda path: path * np.nan}, OPEN),
    ],
)
def test_low_rank_by_rank_and_stable_rank(run, changes, verdict):
    named = {f"rank/{name}": change for name, change in changes.items()}
    assert judged(run, named)["nodes-low-rank"] == verdict


def even(start, end):
    """A stable rank that goes evenly from one share of V's at the start to another."""
    return lambda path: path[:1] * np.linspace(start, end, len(path))[:, None]


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"V'": lambda path: 1.2 * path}, QUALITATIVE),  # at first above V
        ({"V": even(1, 0.5), "V'": lambda path: even(1, 0.5)(path) * (1 - SHARE / 4)}, QUALITATIVE),  # too little
        ({"V'": lambda path: path + 0.1 * (np.arange(len(path)) == 30)[:, None]}, QUALITATIVE),  # rises once
        ({"V": lambda path: path + 0.2 * (np.arange(len(path)) == 30)[:, None]}, QUALITATIVE),  # V rises once
        ({"V'": lambda path: 20 + 0 * path}, FAILS),
        ({"V": even(1, 0.5), "V'": even(1, 0.5)}, BLIND),
        ({"V": even(1, 0.9), "V'": lambda path: even(1, 0.9)(path) * np.linspace(1, UNLIKE, len(path))}, OPEN),
        ({"V": even(1, 0.02), "V'": lambda path: even(1, 0.02)(path) / 2}, OPEN),  # V has lost all there is at the end
        ({"V'": put((30, 0), np.nan)}, OPEN),
        ({"V'": lambda path: path * np.nan}, OPEN),
    ],
)
def test_the_gradient_is_compared_with_v(run, changes, verdict):
    named = {f"rank/{name}": change for name, change in changes.items()}
    assert judged(run, named)["nodes-gradient-rank"] == verdict


def test_the_gradient_is_lower_at_every_moment_that_is_asked(run):
    def late(velocity):
        return np.where(np.arange(len(velocity))[:, None] == len(velocity) - 1, run.value("rank/V"), velocity)

    assert judged(run, {"rank/V'": late})["nodes-gradient-rank"] == QUALITATIVE
    seen = found(STUDY, run, "nodes-gradient-rank")
    assert list(seen.printed.effects) == [f"at 1 − t/t* = {left}" for left in ("0.1", "0.01", "1.0e-6", "1.0e-12")]


def soon(*factors):
    return put((SOON,), factors)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"growth": soon(3.0, 3.1, 2.9, 3.0)}, QUALITATIVE),
        ({"growth": lambda x: 1 + 0 * x, "growth without attention": lambda x: 1 + 0 * x}, BLIND),
        ({"growth without attention": lambda x: 29.0 + 0 * x}, BLIND),  # slower, by less than what matters
        ({"growth without attention": lambda x: 40.0 + 0 * x}, FAILS),
        ({"growth": soon(30.0, 1.0, 40.0, 2.0)}, OPEN),
        ({"growth": soon(30.0, np.nan, np.nan, np.nan)}, OPEN),
        ({"growth": lambda x: np.nan * x}, OPEN),
    ],
)
def test_row_growth_is_compared_with_v_without_attention(run, changes, verdict):
    named = {f"rank/{name}": change for name, change in changes.items()}
    assert judged(run, named)["nodes-row-growth"] == verdict


def test_the_largest_growth_without_attention_is_the_control(run):
    copy = altered(run, "rank/growth without attention", put((3,), 2.0))
    assert found(STUDY, copy, "nodes-row-growth").main.control_effect == 2.0
