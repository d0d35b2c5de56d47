"""The stored runs of Figures 6 and 8: they begin with the weights that our seeds give; how distances are worked out."""

import json
import os

import numpy as np
import pytest
import torch
from records import carried_out, copied, found
from small_language_models import SIZES, SMALL, as_the_paper

from joma.claims.contract import silent
from joma.claims.execute import plain_config
from joma.data.errors import CorpusError
from joma.data.text import streams, windows
from joma.models import Decoder
from joma.probes.decoder import ensemble_entropy
from joma.recipes.language import corpus, recipe
from joma.recipes.language.curves import curve
from joma.runs import Run
from joma.studies.language import _published, fig6, fig8
from joma.studies.language._published import (
    NEAR,
    NOISES,
    SEEDS,
    Distance,
    differs,
    distances,
    distances_by_seed,
    find_stored,
)


@pytest.mark.skipif("JOMA_DATA" not in os.environ, reason="needs the data under JOMA_DATA")
@pytest.mark.long
@pytest.mark.parametrize("layers", [1, 2, 5, 10])
def test_the_stored_runs_begin_with_our_weights(layers):
    stored = find_stored("")
    if stored is None:
        pytest.skip("needs reference/wikitext2_runs.json under JOMA_DATA")
    text = corpus(fig6.STUDY.paper)
    variant = recipe(fig6.STUDY.paper, text, layers=layers)
    sequences, _ = windows(streams(text.tokens["valid"], variant.valid_streams).long(), variant.decoder.context)
    for theirs in (run for run in stored if run["layers"] == layers and run["lr"] == 1e-4):
        with torch.no_grad():
            decoder = Decoder(variant.decoder, seeds=[SEEDS[theirs["seed"]]])
            ours = ensemble_entropy(decoder, sequences[variant.sequence, :1])[0, :, 0]
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


def test_single_runs_are_compared_with_their_twins(ours):
    stored = [stored_run(2, 5.0), stored_run(1, 3.0), stored_run(7, 100.0)]  # of seeds 4 and 3, and of none of ours
    (found,) = distances_by_seed(ours(), {"v": 2}, stored)
    assert np.isnan(found[[0, 3]]).all()
    rising = np.sqrt(np.mean(np.square([0.0, 1.0, 2.0])))
    np.testing.assert_allclose(found[1], [rising, 0.0, 0.0])
    np.testing.assert_allclose(found[2], [np.sqrt(np.mean(np.square([-1.0, 0.0, 1.0]))), 1.0, 1.0])


def test_single_runs_without_twins_are_compared_with_the_mean(ours):
    (found,) = distances_by_seed(ours(diverged=[5]), {"v": 2}, [stored_run(8, 3.0), stored_run(9, 4.0)])
    np.testing.assert_allclose(found[:3, 2], [1.5, 0.5, 0.5])
    assert np.isnan(found[3]).all()


def test_a_curve_that_falls_is_its_own_without_rises(tmp_path):
    entropy = np.array([3.0, 1.0, 2.0])
    with Run.create(tmp_path / "run.sqlite", study="x", config={}) as run:
        run.keep("v/rates", lambda: np.array([1e-4]))
        run.keep("v/seeds", lambda: np.array([3]))
        for step, level in zip(POINTS, entropy, strict=True):
            run.record(step, {"v/sequence/entropy": np.full((1, 2, 1), level), "v/diverged_at": np.array([-1])})
            run.record(step, {"v/valid/loss": np.ones(1)})
        (found,) = distances_by_seed(run, {"v": 2}, [stored_run(1, 0.0)])
        np.testing.assert_allclose(found[0], [np.sqrt(14 / 3), np.sqrt(11 / 3), 3.0])
        assert distances_by_seed(run, {"v": 2}, []).shape == (0, 0, 3)


SPREAD = np.array([-1.0, 0.0, 1.0])  # Three seeds; their mean is known to 5.73 (99 %)
ROW = Distance(2, 1e-4, 0.05, 0.1, 0.9, 0.004, 0.4, 0.06)


@pytest.fixture
def near(tmp_path, monkeypatch):
    """The finding on rows of a record, and on (ours, without rises, at the start) of every seed of each, or on none."""
    config = plain_config(fig6.Fig6Config(**SMALL))
    as_the_paper(monkeypatch, config)

    def judge(rows, by_seed=None):
        with Run.create(tmp_path / f"{len(list(tmp_path.iterdir()))}.sqlite", study="fig6", config=config) as run:
            run.keep("corpus/sizes", lambda: np.array(SIZES))
            run.keep("stored", lambda: np.array(rows).reshape(-1, 8))
            if by_seed is not None:
                run.keep("stored by seed", lambda: np.array(by_seed))
            return found(fig6.STUDY, run, "fig6-curves")

    return judge


def seeds(ours, without_rises, at_start, spread=0.001):
    return np.stack([ours + spread * SPREAD, without_rises + 0 * SPREAD, at_start + 0 * SPREAD], axis=-1)


@pytest.mark.parametrize(
    ("ours", "without_rises", "at_start", "spread", "verdict"),
    [
        (0.06, 0.4, 0.9, 0.01, "holds"),
        (0.34, 0.4, 0.9, 0.001, "holds"),
        (0.37, 0.4, 0.9, 0.001, "only qualitative"),  # nearer by less than what matters, 0.05
        (0.4, 0.4, 0.9, 0.005, "not above its control"),
        (0.06, 0.9, 0.061, 0.001, "not above its control"),  # the nearer of two controls counts
        (0.3, 0.4, 0.9, 0.1, "undecided"),
        (0.6, 0.4, 0.9, 0.01, "fails"),
        (0.43, 0.4, 0.9, 0.001, "not above its control"),  # farther by less than what matters
    ],
)
def test_single_runs_must_be_nearer_than_their_controls(near, ours, without_rises, at_start, spread, verdict):
    assert near([ROW], [seeds(ours, without_rises, at_start, spread)]).verdict == verdict


