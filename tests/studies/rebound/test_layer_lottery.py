"""The lottery of layers: who takes part, what patterns say, and that its judges can be turned."""

import numpy as np
import pytest
import torch
from every_study import draws_labelled_figures
from records import changed, found, verdicts
from small_language_models import untrained
from small_runs import small as sizes

from joma.claims.execute import plain_config
from joma.recipes.language import corpus, recipe
from joma.runs import Run
from joma.studies.rebound.layer_lottery import run as record
from joma.studies.rebound.layer_lottery import study as lottery
from joma.studies.rebound.layer_lottery.run import (
    KINDS,
    NETWORKS,
    alike,
    between_seeds,
    distance,
    halves,
    inner,
    lottery_ensemble,
    members_of,
    patterns,
    share_of_position,
    winner,
)

pytestmark = pytest.mark.usefixtures("no_other_text")


@pytest.fixture(autouse=True)
def few_shuffles(monkeypatch):
    monkeypatch.setattr(record, "SHUFFLES", 100)


@pytest.fixture(scope="module")
def small(data_folder):
    return sizes("layer-lottery", data=str(data_folder))


@pytest.fixture(scope="module")
def whole(small_run):
    return small_run("layer-lottery")


@pytest.fixture(scope="module")
def ensemble(small):
    text = corpus(small)
    return lottery_ensemble(recipe(small, text, layers=5, rates=(0.02,)), members_of(range(1, 6), 2), text)


def of_kind(kind, place=0):
    return 5 + 2 * (KINDS.index(kind) - 1) + place


def weights(ensemble, number):
    return torch.cat([part.flatten() for part in ensemble.networks([number]).parameters()])


def test_rounding_moves_every_weight_by_one_unit_and_nothing_else(ensemble):
    seed, twin = weights(ensemble, 0), weights(ensemble, of_kind("rounding"))
    units = (seed.view(torch.int32) - twin.view(torch.int32)).abs()
    assert (units[seed != 0] == 1).all()
    assert (units[seed == 0] == 0).all()
    assert ((twin - seed)[seed != 0] > 0).float().mean().item() == pytest.approx(0.5, abs=0.05)
    assert ensemble.networks([0]).seeds.equal(ensemble.networks([of_kind("rounding")]).seeds)


def test_rounding_moves_each_seed_its_own_way(ensemble):
    """Twins whose weights all moved alike would have more in common than rounding."""
    ups = []
    for place in range(2):
        seed, twin = weights(ensemble, place), weights(ensemble, of_kind("rounding", place))
        assert ((seed.view(torch.int32) - twin.view(torch.int32)).abs() == (seed != 0)).all()
        ups.append(twin > seed)
    drawn = weights(ensemble, 0) != 0
    assert (ups[0] == ups[1])[drawn].float().mean().item() == pytest.approx(0.5, abs=0.05)


def test_every_other_twin_differs_in_its_one_thing(ensemble):
    whats = {}
    for kind in KINDS[2:]:
        one, other = 0, of_kind(kind)
        same = {
            "weights": torch.equal(weights(ensemble, one), weights(ensemble, other)),
            "dropout": ensemble.networks([one]).seeds.equal(ensemble.networks([other]).seeds),
            "order": torch.equal(ensemble.batch(3, [one])[0], ensemble.batch(3, [other])[0]),
        }
        whats[kind] = [name for name, alike in same.items() if not alike]
    assert whats == {kind: [kind] for kind in KINDS[2:]}


def test_targets_follow_inputs_whoever_reads(ensemble):
    inputs, targets = ensemble.batch(7, range(13))
    assert inputs.shape == (13, 4, 6)
    assert torch.equal(inputs[..., 1:], targets[..., :-1])
    assert torch.equal(inputs[0], inputs[1])
    assert torch.equal(inputs[of_kind("order")], inputs[of_kind("order", 1)])


def test_a_group_reads_what_its_members_read_alone(ensemble):
    first = of_kind("order")
    assert torch.equal(
        ensemble.batch(2, range(first, first + 2))[0], ensemble.batch(2, range(13))[0][first : first + 2]
    )


def test_an_exact_copy_ends_with_the_same_numbers(whole):
    entropy = whole.array(f"{NETWORKS}/valid/entropy")
    twin = entropy[:, of_kind("rounding")]
    assert not np.array_equal(entropy[:, 0], twin)
    np.testing.assert_allclose(entropy[:, 0], twin, atol=1e-3)
    assert np.abs(entropy[-1, 0] - entropy[-1, of_kind("dropout")]).max() > 1e-3


def test_untrained_networks_tell_nothing_and_are_drawn(whole):
    still = untrained(whole)
    assert set(verdicts(lottery.STUDY, still).values()) == {"not run"}
    assert len(lottery.STUDY.draw(still)) == 2


