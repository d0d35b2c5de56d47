"""The data of Figures 2 and 3."""

from math import exp

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusals

from joma.data.token_classes import token_classes


def draw(kind, seed=0, **sizes):
    return token_classes(kind, generator=torch.Generator().manual_seed(seed), **sizes)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["smooth", "random"]),
    st.integers(0, 2**31 - 1),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(0, 9),
)
def test_rows_are_frequencies(kind, seed, classes, distinct, common):
    x = draw(kind, seed, classes=classes, distinct=distinct, common=common)
    assert x.shape == (classes, distinct + common)
    assert x.dtype == torch.float64
    assert (x >= 0).all()
    torch.testing.assert_close(x.sum(-1), torch.ones(classes, dtype=torch.float64))
    assert x.equal(draw(kind, seed, classes=classes, distinct=distinct, common=common))


def test_the_bump_of_the_distinct_tokens_moves_with_the_class():
    x = draw("smooth", classes=20, distinct=10, common=10)
    peak = x[:, :10].argmax(-1)
    assert peak[0] == 0
    assert peak[-1] == 9
    assert (peak.diff() >= 0).all()
    # normalising cancels in a ratio: exp(-(1 - 0)^2/30) / exp(0) in class 0
    assert float(x[0, 1] / x[0, 0]) == pytest.approx(exp(-1 / 30), rel=1e-12)


def test_neighbouring_classes_look_alike_only_in_smooth_data():
    def alike(x):
        distinct = x[:, :10] - x[:, :10].mean(0)
        return float(torch.cosine_similarity(distinct[1:], distinct[:-1]).mean())

    assert alike(draw("smooth")) > 0.9
    assert abs(alike(draw("random"))) < 0.4


def test_both_kinds_share_their_common_tokens_before_normalising():
    smooth, random = draw("smooth", 3), draw("random", 3)
    torch.testing.assert_close(smooth[:, 11:] / smooth[:, 10:11], random[:, 11:] / random[:, 10:11])


test_bad_input_gets_one_sentence = refusals(
    (lambda: draw("bumpy"), "kind must be 'smooth' or 'random', got 'bumpy'"),
    (lambda: draw("random", classes=0), "need at least one class"),
    (lambda: draw("random", distinct=0), "one distinct token"),
    (lambda: draw("random", common=-1), "need at least one class and one distinct token, got 20 and 10"),
)
