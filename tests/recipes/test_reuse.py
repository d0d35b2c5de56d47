"""A variant that another study trained is taken from there, and is what training would have given."""

import numpy as np
import pytest
from small_language_models import SMALL

from joma.claims.contract import silent
from joma.recipes import language as lm
from joma.recipes.language import training
from joma.runs import Run

pytestmark = pytest.mark.usefixtures("no_other_text")


@pytest.fixture
def base(data_folder):
    config = lm.LanguageModelConfig(**SMALL, data=str(data_folder))
    text = lm.corpus(config)
    return lm.recipe(config, text).with_(steps=8, every=4), text


def trained(path, study, variants, text, *, finish=True):
    said = []
    run = Run.create(path, study=study, config={})
    training.train_variants(variants, text, run, lambda share, doing: said.append(doing))
    if finish:
        run.finish()
    return run, said


def series(run, variant):
    return {name.removeprefix(f"{variant}/"): run.array(name) for name in run.names() if name.startswith(f"{variant}/")}


@pytest.fixture
def trains(monkeypatch):
    made, original = [], training.train_all

    def watched(ensembles, run, **how):
        made.extend(name for name, one in ensembles.items() if run.last_step(f"{name}/diverged_at") != one.steps)
        original(ensembles, run, **how)

    monkeypatch.setattr(training, "train_all", watched)
    return made


def test_a_copy_is_what_training_gives(base, tmp_path, trains):
    recipe, text = base
    other = {"wide": recipe.with_decoder(mlp=12)}
    first, _ = trained(tmp_path / "a" / "one.sqlite", "one", {"ReLU": recipe}, text)
    second, said = trained(tmp_path / "a" / "two.sqlite", "two", {"base": recipe, **other}, text)
    alone, _ = trained(tmp_path / "b" / "two.sqlite", "two", {"base": recipe, **other}, text)
    assert trains == ["ReLU", "wide", "base", "wide"]
    assert said[0] == "base: trained by another study"
    for variant in ("base", "wide"):
        mine, theirs = series(second, variant), series(alone, variant)
        assert list(mine)
        assert mine.keys() == theirs.keys()
        for name, values in mine.items():
            np.testing.assert_array_equal(values, theirs[name], err_msg=name)
            assert values.dtype == theirs[name].dtype
            assert second.dims(f"{variant}/{name}") == alone.dims(f"{variant}/{name}")
            np.testing.assert_array_equal(second.steps(f"{variant}/{name}"), alone.steps(f"{variant}/{name}"))
    assert "base/valid/loss" not in first


@pytest.mark.parametrize(
    "changes",
    [
        {"seeds": (1, 2, 4)},
        {"steps": 12},
        {"every": 2},
        {"rates": (2e-4,)},
        {"own_order": True},
        {"streams": 3},
        {"keep_at": (4,)},
    ],
)
def test_another_recipe_is_trained(base, tmp_path, trains, changes):
    recipe, text = base
    trained(tmp_path / "one.sqlite", "one", {"base": recipe}, text)
    trained(tmp_path / "two.sqlite", "two", {"base": recipe.with_(**changes)}, text)
    assert trains == ["base", "base"]


def test_what_a_study_adapts_is_trained(base, tmp_path, trains):
    recipe, text = base
    trained(tmp_path / "one.sqlite", "one", {"base": recipe}, text)
    with Run.create(tmp_path / "two.sqlite", study="two", config={}) as run:
        training.train_variants({"base": recipe}, text, run, silent, adapt=lambda name, plain: plain)
    assert trains == ["base", "base"]


def test_a_branch_is_trained(base, tmp_path, trains):
    recipe, text = base
    kept, branch = recipe.with_(keep_at=(4,)), recipe.with_(branch_of="base", branch_at=4)
    for name in ("one", "two"):
        trained(tmp_path / f"{name}.sqlite", name, {"base": kept, "twin": branch}, text)
    assert trains == ["base", "twin"] * 2


@pytest.mark.parametrize(
    "of", ["the same study", "a run that goes on", "other versions", "another processor", "a text"]
)
def test_a_run_that_may_differ_gives_nothing(base, tmp_path, trains, monkeypatch, of):
    recipe, text = base
    first, _ = trained(tmp_path / "one.sqlite", "one", {"base": recipe}, text, finish=of != "a run that goes on")
    first.close()
    if of in ("other versions", "another processor"):
        what = {"other versions": "versions", "another processor": "machine"}[of]
        before = getattr(__import__("joma.runs.store", fromlist=["store"]), what)()
        monkeypatch.setattr(f"joma.runs.store.{what}", lambda: {name: f"{value}!" for name, value in before.items()})
    if of == "a text":
        parts = {name: tokens.flip(0) for name, tokens in text.tokens.items()}
        text = type(text)(text.name, text.vocabulary, parts, text.source)
    trained(tmp_path / "two.sqlite", "one" if of == "the same study" else "two", {"base": recipe}, text)
    assert trains == ["base", "base"]


def test_what_cannot_be_read_gives_nothing(base, tmp_path, trains):
    recipe, text = base
    (tmp_path / "a.sqlite").write_bytes(b"no run")
    trained(tmp_path / "two.sqlite", "two", {"base": recipe}, text)
    assert trains == ["base"]


def test_a_copy_that_was_cut_short_is_finished_by_training(base, tmp_path, trains, monkeypatch):
    recipe, text = base
    trained(tmp_path / "a" / "one.sqlite", "one", {"base": recipe}, text)
    whole, _ = trained(tmp_path / "b" / "two.sqlite", "two", {"base": recipe}, text)
    record = Run.record

    def cut(run, step, values, **how):
        if step == 4:
            raise KeyboardInterrupt
        record(run, step, values, **how)

    monkeypatch.setattr(Run, "record", cut)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "a" / "two.sqlite", "two", {"base": recipe}, text)
    monkeypatch.setattr(Run, "record", record)
    with Run.open(tmp_path / "a" / "two.sqlite", write=True) as run:
        assert run.last_step("base/diverged_at") == 0
        training.train_variants({"base": recipe}, text, run, silent)
        for name, values in series(whole, "base").items():
            np.testing.assert_array_equal(series(run, "base")[name], values, err_msg=name)