def test_where_no_layer_comes_back_only_ten_layers_tell(tmp_path, monkeypatch):
    """All claims ask which layer drops, comes back and ends where: networks that only fall have not shown it."""

    def falls(name, step, value):
        return value - 20.0 * (step == 12) if name.endswith("/entropy") else value

    run = made(tmp_path / "run", position=5.0)
    still = changed(run, falls)
    assert set(verdicts(lottery.STUDY, still).values()) == {"at paper scale"}
    assert found(lottery.STUDY, still, lottery.TOP).reason == "of 5 layers none comes back by step 24"
    monkeypatch.setattr(lottery, "DEEP", LAYERS)
    assert "at paper scale" not in verdicts(lottery.STUDY, still).values()


LAYERS = 5
RANDOM = np.random.default_rng(3)
CHANCE = RANDOM.normal(size=(8, LAYERS))  # what is special to each of eight seeds
NONE = {kind: RANDOM.normal(size=(5, LAYERS)) for kind in KINDS[1:]}
"""What is special to twins that have nothing of their seeds."""


def made(path, *, position=0.0, own=CHANCE, twins=None, losses=1.0):
    """A record of eight seeds and five twins of each kind; layer l ends at 3.5 + position l / 10 + what is special.

    All start at 6 and drop to about 0.6 at the middle. twins: by kind, what is special to the five.
    """
    config = sizes("layer-lottery", seeds=8, twins=5)
    run = Run.create(path, study="layer-lottery", config=plain_config(config), version=lottery.STUDY.version)
    special = 0.1 * np.concatenate([own, *({**NONE, **(twins or {})}[kind] for kind in KINDS[1:])])
    end = 3.5 + 0.1 * position * np.arange(LAYERS) + special
    members = members_of(range(8), 5)
    once = {
        "rates": np.array([0.02]),
        "seeds": np.arange(len(members)),
        "kind": np.array([KINDS.index(member.kind) for member in members]),
        "of": np.array([member.of for member in members]),
        "loss by frequency": np.array(2.0),
    }
    for name, value in once.items():
        run.append(f"{NETWORKS}/{name}", 0, value)
    low = 0.6 - 0.3 * (end - 3.5)  # who ends high drops deep
    for step, level in ((0, np.full_like(end, 6.0)), (6, low), (12, end)):
        run.append(f"{NETWORKS}/valid/entropy", step, level[..., None])
        run.append(f"{NETWORKS}/valid/loss", step, np.broadcast_to(losses, len(end)).astype(float))
        run.append(f"{NETWORKS}/diverged_at", step, np.full(len(end), -1))
    return run


def of(run, claim):
    return found(lottery.STUDY, run, claim).verdict


def test_figures_have_labels(tmp_path):
    run = made(tmp_path / "run", position=1.0)
    draws_labelled_figures(lottery.STUDY, run)


@pytest.mark.parametrize(("position", "top"), [(5.0, "holds"), (-5.0, "fails")])
def test_position(tmp_path, position, top):
    run = made(tmp_path / "run", position=position)
    assert of(run, lottery.POSITION) == of(run, lottery.INNER) == "holds"
    assert of(run, lottery.TOP) == of(run, lottery.BOTTOM) == top


def test_a_coin_toss(tmp_path):
    verdict, above = verdicts(lottery.STUDY, made(tmp_path / "run")), {"holds", "only qualitative", "mixed"}
    assert not {verdict["position"], verdict["position-of-inner-layers"]} & above
    assert not {verdict["top-layers-come-back"], verdict["bottom-layers-stay-sparse"]} & above


def test_position_that_explains_too_little_is_only_qualitative(tmp_path, monkeypatch):
    monkeypatch.setattr(lottery, "MOST", 0.99)
    finding = found(lottery.STUDY, made(tmp_path / "run", position=2.0), lottery.POSITION)
    assert finding.verdict == "only qualitative"
    assert finding.details["share that 5 % of shufflings exceed"]["end"] < 0.5


def test_twins(tmp_path):
    same = {kind: CHANCE[:5] + 0.01 * NONE[kind] for kind in KINDS[1:]}
    half = {kind: CHANCE[:5] + 1.2 * NONE[kind] for kind in KINDS[1:]}
    claims = (lottery.ROUNDING, lottery.WEIGHTS, lottery.NOISE)
    alike = made(tmp_path / "same", twins=same)
    assert [of(alike, claim) for claim in claims] == ["holds"] * 3
    strangers = made(tmp_path / "none")
    assert "holds" not in [of(strangers, claim) for claim in claims]
    assert of(made(tmp_path / "one", twins={"rounding": same["rounding"]}), lottery.NOISE) != "holds"
    rounding = found(lottery.STUDY, made(tmp_path / "half", twins=half), lottery.ROUNDING)
    assert rounding.verdict in ("only qualitative", "undecided")
    assert "needed: at least 0.9" in rounding.measured


