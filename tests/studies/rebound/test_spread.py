"""The study `spread` on a made-up language: what is recorded, and judges that can be turned."""

import numpy as np
import pytest
import torch
from every_study import draws_labelled_figures, ends_the_same_after_an_interrupt
from records import carried_out, changed, found, verdicts
from small_runs import small as sizes

from joma.models import Decoder
from joma.recipes.language import corpus
from joma.recipes.language.curves import steps_of
from joma.runs import Run
from joma.studies.rebound.spread import record
from joma.studies.rebound.spread import study as spread
from joma.studies.rebound.spread.run import (
    in_random_order,
    plan,
    points,
    spreading,
)
from joma.theory.spread import gaussian_entropy

pytestmark = pytest.mark.usefixtures("no_other_text")
BASES = ("1 layer", "2 layers", "3 layers", "2 layers, SGD", "2 layers, norms before, 2 heads")
SHORT = tuple(f"2 layers, {what}" for what in (record.SHUFFLED, record.QK, record.EMBEDDINGS))
NONE = "not above its control"


@pytest.fixture(scope="module")
def config(small_run):
    return small_run.config("spread")


@pytest.fixture(scope="module")
def run(small_run):
    return small_run("spread")


def at(run, variant, what, step):
    return record.values(run, variant, what)[:, :, steps_of(run, variant).tolist().index(step)]


def test_controls_start_as_their_base_and_differ_in_one_thing(run):
    base, shuffled, frozen, still = ("2 layers", *SHORT)
    for variant in (frozen, still):
        np.testing.assert_array_equal(at(run, variant, "valid/entropy", 0), at(run, base, "valid/entropy", 0))
    assert (at(run, shuffled, "valid/entropy", 0) != at(run, base, "valid/entropy", 0)).all()
    np.testing.assert_array_equal(at(run, shuffled, "spread/growth", 0), at(run, base, "spread/growth", 0))
    growth = record.values(run, frozen, "spread/growth")
    np.testing.assert_array_equal(growth, np.broadcast_to(growth[:, :, :1], growth.shape))
    share = record.values(run, still, "spread/mean_share")
    assert (share[0] == share[0][:, :1]).all()  # the first layer reads embeddings, which stay
    assert (share[1] != share[1][:, :1])[:, 1:].all()


def test_nothing_is_held_until_the_valley_is_past(run):
    for variant in (*BASES, *SHORT):
        entropy, steps = record.values(run, variant, "valid/entropy"), steps_of(run, variant)
        for held in record.HELD:
            scaled = record.values(run, variant, f"spread/held/{held}")
            np.testing.assert_allclose(scaled[:, :, steps <= 10], entropy[:, :, steps <= 10], atol=2e-6)
            moved = np.abs(scaled - entropy).max((0, 1, 3))
            assert (moved[steps > 10] > 1e-6).all(), held


def test_members_in_groups_are_held_at_their_own_sizes(run, config):
    text, name = corpus(config), "2 layers"
    variant = plan(config, text)[name]
    measure = spreading(torch.arange(12).view(2, 6), name, run, config.valley)
    with torch.no_grad():
        every, some = (
            measure(Decoder(variant.decoder, [1 + m for m in group]), group) for group in ([0, 1, 2], [2, 1])
        )
    for what, values in some.items():
        torch.testing.assert_close(values, every[what][[2, 1]], msg=what)
    assert not torch.allclose(some["held/both sizes"], every["held/both sizes"][:2], atol=1e-3)


def test_sizes_are_held_at_the_valley_and_nowhere_else(run, config):
    name = "2 layers"
    shape = plan(config, corpus(config))[name].decoder

    def measured(spoil):
        copy = changed(run, lambda series, step, value: value * 3 if spoil(step) else value)
        with torch.no_grad():
            return spreading(torch.arange(12).view(2, 6), name, copy, config.valley)(
                Decoder(shape, [1, 2, 3]), [0, 1, 2]
            )

    plain, elsewhere, there = (measured(spoil) for spoil in (lambda _: False, lambda s: s != 10, lambda s: s == 10))
    for what in plain:
        assert torch.equal(plain[what], elsewhere[what]), what
    assert all((plain[f"held/{held}"] - there[f"held/{held}"]).abs().min() > 1e-6 for held in ("both sizes", "weights"))


def test_seeds_that_diverged_have_no_values(run):
    def lose(name, step, value):
        return np.where(np.arange(3) == 1, 3, value) if name == "2 layers/diverged_at" and step else value

    lost = changed(run, lose)
    measured = [record.values(lost, "2 layers", what) for what in ("valid/entropy", "spread/shared", "spread/rank")]
    for values in (*measured, record.gaussian(lost, "2 layers"), record.rises(lost, "2 layers")):
        known = np.isfinite(values).reshape(2, 3, -1)
        assert known.all((0, 2)).tolist() == [True, False, True]
        assert not known[:, 1].any()


