"""Attention entropy over a series: a text, its tokens, and what is wrong with them."""

import numpy as np
import pytest
import torch
from checkpoint_series import LAYERS, WORDS, make_series, scan
from hub_server import Repository, serving

from joma import hub_client


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "tokens.npy"
    np.save(path, np.random.default_rng(0).integers(0, WORDS, 100).astype(np.uint16))
    return path


def slow_entropy(folder, tokens):
    """(layers,) from the attention weights themselves."""
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


def test_texts_are_read_with_the_models_own_tokenizer(neox, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = make_series(neox, tmp_path / "series", (0, 1))
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(WORDS)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    for step in folder.iterdir():
        PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(step)
    ids = np.random.default_rng(0).integers(0, WORDS, 50)
    np.save(tmp_path / "ids.npy", ids)
    (tmp_path / "text.txt").write_text(" ".join(f"w{i}" for i in ids))
    one, other = (
        scan(folder, "--measures", "entropy", "--text", tmp_path / name, out=tmp_path / name.replace(".", "-"))[1]
        for name in ("ids.npy", "text.txt")
    )
    assert one["curves"]["entropy"] == other["curves"]["entropy"]


def test_texts_that_do_not_do(series, tokens, tmp_path):
    np.save(tmp_path / "short.npy", np.arange(10))
    np.save(tmp_path / "floats.npy", np.ones(100))
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    np.save(tmp_path / "large.npy", np.arange(WORDS + 1))
    (tmp_path / "text.txt").write_text("hello")
    for name, word in (
        ("short.npy", "10 tokens, fewer than the context of 16"),
        ("floats.npy", "one row of token ids"),
        ("objects.npy", "cannot be read"),
        ("missing.txt", "cannot be read"),
        ("text.txt", "no tokenizer"),
        ("large.npy", "token 64, and the model knows 0 to 63"),
    ):
        with pytest.raises(ValueError, match=word):
            scan(series, "--measures", "entropy", "--text", tmp_path / name, out=tmp_path / "out")
        assert not (tmp_path / "out" / "runs").exists()
    with pytest.raises(ValueError, match=r"without a config\.json"):
        scan(series / "step1" / "model.safetensors", "--measures", "entropy", "--text", tokens, out=tmp_path / "out")


def test_entropy_from_the_hub(series, tokens, tmp_path, monkeypatch):
    monkeypatch.setattr(hub_client, "PAUSE", 0.01)
    revisions = {
        folder.name: {path.name: path.read_bytes() for path in folder.iterdir()} for folder in series.iterdir()
    }
    with serving(Repository("a/b", revisions)) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        status, found = scan("a/b", "--measures", "entropy", "--text", tokens, out=tmp_path / "out")
    assert status == 0
    local = scan(series, "--measures", "entropy", "--text", tokens, out=tmp_path / "local")[1]
    assert found["curves"] == local["curves"]
