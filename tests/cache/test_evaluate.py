"""`joma.cache.evaluate`: the command's answer in one call, for a folder and for a model that is loaded."""

import json

import numpy as np
import pytest
import torch
from tiny_models import LENGTH, TOKENS, fresh

from joma.cache import evaluate
from joma.cli.main import main
from joma.host.errors import BadInput

IDS = torch.randint(TOKENS, (200,), generator=torch.Generator().manual_seed(1))
ASKED = {"policies": ["window", "random"], "budgets": [0.25, 16], "seq_len": LENGTH, "seed": 3}


def test_a_folder_a_loaded_model_and_the_command_give_the_same(tmp_path, capsys):
    model = fresh("llama").eval()
    model.save_pretrained(tmp_path / "model")
    np.save(tmp_path / "ids.npy", IDS.numpy())
    loaded = evaluate(model, IDS, **ASKED)
    from_folder = evaluate(tmp_path / "model", tmp_path / "ids.npy", **ASKED)
    words = ["cache", str(tmp_path / "model"), "--text", str(tmp_path / "ids.npy"), "--out", str(tmp_path / "out")]
    options = ["--policies", "window,random", "--keep", "0.25", "16", "--seq-len", str(LENGTH), "--seed", "3"]
    assert main([*words, *options, "--json", "-"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {key: printed[key] for key in loaded.as_json()} == loaded.as_json() == from_folder.as_json()
    assert (loaded.run, from_folder.run, from_folder.name) == (None, None, "model")
    rows = IDS[: 5 * LENGTH].view(5, LENGTH)
    assert evaluate(model, rows, **{**ASKED, "seq_len": None}).as_json() == loaded.as_json()


def test_losses_are_kept_where_a_folder_is_given(tmp_path, monkeypatch):
    fresh("llama").save_pretrained(tmp_path / "model")
    first = evaluate(tmp_path / "model", IDS, out=tmp_path / "out", **ASKED)
    monkeypatch.setattr("joma.cache.costs.losses", None)  # nothing is left to measure
    assert evaluate(tmp_path / "model", IDS, out=tmp_path / "out", **ASKED) == first
    assert first.run.is_file()


def test_another_length_of_sequences_is_another_run_and_another_version_is_refused(tmp_path, monkeypatch):
    """The tokens are the same 192: only how they are cut tells the two apart."""
    fresh("llama").save_pretrained(tmp_path / "model")
    few = {"policies": ["window"], "budgets": [4], "out": tmp_path / "out", "tokens": 192}
    long, short = (evaluate(tmp_path / "model", IDS, **few, seq_len=n) for n in (24, 12))
    assert (long.sequences, short.sequences) == (8, 16)
    assert long.run != short.run
    monkeypatch.setattr("joma.cache.evaluation.VERSION", 99)
    with pytest.raises(BadInput, match="was measured by another version of joma; measure it afresh") as caught:
        evaluate(tmp_path / "model", IDS, **few, seq_len=24)
    assert caught.value.argument == "fresh"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"seq_len": 201}, "is too short: one sequence has 201 tokens, and there are 200"),
        ({"out": "somewhere"}, "out keeps losses by the files of a model"),
    ],
)
def test_bad_input_gets_one_sentence(options, sentence):
    with pytest.raises(BadInput, match=sentence):
        evaluate(fresh("llama"), IDS, **options)


def test_words_need_a_tokenizer(tmp_path):
    (tmp_path / "text.txt").write_text("some words")
    with pytest.raises(BadInput, match="a loaded model brings no tokenizer"):
        evaluate(fresh("llama"), tmp_path / "text.txt")