def test_entropies_of_gaussian_logits_are_kept_of_every_network(tmp_path):
    sizes = {"a": np.array([[0.1, 0.2]]), "b": np.array([[30.0, np.inf]]), "c": np.array([[5.0, 0.0]])}
    with Run.create(tmp_path / "run.sqlite", study="x", config={}) as kept:
        for name, size in sizes.items():
            kept.record(0, {f"{name}/spread/variance": size})
        record.keep_gaussian(kept, list(sizes), 9)
        share = np.mean([(n - 1) / n for n in range(1, 10)])
        for name, size in sizes.items():
            for one, entropy in zip(size[0], kept.value(f"{name}/gaussian entropy")[0, 0], strict=True):
                if np.isfinite(one):
                    wanted = np.mean([float(gaussian_entropy(one / share, float(n))) for n in range(1, 10)])
                    assert entropy == pytest.approx(wanted, abs=1e-5)


def test_heads_are_averaged_by_their_logarithms_where_factors_are_compared(run):
    variant = BASES[-1]

    def unlike(name, step, value):
        if name != f"{variant}/spread/shared":
            return value
        return value * 0 + (np.array([4.0, 2.0]) if step == 10 else np.array([2.0, 2.0]))

    copy = changed(run, unlike)
    np.testing.assert_allclose(record.log_change(copy, variant, "shared"), np.log(2) / 2)
    np.testing.assert_allclose(record.log_change(copy, variant, "shared", back=True), -np.log(2) / 2)
    np.testing.assert_allclose(record.half_change(copy, variant, "shared"), -0.5)


def test_a_killed_run_goes_on_after_the_valley(run, data_folder, tmp_path):
    small = sizes("spread", layers=(1,), others=False, data=str(data_folder))
    whole = carried_out(spread.STUDY, small, tmp_path / "whole")
    ends_the_same_after_an_interrupt(spread.STUDY, small, whole, tmp_path / "run", after=0.6)
    for name in whole.names():
        np.testing.assert_allclose(
            whole.array(name), run.array(name), rtol=1e-5, err_msg=name
        )  # whatever stands beside


def test_shuffled_words_are_as_frequent_as_before(config):
    text = corpus(config)
    mixed, again = in_random_order(text), in_random_order(text)
    for split, tokens in text.tokens.items():
        assert torch.equal(torch.bincount(mixed.tokens[split].long()), torch.bincount(tokens.long()))
        assert (mixed.tokens[split] == tokens).float().mean() < 0.5
        assert torch.equal(mixed.tokens[split], again.tokens[split])


def test_the_plan_of_the_networks(config):
    text = corpus(config)
    networks = plan(config, text)
    assert tuple(networks) == (*BASES, *SHORT)
    assert networks["2 layers, SGD"].optimizer.kind == "sgd"
    assert networks["2 layers, SGD"].rates == (0.5,)
    before = networks["2 layers, norms before, 2 heads"].decoder
    assert (before.norm, before.heads, before.layers) == ("pre-layer", 2, 2)
    assert [networks[name].frozen for name in SHORT] == [(), ("QK",), ("embeddings",)]
    alone = plan(sizes("spread", layers=(1,), others=False), text)
    assert list(alone) == ["1 layer"]
    assert points(config, 10) == (0, 2, 3, 4, 6, 8, 10)


# Judges


NOISE = np.array([-1.0, 0.0, 1.0])
DOWN = {"alignment": 3.0, "growth": 0.2, "shared": 4.0, "specific": 2.0}
BACK = {"growth": 0.2, "variance": -0.5, "alignment": -0.6}
LOST = {"shared": 0.5, "specific": 0.2, "cross": 0.0}
REMOVES = {"both sizes": 0.9, "mixture": 0.0, "weights": -0.2, "shared size": 0.5, "specific size": 0.4}
CONTROLS = {record.SHUFFLED: 0.3, record.QK: 0.4, record.EMBEDDINGS: 9.0}
"""By how much ln of alignment rises in the controls."""


