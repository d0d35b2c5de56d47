"""The stored runs of Figures 6 and 8: they begin with the weights that our seeds give; how distances are worked out."""

import json
import os

import numpy as np
import pytest
import torch

from joma.data.errors import CorpusError
from joma.data.text import streams, windows
from joma.models import Decoder
from joma.probes.decoder import attention_entropy
from joma.runs import Run
from joma.studies._language_models import corpus, recipe
from joma.studies._stored_curves import NEAR, NOISES, SEEDS, Distance, distances, find_stored
from joma.studies.entropy_over_training import STUDY


@pytest.mark.skipif("JOMA_DATA" not in os.environ, reason="needs the data under JOMA_DATA")
@pytest.mark.parametrize("layers", [1, 2, 5, 10])
def test_the_stored_runs_begin_with_our_weights(layers):
    stored = find_stored("")
    if stored is None:
        pytest.skip("needs reference/wikitext2_runs.json under JOMA_DATA")
    text = corpus(STUDY.paper)
    variant = recipe(STUDY.paper, text, layers=layers)
    sequences, _ = windows(streams(text.tokens["valid"], variant.valid_streams).long(), variant.decoder.context)
    for theirs in (run for run in stored if run["layers"] == layers and run["lr"] == 1e-4):
        with torch.no_grad():
            decoder = Decoder(variant.decoder, seeds=[SEEDS[theirs["seed"]]])
            ours = attention_entropy(decoder, sequences[variant.sequence, :1])[0, :, 0]
        np.testing.assert_allclose(ours, theirs["entropy"][0], atol=2e-5)


POINTS = (0, 1000, 2000)


@pytest.fixture
def ours(tmp_path):
    """A run of seeds 2 to 5 under two rates that was never trained: seed s has the entropy s + point / 1000, loss s."""
    seeds = np.arange(2, 6)

    def make(diverged=()):
        run = Run.create(tmp_path / "run.sqlite", study="x", config={})
        run.keep("v/rates", lambda: np.array([1e-4, 1e-2]))
        run.keep("v/seeds", lambda: seeds)
        members = np.tile(seeds, 2).astype(float)
        for step in POINTS:
            entropy = np.broadcast_to((members + step / 1000)[:, None, None], (8, 2, 1))
            lost = np.where(np.isin(members, diverged), 0, -1)
            run.record(step, {"v/sequence/entropy": entropy, "v/valid/loss": members, "v/diverged_at": lost})
        return run

    return make


def stored_run(seed, level, rate=1e-4):
    """One that stands at its level in both layers, with the loss 9 at first and then 3."""
    return {
        "layers": 2, "lr": rate, "seed": seed, "steps": [0, 1000, 2000, 3000], "val_loss": [9.0, 3.0, 3.0, 3.0],
        "entropy": [[level, level]] * 4,
    }  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [
        "null",
        "[]",
        "{}",
        "[3]",
        "not json",
        [stored_run(1, 1.0) | {"entropy": [[1.0, 1.0]] * 3}],
        [stored_run(1, 1.0) | {"entropy": [[1.0], [1.0, 1.0], [1.0], [1.0]]}],
        [stored_run(1, 1.0) | {"entropy": [[1.0, float("nan")]] * 4}],
        [stored_run(1, 1.0) | {"entropy": "low"}],
        [stored_run(1, 1.0) | {"layers": 1}],
        [stored_run(1, 1.0) | {"val_loss": []}],
        [stored_run(1, 1.0) | {"lr": "1e-4"}],
        [stored_run(1, 1.0), stored_run(2, 1.0) | {"steps": [0, 1, 2, 3]}],
        [{name: value for name, value in stored_run(1, 1.0).items() if name != "seed"}],
    ],
)
def test_a_file_of_something_else_is_refused_in_one_sentence(tmp_path, content):
    (tmp_path / "reference").mkdir()
    path = tmp_path / "reference" / "wikitext2_runs.json"
    path.write_text(json.dumps([stored_run(1, 1.0), stored_run(1, 2.0, 1e-2)]))
    assert len(find_stored(str(tmp_path))) == 2
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(CorpusError, match=r"wikitext2_runs\.json is not a list of runs with layers, lr, seed"):
        find_stored(str(tmp_path))


def rows(run, stored):
    return [Distance(*row) for row in distances(run, {"v": 2}, stored)]


def test_means_are_compared_of_the_seeds_that_both_have(ours):
    """Stored seeds 1 and 2 are our 3 and 4; our 2 and 5 have no part in it, nor has a stored one that we lack."""
    (found,) = rows(ours(), [stored_run(1, 3.0), stored_run(2, 5.0), stored_run(7, 100.0)])
    assert found.rms == pytest.approx(np.sqrt(np.mean(np.square(3.5 + np.arange(3) - 4.0))))
    assert found.untrained == pytest.approx(0.5)
    assert found.loss == pytest.approx(0.5)
    assert (found.layers, found.rate, found.tolerance) == (2, 1e-4, NEAR)
    twins = np.arange(3)[:, None] + [3.0, 4.0] - [3.0, 5.0]
    assert found.single == pytest.approx(np.sqrt(np.mean(np.square(twins))))  # the means are nearer than that


def test_a_seed_that_diverged_takes_its_twin_with_it(ours):
    (found,) = rows(ours(diverged=[4]), [stored_run(1, 3.0), stored_run(2, 50.0)])
    assert found.untrained == pytest.approx(0.0)


def test_other_seeds_are_compared_by_their_means(ours):
    (found,) = rows(ours(), [stored_run(8, 3.0), stored_run(9, 4.0)])
    assert found.untrained == pytest.approx(0.0)
    assert np.isnan(found.single)


def test_large_rates_are_allowed_twice_the_noise_of_the_stored_seeds(ours):
    (found,) = rows(ours(), [stored_run(1, 3.0, 1e-2), stored_run(2, 5.0, 1e-2)])
    assert found.tolerance == pytest.approx(
        NOISES * np.sqrt(2.0)
    )  # sqrt 2 is the sd of 3 and 5; two means of two differ


def test_one_stored_seed_has_no_noise_to_allow_for(ours):
    (found,) = rows(ours(), [stored_run(1, 3.0, 1e-2)])
    assert found.tolerance == NEAR


def test_a_tolerance_that_curves_without_a_rebound_would_pass_is_cut(ours):
    entropy = [[2.0, 2.0], [1.0, 1.0], [1.5, 1.5], [9.0, 9.0]]  # of which we have the first three points
    stored = [stored_run(1, 0.0, 1e-2) | {"entropy": entropy}, stored_run(2, 0.0, 1e-2) | {"entropy": entropy}]
    (found,) = rows(ours(), stored)
    assert found.one_way == pytest.approx(0.5 / np.sqrt(3))
    assert found._replace(tolerance=9.0).allowed == found.one_way
    assert found._replace(tolerance=0.2).allowed == 0.2
    assert found._replace(tolerance=9.0, one_way=0.0).allowed == NEAR  # curves that never rise are no measure
    assert Distance(2, 1e-2, 0.0, 0.4, 0.5).allowed == 0.4  # of a record without that control


def test_where_all_diverged_nothing_is_near(ours):
    (found,) = rows(ours(diverged=[2, 3, 4, 5]), [stored_run(1, 3.0)])
    assert np.isnan(found.loss)


def test_curves_without_our_points_are_not_compared(ours):
    run, others = ours(), stored_run(1, 3.0) | {"steps": [0, 777, 1554, 2331]}
    assert [found.rate for found in rows(run, [others, stored_run(1, 3.0, 1e-2)])] == [1e-2]
    assert rows(run, [others]) == []
