"""The study of inductive bias: its parts, that its verdicts follow the record, and that bad input gets its sentence."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from every_study import put
from records import altered, changed, verdicts
from small_runs import small

from joma.claims.execute import judge
from joma.studies.inductive_bias.inductive_bias import hypercube as cube
from joma.studies.inductive_bias.inductive_bias import run as labels
from joma.studies.inductive_bias.inductive_bias.hypercube import spaced
from joma.studies.inductive_bias.inductive_bias.run import DECAY, DEEP, LINEAR, SHALLOW
from joma.studies.inductive_bias.inductive_bias.study import STUDY, Contrast, Fits

TINY = small("inductive-bias")
WITH_DECAY = cube.decayed(TINY.weight_decays[0])


def test_points_are_closer_together_at_the_beginning_and_the_end_is_one():
    assert spaced(100, 4) == (0, 6, 25, 56, 100)
    assert spaced(3, 4) == (0, 1, 2, 3)  # some fall together


LOSS = {cube.LINEAR: 5.134, WITH_DECAY: 5.040, cube.MLP: 5.039}
ACCURACY = {cube.LINEAR: 0.995, WITH_DECAY: 0.895, cube.MLP: 0.741}
FITTED = {(DEEP, kind): (1.0, 0.52) for kind in labels.KINDS} | {
    (DEEP, "random labels"): (1.0, 0.10),
    (DECAY, "true labels"): (1.0, 0.53),
    (DECAY, "random labels"): (1.0, 0.10),
    (SHALLOW, "true labels"): (1.0, 0.50),
    (SHALLOW, "random labels"): (0.9934, 0.10),
    (LINEAR, "true labels"): (0.9, 0.4),
    (LINEAR, "random labels"): (0.5, 0.10),
}
"""What is printed, and what a linear classifier might do: training and test accuracy."""
NOISY = [(DEEP, kind) for kind in labels.KINDS[2:]]
MEMORISED = {(DEEP, "random labels"): (1.0, 0.52)}


def printed(run, *, loss=(), accuracy=(), fitted=(), spread=1e-3, **built):
    """A record that says what the sources print, but for what is given."""
    loss, accuracy, fitted = LOSS | dict(loss), ACCURACY | dict(accuracy), FITTED | dict(fitted)

    def noise(number, step):
        return spread * np.roll([-1.0, 0.0, 1.0], number + (step > 0))

    def change(name, step, value):
        if name.startswith("built/"):
            return np.broadcast_to(built.get(name[6:].replace(" ", "_"), value), np.shape(value)).astype(float)
        if name.endswith("diverged_at") or "/scores/" not in name:
            return value
        who, what = name.split("/scores/")
        if who in loss and what in ("loss", "accuracy"):
            start, end = {"loss": (6.0, loss[who]), "accuracy": (0.7, accuracy[who])}[what]
            share = step / TINY.contrast_steps
            return start + share * (end - start) + noise(list(LOSS).index(who), step)
        if who in labels.SHAPES and what in ("train", "test"):
            ends = [fitted[who, kind][what == "test"] for kind in labels.SHAPES[who].kinds]
            share = step / (TINY.epochs * TINY.steps_per_epoch)
            rows = [0.1 + share**2 * (end - 0.1) + 0.1 * noise(k, step) * (end < 1) for k, end in enumerate(ends)]
            return np.concatenate(rows)
        return value

    return changed(run, change)


EMPIRICAL = [claim.name for claim in STUDY.claims if claim.empirical]


def test_where_all_is_as_printed_all_that_is_printed_holds(run):
    found = verdicts(STUDY, printed(run))
    late = {"small-factor-longer", "loss-does-not-decide"}  # nothing is printed of their size or time
    assert {found[name] for name in EMPIRICAL if name not in late} == {"holds"}
    assert found["equal-contrastive-loss"] == "holds"
    assert found["printed-loss"] == "only qualitative"


@pytest.mark.parametrize(
    ("name", "spoiled", "verdict"),
    [
        ("linear-solves-the-task", {"accuracy": {cube.LINEAR: 0.9}}, "only qualitative"),
        ("linear-solves-the-task", {"accuracy": {cube.LINEAR: 0.7}}, "not above its control"),
        ("mlp-has-the-lower-loss", {"loss": {cube.MLP: 5.10}}, "only qualitative"),
        ("mlp-has-the-lower-loss", {"loss": {cube.MLP: 5.3}}, "fails"),
        ("linear-has-the-higher-accuracy", {"accuracy": {cube.MLP: 0.95}}, "only qualitative"),
        ("linear-has-the-higher-accuracy", {"accuracy": {cube.MLP: 0.985}, "spread": 1e-5}, "undecided"),
        ("linear-has-the-higher-accuracy", {"accuracy": {cube.LINEAR: 0.7}}, "fails"),
        ("weight-decay-helps", {"accuracy": {WITH_DECAY: 0.6}}, "fails"),
        ("weight-decay-helps", {"accuracy": {WITH_DECAY: 0.741}}, "not above its control"),
        ("fits-random-labels", {"fitted": {(SHALLOW, "random labels"): (0.97, 0.1)}}, "only qualitative"),
        ("fits-random-labels", {"fitted": {(LINEAR, "random labels"): (0.9934, 0.1)}}, "undecided"),  # no room left
        ("random-labels-do-not-generalise", {"fitted": {(DEEP, "random labels"): (1.0, 0.2)}}, "only qualitative"),
        ("random-labels-do-not-generalise", {"fitted": MEMORISED}, "not above its control"),
        ("generalises-without-weight-decay", {"fitted": {(DECAY, "true labels"): (1.0, 0.7)}}, "only qualitative"),
        ("generalises-without-weight-decay", {"fitted": {(DEEP, "true labels"): (1.0, 0.1)}}, "not above its control"),
        ("weight-decay-does-not-stop-it", {"fitted": {(DECAY, "random labels"): (0.8, 0.1)}}, "only qualitative"),
        ("weight-decay-does-not-stop-it", {"fitted": {(DECAY, "random labels"): (0.3, 0.1)}}, "fails"),
        ("small-factor-longer", {}, "undecided"),  # true labels take as long, but for chance
        ("fits-images-of-noise", {"fitted": {(DEEP, "gaussian"): (0.9, 0.1)}}, "only qualitative"),
        ("fits-images-of-noise", {"fitted": {(DEEP, "gaussian"): (0.1, 0.1)}}, "only qualitative"),
        ("fits-images-of-noise", {"fitted": dict.fromkeys(NOISY, (0.1, 0.1))}, "not above its control"),
    ],
)  # fmt: skip
def test_verdicts_follow_the_record(run, name, spoiled, verdict):
    finding = next(one for one in judge(STUDY, printed(run, **spoiled)) if one.claim.name == name)
    assert finding.verdict == verdict


@pytest.mark.parametrize(
    ("name", "spoiled", "verdict"),
    [
        ("equal-contrastive-loss", {"swap_residual": 1e-3}, "fails"),
        ("equal-contrastive-loss", {"exact_loss": np.array([5.0, 5.1, 5.0])}, "fails"),
        ("equal-contrastive-loss", {"view_residual": np.array([0.0, 0.5, 0.0, 1.0])}, "fails"),
        ("unequal-accuracy", {"accuracy_": None, "own_plane": 0.9}, "fails"),
        ("unequal-accuracy", {"shuffled": 0.9}, "not above its control"),
    ],
)
def test_what_is_built_is_judged_by_its_numbers(run, name, spoiled, verdict):
    assert verdicts(STUDY, printed(run, **spoiled))[name] == verdict


def test_a_raw_input_with_the_same_loss_would_make_equal_losses_mean_nothing(run):
    spoiled = altered(run, "built/loss", lambda value: np.full_like(value, 5.0))
    assert verdicts(STUDY, spoiled)["equal-contrastive-loss"] == "not above its control"


def test_a_printed_loss_within_reach_of_ten_coordinates_would_hold(run):
    spoiled = altered(run, "printed settings", lambda value: value - [0, 0.002, 0.002])
    assert verdicts(STUDY, spoiled)["printed-loss"] == "holds"
    spoiled = altered(run, "printed settings", lambda value: value + 0.1)
    assert verdicts(STUDY, spoiled)["printed-loss"] == "fails"


def test_networks_that_diverged_or_did_not_learn_do_not_count(run):
    good = printed(run)
    lost = altered(good, f"{cube.MLP}/diverged_at", lambda value: np.full_like(value, 3))
    assert verdicts(STUDY, lost)["linear-has-the-higher-accuracy"] == "not run"
    assert verdicts(STUDY, lost)["linear-solves-the-task"] == "holds"
    idle = printed(run, loss={cube.LINEAR: 6.5})
    assert verdicts(STUDY, idle)["linear-solves-the-task"] == "not run"
    for step in (0, 3):  # from the first step on, too
        deep = altered(good, f"{DEEP}/diverged_at", lambda v, at=step: np.full_like(v, at))
        assert verdicts(STUDY, deep)["fits-random-labels"] == "not run"
        mlp = altered(good, f"{cube.MLP}/diverged_at", lambda v, at=step: np.full_like(v, at))
        assert verdicts(STUDY, mlp)["mlp-has-the-lower-loss"] == "not run"


def test_only_the_network_that_diverged_is_left_out(run):
    good, place = printed(run), 2 * TINY.seeds + 1
    one = altered(good, f"{DEEP}/diverged_at", put((..., place), 0))
    for number, kind in enumerate(labels.KINDS):
        lost = np.isnan(Fits(one).curve(DEEP, kind))
        assert (lost == (np.arange(TINY.seeds) == 1) * (number == 2)).all(), kind
    first = altered(good, f"{cube.LINEAR}/diverged_at", put((..., 0), 0))
    assert Contrast(first).learned(cube.LINEAR).tolist() == [False, *[True] * (TINY.seeds - 1)]
    assert Contrast(first).learned(cube.MLP).all()


def test_time_to_fit_is_read_between_measuring_points(run):
    fits = Fits(printed(run, spread=0.0))
    last, before = fits.epochs[-1], fits.epochs[-2]
    curve = fits.curve(DEEP, "true labels")[:, 0]
    share = (0.95 - curve[-2]) / (curve[-1] - curve[-2])
    assert fits.epochs_to_fit("true labels") == pytest.approx(before + share * (last - before))
    assert np.isnan(Fits(run).epochs_to_fit("true labels")).all()


def test_the_mlp_is_read_where_its_loss_is_that_of_the_linear_map(run):
    good = printed(run, spread=0.0)
    contrast, wanted = Contrast(good), np.full(3, 5.134)
    share = (6.0 - 5.134) / (6.0 - 5.039)
    assert contrast.at_loss(cube.MLP, wanted) == pytest.approx(0.7 + share * (0.741 - 0.7))
    lost = Contrast(altered(good, f"{cube.MLP}/diverged_at", put((..., 0), 0)))
    assert np.isnan(lost.at_loss(cube.MLP, wanted)).tolist() == [True, False, False]
    assert np.isnan(contrast.at_loss(cube.MLP, np.full(3, 1.0))).all()


def test_built_codes_have_equal_losses_and_unequal_accuracies(run):
    contrast = Contrast(run)
    assert contrast.built("perfect", "own plane") == pytest.approx(1.0)
    assert contrast.built("raw input") == pytest.approx(1.0, abs=0.02)
    assert abs(contrast.built("spurious").mean() - 0.5) < 0.05
    losses = [contrast.built(name, "loss").mean() for name in ("perfect", "spurious", "scrambled")]
    assert np.ptp(losses) < 0.3
    assert run.value("built/view residual")[:3].max() == 0 < run.value("built/view residual")[3]


def test_a_probe_finds_a_plane_and_nothing_where_nothing_is():
    source = torch.Generator().manual_seed(0)
    x = torch.randn(2, 600, 5, generator=source)
    plane = torch.randn(2, 3, 5, generator=source)
    y = torch.where(torch.einsum("mtd,mpd->mtp", plane, x) > 0, 1.0, -1.0)
    assert cube.probe_accuracy(x[:, :300], y[..., :300], x[:, 300:], y[..., 300:]).min() > 0.95
    other = torch.where(torch.rand(2, 3, 600, generator=source) < 0.5, 1.0, -1.0)
    assert abs(cube.probe_accuracy(x[:, :300], other[..., :300], x[:, 300:], other[..., 300:]).mean() - 0.5) < 0.05


def test_codes_are_scored_by_what_they_keep():
    """A code of the informative coordinates is that of its twin and tells them alone. One of the others is not."""
    cubes, k = cube.Cubes(replace(TINY, tasks=40)), TINY.informative
    own, others = (cubes.scores(code, [0, 1]) for code in (lambda x: x[..., :k], lambda x: x[..., k:]))
    torch.testing.assert_close(own["same bits"], torch.ones(2))
    assert others["same bits"].abs().max() < 0.15  # the mean of 400 similarities of independent codes of 5 signs
    for scores, known, unknown in ((own, "informative", "others"), (others, "others", "informative")):
        assert scores[known].min() > 0.99
        assert scores[unknown].max() < 0.05
    assert own["accuracy"].min() > 0.9 > 0.65 > max(own["shuffled"].max(), others["accuracy"].max())


def test_codes_are_scored_on_points_that_no_classifier_was_fitted_on():
    """A code with a coordinate for every point tells all points that were seen, and nothing of fresh ones."""
    source = torch.Generator().manual_seed(0)
    noise = lambda x: torch.randn(*x.shape[:-1], 400, generator=source)
    scores = cube.Cubes(TINY).scores(noise, [0])
    assert scores["accuracy"].item() == pytest.approx(0.5, abs=0.1)
    assert max(scores["informative"], scores["others"]) < 0


def test_a_scrambled_code_is_a_permutation_of_all_patterns():
    codes = cube.scrambled_codes(4, torch.Generator().manual_seed(0))
    assert sorted(cube.pattern_of(codes).tolist()) == list(range(16))
    assert torch.equal(cube.pattern_of(cube.all_codes(4)), torch.arange(16))


def test_images_are_replaced_as_said():
    digits = labels.Digits(replace(TINY, images=400))
    pixels, true = digits.read(labels.TRAIN, "true labels", 0)
    same, random = digits.read(labels.TRAIN, "random labels", 0)
    assert torch.equal(pixels, same)
    assert 0.03 < (true == random).float().mean() < 0.2
    assert torch.equal(*(digits.read(labels.TEST, kind, 0)[1] for kind in ("true labels", "random labels")))
    for kind, kept in (("shuffled pixels", True), ("random pixels", True), ("gaussian", False)):
        other, still = digits.read(labels.TRAIN, kind, 0)
        assert torch.equal(still, true)
        assert not torch.equal(other, pixels)
        assert torch.equal(other.sort(1).values, pixels.sort(1).values) == kept
    shuffled = digits.read(labels.TRAIN, "shuffled pixels", 0)[0]
    orders = [[(pixels[:9, i] == shuffled[:9, j]).all().item() for i in range(64)].index(True) for j in range(64)]
    assert sorted(orders) == list(range(64))  # one permutation for all images
    test = digits.read(labels.TEST, "true labels", 0)[0]
    assert torch.equal(digits.read(labels.TEST, "shuffled pixels", 0)[0], test[:, orders])


def test_accuracy_and_loss_are_means_over_all_images_however_many_are_read_at_once(monkeypatch):
    monkeypatch.setattr(labels, "CHUNK", 7)  # 30 images: four whole parts and a rest
    digits, who = labels.Digits(TINY), [("true labels", 1), ("random labels", 2)]
    weight = torch.randn(2, 64, 10, generator=torch.Generator().manual_seed(0))
    accuracy, loss = digits.accuracy(lambda pixels: pixels @ weight, labels.TEST, who)
    for member, (kind, seed) in enumerate(who):
        pixels, wanted = digits.read(labels.TEST, kind, seed)
        logits = (pixels.double() @ weight[member].double()).numpy()
        own = logits[np.arange(30), wanted.numpy()]
        assert accuracy[member].item() == pytest.approx((own == logits.max(1)).mean())
        assert loss[member].item() == pytest.approx((np.log(np.exp(logits).sum(1)) - own).mean(), rel=1e-4)


def test_an_epoch_reads_every_image_once():
    digits = labels.Digits(TINY)
    pixels = digits.read(labels.TRAIN, "true labels", 1)[0]
    read = torch.cat([digits.batch(step, [("true labels", 1)])[0][0] for step in (2, 3)])
    assert torch.equal(read.sum(1).sort().values, pixels.sum(1).sort().values)
