"""One order of the text for all seeds, or one for each."""

from dataclasses import replace

import numpy as np
import pytest
from records import carried_out, verdicts
from small_ablations import NONE, changed, idle, must_show, patterns, verdict
from small_runs import small

from joma.recipes.language import recipe
from joma.recipes.language.training import ensemble
from joma.studies.ablations import text_order as study

FURTHER = {study.PIECEWISE: ("one_order", "own_pieces"), study.BROKEN: ("own_start", "own_pieces"),
           study.FIRST: ("one_order", "own_start")}  # fmt: skip


def test_the_rebound_comes_from_another_start_or_not(small_run):
    must_show(small_run("text-order"), study.SHOWN, "own_start")


@pytest.mark.parametrize(("claim", "variants"), FURTHER.items())
def test_the_top_layer_comes_back_further_in_one_order_or_not(small_run, claim, variants):
    one, other = variants
    for backs, expected in (
        ({one: (0.5, 0.5), other: (0.5, 0.3)}, "holds"),
        ({one: (0.1, 0.5), other: (0.5, 0.3)}, "holds"),  # the first layer does not count
        ({one: (0.5, 0.3), other: (0.5, 0.3)}, NONE),
        ({one: (0.5, 0.3), other: (0.1, 0.5)}, "fails"),
        ({one: (0.5, 0.33), other: (0.5, 0.3)}, "only qualitative"),  # too small to matter
    ):
        assert verdict(changed(small_run("text-order"), patterns(**backs)), claim) == expected, backs
    for variant in variants:
        assert verdict(changed(small_run("text-order"), idle(variant.replace("_", " "))), claim) == "not run"


def test_one_layer_has_none_that_could_come_back_further(tmp_path, data_folder):
    """It trains the orders of the other claim alone; the rest was seen in the second of two layers."""
    config = replace(small("text-order", data=str(data_folder)), layers=1)
    with carried_out(study.STUDY, config, tmp_path / "one.sqlite", pinned=False) as run:
        trained = {name.split("/")[0] for name in run.names() if name.endswith("/valid/loss")}
        assert trained == {"one order", "own start"}
        assert {verdicts(study.STUDY, run)[claim.name] for claim in FURTHER} == {"at paper scale"}
        assert verdicts(study.STUDY, run)[study.SHOWN.name] != "at paper scale"
        assert len(study.STUDY.draw(run)) == 2


def test_variants_read_what_their_names_say(small_run):
    run = small_run("text-order")
    losses = {name: run.array(f"{name}/loss") if f"{name}/loss" in run else run.array(f"{name}/valid/loss")
              for name in study.VARIANTS}  # fmt: skip
    assert all(np.isfinite(loss).all() for loss in losses.values())
    for one, other in (("one order", "own start"), ("own start", "own pieces"), ("one order", "own pieces")):
        np.testing.assert_array_equal(losses[one][0], losses[other][0])  # the same networks at the start
        assert np.abs(losses[one][-1] - losses[other][-1]).min() > 0


def test_a_start_of_its_own_is_the_text_turned_round(data_folder):
    from joma.data.text import find_corpus

    text = find_corpus(data_folder, name="wikitext-2")
    config = study.AblationConfig(corpus="wikitext-2", data=str(data_folder), streams=1, length=5, seeds=3)
    base = recipe(config, text, rates=(1e-2,))
    plain, turned = ensemble(base, text), ensemble(study.VARIANTS[study.START](base), text)
    length = len(text.tokens["train"])
    read = {
        member: np.concatenate([turned.batch(step, [member])[0][0, 0].numpy() for step in range(length // 5)])
        for member in (0, 1)
    }
    whole = np.concatenate([plain.batch(step, [0])[0][0].numpy() for step in range(length // 5)])
    starts = []
    for words in read.values():
        places = [at for at in range(len(whole)) if np.array_equal(np.roll(whole, -at)[:40], words[:40])]
        assert len(places) == 1
        starts += places
    assert starts[0] != starts[1]
    assert 0 not in starts