def test_a_recipe_that_differs_is_told_in_words():
    paper = plain_config(fig6.STUDY.paper)
    assert not differs(paper)
    assert differs(paper | {"width": 7}) == "width is 7, not 200"
    assert differs(paper | {"width": 7, "heads": 3}).endswith(", not 200 (and 1 more options differ)")
    assert differs(paper | {"width": 7, "heads": 3, "streams": 9}).endswith(" (and 2 more options differ)")
    assert differs(paper | {"width": 7, "heads": 3}, rate=2.0).endswith(" (and 2 more options differ)")
    assert differs(paper, rate=2.0) == f"rate is {paper['rate']}, not 2.0"


def test_curves_that_hardly_rise_are_held_against_their_start(near):
    flat = ROW._replace(one_way=NEAR / 2)
    assert near([flat], [seeds(0.06, 0.061, 0.9)]).verdict == "holds"
    assert near([flat], [seeds(0.06, 0.9, 0.061)]).verdict == "not above its control"
    assert near([ROW._replace(one_way=np.nan)], [seeds(0.06, 0.061, 0.9)]).verdict == "not above its control"


def test_mean_curves_must_be_near_in_every_row(near):
    both = [seeds(0.06, 0.4, 0.9)] * 2
    assert near([ROW, ROW._replace(layers=5)], both).verdict == "holds"
    far = near([ROW, ROW._replace(layers=5, rms=0.12)], both)
    assert (far.verdict, far.printed.tests[0].value) == ("only qualitative", pytest.approx(0.02))
    assert near([ROW, ROW._replace(layers=5, rms=np.nan)], both).verdict == "undecided"


def test_one_seed_says_nothing_of_chance(near):
    alone = seeds(0.06, 0.4, 0.9)
    alone[1:] = np.nan
    assert near([ROW], [alone]).verdict == "undecided"
    assert near([ROW, ROW._replace(layers=5)], [seeds(0.06, 0.4, 0.9), alone]).verdict == "undecided"
    means = near([ROW])
    assert means.verdict == "undecided"
    assert means.main.effect == pytest.approx(0.4 - 0.05)
    assert near([ROW._replace(one_way=NEAR / 2)]).main.effect == pytest.approx(0.9 - 0.05)


def test_a_seed_that_diverged_has_no_part_in_it(near):
    five = np.concatenate([seeds(0.06, 0.4, 0.9), np.full((2, 3), np.nan)])
    finding = near([ROW], [five])
    assert (finding.verdict, finding.main.seeds) == ("holds", 3)


@pytest.mark.parametrize("study", [fig6, pytest.param(fig8, marks=pytest.mark.long)])
def test_stored_curves_are_compared_and_not_kept(study, data_folder, tmp_path, monkeypatch, no_other_text):
    options = {"layers": (1,), "rate": 0.02} if study is fig6 else {"layers": 1, "rates": (0.02, 1e-3, 0.1)}
    config = (fig6.Fig6Config if study is fig6 else fig8.Fig8Config)(
        **SMALL, data=str(tmp_path), seed=3, seeds=4, **options
    )  # one more than is stored
    as_the_paper(monkeypatch, plain_config(config))
    monkeypatch.setattr(fig8, "RESAMPLES", 200)
    (tmp_path / "wikitext-2").symlink_to(data_folder / "wikitext-2")
    first = carried_out(study.STUDY, config, tmp_path / "first")
    variant, index = ("L1", 0) if study is fig6 else ("sweep", 1)
    assert "stored" not in first
    assert "the data folder has no" in found(study.STUDY, first, f"{study.STUDY.name}-curves").reason
    ours = curve(first, variant, "sequence/entropy")[index, :, :, :, 0]  # (seeds, points, layers)
    (tmp_path / "reference").mkdir()
    for shift in (0.01, 2.0):
        stored = [
            {
                "layers": 1,
                "lr": 0.02,
                "seed": seed,
                "steps": list(range(0, 49, 4)),
                "val_loss": [3.0] * 13,
                "entropy": (one + shift).tolist(),
            }
            for seed, one in enumerate(ours[:3], start=1)
        ]
        (tmp_path / "reference" / "wikitext2_runs.json").write_text(json.dumps(stored))
        monkeypatch.setattr(_published, "NOISES", 1e9 if shift < 0.1 else 0.0)  # 0.02 is above 1e-3
        run = copied(first, tmp_path / f"{shift}")
        study.run(config, run, silent)  # trained already
        assert run.value("stored")[:, 2] == pytest.approx([shift], abs=1e-6)
        assert run.value("stored by seed")[0, :3, 0] == pytest.approx([shift] * 3, abs=1e-6)
        finding = found(study.STUDY, run, f"{study.STUDY.name}-curves")
        assert finding.main.seeds == 3
        assert finding.printed.tests[0].passes == (shift < 0.1)
    none = copied(first, tmp_path / "no curves")
    none.keep("stored", lambda: np.zeros((0, 8)))
    assert "has no curves of these depths, rates" in found(study.STUDY, none, f"{study.STUDY.name}-curves").reason
    (tmp_path / "reference" / "wikitext2_runs.json").write_text("[3]")
    with pytest.raises(ValueError, match="not a list of runs"):
        study.run(config, copied(first, tmp_path / "damaged"), silent)
