"""How long the sequences of `joma cache` are, what it says of that, its intervals, and one very long sequence."""

import json
import os
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from largest import LargestTensor
from later import some_now
from llama2c import load_model
from scipy import stats
from tiny_models import COMMON, KINDS, LENGTH, TOKENS, fresh

from joma.cache import POLICIES, CacheError, _losses, _memory, losses
from joma.cache.costs import Cost, Costs, kept_sentences, measure
from joma.cache.models import default_seq_len
from joma.cache.rules import rule
from joma.cli.main import main
from joma.runs import Run

STORY, STORIES = 256, 24


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("place")
    for kind in ("llama", "gpt2"):
        fresh(kind).save_pretrained(folder / kind)
    bloom().save_pretrained(folder / "bloom")
    ids = torch.randint(TOKENS, (600,), generator=torch.Generator().manual_seed(1))
    np.save(folder / "ids.npy", ids.numpy())
    return folder


def bloom():
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    return LlamaForCausalLM(LlamaConfig(**shape, **COMMON, max_position_embeddings=0))


@pytest.fixture
def seen(monkeypatch):
    """The shapes of all that a model reads."""
    import transformers

    shapes = []
    for kind in (transformers.LlamaModel, transformers.GPT2Model):

        def forward(self, input_ids=None, *args, real=kind.forward, **options):
            shapes.append(tuple(input_ids.shape))
            return real(self, input_ids, *args, **options)

        monkeypatch.setattr(kind, "forward", forward)
    return shapes


def cache(place, out, model, *arguments, policy="h2o"):
    words = ["cache", str(place / model), "--text", str(place / "ids.npy"), "--out", str(out), "--policies", policy]
    return main([*words, "--keep", "0.2", *arguments])


def written(out):
    (path,) = out.glob("cache-*.json")
    return json.loads(path.read_text())


def recorded(out, kind="warning"):
    (path,) = (out / "runs").glob("*.sqlite")
    with Run.open(path) as run:
        return list(kept_sentences(run, kind))


@pytest.mark.parametrize(("arguments", "length"), [([], 64), (["--seq-len", "48"], 48), (["--seq-len", "100"], 100)])
def test_sequences_are_as_long_as_asked_and_never_longer_than_training_unless_asked(
    place, tmp_path, seen, arguments, length
):
    assert cache(place, tmp_path, "llama", *arguments) == 0
    assert {shape[1] for shape in seen} == {length}
    count = 600 // length
    assert sum(rows for rows, _ in seen) == 2 * count  # with the whole cache, and with a part of it
    assert (written(tmp_path)["length"], written(tmp_path)["sequences"]) == (length, count)


def test_beyond_training_is_a_warning_on_screen_in_json_and_in_the_record(place, tmp_path, capsys):
    assert cache(place, tmp_path, "llama", "--seq-len", "64") == 0
    assert "warning: " not in capsys.readouterr().out
    assert (written(tmp_path)["warnings"], recorded(tmp_path)) == ([], [])
    out = tmp_path / "longer"
    assert cache(place, out, "llama", "--seq-len", "65") == 0
    (warning,) = written(out)["warnings"]
    assert warning.startswith("sequences have 65 tokens, and as far as the config says the model was trained on at mos")
    assert f"warning: {warning}" in capsys.readouterr().out.splitlines()
    assert recorded(out) == [warning]


def test_a_config_that_says_nothing_is_a_note(place, tmp_path, capsys):
    assert cache(place, tmp_path, "bloom") == 0
    (note,) = written(tmp_path)["notes"]
    assert note.startswith("the config does not say how long the sequences of training were")
    assert f"note: {note}" in capsys.readouterr().out.splitlines()
    assert recorded(tmp_path, "note") == [note]
    assert written(tmp_path)["warnings"] == []


def test_learned_positions_end(place, tmp_path, capsys, seen):
    assert cache(place, tmp_path, "gpt2", "--seq-len", "65") == 2
    said = capsys.readouterr().err
    assert said == "joma: seq_len must be at most 64, where the positions of this gpt2 model end, got 65\n"
    assert not seen


