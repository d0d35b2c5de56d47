"""A series of our own is laid out as transformers does it, learns, and repeats itself."""

import json
import math
import re
from dataclasses import replace

import pytest
import torch
from later import some_now

from joma.data.python_source import source_text
from joma.host.errors import BadInput
from joma.training import SeriesConfig, checkpoint_steps, train_series
from joma.training.series import _model

pytest.importorskip("transformers", reason="transformers is not installed here (the extra hf)")

TINY = SeriesConfig(layers=2, width=32, heads=2, vocabulary=300, context=32, batch=8, steps=30, rate=1e-2, warmup=0.1)


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


def test_it_is_trained_as_a_loop_by_hand_would(series):
    """From what it saved first: windows in a shuffled order, a rate that rises and falls, AdamW, a clipped gradient."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, losses = series
    model, there = (AutoModelForCausalLM.from_pretrained(folder / f"step{step}") for step in (0, 10))
    lines, tokenizer = source_text(100_000).splitlines(keepends=True), AutoTokenizer.from_pretrained(folder / "step0")
    pieces = ["".join(lines[start : start + 500]) for start in range(0, len(lines), 500)]
    tokens = torch.tensor([token for piece in pieces for token in tokenizer(piece)["input_ids"]])
    windows = tokens[: len(tokens) // 33 * 33].view(-1, 33)
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(TINY.seed))
    adam = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.01)
    for step in range(10):
        rising = (step + 1) / 3  # 3 of 30 steps
        adam.param_groups[0]["lr"] = 0.01 * min(rising, 0.55 + 0.45 * math.cos(math.pi * max(step - 3, 0) / 27))
        rows = windows[order[8 * step : 8 * step + 8]]
        logits = model(rows[:, :-1]).logits.flatten(0, 1)
        loss = -logits.log_softmax(-1)[range(len(logits)), rows[:, 1:].flatten()].mean()
        adam.zero_grad()
        loss.backward()
        norm = torch.cat([each.grad.flatten() for each in model.parameters()]).norm()
        for each in model.parameters():
            each.grad *= min(1.0, 1.0 / float(norm + 1e-6))
        adam.step()
        assert float(loss.detach()) == pytest.approx(losses[step], rel=1e-4)
    for mine, theirs in zip(model.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)  # a step of Adam is 1e-2 long


def test_seed_and_text_decide_and_a_folder_with_another_series_is_trained_anew(tmp_path):
    """Over more than one pass through the text, each in an order of its own."""
    short, text = replace(TINY, steps=4, batch=32, layers=1), source_text(6_000)
    done, begun = tmp_path / "a" / "series.json", tmp_path / "begun.json"

    def link(*_):
        if not begun.exists():
            begun.hardlink_to(done)

    first = train_series(tmp_path / "a", text, short, save_at=[], progress=link)
    assert "losses" in json.loads(done.read_text())
    assert "losses" not in json.loads(begun.read_text())  # written anew, not over: a reader never sees half of it
    assert train_series(tmp_path / "b", text, short, save_at=[]) == first
    assert train_series(tmp_path / "a", text, replace(short, seed=1), save_at=[]) != first
    assert train_series(tmp_path / "b", text[3_000:] + text[:3_000], short, save_at=[]) != first
    assert not list(tmp_path.glob("b/step*"))
    assert train_series(tmp_path / "b", text, short, save_at=[4]) == first
    assert [path.name for path in tmp_path.glob("b/step*")] == ["step4"]


def test_a_whole_series_is_left_alone(series):
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
    [
        *(
            ({name: 0}, f"{name} must be at least 1, got 0")
            for name in ("layers", "width", "heads", "context", "batch")
        ),
        ({"steps": -3}, "steps must be at least 1, got -3"),
        ({"heads": 3}, "width 32 cannot be shared by 3 heads"),
        ({"heads": 16}, "must be 4 wide at least: width 32 over 16 heads is 2"),
        ({"vocabulary": 100}, "vocabulary must be at least 260 (all bytes and a few merges), got 100"),
        ({"rate": -1e-3}, "rate must be finite and not negative, got -0.001"),
        ({"rate": float("inf")}, "rate must be finite and not negative, got inf"),
        ({"warmup": 1.5}, "warmup is a share of the steps, from 0 to 1, got 1.5"),
        ({"warmup": float("nan")}, "warmup is a share of the steps, from 0 to 1, got nan"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_a_config_that_cannot_be_trained_is_refused(change, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        replace(TINY, **change)


def test_heads_that_are_just_wide_enough_know_positions():
    """The config refuses narrower ones: transformers builds them, and the order of the tokens makes no difference."""
    model = _model(replace(TINY, layers=1, heads=8)).eval()
    logits = model(torch.tensor([[1, 2, 3], [2, 1, 3]])).logits[:, -1]
    assert not torch.allclose(logits[0], logits[1], atol=1e-6)


def test_the_first_weights_are_those_of_the_seed():
    first, again, other = (_model(replace(TINY, layers=1, seed=seed)).state_dict() for seed in (3, 3, 0))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["gpt_neox.embed_in.weight"], other["gpt_neox.embed_in.weight"])


def test_a_text_that_fills_no_batch(tmp_path):
    with pytest.raises(ValueError, match="fewer than one batch"):
        train_series(tmp_path, source_text(30_000), replace(TINY, batch=10_000))


def test_no_steps():
    with pytest.raises(ValueError, match="steps must be at least 1"):
        checkpoint_steps(0)


@pytest.mark.parametrize(
    "left",
    some_now(
        ['{"schema": "joma-series", "identity": {"con', "", '{"schema": "joma-series", "losses": [1.0]}'], every=2
    ),
)
def test_what_a_kill_left_of_the_list_is_no_series(tmp_path, left):
    """What is cut off does not say that the series is whole: training goes on instead of breaking."""
    config = replace(TINY, steps=2)
    (tmp_path / "series.json").write_text(left)
    losses = train_series(tmp_path, source_text(50_000), config)
    assert len(losses) == 2
    assert json.loads((tmp_path / "series.json").read_text())["losses"] == losses


def test_a_training_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "step2").mkdir()
    with pytest.raises(BadInput, match="holds step2 of another training; name another folder"):
        train_series(tmp_path, source_text(50_000), replace(TINY, steps=2))
    assert [path.name for path in tmp_path.iterdir()] == ["step2"]


def test_a_kill_while_the_list_is_written_leaves_none(tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("joma.host.files.os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        train_series(tmp_path, source_text(50_000), replace(TINY, steps=2))
    assert not (tmp_path / "series.json").exists()
