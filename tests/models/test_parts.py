"""A training step compiled by its parts: the same numbers, and a block is compiled once, not once a layer."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters

from joma.models import Decoder, DecoderConfig
from joma.models.dropout import keys, onwards
from joma.models.parts import compiled_part, compiled_parts
from joma.training import next_token_loss
from joma.training.engine import room_to_compile

# torch keeps this to itself, unless warnings are errors
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")

CONFIG = DecoderConfig(vocabulary=50, width=8, mlp=16, context=10, dropout=0.3)


def step(decoder, compiler):
    text = torch.arange(44).view(4, 11) % 50
    with compiled_parts(compiler):
        noise = keys(decoder.seeds, torch.tensor(7, dtype=torch.int32))
        losses = next_token_loss(decoder, (text[:, :-1], text[:, 1:]), noise)
    return [losses, *torch.autograd.grad(losses.sum(), list(decoder.parameters()))]


def graphs():
    return counters["stats"]["unique_graphs"]


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "pre-layer", "activation": "gelu", "heads": 2},
        {"norm": "post-rms", "embeddings": "frozen", "positions": "learned"},
        {"norm": "none", "mlp": 0, "activation": "identity", "residual": False, "positions": "none"},
    ],
    ids=str,
)
def test_compiled_parts_give_the_same_numbers(changes):
    decoder = Decoder(CONFIG.with_(layers=3, **changes), seeds=[3, 4]).double()
    with room_to_compile():
        for compiled, plain in zip(step(decoder, "aot_eager"), step(decoder, None), strict=True):
            torch.testing.assert_close(compiled, plain, rtol=1e-10, atol=1e-12)


@pytest.mark.long
def test_a_block_is_compiled_once_and_depths_share_the_rest():
    with room_to_compile():
        counters.clear()
        step(Decoder(CONFIG.with_(layers=2), seeds=[3, 4]), "aot_eager")
        of_two = graphs()
        assert of_two == 4  # keys, embedding, block, cross-entropy
        step(Decoder(CONFIG.with_(layers=7), seeds=[3, 4]), "aot_eager")
        assert graphs() == of_two + 1  # a block between whose members lie more layers
        step(Decoder(CONFIG.with_(layers=7), seeds=[5, 6]), "aot_eager")
        assert graphs() == of_two + 1


@pytest.mark.parametrize(("mlp", "places"), [(16, 13), (0, 7)])
def test_layers_do_not_share_their_dropout(monkeypatch, mlp, places):
    """Every block has its own key, though it is compiled for all; none of its places is that of another."""
    decoder = Decoder(CONFIG.with_(layers=3, mlp=mlp, activation="identity"), seeds=[3])
    noise = keys(decoder.seeds, 0)
    used = []

    def noted(x, probability, key, place):
        used.append(onwards(key, place).item())
        return x

    monkeypatch.setattr("joma.models.decoder.dropout", noted)
    decoder.features(torch.zeros(1, 10, dtype=torch.long), noise=noise)
    assert used == [onwards(noise, place).item() for place in range(1, places + 1)]


@compiled_part
def outer(x):
    return inner(x) + 1


@compiled_part
def inner(x):
    return 2 * x


def test_a_part_of_a_part_is_compiled_with_it():
    with room_to_compile(), compiled_parts("aot_eager"):
        counters.clear()
        assert outer(torch.ones(1)).item() == 3
        assert graphs() == 1


def test_parts_run_as_they_are_unless_asked_for():
    called = []

    @compiled_part
    def one(x):
        called.append(torch.compiler.is_compiling())
        return x + 1

    one(torch.ones(1))
    with compiled_parts("eager"), compiled_parts(None):
        one(torch.ones(1))
    assert called == [False, False]
