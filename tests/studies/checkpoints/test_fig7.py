"""Figure 7's study on series of two tiny layers: it runs, cleans up after itself, and its judge can be turned."""

import dataclasses
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pins import pin
from records import altered, changed, found, verdicts

from joma.claims.contract import Finding, silent
from joma.claims.execute import execute, judge, plain_config
from joma.runs import Run
from joma.scan.model.loading import tokenized
from joma.studies import load
from joma.studies.checkpoints import fig7

pytest.importorskip("transformers", reason="transformers is not installed here (the extra hf)")

STUDY = load("fig7")
TINY = dataclasses.replace(
    STUDY.quick, layers=2, width=32, heads=2, vocabulary=300, context=32, batch=8, steps=36, every=3, characters=60_000,
    held_out=4_000, seeds=1,
)  # fmt: skip
NOT, OPEN, LITTLE = "not above its control", "undecided", "only qualitative"


@pytest.fixture(scope="module", autouse=True)
def one_process():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("joma.scan.model.text.token_ids", tokenized)
        yield


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    found = execute(STUDY, TINY, tmp_path_factory.mktemp("out"))
    with Run.open(found.run) as run:
        pin(STUDY, TINY, run)
    return found


def test_it_runs_judges_and_draws(result):
    assert [finding.claim for finding in result.findings] == list(STUDY.claims)
    assert len(result.pictures) == 1
    assert not list(result.run.parent.glob("*.series*")), "the checkpoints are not kept"
    with Run.open(result.run) as run:
        assert run.value("layers/stable rank").shape == (len(run.value("steps")), 2)
        assert run.value("coherence").shape == (3, 3, 2)
        steps = run.value("steps")
        assert run.value("coherence/steps").tolist() == [steps[0], steps[len(steps) // 2], steps[-1]]


@pytest.mark.long
def test_networks_of_several_seeds_stand_beside_each_other(result, tmp_path):
    """The first is the network of one seed, the second is another; killed in between, the run goes on."""
    two = dataclasses.replace(TINY, seeds=2)

    class Killed(Exception):
        pass

    def kill(share, doing):
        if "network 2" in doing and "scanning" in doing:
            raise Killed

    path = tmp_path / "run.sqlite"
    run = Run.create(path, study=STUDY.name, config=plain_config(two), version=STUDY.version)
    with pytest.raises(Killed):
        STUDY.run(two, run, kill)
    run.close()
    with Run.open(path, write=True) as run, Run.open(result.run) as one:
        STUDY.run(two, run, silent)
        for name in ("layers/stable rank", "layers/entropy", "coherence", "stable rank/rebound_margin"):
            np.testing.assert_array_equal(run.value(name), one.value(name))
            assert run.value(f"seed 1/{name}").shape == one.value(name).shape
            assert not np.array_equal(run.value(f"seed 1/{name}"), run.value(name))
        assert len(STUDY.draw(run)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run.sqlite"]


def curve(steps, drop, back):
    """From 1 down by `drop` in the middle, then up by `back`."""
    half = steps // 2
    return np.concatenate([np.linspace(1, 1 - drop, half), np.linspace(1 - drop, 1 - drop + back, steps - half)])


def written(path, *, seeds=4, spread=0.0, loss=1.0, cos=0.1, **moves):
    """A record of two layers; a move (drop, back) for the curves that are named, of each layer.

    By default each claim holds: of the stable rank the top layer comes back, of entropy both, by less.
    """
    shape = {"stable rank": [(0.5, 0.0), (0.5, 0.2)], "entropy": [(0.5, 0.1), (0.5, 0.1)]} | {
        name.replace("_", " "): value for name, value in moves.items()
    }
    config = plain_config(dataclasses.replace(TINY, seeds=seeds))
    run = Run.create(path, study=STUDY.name, config=config, version=STUDY.version)
    away = np.random.default_rng(0).standard_normal(seeds)
    for number in range(seeds):
        place = f"seed {number}/" if number else ""
        run.keep(f"{place}loss", lambda: np.full(20, loss))
        run.keep(f"{place}steps", lambda: np.arange(21))
        for name, layers in shape.items():
            curves = np.stack([curve(21, drop, back + spread * away[number]) for drop, back in layers], -1)
            run.keep(f"{place}layers/{name}", lambda curves=curves: curves)
            for part in ("drop", "rebound", "drop_margin", "rebound_margin"):
                run.keep(f"{place}{name}/{part}", lambda: np.array([0.5, 0.5]))
        run.keep(f"{place}coherence", lambda: np.tile([cos, 0.1], (3, 3, 1)))
        run.keep(f"{place}coherence/steps", lambda: np.array([0, 10, 20]))
    return run


@pytest.mark.parametrize(
    ("planted", "expected"),
    [
        ({}, ["holds", "holds", "holds", "holds"]),
        ({"seeds": 2}, ["holds", "holds", "holds", "holds"]),
        ({"seeds": 1}, [OPEN] * 4),
        # Seeds that differ by more than the rebound.
        ({"spread": 0.4}, [OPEN, LITTLE, OPEN, "holds"]),
        # Seeds that differ by as much as a rebound that matters: it cannot be ruled out.
        ({"spread": 0.02}, ["holds", LITTLE, "holds", "holds"]),
        # Back by 1 % of the drop: real, and less than what matters.
        ({"stable_rank": [(0.5, 0.0), (0.5, 0.005)]}, [LITTLE, "holds", LITTLE, "holds"]),
        ({"stable_rank": [(0.5, 0.0), (0.5, 0.0)]}, [NOT, "holds", LITTLE, "holds"]),
        # It goes on falling in the end, beyond the valley of the others: no rebound of any size.
        ({"stable_rank": [(0.5, 0.2), (0.5, 0.2)]}, ["holds", LITTLE, "holds", "holds"]),
        # A curve that only rises has nothing to come back from.
        ({"stable_rank": [(-0.5, 0.5), (-0.5, 0.5)]}, [NOT, NOT, LITTLE, "holds"]),
        # It drops by less than what matters: it comes back, but from nothing.
        ({"stable_rank": [(0.02, 0.0), (0.02, 0.01)]}, [NOT, LITTLE, "holds", "holds"]),
        ({"entropy": [(0.5, 0.0), (0.5, 0.1)]}, ["holds", "holds", LITTLE, "holds"]),
        ({"entropy": [(0.5, 0.4), (0.5, 0.4)]}, ["holds", "holds", LITTLE, "holds"]),  # more than the stable rank
        ({"entropy": [(-0.5, 0.5), (0.5, 0.1)]}, ["holds", "holds", NOT, "holds"]),
        ({"cos": 0.25}, ["holds", "holds", "holds", "fails"]),
        ({"cos": 0.195}, ["holds", "holds", "holds", LITTLE]),
        ({"loss": 5.5}, ["not run"] * 4),  # guessing among 300 words loses 5.7
        ({"loss": float("nan")}, ["not run"] * 4),
    ],
)
def test_verdicts_follow_the_record(tmp_path, planted, expected):
    with written(tmp_path / "run.sqlite", **planted) as run:
        findings = judge(STUDY, run)
        assert [finding.verdict for finding in findings] == expected
        for finding in findings:
            assert Finding.from_json(json.loads(json.dumps(finding.as_json()))).verdict == finding.verdict


def test_drops_and_rebounds_are_there_at_99_percent(tmp_path):
    """Over six seeds, where other intervals are of 95 %; the upper end of what comes back too."""
    with written(tmp_path / "run.sqlite", seeds=6, spread=0.01, stable_rank=[(0.5, 0.1), (0.5, 0.2)]) as run:
        seen = {claim: found(STUDY, run, claim) for claim in (fig7.RANK_TOP, fig7.RANK_BOTTOM)}
    away = np.random.default_rng(0).standard_normal(6)
    back = (0.1 + 0.01 * away) / 0.5
    upper = back.mean() + 4.032143 * back.std(ddof=1) / 6**0.5
    assert seen[fig7.RANK_BOTTOM].printed.tests[0].value == pytest.approx(upper, rel=1e-6)
    assert {one.level for finding in seen.values() for one in finding.printed.effects.values()} == {0.99}


def test_each_seed_is_read_in_the_valley_of_the_others(tmp_path):
    noise = np.random.default_rng(1)

    def change(name, step, value):
        if name.endswith("layers/stable rank"):
            value = np.linspace(1, 0, 21)[:, None] + 0.2 * noise.standard_normal((21, 2))
        return value

    with written(tmp_path / "a.sqlite", seeds=8) as run:
        copy = changed(run, change)
        assert verdicts(STUDY, copy)["rank-of-top-layers"] in (OPEN, NOT)


def test_a_drop_that_seeds_leave_open_leaves_the_rebound_open(tmp_path):
    """Two networks of four do not drop at all: what the others come back by is no answer."""

    def change(name, step, value):
        if name in ("seed 1/layers/stable rank", "seed 2/layers/stable rank"):
            value = np.broadcast_to(value[:1], value.shape).copy()
            value[-1] += 0.2
        return value

    with written(tmp_path / "a.sqlite") as run:
        copy = changed(run, change)
        finding = found(STUDY, copy, fig7.RANK_TOP)
        assert finding.verdict == OPEN
        assert np.isnan(finding.printed.controls[0].value)


def test_a_drop_must_be_there_at_99_percent_too(tmp_path):
    """Three networks of six drop by 0.086 and three by 0.486: 0 is 3.2 errors away, and 99 % reach 4.0."""

    def change(name, step, value):
        if name.endswith("layers/stable rank"):
            number = int(name.split("/")[0].removeprefix("seed ")) if name.startswith("seed") else 0
            value = 1 + (value - 1) / 0.5 * (0.086 if number % 2 else 0.486)
        return value

    with written(tmp_path / "a.sqlite", seeds=6) as run:
        copy = changed(run, change)
        assert np.isnan(found(STUDY, copy, fig7.RANK_TOP).printed.controls[0].value)


def test_one_layer_that_is_not_almost_orthogonal_leaves_a_part(tmp_path):
    def spoil(name, step, value):
        value = value.copy()
        if name.endswith("coherence"):
            value[-1, 2, 0] = 0.5
        return value

    with written(tmp_path / "a.sqlite") as run:
        copy = changed(run, spoil)
        finding = found(STUDY, copy, fig7.EMBEDDING)
        assert finding.verdict == "mixed"
        assert finding.main.effect == pytest.approx(0.5)


def test_networks_that_did_not_learn_are_left_out_and_counted(tmp_path):
    with written(tmp_path / "a.sqlite") as run:
        copy = altered(run, "seed 2/loss", lambda loss: loss + 9)
        for finding in STUDY.judge(copy):
            assert finding.verdict == "holds"
            assert finding.main.seeds == 3
            assert finding.details["left out because they did not learn"] == {"networks": 1}

        def most(name, step, value):
            return value + 9 if name.endswith("/loss") else value  # the first has no place before its name

        assert set(verdicts(STUDY, changed(run, most)).values()) == {OPEN}


def test_steps_that_one_network_lacks_are_left_out_of_all(tmp_path):
    def shorter(name, step, value):
        if name == "seed 1/steps" or name.startswith("seed 1/layers"):
            return np.delete(value, 7, axis=0)
        return value

    with written(tmp_path / "a.sqlite") as run:
        copy = changed(run, shorter)
        assert fig7._curves(copy, "entropy", [0, 1, 2, 3]).shape == (4, 20, 2)
        assert set(verdicts(STUDY, copy).values()) == {"holds"}


def test_a_value_that_is_no_number_decides_nothing(tmp_path):
    with written(tmp_path / "a.sqlite") as run:
        copy = altered(run, "seed 1/layers/stable rank", lambda x: x * np.nan)
        seen = verdicts(STUDY, copy)
        assert (seen["rank-of-top-layers"], seen["rank-of-bottom-layers"]) == (OPEN, OPEN)
        assert seen["embeddings-nearly-orthogonal"] == "holds"


def test_a_network_of_one_layer_has_no_bottom(tmp_path):
    def first(name, step, value):
        return value[..., :1] if "layers/" in name or name.endswith(("drop", "rebound", "margin")) else value

    with written(tmp_path / "a.sqlite") as run:
        copy = changed(run, first)
        assert verdicts(STUDY, copy)["rank-of-bottom-layers"] == "not run"


def test_coherence_is_not_taken_of_weights_that_transformers_made_up(tmp_path):
    import transformers
    from safetensors.torch import load_file, save_file

    from joma.scan import CheckpointError

    layout = transformers.GPTNeoXConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    transformers.GPTNeoXForCausalLM(layout).save_pretrained(tmp_path / "whole")
    tokens = torch.arange(64).repeat(20)

    class Place:
        def __init__(self, name):
            self.name = name

        def folder(self):
            return _Folder(tmp_path / self.name)

    config = SimpleNamespace(device="cpu")
    assert fig7._coherence(Place("whole"), tokens, config).shape == (2, 2)
    shutil.copytree(tmp_path / "whole", tmp_path / "part")
    weights = load_file(tmp_path / "part" / "model.safetensors")
    gone = next(name for name in weights if name.endswith("dense_4h_to_h.weight"))
    save_file(
        {k: v for k, v in weights.items() if k != gone}, tmp_path / "part" / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(CheckpointError, match=r"its weights lack .*dense_4h_to_h\.weight"):
        fig7._coherence(Place("part"), tokens, config)


class _Folder:
    def __init__(self, path):
        self.path = path

    def __enter__(self):
        return self.path

    def __exit__(self, *_):
        return None


def test_a_series_needs_a_text(tmp_path):
    with pytest.raises(ValueError, match="a series needs a text"):
        execute(STUDY, dataclasses.replace(TINY, series="somewhere"), tmp_path)


def test_wikitext_that_is_not_there_is_not_run(tmp_path, monkeypatch):
    monkeypatch.delenv("JOMA_DATA", raising=False)
    result = execute(STUDY, dataclasses.replace(TINY, wikitext=True), tmp_path)
    assert {finding.verdict for finding in result.findings} == {"not run"}
    assert "JOMA_DATA" in result.findings[0].measured


@pytest.mark.long
def test_too_few_checkpoints_are_not_judged(tmp_path):
    few = dataclasses.replace(TINY, steps=4, every=4)
    assert {finding.verdict for finding in execute(STUDY, few, tmp_path).findings} == {"not run"}
