"""The text of a scan, without a model: which token ids are taken, who makes them, and what is said before."""

import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from joma.host import limits
from joma.host.errors import BadInput
from joma.scan.errors import CheckpointError, Unmeasurable
from joma.scan.model import allocation, loading, running, text

CONFIG = SimpleNamespace(vocab_size=50, max_position_embeddings=16)


def sentence(call):
    with pytest.raises((BadInput, CheckpointError)) as caught:
        call()
    return str(caught.value)


def test_ids_must_be_known_and_enough_for_a_window(tmp_path):
    path = tmp_path / "a.npy"

    def of(ids, **more):
        np.save(path, np.asarray(ids))
        return text.tokens_of(None, CONFIG, path, None, **more)

    assert of(np.arange(16, dtype=np.uint16) + 34).tolist() == list(range(34, 50))
    assert of([0] * 16).dtype == torch.int64
    assert of([7, 8, 9], seq_len=3).tolist() == [7, 8, 9]
    for ids, seq_len, said in (
        (range(15), None, "has 15 tokens, and at least 16 are needed: give 1 more token"),
        (range(3), 5, "has 3 tokens, and at least 5 are needed: give 2 more tokens"),
        ([*range(16), 50], None, "has token 50, and the model knows 0 to 49"),
        ([-1, *range(16)], None, "has token -1, and the model knows 0 to 49"),
        ([[1] * 20], None, "must hold one row of token ids, got int64 (1, 20)"),
        ([1.0] * 20, None, "must hold one row of token ids, got float64 (20,)"),
    ):
        assert sentence(lambda ids=ids, seq_len=seq_len: of(ids, seq_len=seq_len)) == f"text {path} {said}"
    words = sentence(lambda: text.tokens_of(None, CONFIG, path, tmp_path))
    assert words == f"a tokenizer is for words, but text {path} holds token ids already"


@pytest.fixture
def tokenizers(monkeypatch):
    asked = []

    def ids(folder, content, what):
        asked.append((folder, what))
        return [ord(letter) - ord("a") for letter in content]

    monkeypatch.setattr(text, "token_ids", ids)
    return asked


def test_a_tokenizer_is_that_of_the_checkpoint_or_of_its_parent_or_the_one_that_is_named(tmp_path, tokenizers):
    words = tmp_path / "a.txt"
    words.write_text("abcdefghijklmnopqrst")
    run, other = tmp_path / "run", tmp_path / "other"
    folder = run / "step7"
    folder.mkdir(parents=True)
    other.mkdir()

    @contextmanager
    def there():
        yield folder

    place = SimpleNamespace(name="step7", path=folder, folder=there)

    def read(tokenizer=None):
        return text.tokens_of(place, CONFIG, words, tokenizer)

    assert sentence(read) == "step7 has no tokenizer; name one, or give the text's token ids as .npy"
    (run / "vocab.txt").touch()
    assert read().tolist() == list(range(20))
    (folder / "tokenizer.json").touch()
    read()
    assert sentence(lambda: read(other)).startswith(f"tokenizer {other} has none of tokenizer.json, ")
    (other / "spiece.model").touch()
    read(other)
    read(other / "spiece.model")
    assert tokenizers == [
        (run, "step7"), (folder, "step7"), (other, str(other)), (other, str(other / "spiece.model"))
    ]  # fmt: skip
    words.write_bytes(b"\xff")
    assert sentence(read).startswith(f"text {words} cannot be read: ")
    words.unlink()
    assert sentence(read) == f"text {words} cannot be read: it is missing, or no plain file"


def test_a_tokenizer_is_given_time_by_the_length_of_the_text(tmp_path, monkeypatch):
    assert sentence(lambda: text.token_ids(tmp_path, "a", "step7")) == (
        "step7 has no tokenizer; give the token ids of the text as a .npy file"
    )
    (tmp_path / "tokenizer.json").touch()
    monkeypatch.setattr(limits, "TOKENIZER_SECONDS", 4.0)
    monkeypatch.setattr(text, "transformers_library", lambda: None)
    answers = [b'{"ids": [3, 1, 2]}', b'{"error": "it is strange"}', b"", None, signal.SIGXCPU]
    given = []

    def run(command, *, input, timeout, env, **_):
        given.append((command[-3:], input, timeout, env["HF_HUB_OFFLINE"]))
        answer = answers.pop(0)
        if answer is None:
            raise subprocess.TimeoutExpired(command, timeout)
        if isinstance(answer, int):
            return SimpleNamespace(stdout=b"", returncode=-answer)
        return SimpleNamespace(stdout=answer, returncode=-6)

    monkeypatch.setattr(subprocess, "run", run)
    long = "é" * 300_000

    def ids():
        return text.token_ids(tmp_path, long, "step7")

    assert ids() == [3, 1, 2]
    assert sentence(ids) == "it is strange"
    assert sentence(ids) == "the tokenizer of step7 broke down over the text (status -6)"
    assert sentence(ids) == "the tokenizer of step7 did not end in 1800 s and was given up"
    assert sentence(ids) == "the tokenizer of step7 took more than 7 s of processor time for the text and was given up"
    assert given == [([str(tmp_path), "step7", "7"], long.encode(), 1800.0, "1")] * 5


