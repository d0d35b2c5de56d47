"""Theorem 1 with several queries: the verdicts, and that each follows the numbers of its claim and of its controls."""

import numpy as np
import pytest
from records import altered, changed, verdicts

from joma.studies.invariant.thm1_queries import AVERAGED, MIXED, STUDY

HOLDS, FIXED, FAILS, BLIND = "holds", "holds as corrected", "fails", "not above its control"


def still(path):
    return np.broadcast_to(path[:1], path.shape).copy()


def all_still(case):
    return lambda name, step, value: still(value) if name.startswith(f"{case}/") else value


def test_other_shares_of_the_queries_fail_the_weighted_sum(run):
    assert verdicts(STUDY, altered(run, "probability", lambda p: p[::-1]))["average-by-query"] == FAILS


@pytest.mark.parametrize(
    ("case", "blind"),
    [
        (f"exp/{MIXED}/2 queries", {"every-query-exp", "pull-by-query"}),
        (f"linear/{MIXED}/2 queries", {"every-query-linear", "pull-by-query"}),
        (f"exp/{AVERAGED}/2 queries", {"average-by-query", "pull-by-query"}),
        (f"linear/{AVERAGED}/2 queries", {"average-by-query", "pull-by-query"}),
    ],
)
def test_a_flow_that_stands_still_says_nothing(run, case, blind):
    copy = changed(run, all_still(case))
    assert {claim for claim, verdict in verdicts(STUDY, copy).items() if verdict == BLIND} == blind


def following(run, kinds):
    """Every query's logits follow all of V, as if it were alone; under the attentions of `kinds`."""

    def follows(name, step, value):
        kind, _, rest = name.partition("/")
        if kind not in kinds or not rest.endswith("2 queries/z"):
            return value
        squares = (run.value(f"{name[:-2]}/v") ** 2).sum(-1)[..., None, :]
        z = squares / 2 if kind == "exp" else np.sqrt(squares)
        return np.broadcast_to(z, value.shape).copy()

    return follows


def test_printed_forms_would_be_recognised(run):
    assert set(verdicts(STUDY, changed(run, following(run, ("exp", "linear")))).values()) == {HOLDS}


@pytest.mark.parametrize("kind", ["exp", "linear"])
def test_printed_forms_must_be_true_of_both_attentions(run, kind):
    seen = verdicts(STUDY, changed(run, following(run, (kind,))))
    assert seen[f"every-query-{kind}"] == HOLDS
    assert seen["average-by-query"] == FIXED  # logits that are all alike are their own weighted mean
    assert seen["pull-by-query"] == FAILS
