"""The onset of the rebound: texts under several vocabularies, valleys, slopes, and judges that can be turned."""

import numpy as np
import pytest
import torch
from every_study import draws_labelled_figures
from records import changed, found, verdicts
from small_runs import small as sizes

from joma.claims.execute import plain_config
from joma.data.text import Corpus, CorpusError
from joma.models.decoder import Decoder
from joma.recipes.language import corpus, recipe
from joma.recipes.language.training import with_words
from joma.runs import Run
from joma.studies.rebound.rebound_onset import study as onset
from joma.studies.rebound.rebound_onset.record import fall, first_learned, slopes, slopes_of_chance, valley
from joma.studies.rebound.rebound_onset.run import (
    CLASSES,
    GROUPINGS,
    by_frequency,
    effective_words,
    flattened,
    levels_of,
    measuring_points,
    onset_ensemble,
)

pytestmark = pytest.mark.usefixtures("no_other_text")


@pytest.fixture(scope="module")
def small(data_folder):
    return sizes("rebound-onset", data=str(data_folder))


@pytest.fixture(scope="module")
def text(small):
    return corpus(small)


@pytest.fixture(scope="module")
def whole(small_run):
    return small_run("rebound-onset")


def counted(text):
    return torch.bincount(text.tokens["train"].long(), minlength=len(text.vocabulary))


ZIPF = Corpus(
    "zipf", ("<unk>", "a", "b", "c"), {"train": torch.tensor([0] * 40 + [1] * 400 + [2] * 150 + [3] * 10).int()}, ""
)


def test_flattened_frequencies_keep_every_word_apart():
    flat = flattened(ZIPF, 20)
    before, after = ZIPF.tokens["train"], flat.tokens["train"]
    assert 4 < len(flat.vocabulary) <= 20
    assert counted(flat).max() < 60  # 600 occurrences, 20 labels, and the chance of a draw
    names = [flat.vocabulary[label].split("/")[0] for label in after.tolist()]
    assert names == [ZIPF.vocabulary[word] for word in before.tolist()]
    assert effective_words(ZIPF) < 3 < 10 < effective_words(flat) <= 20


