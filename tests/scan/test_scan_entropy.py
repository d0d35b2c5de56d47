"""Attention entropy over a series: a text, its tokens, and what is wrong with them."""

import io
import json
import sys
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from checkpoint_series import LAYERS, WORDS, change, scan
from hub_server import Repository, serving

from joma.measure import registry
from joma.scan import CheckpointError, sweep
from joma.scan.model.allocation import must_have_gradients
from joma.scan.model.running import must_attend, must_show_queries


def slow_entropy(folder, tokens):
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    windows = torch.from_numpy(np.load(tokens).astype(np.int64))[:96].view(6, 16)
    with torch.no_grad():
        weights = model(windows, output_attentions=True).attentions
    return torch.stack([torch.special.entr(layer.double()).sum(-1).mean((0, 2)) for layer in weights])


def test_entropy_of_every_layer_and_head(series, tokens, tmp_path):
    status, found = scan(series, "--measures", "entropy,stable_rank", "--text", tokens, out=tmp_path / "out")
    assert status == 0
    values = torch.tensor(found["curves"]["entropy"]["values"])
    assert values.shape == (5, LAYERS, 4)
    for at, step in enumerate(found["steps"]):
        torch.testing.assert_close(values[at].double(), slow_entropy(series / f"step{step}", tokens), rtol=0, atol=1e-4)


QUERIES = "gpt_neox.layers.1.attention.query_key_value.weight"
EMBEDDING = "gpt_neox.embed_in.weight"


@pytest.mark.parametrize("name", [QUERIES, EMBEDDING])
def test_nan_in_any_weight_of_the_model_is_left_out(series, tokens, tmp_path, name):
    # In the vector of one word it leaves the means finite: they run over the queries that do not see it.
    change(series / "step2", lambda t: t[name].view(-1)[5:6].fill_(float("nan")))
    status, found = scan(series, "--measures", "stable_rank,entropy", "--text", tokens, out=tmp_path / "out")
    assert status == 3
    assert found["steps"] == [0, 1, 2, 10, 100]  # the stable ranks of other matrices stay
    faults = {fault["measure"]: fault for fault in found["left_out"]}
    spoilt = {"entropy", "stable_rank/attention_qkv"} if name == QUERIES else {"entropy"}
    assert faults.keys() == spoilt
    assert {fault["step"] for fault in faults.values()} == {2}
    assert f"{name.removeprefix('gpt_neox.')} has 1 of" in faults["entropy"]["what"]
    for curve in found["curves"]:
        numbers = np.array(found["curves"][curve]["values"], dtype=float)
        assert np.isnan(numbers[2]).all() == (curve in spoilt)
        assert np.isfinite(np.delete(numbers, 2, axis=0)).all()


def test_numbers_that_overflow_are_left_out(series, tokens, tmp_path):
    change(series / "step2", lambda t: t[QUERIES].fill_(1e38))
    status, found = scan(series, "--measures", "entropy", "--text", tokens, out=tmp_path / "out")
    assert (status, found["steps"]) == (3, [0, 1, 10, 100])
    assert "NaN or infinity on the text" in found["left_out"][0]["what"]


def test_a_tensor_that_is_missing_is_not_made_up(series, tokens, tmp_path):
    """transformers would put random numbers in its place."""
    change(series / "step2", lambda t: t.pop(QUERIES))
    status, found = scan(series, "--measures", "entropy", "--text", tokens, out=tmp_path / "out")
    assert (status, found["steps"]) == (3, [0, 1, 10, 100])
    assert f"its weights lack {QUERIES.removeprefix('gpt_neox.')}" in found["left_out"][0]["what"]


def test_a_matrix_that_a_measure_refuses_is_a_fault_of_its_step(series, tmp_path, monkeypatch):
    change(series / "step2", lambda t: t[EMBEDDING].view(-1)[0].fill_(77.0))
    measured = registry.coherence

    def particular(vectors, **options):
        if (vectors == 77.0).any():
            raise ValueError("vectors must not hold 77")
        return measured(vectors, **options)

    monkeypatch.setattr(registry, "coherence", particular)
    status, found = scan(series, "--measures", "coherence", out=tmp_path / "out")
    assert (status, found["steps"]) == (3, [0, 1, 10, 100])
    assert found["left_out"][0]["what"].endswith("vectors must not hold 77")


