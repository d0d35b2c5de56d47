"""Contextual sparsity: networks train and are cut to sets of units, and verdicts follow what the sets carry."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from records import changed, found, verdicts

from joma.claims.execute import judge, plain_config
from joma.measure.active import carrying
from joma.recipes.copying import Reading
from joma.runs import Run
from joma.studies.sparsity.deja_vu.run import CARRIED, HEADS, KEPT, NEURONS, Active, DejaVuConfig, Members, _loss, _seen
from joma.studies.sparsity.deja_vu.study import STUDY
from joma.training import next_token_loss

SEEDS = 4
CONFIG = DejaVuConfig(seeds=SEEDS)
TINY = replace(CONFIG, width=12, heads=3, mlp=10, length=8, batch=2, steps=4, measure_at=(2,), sequences=3, seeds=2,
               tokens=20_000, vocabulary=60)  # fmt: skip
NOT, OPEN, LITTLE = "not above its control", "undecided", "only qualitative"


def members(activation="relu"):
    text = torch.randint(20, (12, TINY.length + 1), generator=torch.Generator().manual_seed(0))
    return Members(TINY, activation, Reading(text[:6], text[6:], 20))


def keep(chosen):
    return lambda layer, each, features: torch.full_like(each, chosen, dtype=torch.bool)


@torch.no_grad()
def test_losses_are_those_of_networks_without_the_units():
    made = members()
    decoder = made.networks([0, 1])
    text = made.asked
    whole = next_token_loss(decoder, (text[:, :-1], text[:, 1:]), None)
    for units in (NEURONS, HEADS):
        torch.testing.assert_close(_loss(decoder, text, units, keep(True)), whole)
    for units, name in ((NEURONS, "down"), (HEADS, "projection")):
        cut = _loss(decoder, text, units, keep(False))
        without = made.networks([0, 1])
        without.get_parameter(name)[:, 1:] = 0.0  # the first layer stays whole
        torch.testing.assert_close(cut, next_token_loss(without, (text[:, :-1], text[:, 1:]), None))
        assert not torch.allclose(cut, whole)
    torch.testing.assert_close(whole, next_token_loss(decoder, (text[:, :-1], text[:, 1:]), None))


@torch.no_grad()
def test_inputs_are_what_enters_each_layer_and_contributions_come_from_it():
    made = members()
    decoder = made.networks([0, 1])
    text = made.asked[:, :-1]
    seen = _seen(decoder, text)
    entered = []
    decoder.get_parameter("up_bias").sub_(100.0)  # no neuron fires any more
    quiet = _seen(decoder, text)
    assert not any(each.any() for each in quiet.contributions[NEURONS])
    assert not carrying(quiet.contributions[NEURONS][0], 0.9).any()
    decoder.get_parameter("projection").zero_()
    decoder.get_parameter("projection_bias").zero_()
    decoder.get_parameter("down_bias").zero_()
    still = _seen(decoder, text)  # layers add nothing: what enters the last is what entered the first
    for layer in still.inputs:
        entered.append(layer)
        torch.testing.assert_close(layer, still.inputs[0])
    assert len(entered) == TINY.layers + 1
    assert seen.inputs[1].shape == (2, text.numel(), TINY.width)


@torch.no_grad()
def test_contributions_add_up_to_what_the_layer_adds():
    made = members("gelu")
    decoder = made.networks([0])
    added = {}

    def look(layer, name, value):
        if name == "hidden" and layer == 0:
            added[NEURONS] = value[0].flatten(0, 1)[:, :, None] * decoder.get_parameter("down")[0, 0]
        if name == "mixed" and layer == 0:
            heads = value[0].transpose(1, 2).flatten(0, 1)  # tokens, heads, head width
            parts = decoder.get_parameter("projection")[0, 0].unflatten(0, (TINY.heads, -1))
            added[HEADS] = torch.einsum("thd,hdw->thw", heads, parts)

    decoder.features(made.asked[:, :-1], look=look)
    seen = _seen(decoder, made.asked[:, :-1])
    for units in (NEURONS, HEADS):
        torch.testing.assert_close(seen.contributions[units][0][0], added[units].norm(dim=-1), rtol=1e-4, atol=1e-5)


GOOD = {"best": 0.95, "predicted": 0.93, "static": 0.5, "permuted": 0.3, "random": 0.2, "from the token": 0.8}
WORTH = {"none": 1.0, "best": 0.0, "predicted": 0.02, "static": 0.4, "permuted": 0.5, "random": 0.5}


def written(path, *, needed=0.15, start=0.5, untrained=0.5, spread=0.005, loss=2.0, carried=(), cost=(), heads=None):
    """A record in which every claim holds: of all activations, and of heads as of neurons.

    heads: {"carried", "cost"} of the heads alone. Before training, the loss is that of guessing.
    """
    away = np.random.default_rng(0).standard_normal(SEEDS)
    away = spread * (away - away.mean())
    run = Run.create(path, study=STUDY.name, config=plain_config(CONFIG), version=STUDY.version)
    run.keep("words", lambda: 300)
    for activation in CONFIG.activations:
        for step in (0, 50, 100):
            for units, other in ((NEURONS, {}), (HEADS, heads or {})):
                share, paid = GOOD | dict(other.get("carried", carried)), WORTH | dict(other.get("cost", cost))
                ends = share if step else share | {"best": untrained}
                row = np.array([ends[name] for name in CARRIED])
                losses = np.array([(loss if step else np.log(300)) + paid.get(name, 0.0) * (step > 0) for name in KEPT])
                luck = away if step else 0 * away
                lucky = np.array([name == "predicted" for name in KEPT])
                values = {
                    "needed": np.full((SEEDS, 3), needed if step else start) + luck[:, None],
                    "carried": np.tile(row, (SEEDS, 2, 1)) + (luck[:, None] * np.eye(6)[:2].sum(0))[:, None],
                    "loss": losses + luck[:, None] * lucky,
                }
                run.record(step, {f"{activation}/active/{units} {name}": value for name, value in values.items()})
    return run


@pytest.mark.parametrize(
    ("planted", "expected"),
    [
        ({}, ["holds"] * 7),
        ({"loss": 5.5}, ["not run"] * 7),  # guessing among 300 words loses 5.7
        ({"carried": {"best": 0.8}}, [LITTLE, LITTLE, *["holds"] * 5]),
        ({"carried": {"best": 0.85, "predicted": 0.84}, "untrained": 0.85}, [NOT, NOT, *["holds"] * 5]),
        ({"untrained": 0.95}, [OPEN, OPEN, *["holds"] * 5]),  # so much already that nothing is left to gain
        ({"carried": {"best": 0.8, "static": 0.8, "predicted": 0.8}}, [NOT, NOT, "holds", NOT, NOT, "holds", "holds"]),
        ({"needed": 0.5}, ["holds", "holds", NOT, *["holds"] * 4]),
        ({"needed": 0.7}, ["holds", "holds", "fails", *["holds"] * 4]),
        ({"carried": {"predicted": 0.75}}, ["holds", "holds", "holds", LITTLE, LITTLE, "holds", "holds"]),
        ({"carried": {"permuted": 0.93}}, ["holds", "holds", "holds", NOT, NOT, "holds", "holds"]),
        ({"carried": {"predicted": 0.3}}, ["holds", "holds", "holds", "fails", "fails", "holds", "holds"]),
        ({"cost": {"predicted": 0.2}}, [*["holds"] * 5, LITTLE, LITTLE]),
        ({"cost": {"static": 0.3, "predicted": 0.3}}, [*["holds"] * 5, NOT, NOT]),
        ({"cost": {"none": 0.01}}, [*["holds"] * 5, "not run", "not run"]),  # what nobody misses
        ({"cost": {"random": -0.3}}, [*["holds"] * 5, "fails", "fails"]),
        ({"spread": 2.0}, [OPEN, OPEN, OPEN, OPEN, OPEN, OPEN, OPEN]),
    ],
)
def test_verdicts_follow_the_record(tmp_path, planted, expected):
    with written(tmp_path / "run.sqlite", **planted) as run:
        findings = judge(STUDY, run)
        assert [finding.verdict for finding in findings] == expected


def test_heads_are_judged_by_what_is_recorded_of_heads(tmp_path):
    for planted, turned in (
        ({"carried": {"best": 0.8}}, {1: LITTLE}),
        ({"carried": {"predicted": 0.3}}, {4: "fails"}),
        ({"cost": {"predicted": 0.2}}, {6: LITTLE}),
    ):
        with written(tmp_path / f"{turned}.sqlite", heads=planted) as run:
            seen = list(verdicts(STUDY, run).values())
            assert seen == [turned.get(place, "holds") for place in range(7)], planted


def test_a_course_that_ends_above_its_least_is_not_the_source_s(tmp_path):
    def dip(name, step, value):
        return value - 0.1 if name.endswith(f"{NEURONS} needed") and step == 50 else value

    with written(tmp_path / "a.sqlite") as run:
        copy = changed(run, dip)
        assert found(STUDY, copy, "sparsity-of-neurons-arises").verdict == LITTLE


@pytest.mark.parametrize("lost", [1, SEEDS - 2])
def test_networks_that_did_not_learn_do_not_count(tmp_path, lost):
    def some_lost(name, step, value):
        if name == f"relu/active/{NEURONS} loss":
            value = value.copy()
            value[:lost] += 4.0
        return value

    with written(tmp_path / "a.sqlite", spread=0.0) as run:
        copy = changed(run, some_lost)
        finding = found(STUDY, copy, "neurons-are-told-a-layer-before")
        assert finding.verdict == "undecided"  # what did not learn counts as the worst
        assert finding.details["left out because they did not learn"] == {"networks": lost}
        assert {effect.seeds for effect in finding.printed.effects.values()} == {SEEDS - lost, SEEDS}


def test_costs_are_those_of_networks_that_learned(tmp_path):
    def one_lost(name, step, value):
        if name == f"relu/active/{NEURONS} loss":
            value = value.copy()
            value[0] = np.linspace(6.0, 9.0, len(KEPT))
        if name == f"relu/active/{NEURONS} needed" and step == 50:
            value = value.copy()
            value[0] = 0.0
        return value

    with written(tmp_path / "a.sqlite", spread=0.0) as run:
        copy = changed(run, one_lost)
        whole, left = (Active(one).cost("relu", NEURONS, "static") for one in (run, copy))
        assert left == pytest.approx(whole)
        finding = found(STUDY, copy, "sparsity-of-neurons-arises")
        assert finding.printed.tests[0].passes  # the least on the way is not that of the lost one