def test_a_seed_decides_which_label_an_occurrence_takes():
    one, same, other = (flattened(ZIPF, 20, seed=seed).tokens["train"] for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_as_many_labels_as_words_change_nothing_and_fewer_are_refused():
    assert torch.equal(flattened(ZIPF, 4).tokens["train"], ZIPF.tokens["train"])
    with pytest.raises(CorpusError, match="labels must be at least 4, one per word, got 3"):
        flattened(ZIPF, 3)


def test_classes_have_equal_weight_from_frequent_to_rare(text):
    plain = with_words(text, 30)
    classes, frequency = by_frequency(plain, 4, 3)
    count = counted(plain).double()
    assert (classes[:, 0] == -1).all()  # <unk>
    assert (np.diff(frequency) < 0).all()
    for row in classes:
        weight = torch.stack([count[row == one].sum() for one in range(4)]) / count[1:].sum()
        torch.testing.assert_close(weight, torch.full((4,), 0.25, dtype=torch.float64), atol=0.06, rtol=0)
    mean = [count[classes[0] == one].mean() for one in range(4)]
    assert mean == sorted(mean, reverse=True)
    assert len({tuple(row.tolist()) for row in classes}) == 4


def test_levels_differ_from_the_base_in_one_factor(small, text):
    levels, texts, base = levels_of(small, text)
    assert [level.factor for level in levels] == [
        "",
        *(["rate"] * 2),
        *(["words"] * 2),
        *(["flatness"] * 2),
        *(["embedding"] * 2),
    ]
    assert [len(one.vocabulary) for one in texts[:3]] == [10, 5, 40]
    assert all(one.tokens["train"].max() < 40 for one in texts)
    assert base["flatness"] < levels[5].value < levels[6].value
    assert [level.rate for level in levels] == [0.02, 0.01, 0.04] + [0.02] * 6
    assert [level.scale for level in levels] == [1.0] * 7 + [0.5, 2.0]


def test_labels_must_fit_into_the_words_of_the_text(small, text):
    with pytest.raises(CorpusError, match=r"labels must fit into the 15 words of the text, got \d+"):
        levels_of(small, with_words(text, 15))


def test_words_that_a_text_lacks_are_as_if_they_were_not_there(small, text):
    base = recipe(small, text, layers=1, rates=(0.02,))
    found_levels = levels_of(small, text)
    ensemble = onset_ensemble(base, found_levels, text, by_frequency(found_levels.texts[0], CLASSES, GROUPINGS)[0])
    decoder = ensemble.networks([0])  # the base: 10 words of 40
    batch = ensemble.batch(0, [0])
    little = Decoder(base.decoder.with_(vocabulary=10), [1])
    with torch.no_grad():
        for name, part in little.named_parameters():
            part.copy_(
                getattr(decoder, name)[:, :10] if name in ("embedding", "out", "out_bias") else getattr(decoder, name)
            )
    roomy, plain = (ensemble.loss(one, batch) for one in (decoder, little))
    torch.testing.assert_close(roomy, plain)
    (gradient,) = torch.autograd.grad(roomy.sum(), [decoder.out])
    assert (gradient[:, 10:] == 0).all()


def test_embeddings_are_scaled_and_rates_are_the_levels(small, text, monkeypatch):
    base = recipe(small, text, layers=1, rates=(0.02,))
    found_levels = levels_of(small, text)
    ensemble = onset_ensemble(base, found_levels, text, by_frequency(found_levels.texts[0], CLASSES, GROUPINGS)[0])
    assert ensemble.members == 27
    networks = ensemble.networks(range(27))
    torch.testing.assert_close(networks.embedding[26], 2 * networks.embedding[2])
    assert ensemble.optimizer.rate[3:9] == (0.01,) * 3 + (0.04,) * 3
    inputs, targets = ensemble.batch(1, range(27))
    assert torch.equal(inputs[..., 1:], targets[..., :-1])
    assert inputs[0].max() < 10
    assert torch.equal(ensemble.batch(1, range(9, 12))[0], inputs[9:12])
    at_once = ensemble.measures["valid"](networks, range(27))
    monkeypatch.setattr("joma.studies.rebound.rebound_onset.run.AT_ONCE", 7)
    torch.testing.assert_close(ensemble.measures["valid"](networks, range(27)), at_once, rtol=1e-5, atol=1e-5)


def test_entropy_by_class_averages_to_the_whole(whole):
    """With <unk> left out the classes lie around the whole, and are what one member alone would have."""
    entropy, classes = whole.array("L1/valid/entropy")[-1], whole.array("L1/valid/classes")[-1]
    assert classes.shape == (27, 1, 1 + GROUPINGS, CLASSES)
    assert np.isfinite(classes).all()
    assert (np.abs(classes.mean(-1) - entropy[..., None]) < 0.2).all()


def test_where_nothing_falls_nothing_is_judged_and_all_is_drawn(whole):
    flat = changed(whole, lambda name, step, value: value * 0 + 2.0 if "/entropy" in name else value)
    flat = changed(flat, lambda name, step, value: value * 0 + 2.0 if "/classes" in name else value)
    assert set(verdicts(onset.STUDY, flat).values()) == {"not run"}
    assert len(onset.STUDY.draw(flat)) == 2


STEPS = np.array(measuring_points(10, 10_000, 40))


def curve(low, *, rise=0.5, drop=1.0):
    """Falls by `drop` until the step `low`, then rises by `rise` per factor of e."""
    apart = np.log(np.maximum(STEPS, 0.1) / low)
    return np.where(apart < 0, 2 - drop * np.exp(-(apart**2)), 2 - drop + rise * apart**2)


@pytest.mark.parametrize("low", [55.0, 300.0, 2_000.0])
def test_a_valley_is_found_between_measuring_points(low):
    assert valley(STEPS, curve(low), 1) == pytest.approx(low, rel=0.05)


def test_what_is_no_valley():
    assert np.isnan(valley(STEPS, curve(300.0, rise=0.0), 1))  # does not come back
    assert np.isnan(valley(STEPS, curve(300.0, drop=0.15), 1))  # did not fall
    early = curve(2_000.0)
    early[3:6] = 0.5  # a dip before anything was learned
    assert valley(STEPS, early, 8) == pytest.approx(2_000, rel=0.05)
    assert valley(STEPS, early, 1) == pytest.approx(STEPS[3], rel=0.2)


def test_the_step_of_the_fall():
    steps = np.array([0, 10, 100, 1000])
    assert fall(steps, np.array([2.0, 1.9, 1.7, 1.0]), 1) == pytest.approx(10 * 10**0.5)
    assert fall(steps, np.array([2.0, 1.0, 1.0, 1.0]), 1) == 10
    assert np.isnan(fall(steps, np.array([2.0, 1.9, 1.9, 1.9]), 1))
    assert fall(steps, np.array([2.0, 1.0, 1.9, 1.7]), 2) == pytest.approx(100 * 10**0.5)  # a dip before it learned


def test_what_comes_before_anything_is_learned_is_not_read(tmp_path):
    late = made(tmp_path / "late", learned_from=400)
    assert (STEPS[first_learned(late, "L1")] >= 400).all()
    assert verdicts(onset.STUDY, late)["valley-by-words"] == "holds"
    after = made(tmp_path / "after", learned_from=9_000)  # most valleys are over by then: the end is not one
    assert verdicts(onset.STUDY, after)["valley-by-words"] == "not run"


def test_slopes():
    values = np.array([1.0, 2.0, 4.0])
    steps = np.array([[100.0, 100.0, np.nan], [50.0, 100.0, 10.0], [25.0, 100.0, 5.0]])
    np.testing.assert_allclose(slopes(values, steps), [-1.0, 0.0, np.nan], atol=1e-12)
    chance = slopes_of_chance(values, np.array([100.0, 110.0, 90.0]))
    assert chance.sum() == pytest.approx(0.0, abs=1e-12)
    assert np.abs(chance).max() > 0


POWERS = {"rate": -1.0, "words": 0.5, "flatness": 0.5, "embedding": -0.5}
NOISE = np.array([-0.01, 0.0, 0.01])


def made(path, *, powers=POWERS, query=-0.5, seeds=NOISE, losses=1.0, learned_from=0):
    """A record whose valleys lie at 500 in the base and go with every factor to such a power."""
    config = sizes("rebound-onset", seeds=len(seeds))
    run = Run.create(path, study="rebound-onset", config=plain_config(config), version=onset.STUDY.version)
    factor = np.repeat([-1, 0, 1, 2, 3], [1, 2, 2, 2, 2])
    value = np.array([0, 0.01, 0.04, 5, 40, 20, 40, 0.5, 2])
    base = np.array([0.02, 10, 10, 1.0])
    frequency = np.array([0.2, 0.1, 0.05, 0.02])
    once = {
        "factor": factor,
        "value": value,
        "base": base,
        "class frequency": frequency,
        "loss by frequency": np.full(9, 2.0),
    }
    for name, one in {**once, "L1/rates": np.ones(9), "L1/seeds": np.arange(len(seeds))}.items():
        run.append(name, 0, one)
    names = list(powers)
    moved = [1.0 if f < 0 else (value[i] / base[f]) ** powers[names[f]] for i, f in enumerate(factor)]
    low = 500 * np.outer(moved, np.exp(seeds)).flatten()
    entropy = np.array([curve(one) for one in low])
    by_class = np.array([[curve(one * (f / 0.1) ** query) for f in frequency] for one in low])
    shuffled = np.array([[curve(one)] * 4 for one in low])
    classes = np.stack([by_class, *[shuffled] * GROUPINGS], axis=1)
    for place, step in enumerate(STEPS):
        run.append("L1/valid/entropy", int(step), entropy[:, place, None])
        run.append("L1/valid/classes", int(step), classes[:, None, :, :, place])
        run.append("L1/valid/loss", int(step), np.broadcast_to(losses if step >= learned_from else 3.0, len(low)) + 0.0)
        run.append("L1/diverged_at", int(step), np.full(len(low), -1))
    return run


def test_powers_are_found_and_judged(tmp_path):
    run = made(tmp_path / "run")
    assert set(verdicts(onset.STUDY, run).values()) == {"holds"}
    rate = found(onset.STUDY, run, onset.CLAIMS["valley", "rate"])
    assert rate.details["one layer, step of the valley"]["0.02"] == pytest.approx(500, rel=0.05)
    draws_labelled_figures(onset.STUDY, run)


@pytest.mark.parametrize(
    ("claim", "powers", "verdict"),
    [
        (onset.CLAIMS["valley", "rate"], {"rate": -0.5}, "only qualitative"),  # sooner, but not in inverse proportion
        (onset.CLAIMS["valley", "rate"], {"rate": 0.5}, "fails"),
        (onset.CLAIMS["valley", "rate"], {"rate": 0.0}, "not above its control"),
        (onset.CLAIMS["fall", "rate"], {"rate": -0.5}, "only qualitative"),
        (onset.CLAIMS["valley", "words"], {"words": -0.5}, "fails"),
        (onset.CLAIMS["valley", "words"], {"words": 0.05}, "only qualitative"),  # beyond chance, less than what matters
        (onset.CLAIMS["valley", "flatness"], {"flatness": 0.0}, "not above its control"),
        (onset.CLAIMS["fall", "embedding"], {"embedding": 0.5}, "fails"),
    ],
)
def test_other_powers_turn_the_verdict(tmp_path, claim, powers, verdict):
    run = made(tmp_path / "run", powers=POWERS | powers, seeds=np.linspace(-0.01, 0.01, 5))
    assert found(onset.STUDY, run, claim).verdict == verdict


def test_queries_turn_with_their_classes(tmp_path):
    none = made(tmp_path / "none", query=0.0, seeds=np.linspace(-0.01, 0.01, 5))
    assert found(onset.STUDY, none, onset.CLAIMS["valley", "queries"]).verdict == "not above its control"
    assert found(onset.STUDY, made(tmp_path / "late", query=0.5), onset.CLAIMS["valley", "queries"]).verdict == "fails"


def test_seeds_that_differ_as_much_as_levels_decide_nothing(tmp_path):
    run = made(tmp_path / "run", seeds=np.array([-1.0, 0.2, 0.8]), powers=POWERS | {"words": 0.1})
    assert found(onset.STUDY, run, onset.CLAIMS["valley", "words"]).verdict == "undecided"


def test_networks_that_learned_nothing_have_no_valley(tmp_path, monkeypatch):
    losses = np.ones(27)
    losses[3:6] = 1.99  # one rate of three
    run = made(tmp_path / "run", losses=losses)
    idle = found(onset.STUDY, run, onset.CLAIMS["valley", "rate"])
    assert idle.verdict == "not run"
    assert "--steps 24" in idle.command
    monkeypatch.setitem(onset.PAPER, "corpus", "another text")
    idle = found(onset.STUDY, run, onset.CLAIMS["valley", "rate"])
    assert idle.command == "JOMA_DATA=FOLDER joma verify rebound-onset --scale paper"
    assert found(onset.STUDY, run, onset.CLAIMS["valley", "words"]).verdict == "holds"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"labels": (20, 41)}, "vocabulary must be at least 41, the most words or labels asked for, got 40"),
        ({"labels": (9, 40)}, "labels must be at least 10, one per word, got 9"),
        ({"rates": (0.02, 0.04)}, "rates must be other values than the base's 0.02"),
    ],
)
def test_what_cannot_be_asked(changes, said):
    with pytest.raises(ValueError, match=said):
        sizes("rebound-onset", **changes)
