"""Alignment on noisy trees: verdicts follow the gain of networks that learned over the same networks untrained."""

import numpy as np
import pytest
import torch
from records import found, verdicts

from joma.claims.execute import judge, plain_config
from joma.figures.style import house_style
from joma.runs import Run
from joma.studies.hierarchy import hblt_alignment

STUDY = hblt_alignment.STUDY
SEEDS = 4
CONFIG = hblt_alignment.HBLTAlignmentConfig(depths=(2, 3), rhos=(1.0, 0.8), seeds=SEEDS, classes=4, samples=300)
RHO = np.repeat(CONFIG.rhos, SEEDS)
NEURON, PERMUTED, PROBE = range(3)
ANY = hblt_alignment.ANY
NOISY = RHO < 1


def noise(luck, size, shape):
    """Of every seed; in the mean over the seeds of one rho it is nothing."""
    drawn = size * luck.normal(size=(len(CONFIG.rhos), SEEDS, *shape[1:]))
    return (drawn - drawn.mean(1, keepdims=True)).reshape(shape)


def record(path, *changes, accuracy=1.0, diverged=(), tokens=0.4, spread=1e-3):
    """Untrained networks score 0.5, permuted latents nothing; every change (where, by) adds to what training makes.

    where: (members, kinds, places, levels) of every depth.
    """
    luck = np.random.default_rng(0)
    run = Run.create(path, study=STUDY.name, config=plain_config(CONFIG), version=STUDY.version)
    for depth in CONFIG.depths:
        shape = (len(RHO), len(hblt_alignment.KINDS), ANY + 1, depth - 1)
        start, gain = 0.5 + noise(luck, spread, shape), noise(luck, spread, shape)
        for where, by in changes:
            gain[where] += by
        start[:, PERMUTED] = gain[:, PERMUTED] = 0.0
        for where, by in changes:
            if where[1] == PERMUTED:
                gain[where] += by
        run.record(0, {f"depth {depth}/tokens": np.broadcast_to(tokens, (depth - 1, len(RHO))).T.copy()})
        for step, part in ((0, 0.0), (CONFIG.look_at[0], 1.0), (CONFIG.steps, 1.0)):
            told = np.broadcast_to(accuracy if step else 0.25, RHO.shape).copy()
            lost = np.isin(np.arange(len(RHO)), diverged) & (step > 0)
            run.record(step, {f"depth {depth}/scores": start + part * gain, f"depth {depth}/accuracy": told,
                              f"depth {depth}/diverged_at": np.where(lost, 7, -1)})  # fmt: skip
    return run


EVERYWHERE = ((slice(None), NEURON), 0.2)
PLACES = {
    "nodes-represent-latents": (NOISY, NEURON, ANY),
    "lowest-latents-in-first-block": (NOISY, NEURON, 0, 0),
    "higher-latents-above": (NOISY, NEURON, 1, -1),
    "alignment-without-noise": (~NOISY, NEURON, ANY),
}


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize(
    ("by", "spread", "verdict"),
    [
        (0.2, 1e-3, "holds"),
        (0.01, 1e-3, "only qualitative"),
        (0.0, 1e-3, "not above its control"),
        (0.0, 0.1, "undecided"),
        (-0.2, 1e-3, "fails"),
    ],
)
def test_verdicts_follow_the_gain_in_the_right_place(tmp_path, name, by, spread, verdict):
    run = record(tmp_path / "run", (PLACES[name], by), spread=spread)
    finding = next(one for one in judge(STUDY, run) if one.claim.name == name)
    assert finding.verdict == verdict


@pytest.mark.parametrize("name", PLACES)
def test_a_gain_in_other_places_does_not_count(tmp_path, name):
    where = PLACES[name]
    if name == "higher-latents-above":
        run = record(tmp_path / "run", EVERYWHERE, ((slice(None), NEURON, 1, slice(1, None)), -0.2))
    else:
        run = record(tmp_path / "run", EVERYWHERE, (where, -0.2))
    assert verdicts(STUDY, run)[name] == "not above its control"


@pytest.mark.parametrize("name", PLACES)
def test_what_latents_of_other_samples_score_too_proves_nothing(tmp_path, name):
    run = record(tmp_path / "run", EVERYWHERE, ((slice(None), PERMUTED), 0.8))
    assert verdicts(STUDY, run)[name] == "not above its control"


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ([((NOISY, NEURON, 2, -1), 0.2)], "holds"),
        ([((NOISY, NEURON, 2), 0.2)], "not above its control"),  # all levels rise alike
        ([((NOISY, NEURON, slice(3), -1), 0.2)], "not above its control"),  # in every block alike
        ([((NOISY, NEURON, 2, 0), 0.2)], "fails"),
        ([((NOISY, NEURON, 0, 0), 0.2)], "holds"),  # the lowest level belongs to the first block
        ([((~NOISY, NEURON, 2, -1), 0.2)], "not above its control"),  # without noise it does not count
    ],
)
def test_top_latents_must_rise_from_block_to_block_more_than_lowest_ones(tmp_path, changes, verdict):
    assert verdicts(STUDY, record(tmp_path / "run", *changes))["levels-follow-blocks"] == verdict