def made(run, *, rise=0.4, miss=0.02, apart=0.5, down=None, back=None, lost=None, removes=None, controls=None,
         noise=1e-3, loss=0.1):  # fmt: skip
    """A copy in which every layer does as told.

    miss: error of the entropy that follows from s2. apart: how far the entropies of layers, and of seeds of one layer,
    are from each other. down, back: rises of ln to the valley and after it. lost: half variances, in nats, that parts
    lose after the valley, by which back is overruled. removes: shares of the rise. noise: how far seeds differ,
    in another order in every number that is compared with another.
    """
    down, back, lost = DOWN | (down or {}), BACK | (back or {}), LOST | (lost or {})
    removes, controls = REMOVES | (removes or {}), CONTROLS | (controls or {})
    seeds = noise * NOISE

    def entropy(variant, step, layers, heads):
        end = steps_of(run, variant)[-1]
        after = max(step - 10, 0) / max(end - 10, 1)
        level = apart * np.arange(layers) if layers > 1 else np.zeros(1)
        turn = steps_of(run, variant).tolist().index(step) % 3  # at every third point one of the seeds is elsewhere
        own = apart * (np.arange(3) == turn) if layers == 1 and 0 < step < end and step != 10 else np.zeros(3)
        course = 2.0 - min(step, 10) / 10 + after * (rise + seeds)
        return (course + own)[:, None, None] + level[None, :, None] + np.zeros((3, layers, heads))

    def change(name, step, value):
        variant, _, what = name.partition("/")
        end = steps_of(run, variant)[-1] if variant in (*BASES, *SHORT) else 0
        if what == "valid/loss":
            return value * 0 + (9.0 if step == 0 else loss)
        if what == "valid/entropy":
            return entropy(variant, step, *value.shape[1:])
        if what == "gaussian entropy":  # (points, seeds, layers, heads)
            steps = steps_of(run, variant)
            own = np.stack([np.roll(seeds, layer) for layer in range(value.shape[2])], axis=1)
            return np.array([entropy(variant, s, *value.shape[2:]) for s in steps]) + miss + own[..., None]
        if what.startswith("spread/held/"):
            held = what.rpartition("/")[2]
            share = removes[held] + np.roll(seeds, list(REMOVES).index(held))[:, None, None]
            return entropy(variant, step, *value.shape[1:]) - share * rise * (step == end)
        if what.startswith("spread/"):
            part, ours = what.partition("/")[2], down
            if variant in SHORT and part == "alignment":
                ours = down | {part: controls[variant.partition(", ")[2]]}
            size = ours.get(part, 0.1) * min(step, 10) / 10 + back.get(part, 0.0) * max(step - 10, 0) / max(end - 10, 1)
            turn = (list(DOWN).index(part) if part in DOWN else 0) + (*BASES, *SHORT).index(variant)
            noisy = np.roll(seeds, turn).reshape(3, *[1] * (value.ndim - 1)) * (step > 0) * (1 + (step > 10))
            if part in lost and step >= 10:
                gone = (2 * lost[part] + noisy) * (step > 10) + noisy * (step == 10)
                return value * 0 + np.exp(ours.get(part, 0.1)) - gone
            return value * 0 + np.exp(size + noisy)
        return value

    return changed(run, change)


def test_a_record_that_does_as_claimed(run):
    judged = dict(verdicts(spread.STUDY, made(run)))
    assert judged.pop("turns-with-the-rank") != "holds"  # all seeds turn at one step: another's rank fits as well
    assert set(judged.values()) == {"holds"}


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"miss": 0.15}, "only qualitative"),  # better than another's, and too far off
        ({"apart": 0.0}, NONE),
        ({"apart": 0.04, "miss": 0.0}, "only qualitative"),  # less than what matters
        ({"noise": 0.3, "apart": 0.3}, "undecided"),
    ],
)
def test_entropy_that_does_not_follow(run, changes, verdict):
    assert found(spread.STUDY, made(run, **changes), "entropy-follows-variance").verdict == verdict


def test_the_entropy_of_another_may_fit_better(run):
    def swap(name, step, value):
        """Every layer has what the next one says, and every seed of one layer what the next one does."""
        if not name.endswith("/gaussian entropy"):
            return value
        return np.roll(value, 1, axis=2 if value.shape[2] > 1 else 1)

    swapped = changed(made(run), swap)
    assert found(spread.STUDY, swapped, "entropy-follows-variance").verdict == "fails"


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"down": {"growth": 2.9}}, "only qualitative"),
        ({"down": {"growth": 5.0}}, "fails"),
        ({"controls": {record.SHUFFLED: 2.9}}, "only qualitative"),
        ({"controls": {record.QK: 3.0}}, "only qualitative"),  # two layers; others have growth as their control alone
        ({"controls": {record.QK: 5.0}}, "mixed"),
        ({"controls": {record.EMBEDDINGS: 0.0}}, "holds"),  # no control: weights can turn there
    ],
)
def test_logits_that_grow_by_growing_weights(run, changes, verdict):
    assert found(spread.STUDY, made(run, **changes), "aligns-before-it-grows").verdict == verdict


@pytest.mark.parametrize(("specific", "verdict"), [(3.9, "only qualitative"), (4.0, NONE), (6.0, "fails")])
def test_what_is_specific_may_grow_first(run, specific, verdict):
    copy = made(run, down={"specific": specific})
    assert found(spread.STUDY, copy, "shared-preference-first").verdict == verdict


