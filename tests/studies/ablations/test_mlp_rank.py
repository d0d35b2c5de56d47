"""The stable rank of the MLP's lower matrix: does it drop and come back, and with attention entropy?"""

import math

import numpy as np
import pytest
from small_ablations import NONE, STUDIES, changed, idle, patterns, verdict

from joma.claims.execute import judge
from joma.studies.ablations import mlp_rank


def both(noise=0.001, **ranks):
    def change(name, step, value):
        value = patterns("rank/up", noise=noise, **ranks)(name, step, value)
        return patterns(noise=noise)(name, step, value) if name.endswith("valid/entropy") else value

    return change


def test_rank_bounces_needs_and_follows(small_run):
    run = small_run("mlp-rank")
    found = changed(run, both(ReLU=0.5, identity=0.0))
    assert [finding.verdict for finding in judge(STUDIES["mlp-rank"], found)] == ["holds"] * 3
    found = changed(run, both(ReLU=0.0, identity=0.0))
    assert verdict(found, mlp_rank.BOUNCES) == NONE
    assert verdict(found, mlp_rank.NONLINEAR) == NONE
    assert verdict(changed(run, both(ReLU=0.0, identity=0.5)), mlp_rank.NONLINEAR) == "fails"
    assert verdict(changed(run, both(ReLU=0.5, identity=0.5)), mlp_rank.NONLINEAR) == NONE
    assert verdict(changed(run, both(ReLU=(0.5, 0.0))), mlp_rank.BOUNCES) == "only qualitative"
    assert verdict(changed(run, both(ReLU=0.03)), mlp_rank.BOUNCES) == "only qualitative"  # of 2: 1.5 %
    for claim in (mlp_rank.BOUNCES, mlp_rank.NONLINEAR):
        assert verdict(changed(run, both(noise=0.5)), claim) == "undecided"
    for claim in mlp_rank.STUDY.claims:
        assert verdict(changed(run, idle("ReLU")), claim) == "not run"


def followed(small_run, rank):
    """The verdict where rank is `rank(step, seed)` and entropy drops by 1 until step 12, and comes back by half."""

    def change(name, step, value):
        value = both()(name, step, value)
        if name == "ReLU/rank/up":
            return value * 0 + np.array([rank(step, seed) for seed in range(len(value))])[:, None]
        return value

    return verdict(changed(small_run("mlp-rank"), change), mlp_rank.TOGETHER)


def bowl(step):
    return 2 - min(step, 12) / 12 + max(step - 12, 0) / 24


def test_rank_goes_with_entropy_more_than_with_time(small_run):
    wobbling = {0: 2, 6: 1.45, 12: 1.25, 18: 0.95, 24: 1.5}
    by_time = {0: 2, 6: 1.2, 12: 1.0, 18: 0.9, 24: 0.85}
    assert followed(small_run, lambda step, seed: bowl(step)) == "holds"
    assert followed(small_run, lambda step, seed: wobbling[step]) == "only qualitative"  # more, but below 0.9
    assert followed(small_run, lambda step, seed: by_time[step]) == "fails"
    assert followed(small_run, lambda step, seed: 3 - bowl(step)) == "fails"
    assert followed(small_run, lambda step, seed: 3 + bowl(step) * (-1) ** seed) == "undecided"


def test_the_trend_that_rank_must_beat_counts_whatever_its_sign(small_run):
    """Rank that falls with log time: a correlation with time of -1 is more than one with entropy of 0.7."""
    assert followed(small_run, lambda step, seed: 5 - math.log1p(step)) == "fails"


def test_a_rank_that_begins_at_0_has_no_share(small_run):
    def empty(name, step, value):
        return value * 0 if name == "ReLU/rank/up" and step == 0 else value

    finding = judge(mlp_rank.STUDY, changed(small_run("mlp-rank"), empty))[0]
    assert finding.reason == "3 of 3 runs of ReLU diverged"


def test_ranks_are_shares_of_their_start(small_run):
    run = small_run("mlp-rank")
    doubled = changed(run, lambda name, step, value: value * (2 if name.endswith("rank/up") else 1))
    for before, after in zip(judge(mlp_rank.STUDY, run), judge(mlp_rank.STUDY, doubled), strict=True):
        assert after.verdict == before.verdict
        for one, other in zip(before.details.values(), after.details.values(), strict=True):
            assert other == pytest.approx(one)