@pytest.mark.parametrize(("most", "read"), [(50, 1 << 16), (40_000, 8 * 40_256), (None, 900_000)])
def test_no_more_of_a_text_is_read_than_is_needed(most, read, tmp_path, monkeypatch):
    """Of tokens that are one letter long, the first `most` and a margin."""
    words = tmp_path / "a.txt"
    words.write_text("abcdefghi" * 100_000)
    (tmp_path / "tokenizer.json").touch()
    lengths = []

    def ids(folder, content, what):
        lengths.append(len(content))
        return [ord(letter) - ord("a") for letter in content]

    monkeypatch.setattr(text, "token_ids", ids)
    found = text.tokens_of(None, CONFIG, words, tmp_path, most=most)
    assert lengths == [read]
    assert found.tolist() == [at % 9 for at in range(900_000 if most is None else most)]


@pytest.mark.parametrize("most", [None, 40])
def test_a_text_that_ends_within_a_letter_is_refused(most, tmp_path, monkeypatch):
    words = tmp_path / "a.txt"
    words.write_bytes(b"a" * 999 + "é".encode()[:1])
    (tmp_path / "tokenizer.json").touch()
    monkeypatch.setattr(text, "token_ids", lambda folder, content, what: [1] * len(content))
    assert "cannot be read: 'utf-8' codec can't decode byte 0xc3 in position 999" in sentence(
        lambda: text.tokens_of(None, CONFIG, words, tmp_path, most=most)
    )


@pytest.mark.skipif(loading.resource is None, reason="processes have no such limits here")
def test_what_a_process_used_before_the_tokenizer_is_not_counted(monkeypatch):
    """Loading the libraries takes seconds of the processor."""
    given = []
    monkeypatch.setattr(loading, "process_time", lambda: 12.3)
    monkeypatch.setattr(loading.resource, "setrlimit", lambda which, both: given.append((which, both)))
    loading._end_after(7)
    assert given == [(loading.resource.RLIMIT_CPU, (20, 25))]


def test_a_text_of_long_tokens_is_read_further(tmp_path, monkeypatch):
    words = tmp_path / "a.txt"
    words.write_text("\u00e9" * 500_000, encoding="utf-8")
    (tmp_path / "tokenizer.json").touch()
    lengths = []

    def ids(folder, content, what):
        lengths.append(len(content))
        return [7] * (len(content) // 1000)  # a token has 2,000 bytes

    monkeypatch.setattr(text, "token_ids", ids)
    found = text.tokens_of(None, SimpleNamespace(vocab_size=9), words, tmp_path, most=100)
    assert lengths == [2**15, 2**17, 500_000]
    assert len(found) == 500


class Small(nn.Module):
    """As much of a model as is looked at before it runs."""

    def __init__(self, value=1.0):
        super().__init__()
        self.words = nn.Embedding(5, 2, padding_idx=3)
        self.out = nn.Linear(2, 3)
        self.base_model = self.words
        with torch.no_grad():
            self.out.bias[1] = value


@pytest.mark.parametrize("value", [1.0, torch.nan, -torch.inf])
def test_a_model_is_loaded_after_a_word_and_must_be_finite(monkeypatch, value):
    did = []

    def loaded(folder, device, *, with_head):
        did.append((folder, with_head))
        return Small(value)

    monkeypatch.setattr(allocation, "loaded_model", loaded)
    load = lambda: allocation.loaded_whole(Path("step7"), torch.device("cpu"), did.append)
    if value == 1.0:
        assert load().words.padding_idx is None
    else:
        assert sentence(load) == "out.bias has 1 of 3 values that are NaN or infinite"
    assert did == ["about to load the model", (Path("step7"), True)]


def test_a_running_model_tells_how_many_tokens_it_has_read():
    told = []
    model = nn.Sequential(nn.Identity())

    def read(*, input_ids):
        return SimpleNamespace(last_hidden_state=model(input_ids.double()))

    base = nn.Module()
    base.forward = read
    base.inner = model
    base.base_model = base  # itself, as where there is no head
    object.__setattr__(base, "modules", lambda: [base, model])
    running._watch(base, 5000, told.append)
    base(input_ids=torch.ones(3, 500))
    base(input_ids=torch.ones(2, 500))
    assert told == ["0 of 5,000 tokens"] * 2 + ["1,500 of 5,000 tokens"] * 2
    with pytest.raises(Unmeasurable, match=r"computes NaN or infinity on the text in torch\.float64"):
        base(input_ids=torch.full((1, 2), torch.nan))
