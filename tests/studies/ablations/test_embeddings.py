"""Embeddings learned, frozen and orthonormal."""

import numpy as np
import pytest
from small_ablations import NONE, STUDIES, carry_out, changed, idle, must_show, patterns, verdict

from joma.recipes.language import curves as recorded
from joma.studies.ablations import embeddings


@pytest.mark.parametrize(
    ("claim", "variant"),
    [("rebound-with-orthonormal-embeddings", "orthonormal"), ("rebound-with-random-embeddings", "frozen")],
)
def test_frozen_vectors_show_the_pattern_or_not(small_run, claim, variant):
    must_show(small_run("embeddings"), claim, variant)


def made(small_run, *, lost=(), **ends):
    """A record in which these series are as given after the start: a number for all seeds, or one for each.

    Seeds differ a little, and not by the same in two series.
    """

    def change(name, step, value):
        value = patterns()(name, step, value)
        if name in [f"{variant}/diverged_at" for variant in lost]:
            value = np.where(np.arange(len(value)) == 0, 3, value)
        series = name.replace("/", "_").replace(" ", "_").replace(",", "")
        if series not in ends or step == 0:
            return value
        own = 1e-4 * np.roll([-1.0, 0.0, 1.0], list(ends).index(series))
        return value * 0 + ends[series] + np.linspace(0, 0.003, 3) + own

    return changed(small_run("embeddings"), change)


SCATTERED = np.array([-0.3, 0.5, 0.1])


def test_learned_embeddings_help_or_not(small_run):
    cases = [
        (0.7, "holds"),
        (0.515, "only qualitative"),  # 0.015 nats, of 0.02 that matter
        (0.5, NONE),
        (0.3, "fails"),
        (0.6 + SCATTERED / 2, "undecided"),
        (50.0, "holds"),  # a twin that learned nothing with frozen vectors is what the claim says
    ]
    for loss, expected in cases:
        found = made(small_run, frozen_valid_loss=loss, learned_valid_loss=0.5)
        assert verdict(found, "learned-embeddings-help") == expected, loss
    assert verdict(changed(small_run("embeddings"), idle("learned")), "learned-embeddings-help") == "not run"
    assert verdict(made(small_run, lost=["frozen"]), "learned-embeddings-help") == "not run"


def test_learned_embeddings_become_alike_or_not(small_run):
    cases = [
        (0.4, "holds"),
        (0.21, "only qualitative"),  # 5 %, of 10 % that matter
        (0.2, NONE),
        (0.1, "fails"),
        (0.3 + SCATTERED / 4, "undecided"),
        (np.array([0.4, np.nan, np.nan]), "undecided"),
    ]
    for alike, expected in cases:
        found = made(small_run, learned_coherence=alike, frozen_coherence=0.2)
        assert verdict(found, "learned-embeddings-become-alike") == expected, alike
    assert verdict(changed(small_run("embeddings"), idle("learned")), "learned-embeddings-become-alike") == "not run"
    found = made(small_run, lost=["frozen"], learned_coherence=0.4, frozen_coherence=0.2)
    assert verdict(found, "learned-embeddings-become-alike") == "holds"  # frozen vectors are there in any case


def test_logits_follow_by_theorem_1_or_not(small_run):
    cases = [
        (0.95, 0.3, 0.1, "holds"),
        (0.6, 0.3, 0.1, "only qualitative"),  # not as high as a good estimate
        (0.93, 0.9, 0.1, "only qualitative"),  # 0.03, of 0.05 that matter
        (0.6, 0.6, 0.1, NONE),
        (0.95, 0.3, 0.93, "only qualitative"),  # log frequency does nearly as well,
        (0.6, 0.3, -0.6, NONE),  # or as well, with whatever sign,
        (0.6, 0.3, -0.9, "fails"),  # or better
        (-0.9, 0.3, 0.1, "fails"),
        (0.95 + SCATTERED / 10, 0.3 + 2 * SCATTERED[::-1], 0.1, "undecided"),
        (0.98, 0.98, 0.1, "undecided"),  # no room below 1
    ]
    for orthonormal, random, frequency, expected in cases:
        found = made(
            small_run,
            orthonormal_estimate_theorem=orthonormal,
            frozen_few_words_estimate_theorem=random,
            orthonormal_estimate_frequency=frequency,
        )
        assert verdict(found, "logits-with-orthonormal-embeddings") == expected, (orthonormal, random, frequency)
    for network in ("orthonormal", "frozen, few words"):
        assert (
            verdict(changed(small_run("embeddings"), idle(network)), "logits-with-orthonormal-embeddings") == "not run"
        )


@pytest.mark.parametrize("measure", ["coherence", "estimate/theorem"])
def test_what_a_network_that_diverged_ended_with_does_not_count(small_run, measure):
    def one_lost(name, step, value):
        if name == "learned/diverged_at":
            return np.array([-1, 3, -1])
        return np.array([0.1, 77.0, 0.3]) if name == f"learned/{measure}" else value

    found = embeddings._ends(changed(small_run("embeddings"), one_lost), "learned", measure)
    np.testing.assert_array_equal(found, [0.1, np.nan, 0.3])


def test_embeddings_are_what_they_are_called(small_run):
    run = small_run("embeddings")
    ends = {name: recorded.curve(run, name, "coherence")[0] for name in ("learned", "frozen", "orthonormal")}
    assert np.abs(ends["orthonormal"]).max() < 1e-6
    assert np.ptp(ends["frozen"], axis=1).max() == 0
    assert np.ptp(ends["learned"], axis=1).min() > 0


@pytest.mark.long
def test_several_heads_leave_theorem_1_open(data_folder, tmp_path):
    run = carry_out(STUDIES["embeddings"], data_folder, tmp_path / "run", heads=2, layers=1, steps=12)
    assert verdict(run, "logits-with-orthonormal-embeddings") == "not run"