def test_heads_that_a_layer_does_not_have_are_no_fault(series, tokens, tmp_path, monkeypatch):
    values = torch.tensor([[1.0, 2.0], [1.0, torch.nan]])
    monkeypatch.setattr("joma.probes.Probe.mean", lambda *_: values)
    status, found = scan(series, "--measures", "entropy", "--text", tokens, out=tmp_path / "out")
    assert status == 0
    assert found["curves"]["entropy"]["values"][0] == [[1.0, 2.0], [1.0, None]]


def test_a_checkpoint_without_config_cannot_be_run(series, tokens, tmp_path):
    (series / "step0" / "config.json").unlink()
    status, found = scan(series, "--measures", "entropy", "--text", tokens, out=tmp_path / "out")
    assert (status, found["steps"]) == (3, [1, 2, 10, 100])
    assert "no config.json" in found["left_out"][0]["what"]


def test_a_long_text_says_how_far_it_is(series, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys.modules[sweep.__module__], "_SILENCE", -1.0)
    np.save(tmp_path / "long.npy", np.arange(150) % WORDS)  # a batch of 8 windows of 16, and another
    assert (
        scan(series / "step2", "--measures", "entropy", "--text", tmp_path / "long.npy", out=tmp_path / "out")[0] == 0
    )
    shown = capsys.readouterr()
    assert "step 2  0 of 150 tokens" in shown.err
    assert "step 2  128 of 150 tokens" in shown.err
    assert "of 150 tokens" not in shown.out  # which is the same on a slow machine


def test_an_interrupt_stops_a_running_model_at_its_next_layer(series, tokens, tmp_path):
    from joma.scan.model.running import statistics

    class Stopped(Exception):
        pass

    told = []

    def between(doing):
        told.append(doing)
        if len(told) == 5:
            raise Stopped

    with pytest.raises(Stopped):
        statistics(series / "step2", torch.arange(32), torch.device("cpu"), between, {"entropy"})
    assert told[1:] == ["0 of 32 tokens"] * 4


def words_of(folder):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(WORDS)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)


