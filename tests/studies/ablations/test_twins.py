"""What the ablations share: networks compared with their twins, on records whose curves are made up."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from records import HOLDS
from small_ablations import (
    NONE,
    STUDIES,
    changed,
    curves,
    idle,
    patterns,
    record,
    still_falling,
    with_half_width,
)
from small_runs import small

from joma.claims.execute import judge
from joma.models import Decoder
from joma.recipes import language as lm
from joma.recipes.language import curves as recorded
from joma.studies.ablations import _twins as twins
from joma.studies.ablations import dropout, mlp_rank, nonlinearity, norm, residual

CLAIM = residual.REBOUND


def needs(path, whole, without, *, part="rebound", **how):
    run = record(path / "run", {"residual": whole, "no residual": without}, **how)
    return twins.needs(CLAIM, run, part=part, full="residual", without="no residual")


def shows(path, variant, **how):
    how.setdefault("study", dropout.STUDY)
    run = record(path / "run", {"no dropout": variant, "dropout": curves()}, **how)
    return twins.shows(dropout.WITHOUT, run, variant="no dropout", twin="dropout")


NEEDS = {
    "more in both layers, and none in the twin": (curves(0.5), curves(0.0), "holds"),
    "the twin rebounds too, but less": (curves(0.5), curves(0.2), "only qualitative"),
    "more in one layer, the same in the other": (curves(0.5), curves([0.0, 0.5]), "only qualitative"),
    "more in one layer, none in the other": (curves([0.5, 0.0]), curves(0.0), "only qualitative"),
    "more in one layer, less in the other": (curves(0.5), curves([0.0, 1.0]), "mixed"),
    "real, but smaller than what matters": (curves(0.04), curves(0.0, draw=1), "only qualitative"),
    "as much in the twin": (curves(0.5), curves(0.5, draw=1), NONE),
    "none in either": (curves(0.0), curves(0.0, draw=1), NONE),
    "none, while the twin falls on": (curves(0.0), still_falling(), NONE),
    "a rise without a drop is no rebound": (curves(0.5, drop=0.0), curves(0.0), NONE),
    "seeds that differ too much": (curves(0.5, noise=0.4), curves(0.0, noise=0.4, draw=1), "undecided"),
    "one layer undecided": (curves([[0.5, 0.0], [0.5, 1.0], [0.5, 0.2], [0.5, 1.2]]), curves(0.0), "undecided"),
    "more in the twin": (curves(0.2), curves(0.5), "fails"),
    "none, and some in the twin": (curves(0.0), curves(0.5), "fails"),
}


@pytest.mark.parametrize("case", NEEDS)
def test_a_rebound_needs_what_its_twin_lacks(tmp_path, case):
    whole, without, expected = NEEDS[case]
    finding = needs(tmp_path, whole, without)
    assert finding.verdict == expected, finding.measured


def test_a_drop_needs_what_its_twin_lacks(tmp_path):
    cases = {"holds": 0.0, "only qualitative": 0.5, NONE: 1.0, "fails": 1.5}
    for expected, drop in cases.items():
        finding = needs(tmp_path / expected, curves(0.5), curves(0.0, drop, draw=1), part="drop")
        assert finding.verdict == expected, finding.measured


SHOWS = {
    "both layers": (curves(0.5), "holds"),
    "one layer": (curves([0.5, 0.0]), "only qualitative"),
    "real, but smaller than what matters": (curves(0.04), "only qualitative"),
    "a drop that is smaller than what matters": (curves(0.5, drop=0.04), "only qualitative"),
    "none": (curves(0.0), NONE),
    "flat": (curves(0.0, drop=0.0), NONE),
    "only a rise": (curves(0.5, drop=0.0), NONE),
    "seeds that differ too much": (curves(0.5, noise=0.4), "undecided"),
    "drops that differ too much": (curves(0.5, drop=np.array([[0.2], [2.0], [0.1], [1.8]])), "undecided"),
    "it falls on": (still_falling(), "fails"),
}


@pytest.mark.parametrize("case", SHOWS)
def test_a_variant_drops_and_rebounds_or_not(tmp_path, case):
    variant, expected = SHOWS[case]
    finding = shows(tmp_path, variant)
    assert finding.verdict == expected, finding.measured


@pytest.mark.parametrize(("share", "expected"), [(0.95, "only qualitative"), (1.05, "undecided")])
@pytest.mark.parametrize(("seeds", "level"), [(6, 0.95), (4, 0.99)])
def test_the_interval_of_the_difference_decides_at_the_level_of_its_seeds(tmp_path, seeds, level, share, expected):
    """A surplus of 0.3 nats is six times what matters, and counts only if chance does not make it."""
    surplus = with_half_width(0.3, 0.3 * share, level, seeds)
    full, twin = (curves(back, noise=0, seeds=seeds) for back in (0.6, 0.6 - surplus))  # the twin rebounds too
    finding = needs(tmp_path, full, twin)
    assert [round(one.difference, 6) for one in finding.printed.effects.values()] == [0.3, 0.3]
    assert finding.verdict == expected


@pytest.mark.parametrize(("level", "expected"), [(0.99, "holds"), (0.95, "undecided")])
def test_a_rebound_is_there_at_99_percent(tmp_path, level, expected):
    """Over six seeds, for it is so whatever the level of other intervals over so many."""
    rises = with_half_width(0.3, 0.29, level, 6)
    back = curves(rises, noise=0, seeds=6)
    assert shows(tmp_path / "shows", back).verdict == expected
    twin = curves(rises - 0.3, noise=0, seeds=6)  # the difference is the same in all seeds
    assert needs(tmp_path / "needs", back, twin).verdict == expected


def test_networks_are_compared_seed_by_seed(tmp_path):
    of_seed = np.array([[0.0], [0.3], [0.6], [0.9], [1.2], [1.5]])
    whole, without = (curves(of_seed + more, seeds=6) for more in (0.5, 0.0))
    assert needs(tmp_path / "paired", whole, without).verdict == "only qualitative"  # the twin rebounds too
    assert needs(tmp_path / "mixed", whole, without[[3, 5, 0, 4, 1, 2]]).verdict == "undecided"


def test_networks_that_diverged_tell_nothing(tmp_path):
    pair = {"whole": curves(0.5), "without": curves(0.0)}
    finding = needs(tmp_path / "2 of 4", *pair.values(), diverged={"no residual": [0, 2]})
    assert finding.verdict == "not run"
    assert finding.reason == "2 of 4 runs of no residual diverged"
    assert finding.changes == {"rate": pytest.approx(twins.AT_QUICK_SCALE["rate"] / 3)}
    other = needs(tmp_path / "other", *pair.values(), diverged={"no residual": [0], "residual": [1]})
    assert other.reason == "1 of 4 runs of residual, 1 of 4 runs of no residual diverged"  # 2 pairs are left
    run = record(tmp_path / "two", {"residual": curves(), "no residual": curves()}, diverged={"residual": [0, 2]})
    assert np.isnan(twins.shape_of(run, "residual").rebound).all()  # what is drawn of two seeds is no number either
    one = needs(tmp_path / "1 of 4", curves(0.5), curves(0.04), diverged={"no residual": [0]})
    assert one.verdict == "undecided"  # what failed counts as the worst
    assert {(effect.seeds, effect.failed) for effect in one.printed.effects.values()} == {(3, 1)}
    assert one.details["diverged and left out"] == {"runs of no residual": 1.0}
    assert shows(tmp_path / "shows", curves(), diverged={"no dropout": [0, 1]}).verdict == "not run"
    assert shows(tmp_path / "twin", curves(), diverged={"dropout": [0, 1, 2, 3]}).verdict == "holds"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_curve_that_is_not_finite_is_left_out_like_one_that_diverged(tmp_path, value):
    spoiled = curves(0.5, seeds=5)
    spoiled[3, 2, 1] = value
    finding = shows(tmp_path / "one", spoiled)
    assert finding.verdict == "undecided"
    assert {(effect.seeds, effect.failed) for effect in finding.printed.effects.values()} == {(4, 1)}
    spoiled[:3, -1, 0] = value
    assert shows(tmp_path / "four", spoiled).reason == "4 of 5 runs of no dropout diverged"


@pytest.mark.parametrize(("loss", "learned"), [(1.94, True), (1.96, False), (np.nan, False)])
def test_networks_that_did_not_learn_tell_nothing(tmp_path, loss, learned):
    pair = curves(0.5), curves(0.0)
    for network in ("residual", "no residual"):
        finding = needs(tmp_path / network, *pair, losses={network: loss})
        assert finding.verdict == ("holds" if learned else "not run")
        assert learned or f"networks of {network} learned no" in finding.reason
        assert learned or finding.changes == {"steps": 2 * twins.AT_QUICK_SCALE["steps"]}
    assert shows(tmp_path / "shows", curves(), losses={"no dropout": loss}).verdict == (
        "holds" if learned else "not run"
    )
    assert shows(tmp_path / "twin", curves(), losses={"dropout": loss}).verdict == "holds"


@pytest.mark.parametrize("name", STUDIES)
def test_an_untrained_network_tells_nothing(small_run, name):
    run = small_run(name)

    def still(entry, step, value):
        ends = ("/loss", "/entropy", "/coherence", "/theorem", "/squares", "/frequency")
        return run.at(entry, 0) if entry.endswith(ends) or "/rank/" in entry else value

    assert {finding.verdict for finding in judge(STUDIES[name], changed(run, still))} == {"not run"}


@pytest.mark.parametrize("name", STUDIES)
def test_networks_that_learned_only_frequencies_tell_nothing(small_run, name):
    run = small_run(name)
    variants = {entry.split("/")[0] for entry in run.names() if entry.endswith("/loss by frequency")}
    assert {finding.verdict for finding in judge(STUDIES[name], changed(run, idle(*variants)))} == {"not run"}


@pytest.mark.parametrize("name", STUDIES)
def test_of_networks_that_all_diverged_nothing_is_judged(small_run, name):
    def gone(series, step, value):
        return np.full_like(value, 3) if series.endswith("/diverged_at") else value

    run = changed(small_run(name), gone)
    assert {finding.verdict for finding in judge(STUDIES[name], run)} == {"not run"}


@pytest.mark.parametrize("name", STUDIES)
def test_curves_that_move_by_chance_alone_hold_nothing(small_run, name):
    """Networks that learned, and curves that go up and down by chance."""
    chance = np.random.default_rng(5)

    def noise(entry, step, value):
        value = patterns()(entry, step, value)
        ends = ("/entropy", "/coherence", "/theorem", "/frequency", "rank/up")
        return 0.5 + 0.1 * chance.standard_normal(value.shape) if entry.endswith(ends) else value

    assert not HOLDS & {finding.verdict for finding in judge(STUDIES[name], changed(small_run(name), noise))}


@pytest.mark.parametrize("name", STUDIES)
def test_every_claim_says_what_matters_and_what_it_rests_on(name):
    claims = STUDIES[name].claims
    assert all(claim.empirical and claim.matters for claim in claims)
    rebounds = [claim for claim in claims if "rebound" in claim.name]
    assert all(set(twins.FIGURE_6) <= set(claim.uses) and claim.unit == "nats" for claim in rebounds)


def test_drops_are_those_of_the_measure(small_run, monkeypatch):
    monkeypatch.setattr(twins, "still_falls", lambda curves: np.zeros(len(curves), bool))  # which would be unknown
    run = small_run("nonlinearity")
    for variant in ("ReLU", "identity"):
        shape, found = twins.shape_of(run, variant), recorded.layer_rebounds(run, variant)
        np.testing.assert_allclose(shape.drop.mean(1), found.drop, atol=1e-12)
        np.testing.assert_allclose(shape.rebound.mean(1), found.rebound, atol=1e-12)
        strict = twins.by_layer(run, variant, "rebound", level=0.99)
        half_widths = [one.half_width for one in strict.values()]
        np.testing.assert_allclose(half_widths, found.rebound_margin, atol=1e-12)
    gap = twins.differences(run, "ReLU", "identity", "drop")["layer 2"]
    pairs = twins.shape_of(run, "ReLU").drop[1] - twins.shape_of(run, "identity").drop[1]
    assert gap.difference == pytest.approx(pairs.mean())
    assert gap.half_width == pytest.approx(9.924843 * pairs.std(ddof=1) / math.sqrt(3), rel=1e-6)


def test_a_relative_quantity_is_a_share_of_where_it_began(tmp_path):
    share = dataclasses.replace(twins.ENTROPY, relative=True)
    run = record(tmp_path / "run", {"residual": curves(0.5, noise=0)})
    np.testing.assert_allclose(twins.shape_of(run, "residual", share).drop, 0.5)
    np.testing.assert_allclose(twins.shape_of(run, "residual", share).rebound, 0.25)


def test_variants_differ_in_one_thing(data_folder):
    config = small("residual", data=str(data_folder))
    base = lm.recipe(config, lm.corpus(config), layers=2, rates=(0.02,))
    for module in (nonlinearity, residual, norm, mlp_rank, dropout):
        twin, *others = (change(base) for change in module.VARIANTS.values())
        assert twin == base
        for other in others:
            back = dataclasses.replace(other, decoder=base.decoder)
            assert back == base
            differing = {
                entry.name
                for entry in dataclasses.fields(base.decoder)
                if getattr(base.decoder, entry.name) != getattr(other.decoder, entry.name)
            }
            assert len(differing - {"mlp"}) <= 1
            assert_equal_starts(base.decoder, other.decoder)
    base, few = base.decoder, base.decoder.with_(vocabulary=8)
    for shape in (base.with_(embeddings="frozen"), few.with_(embeddings="orthonormal")):
        assert_equal_starts(base if shape.vocabulary == base.vocabulary else few, shape)


def assert_equal_starts(one, other):
    """All that two networks of one seed have in common begins with the same values."""
    first, second = (Decoder(shape, seeds=[3]).state_dict() for shape in (one, other))
    chosen = {"embedding"} if other.embeddings == "orthonormal" else set()
    common = (first.keys() & second.keys()) - chosen
    assert {"qkv", "projection", "out", "out_bias"} <= common
    for name in common:
        assert torch.equal(first[name], second[name]), name


def test_frequencies_lose_their_entropy(data_folder):
    config = small("residual", valid_sequences=1000, data=str(data_folder))
    corpus = lm.corpus(config)
    made = lm.recipe(config, corpus)
    count = torch.bincount(corpus.tokens["train"].long(), minlength=40).double() + 1
    whole = -(count / count.sum()).log()[corpus.tokens["valid"].long()].mean()
    assert lm.frequency_loss(made, corpus) == pytest.approx(float(whole), abs=0.05)
    assert lm.frequency_loss(made.with_decoder(vocabulary=8), corpus) < float(whole)


def test_a_run_too_short_for_a_valley_is_refused():
    with pytest.raises(ValueError, match="leave no valley"):
        small("norm", steps=11)


def falling_to_the_end(seeds=4, layers=2):
    made = np.linspace(2.0, 1.0, 12)[None, :, None] + 1e-3 * np.arange(seeds)[:, None, None]
    return np.repeat(made, layers, axis=2)


def test_a_run_that_ends_before_the_valley_is_undecided(tmp_path):
    short = shows(tmp_path / "short", falling_to_the_end())
    assert short.verdict == "undecided"
    assert "none of the seeds could be compared" in short.brief
    assert shows(tmp_path / "flat", curves(0.0)).verdict == NONE  # it has its valley and stays there


def test_a_twin_that_still_falls_is_no_proof_that_it_never_rebounds(tmp_path):
    assert needs(tmp_path, curves(0.5), falling_to_the_end()).verdict == "undecided"