def test_position_alone_makes_no_twins(tmp_path):
    assert of(made(tmp_path / "run", position=50.0), lottery.ROUNDING) != "holds"


def test_networks_that_learned_nothing_do_not_count(tmp_path):
    losses = np.ones(28)
    losses[[0, 3]] = 1.99
    run = made(tmp_path / "run", position=5.0, losses=losses)
    finding = found(lottery.STUDY, run, lottery.POSITION)
    assert finding.verdict == "holds"
    assert finding.details["networks that learned nothing"] == {"left out": 2.0}
    assert "over 6 seeds" in finding.measured
    losses[:5] = 1.99
    few = found(lottery.STUDY, made(tmp_path / "few", losses=losses), lottery.POSITION)
    assert few.reason == "too few networks learned more than how frequent words are: 3 of kind seed"


def test_the_jackknife_gives_the_mean_of_pairs_with_an_honest_interval():
    rows = np.random.default_rng(1).normal(size=(9, 6)) + np.arange(6)
    pairs = alike(rows)[np.triu_indices(9, 1)]
    comparison = between_seeds(rows)
    assert comparison.value == pytest.approx(pairs.mean())
    draws = [between_seeds(np.random.default_rng(seed).normal(size=(9, 6))) for seed in range(300)]
    covered = np.mean([one.low <= 0 <= one.high for one in draws])
    assert 0.85 < covered < 1.0  # of intervals of 95 %


def test_a_seed_without_a_pattern_is_left_out():
    rows = np.vstack([np.arange(5.0) + 0.1 * np.eye(5), np.zeros(5)])
    assert between_seeds(rows).seeds == 5


def test_the_share_of_position():
    rows = np.tile(np.arange(6.0), (10, 1)) + np.arange(10)[:, None]  # levels differ, patterns do not
    assert share_of_position(rows).value == pytest.approx(1.0)
    share = share_of_position(np.random.default_rng(0).normal(size=(10, 6)))
    assert share.value < share.chance < 0.35
    assert winner(rows, inner(6)) == {"layer": 5.0, "in seeds": 10.0, "of": 10.0}


def test_each_network_is_read_at_the_valley_of_the_others(tmp_path):
    """Its own lowest point is where its noise makes a rebound; who learned nothing finds no valley for others."""
    losses = np.ones(28)
    losses[3] = 1.99

    def spoiled(name, step, value):
        if name.endswith("/entropy"):
            value = value.copy()
            value[0] = 9.0 if step == 6 else value[0]  # a peak where the others have their valley
            value[3] = -1e6 if step == 0 else value[3]
        return value

    plain = made(tmp_path / "run", position=1.0, losses=losses)
    before, after = patterns(plain), patterns(changed(plain, spoiled))
    np.testing.assert_allclose(after["drop"][0], 6.0 - 9.0)
    np.testing.assert_allclose(after["rebound"][0], after["end"][0] - 9.0)
    others = [number for number in range(28) if number not in (0, 3)]
    for name in before:
        np.testing.assert_allclose(after[name][others], before[name][others])
        assert np.isnan(after[name][3]).all()


def test_twins_of_a_network_choose_no_valley_for_it(tmp_path):
    """Twins of the first network are lowest at the start: others are read there, the first one is not."""
    plain = made(tmp_path / "run", position=1.0)
    of = plain.value(f"{NETWORKS}/of")
    twins = np.flatnonzero((of == of[0]) & (np.arange(len(of)) > 0))
    strangers = np.flatnonzero(of != of[0])

    def spoiled(name, step, value):
        if name.endswith("/entropy") and step == 0:
            value = value.copy()
            value[twins] = -1e6
        return value

    before, after = patterns(plain), patterns(changed(plain, spoiled))
    assert (before["drop"][0] > 0.5).all()
    np.testing.assert_allclose(after["drop"][0], before["drop"][0])
    np.testing.assert_allclose(after["drop"][strangers], 0.0, atol=1e-12)
    assert len(twins) > 1


def test_patterns_and_halves(tmp_path):
    run = made(tmp_path / "run", position=1.0, own=np.zeros((8, LAYERS)))
    rebound = patterns(run)["rebound"][0]
    np.testing.assert_allclose(patterns(run)["end"][0], 3.5 + 0.1 * np.arange(5))
    np.testing.assert_allclose(rebound, 2.9 + 0.13 * np.arange(5))
    assert halves(rebound[None])[0] == pytest.approx(0.13 * 3)
    np.testing.assert_allclose(distance(run, "seed"), 0.0, atol=1e-12)
    assert distance(run, "rounding").shape == (5, 3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layers": 4}, "layers must be at least 5, so that three lie between the bottom and the top, got 4"),
        ({"twins": 6}, "twins must be at most 5, the number of seeds, got 6"),
    ],
)
def test_what_cannot_be_asked(changes, said):
    with pytest.raises(ValueError, match=said):
        sizes("layer-lottery", **changes)