def test_stable_ranks_stay_where_entropy_is_refused(series, tokens, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("joma.probes.can_probe", lambda config: f"{config.model_type} models cannot be measured")
    status, found = scan(series, "--measures", "entropy,stable_rank", "--text", tokens, out=tmp_path / "out")
    assert status == 3
    assert found["steps"] == [0, 1, 2, 10, 100]
    assert found["refused"] == {"entropy": "step0: gpt_neox models cannot be measured"}
    assert "entropy" not in found["curves"]
    assert found["left_out"] == []
    assert "refused: entropy: step0: gpt_neox models cannot be measured" in capsys.readouterr().out
    with pytest.raises(CheckpointError, match="cannot be measured"):
        scan(series, "--measures", "entropy", "--text", tokens, out=tmp_path / "out")


def test_what_an_architecture_cannot_give_is_refused_before_anything_is_downloaded(tokens, tmp_path, monkeypatch):
    config = {"model_type": "t5", "vocab_size": 64, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    asked = []
    files = {
        "config.json": json.dumps({**config, "is_encoder_decoder": True}).encode(),
        "pytorch_model.bin": b"x" * 999,
    }
    with serving(Repository("a/b", {"step0": files})) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setattr("joma.scan.sources.hub.HubRevision.open", lambda self: asked.append(self))
        with pytest.raises(CheckpointError, match="step0: t5 models read two texts"):
            scan("a/b", "--measures", "entropy", "--text", tokens, out=tmp_path / "out")
    assert asked == []
    assert not (tmp_path / "out" / "joma-downloads").exists()


def test_entropy_does_not_ask_for_names_of_matrices(series, tokens, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["joma.scan.sweep.plan"], "find_groups", lambda *_, **__: {})
    status, found = scan(series, "--measures", "entropy", "--text", tokens, out=tmp_path / "out")
    assert (status, list(found["curves"]), found["steps"]) == (0, ["entropy"], [0, 1, 2, 10, 100])
    assert any("were not compared with each other" in note for note in found["notes"])


CODE = """
import pathlib
from transformers import GPTNeoXConfig, GPTNeoXModel, PreTrainedTokenizerFast
pathlib.Path({ran!r}).touch()
class Config(GPTNeoXConfig): model_type = "stranger"
class Model(GPTNeoXModel): config_class = Config
class Words(PreTrainedTokenizerFast): pass
"""


@pytest.fixture
def with_code(series, tmp_path):
    """A checkpoint that comes with code of its own; the code leaves the file `ran`."""
    folder = series / "step2"
    (folder / "code.py").write_text(CODE.format(ran=str(tmp_path / "ran")))
    config = json.loads((folder / "config.json").read_text())
    named = {"AutoConfig": "code.Config", "AutoModel": "code.Model", "AutoTokenizer": ["code.Words", "code.Words"]}
    del config["model_type"]  # nothing that transformers knows
    (folder / "config.json").write_text(json.dumps({**config, "auto_map": named}))
    words = {"tokenizer_class": "Words", "auto_map": {"AutoTokenizer": ["code.Words", "code.Words"]}}
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(json.dumps(words))
    return folder


class Eager(io.StringIO):
    """Says yes to everything, and remembers that it was asked."""

    asked = False

    def readline(self, *_):
        self.asked = True
        return "yes\n"


@pytest.mark.parametrize("kind", ["AutoConfig", "AutoTokenizer", "AutoModel"])
def test_code_that_comes_with_a_checkpoint_never_runs(with_code, tmp_path, monkeypatch, kind):
    from joma.scan.model import loading

    if kind == "AutoModel":  # its config is refused first; one that transformers knows leads on to the model
        config = json.loads((with_code / "config.json").read_text())
        config["auto_map"].pop("AutoConfig")
        config |= {
            "model_type": "encoder-decoder",
            "encoder": {"model_type": "bert"},
            "decoder": {"model_type": "bert"},
        }
        (with_code / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(sys, "stdin", Eager())
    with pytest.raises(CheckpointError, match="needs Python code that comes with the checkpoint"):
        loading.pretrained(kind, with_code, "it")
    assert not sys.stdin.asked
    assert not (tmp_path / "ran").exists()


def test_no_answer_makes_a_scan_run_the_code_of_a_checkpoint(with_code, tokens, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Eager())
    arguments = ("--measures", "entropy", "--text")
    status, found = scan(with_code.parent, *arguments, tokens, out=tmp_path / "series")
    assert (status, found["steps"]) == (3, [0, 1, 10, 100])
    assert found["left_out"][0]["what"].endswith("(auto_map), and joma never runs such code")
    (tmp_path / "text.txt").write_text("some words")
    for text in (tokens, tmp_path / "text.txt"):
        with pytest.raises(CheckpointError, match="joma never runs such code"):
            scan(with_code, *arguments, text, out=tmp_path / "one")
    assert not sys.stdin.asked
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("refuses", "kind", "sentence"), [
    (must_attend, "llama", None),
    (must_attend, "gpt2", None),
    (must_attend, "xlnet", None),  # its config says that it reads -1 tokens at a time: as many as there are
    (must_attend, "mamba", "mamba models have no softmax to read"),
    (must_attend, "vit", r"it \(vit\) is not a language model"),
    (must_attend, "t5", "read two texts"),
    (must_show_queries, "vit", r"it \(vit\) is not a language model"),  # whatever the probe could look at
    (must_have_gradients, "gpt_neox", None),
    (must_have_gradients, "llama", None),
    (must_have_gradients, "gpt2", None),
    (must_have_gradients, "bloom",
     "it: bloom models compute attention by themselves, so that joma has no gradient of their entropy"),
    (must_have_gradients, "bert", r"allocation is of models that predict the next token, and it \(bert\) does not"),
    (must_have_gradients, "mamba", "have no softmax to read"),
])  # fmt: skip
def test_a_config_alone_says_whether_a_model_suits_a_measure(refuses, kind, sentence):
    from transformers import AutoConfig

    expected = nullcontext() if sentence is None else pytest.raises(CheckpointError, match=sentence)
    with expected:
        refuses(AutoConfig.for_model(kind), "it")
