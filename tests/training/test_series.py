"""A series of our own is laid out as transformers does it, learns, and repeats itself."""

import json

import pytest
import torch

from joma.data.python_source import source_text
from joma.training import SeriesConfig, checkpoint_steps, train_series

pytest.importorskip("transformers", reason="transformers is not installed here (the extra hf)")

TINY = SeriesConfig(layers=2, width=32, heads=2, vocabulary=300, context=32, batch=8, steps=30, rate=1e-2)


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    folder = tmp_path_factory.mktemp("series")
    return folder, train_series(folder, source_text(100_000), TINY, save_at=[0, 10, 30])


def test_it_learns(series):
    _, losses = series
    assert len(losses) == TINY.steps
    assert sum(losses[-5:]) / 5 < losses[0] - 0.5


def test_checkpoints_load_with_their_tokenizer(series):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, _ = series
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"step0", "step10", "step30"}
    tokenizer = AutoTokenizer.from_pretrained(folder / "step0")
    text = "def main(argv=None):\n    return 0\n"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    first, last = (AutoModelForCausalLM.from_pretrained(folder / f"step{step}") for step in (0, 30))
    assert not torch.equal(first.gpt_neox.embed_in.weight, last.gpt_neox.embed_in.weight)


def test_the_same_seed_gives_the_same_losses(series, tmp_path):
    assert train_series(tmp_path, source_text(100_000), TINY, save_at=[0, 10, 30]) == series[1]


def test_a_whole_series_is_left_alone_and_another_config_is_not(series):
    folder, losses = series
    before = (folder / "step30" / "model.safetensors").stat().st_mtime_ns
    assert train_series(folder, source_text(100_000), TINY, save_at=[0, 10, 30]) == losses
    assert (folder / "step30" / "model.safetensors").stat().st_mtime_ns == before
    assert json.loads((folder / "series.json").read_text())["identity"]["config"]["steps"] == 30


def test_schedule_is_pythias():
    assert checkpoint_steps(143_000)[:12] == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000]
    assert checkpoint_steps(143_000)[-1] == 143_000
    assert len(checkpoint_steps(143_000)) == 154  # as many as Pythia has


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"vocabulary": 100}, "vocabulary must be at least 260"), ({"batch": 10_000}, "fewer than one batch")],
)
def test_bad_input(change, sentence, tmp_path):
    from dataclasses import replace

    with pytest.raises(ValueError, match=sentence):
        train_series(tmp_path, source_text(30_000), replace(TINY, **change))


def test_no_steps():
    with pytest.raises(ValueError, match="steps must be at least 1"):
        checkpoint_steps(0)