def test_a_model_that_forgets_by_itself_is_read_no_further():
    from transformers import MistralConfig, Qwen2Config

    assert default_seq_len(MistralConfig(sliding_window=48)) == 48
    assert default_seq_len(MistralConfig(sliding_window=None)) == 512
    assert default_seq_len(Qwen2Config(sliding_window=48, use_sliding_window=False)) == 512


def test_intervals_are_paired_by_sequence(models, tmp_path):
    """Against numpy and scipy alone, from the losses of every token."""
    model, length = models["llama"], 40
    text = torch.randint(TOKENS, (7, length), generator=torch.Generator().manual_seed(4))
    with Run.create(tmp_path / "a.sqlite", study="cache", config={}) as run:
        found = measure(model, text, ["window", "h2o"], [8], run)
    base = losses(model, text).double().numpy()[:, length // 2 :].mean(1)
    for name in ("window", "h2o"):
        cut = losses(model, text, name, 8).double().numpy()[:, length // 2 :].mean(1)
        moved = cut - base
        half = stats.t.ppf(0.975, 6) * moved.std(ddof=1) / np.sqrt(7)
        (cost,) = found.of[name]
        told = cost.as_json()
        np.testing.assert_allclose([cost.added, cost.half_width], [moved.mean(), half], rtol=1e-7)
        np.testing.assert_allclose([told["low"], told["high"]], [moved.mean() - half, moved.mean() + half], rtol=1e-6)
        unpaired = stats.t.ppf(0.975, 6) * cut.std(ddof=1) / np.sqrt(7)
        assert abs(cost.half_width - unpaired) > 1e-3  # another interval would be another number
        assert f"{moved.mean():+.3f} ± {half:.3f}" in found.table()
    assert found.as_json()["interval"] == {
        "level": 0.95,
        "n": 7,
        "of": "added: sequence by sequence, the loss minus that of the whole cache on the same tokens",
        "why_none": None,
    }
    assert Costs(length, 2, 3.0, 3.1, {}).no_interval is None  # two are enough


def test_one_sequence_has_no_interval_and_it_says_why(place, tmp_path, capsys):
    assert cache(place, tmp_path, "llama", "--tokens", "64") == 0
    printed = capsys.readouterr().out
    why = "there is one sequence, and an interval needs at least two"
    assert f"no intervals: {why}\n" in printed
    assert "±" not in printed
    found = written(tmp_path)
    assert found["interval"]["why_none"] == why
    (cost,) = found["policies"]["h2o"]
    assert [cost[name] for name in ("half_width", "low", "high")] == [None] * 3


def test_a_window_that_beats_the_whole_cache_is_a_warning_only_beyond_chance(models, tokens, tmp_path, monkeypatch):
    def measured(gains, name="a"):
        """The warnings where a window gains so much in each sequence."""

        def made(model, text, policy, keep, **_):
            found = torch.full((len(gains), LENGTH - 1), 3.0)
            return found - torch.tensor(gains)[:, None] if policy == "window" else found

        monkeypatch.setattr("joma.cache.costs.losses", made)
        text = tokens[:1].expand(len(gains), -1)
        with Run.create(tmp_path / f"{name}.sqlite", study="cache", config={}) as run:
            found = measure(models["llama"], text, ["window", "top-k"], [8], run)
            assert kept_sentences(run) == found.warnings
        return found.warnings

    (warning,) = measured([0.11, 0.10, 0.12, 0.11])
    assert warning.startswith("a window of 8 keys has a loss 0.110 nats lower than the whole cache (95 % interval 0.09")
    assert warning.endswith("beyond the length of training, so try sequences of fewer than 40 tokens")
    assert ", n = 4): far keys harm this model" in warning
    assert measured([0.5, -0.3, 0.2, 0.1], "b") == ()  # may be chance
    assert measured([0.001, 0.001, 0.0011, 0.001], "c") == ()  # too little to matter
    assert measured([-0.11, -0.10, -0.12, -0.11], "d") == ()
    assert measured([0.5], "e") == ()


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """A model that was trained on 512 tokens, once as it says, once with a config that allows more; and its stories."""
    data = os.environ.get("JOMA_DATA")
    if not data or not (Path(data) / "stories260K").is_dir():
        pytest.skip("JOMA_DATA names no folder with stories260K")
    folder = tmp_path_factory.mktemp("story")
    model = load_model(Path(data) / "stories260K" / "stories260K.bin")
    options = {"max_new_tokens": STORY - 1, "do_sample": True, "top_k": 0, "pad_token_id": 0, "eos_token_id": None}
    torch.manual_seed(0)
    with torch.inference_mode():
        ids = model.generate(torch.ones(STORIES, 1, dtype=torch.long), **options)
    np.save(folder / "ids.npy", ids.flatten().numpy())
    model.save_pretrained(folder / "honest")
    model.config.max_position_embeddings = 4096
    model.save_pretrained(folder / "generous")
    return folder


@pytest.mark.long
def test_a_trained_model_is_read_at_its_length_and_a_window_costs(story, tmp_path, capsys):
    assert cache(story, tmp_path, "honest", policy="window") == 0
    found = written(tmp_path)
    assert (found["length"], found["sequences"], found["warnings"], found["notes"]) == (512, 12, [], [])
    assert found["policies"]["window"][0]["high"] > 0  # no gain that is more than chance
    assert "warning" not in capsys.readouterr().out


@pytest.mark.long
def test_twice_the_length_of_training_is_seen_though_the_config_allows_it(story, tmp_path, capsys):
    """There a plain window beats the whole cache: the config cannot say so, the numbers do."""
    assert cache(story, tmp_path / "a", "generous", "--seq-len", "1024", policy="window") == 0
    (warning,) = written(tmp_path / "a")["warnings"]
    assert warning.startswith("a window of 205 keys has a loss ")
    assert f"warning: {warning}" in capsys.readouterr().out.splitlines()
    assert recorded(tmp_path / "a") == [warning]
    assert cache(story, tmp_path / "b", "honest", "--seq-len", "1024", policy="window") == 0
    config, numbers = written(tmp_path / "b")["warnings"]
    assert "the model was trained on at most 512 (max_position_embeddings)" in config
    assert numbers == warning


@pytest.mark.parametrize(("kind", "policy"), some_now(product(KINDS, POLICIES), every=3))
def test_a_long_sequence_is_read_in_blocks_of_queries(models, tokens, kind, policy, monkeypatch):
    whole = losses(models[kind], tokens, policy, 10)
    for block in (1, 7):
        monkeypatch.setattr(_memory, "NUMBERS", 4 * LENGTH * block)
        found = losses(models[kind], tokens, policy, 10)
        torch.testing.assert_close(found, whole, rtol=0, atol=1e-6 if kind == "llama" else 1e-12)


@pytest.mark.parametrize("policy", some_now(POLICIES[1:], every=3))
def test_no_tensor_has_all_queries_and_all_keys(models, policy, monkeypatch):
    length, heads = 256, 4
    model = fresh("llama").eval()
    text = torch.randint(TOKENS, (1, length), generator=torch.Generator().manual_seed(0))
    with LargestTensor() as mode:
        losses(model, text, policy, 10)
    assert mode.numbers >= length**2
    monkeypatch.setattr(_memory, "NUMBERS", heads * length * 16)
    with LargestTensor() as mode:
        losses(model, text, policy, 10)
    assert mode.numbers <= heads * length * 32 < length**2


def test_logits_that_cannot_fit_are_refused_before_the_model_runs(models, tokens, monkeypatch, seen):
    monkeypatch.setattr(_memory, "NUMBERS", LENGTH * TOKENS - 1)
    monkeypatch.setattr(_losses, "free_memory", lambda _: 10_000)
    sentence = "one sequence of 40 tokens needs 0.0 GB for its logits over 32 words, and 0.0 GB are free: read shorter"
    with pytest.raises(CacheError, match=sentence):
        losses(models["gpt2"], tokens, "window", 10)
    assert not seen
    monkeypatch.setattr(_losses, "free_memory", lambda _: LENGTH * TOKENS * 16)
    assert losses(models["gpt2"], tokens, "window", 10).isfinite().all()


def test_a_table_without_intervals():
    one = Cost(rule("window", 8, 64), 0.125, 3.2, 0.2, float("nan"), 3.2)
    assert Costs(64, 1, 3.0, 3.1, {"window": [one]}).table() == "policy  12.5 %\nwindow  +0.200"