@pytest.mark.parametrize(
    ("back", "verdict"),
    [
        ({"growth": 0.05}, "only qualitative"),
        ({"growth": -0.3}, "fails"),
        ({"growth": 0.0}, NONE),
        ({"variance": 0.1}, NONE),  # logits do not fade
        ({"variance": 0.6, "growth": 0.2}, "fails"),
    ],
)
def test_weights_that_shrink_or_logits_that_do_not(run, back, verdict):
    assert found(spread.STUDY, made(run, back=back), "logits-fade-while-weights-grow").verdict == verdict


@pytest.mark.parametrize(
    ("lost", "verdict"),
    [({"specific": 0.48}, "only qualitative"), ({"specific": 0.5}, NONE), ({"shared": 0.1}, "fails")],
)
def test_which_part_loses_more(run, lost, verdict):
    copy = made(run, lost=lost)
    finding = found(spread.STUDY, copy, "shared-preference-fades-more")
    assert finding.verdict == verdict
    wanted = (LOST | lost)["shared"]
    assert finding.details["1 layer, nats lost (half the variance)"]["shared"] == pytest.approx(wanted, abs=1e-2)


@pytest.mark.parametrize(
    ("removes", "verdict"),
    [
        ({"both sizes": 0.5}, "only qualitative"),  # more than the rivals, and less than 60 %
        ({"both sizes": 0.3}, "only qualitative"),
        ({"both sizes": -0.9}, "fails"),
        ({"mixture": 0.3}, NONE),
        ({"mixture": 0.9}, NONE),
        ({"mixture": 1.5}, "fails"),
        ({"weights": 0.9}, NONE),
        ({"weights": 1.5}, "fails"),
        ({"shared size": -2.0, "specific size": -2.0}, "holds"),  # they stand beside
    ],
)
def test_sizes_that_are_not_the_rebound(run, removes, verdict):
    finding = found(spread.STUDY, made(run, removes=removes), "sizes-are-the-rebound")
    assert finding.verdict == verdict
    share = finding.details["1 layer, share of the rise removed by"]["both sizes"]
    assert share == pytest.approx((REMOVES | removes)["both sizes"], abs=1e-6)


def test_layers_that_fall_on_and_networks_that_learned_nothing_are_not_judged(run):
    later = ("logits-fade-while-weights-grow", "shared-preference-fades-more", "sizes-are-the-rebound")
    for _name, changes, reason in (
        ("flat", {"rise": 0.0}, "no layer comes back by 0.05 nats beyond chance"),
        ("small", {"rise": 0.04, "noise": 1e-4}, "the largest rise, from the minimum to the end, is 0.040 nats"),
        ("chance", {"rise": 0.1, "noise": 0.2}, "beyond chance"),
    ):
        copy = made(run, **changes)
        for claim in later:
            finding = found(spread.STUDY, copy, claim)
            assert finding.verdict == "not run"
            assert reason in finding.reason
    idle = made(run, loss=9.0)
    for claim in spread.STUDY.claims:
        finding = found(spread.STUDY, idle, claim)
        assert finding.verdict == "not run"
        assert "learned no more than how frequent words are" in finding.reason


def test_networks_that_diverged_are_left_out(run):
    def lose(name, step, value):
        if name == "2 layers, SGD/diverged_at":
            return np.full_like(value, 3)
        if name == "1 layer/diverged_at":
            return np.where(np.arange(len(value)) < 1, 3, value)
        return value

    lost = changed(made(run), lose)
    finding = found(spread.STUDY, lost, "shared-preference-first")
    assert not any(case.startswith(("2 layers, SGD", "1 layer")) for case in finding.printed.effects)
    assert "2 layers: layer 2" in finding.printed.effects
    assert finding.details["diverged and left out"] == {"runs of 1 layer": 1.0, "runs of 2 layers, SGD": 3.0}
    draws_labelled_figures(spread.STUDY, lost)


def test_only_layers_that_come_back_are_in_the_way_back(run):
    def flat(name, step, value):
        if name == "2 layers/valid/entropy" and step > 10:
            value[:, 0] -= 1.0
        return value

    copy = changed(made(run), flat)
    assert [case.name for case in record.cases_back(copy, "2 layers")] == ["2 layers: layer 2"]
    assert [case.name for case in record.cases_back(copy, "3 layers")] == [
        "3 layers: layer 1",
        "3 layers: layers 2 to 3",
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"valley": 24}, "valley must lie between 2 and 20, where training ends, got 24"),
        ({"valley": 2}, "valley must lie between 2 and 20, where training ends, got 2"),
        ({"layers": (1,)}, "others needs 2 among the layers, got 1"),
        ({"many_heads": 3}, "many_heads must divide the width 8, got 3"),
    ],
)
def test_what_cannot_be_asked(changes, said):
    with pytest.raises(ValueError, match=said):
        sizes("spread", **changes)