def test_the_probe_must_beat_the_untrained_network_and_the_tokens(tmp_path):
    better = ((NOISY, PROBE, ANY), 0.2)

    def verdict(name, *changes, **how):
        return verdicts(STUDY, record(tmp_path / name, *changes, **how))["hierarchy-is-learned"]

    assert verdict("both", better) == "holds"
    assert verdict("tokens", better, tokens=0.9) == "only qualitative"
    assert verdict("near", better, tokens=0.69) == "only qualitative"  # beyond chance, by less than matters
    unlike = np.tile([0.55, 0.75], SEEDS)  # 0.05 less in the mean, which may be chance
    assert verdict("chance", better, tokens=unlike) == "only qualitative"
    assert verdict("untrained") == "not above its control"  # however poor the tokens
    assert verdict("worse", ((NOISY, PROBE, ANY), -0.2), tokens=0.1) == "fails"
    assert verdict("elsewhere", ((NOISY, PROBE, slice(3)), 0.2)) == "not above its control"


def test_the_lowest_latents_must_have_more_of_their_gain_on_the_way(tmp_path):
    gain = ((NOISY, NEURON, ANY), 0.3)

    def verdict(name, low, top):
        run = record(tmp_path / name, gain)
        copy = Run.create(tmp_path / f"{name}-way", study=run.study, config=run.config, version=run.version)
        for series in run.names():
            for step in map(int, run.steps(series)):
                value = run.at(series, step)
                if series.endswith("scores") and step == CONFIG.look_at[0]:
                    start, end = run.at(series, 0), run.at(series, CONFIG.steps)
                    reached = np.full((len(RHO), 1, 1, value.shape[-1]), top)
                    reached[:, 0, 0, 0] = low
                    value = start + reached * (end - start)
                copy.append(series, step, value)
        return verdicts(STUDY, copy)["lowest-latents-first"]

    assert verdict("first", 0.9, 0.2) == "holds"
    assert verdict("little", 0.53, 0.5) == "only qualitative"
    assert verdict("same", 0.5, 0.5) == "not above its control"
    assert verdict("last", 0.2, 0.9) == "fails"
    assert verdict("noisy", np.tile([0.2, 0.8], SEEDS), 0.5) == "undecided"


def test_without_a_gain_there_is_no_order_of_learning(tmp_path):
    first = found(STUDY, record(tmp_path / "run"), "lowest-latents-first")
    assert first.verdict == "not run"
    assert "no network gained" in first.reason


def test_untrained_networks_pass_nothing(tmp_path):
    seen = verdicts(STUDY, record(tmp_path / "run"))
    assert set(seen.values()) == {"not above its control", "not run"}


def test_networks_that_tell_classes_by_luck_are_no_evidence(tmp_path):
    """0.25 by luck, with a standard error of 0.025."""
    changes = [EVERYWHERE, ((slice(None), PROBE), 0.2)]
    for accuracy, diverged in ((0.32, ()), (1.0, range(len(RHO)))):
        run = record(tmp_path / f"{accuracy}", *changes, accuracy=accuracy, diverged=diverged)
        assert set(verdicts(STUDY, run).values()) == {"not run"}
    learned = record(tmp_path / "learned", *changes, accuracy=0.34)
    assert verdicts(STUDY, learned)["nodes-represent-latents"] == "holds"
    certain = record(tmp_path / "certain", *changes, accuracy=np.where(NOISY, 0.25, 1.0))
    seen = verdicts(STUDY, certain)
    assert {name for name, verdict in seen.items() if verdict != "not run"} == {"alignment-without-noise"}


@pytest.mark.parametrize(
    ("lost", "why"),
    [({"diverged": [5]}, "diverged"), ({"accuracy": np.where(np.arange(8) == 5, 0.25, 1.0)}, "did not learn")],
)
def test_a_lost_network_is_left_out_and_counted(tmp_path, lost, why):
    spoiled = ((5, slice(None)), -5.0)  # would turn every verdict
    run = record(tmp_path / "run", EVERYWHERE, spoiled, **lost)
    represent = found(STUDY, run, "nodes-represent-latents")
    assert represent.verdict == "undecided"  # it counts as the worst
    assert represent.details["networks left out"] == {why: 2.0}  # one of each depth
    assert f"networks left out: {why} 2" in represent.measured
    assert "networks left out" not in found(STUDY, run, "alignment-without-noise").details  # it was of rho = 0.8


def test_what_is_not_a_number_is_left_out(tmp_path):
    run = record(tmp_path / "run", EVERYWHERE, ((5, slice(None)), np.nan), diverged=[5])
    assert verdicts(STUDY, run)["nodes-represent-latents"] == "undecided"
    assert "nan" not in str(judge(STUDY, run)[0].measured)
    with house_style():
        STUDY.draw(run)


def test_what_is_measured_on_was_never_trained_on(tiny):
    config = tiny["hblt-alignment"][1]
    who = hblt_alignment.Members(config, 3)
    one, other = who.fresh([2, 3])
    trained = who.sample(range(1), [2, 3], config.samples)
    assert not torch.equal(one.on, other.on)
    assert not torch.equal(one.on, trained.on)
    assert torch.equal(one.on, who.fresh([2, 3])[0].on)
