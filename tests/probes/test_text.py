"""Attention entropy of a text: windows, limits, and a really trained model."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import TOKENS, build, inputs

from joma.probes import ProbeError, attention_entropy, attention_means, collect


def text(length=150):
    return torch.randint(TOKENS, (length,), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("kind", ["gpt_neox", "bert"])
def test_windows_of_a_text_are_averaged(kind):
    model = build(kind).train()
    got = attention_entropy(model, text(), context=16, batch=4)
    assert got.shape == (2, 4)
    assert got.dtype == torch.float64
    assert model.training
    model.eval()
    with torch.no_grad(), collect(model) as probe:
        model(input_ids=text()[:144].view(9, 16))
    torch.testing.assert_close(got, probe.mean_entropy())
    assert torch.equal(attention_entropy(model, text()[:149], context=16, batch=4), got)


@pytest.mark.parametrize("given", [torch.Tensor.tolist, torch.Tensor.numpy])
def test_tokens_come_as_a_tokenizer_gives_them(given):
    model = build("gpt_neox")
    assert torch.equal(
        attention_entropy(model, given(text()), context=16), attention_entropy(model, text(), context=16)
    )


def test_a_batch_of_texts_is_read_row_by_row():
    model, rows = build("gpt_neox"), text(160).view(4, 40)
    each = [attention_entropy(model, row, context=16) for row in rows]
    torch.testing.assert_close(attention_entropy(model, rows, context=16, batch=3), torch.stack(each).mean(0))
    whole = attention_entropy(model, rows.tolist())  # shorter than 512 and than what the model reads: read whole
    torch.testing.assert_close(whole, attention_entropy(model, rows, context=40))
    assert not torch.allclose(whole, attention_entropy(model, rows, context=16))


def test_the_context_is_what_the_model_reads_unless_given():
    model = build("gpt_neox")
    assert torch.equal(attention_entropy(model, text(250)), attention_entropy(model, text(250), context=64))


@pytest.mark.parametrize("training", [False, True])
def test_a_compiled_model_reads_a_text(training):
    model = build("gpt_neox").train(training)
    compiled = torch.compile(model, backend="eager")
    assert torch.equal(attention_entropy(compiled, text(), context=16), attention_entropy(model, text(), context=16))
    assert compiled.training is model.training is training


@pytest.mark.parametrize(("options", "sentence"), [
    ({"context": 0}, "context and batch must be at least 1, got 0 and 8"),
    ({"context": 16, "tokens": text(9)}, "the text has 9 tokens, fewer than the context of 16"),
    ({"context": 16, "tokens": text().float()}, r"tokens must be token ids, .* got torch.float32"),
    ({"tokens": []}, r"tokens must be token ids, \(length,\) of one text or \(texts, length\), got"),
    ({"context": 16, "tokens": "once"},
     "tokens must be a real number, a list or an array of them, or a tensor, got 'once'"),
    ({"context": 16, "tokens": [[1, 2], [3]]},
     "tokens must be a real number, a list or an array of them, or a tensor, got"),
    ({"context": 16, "tokens": np.zeros((2, 3, 16), int)}, "tokens must be token ids, .* got torch.int64"),
    ({"context": 16, "tokens": np.zeros((2, 9), int)}, "the text has 9 tokens, fewer than the context of 16"),
    ({"context": 16, "tokens": text() + 50}, f"token ids must be from 0 to {TOKENS - 1}"),
])  # fmt: skip
def test_a_text_that_does_not_fit_gets_one_sentence(options, sentence):
    tokens = options.pop("tokens", text(250))
    with pytest.raises(ValueError, match=sentence):
        attention_entropy(build("gpt_neox"), tokens, **options)


def test_means_of_sparsity_need_a_number_of_keys():
    for given in (None, 0):
        with pytest.raises(ValueError, match=rf"^sparsity must be a number of keys, at least 1,.* got {given}$"):
            attention_means(build("gpt_neox"), text(), sparsity=given)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA here")
def test_cuda_where_there_is_none():
    with pytest.raises(ValueError, match="device cuda needs a CUDA GPU, and torch sees none here"):
        attention_entropy(build("gpt_neox"), text(), context=16, device="cuda")


def test_models_of_two_texts_are_refused():
    with pytest.raises(ProbeError, match="T5Model reads two texts"):
        attention_entropy(build("t5"), text(), context=16)
    assert inputs("t5").keys() == {"input_ids", "decoder_input_ids"}


@pytest.fixture(scope="module")
def stories():
    folder = os.environ.get("JOMA_DATA")
    if not folder or not (Path(folder) / "stories260K").is_dir():
        pytest.skip("JOMA_DATA names no folder with stories260K")
    return Path(folder) / "stories260K"
