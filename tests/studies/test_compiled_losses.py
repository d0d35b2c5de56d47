"""What studies train on a GPU is compiled there: every loss of theirs is a part, or made of parts."""

import pytest
import torch
from torch._dynamo.utils import counters

from joma.models import Decoder, DecoderConfig
from joma.models.dropout import keys
from joma.models.parts import compiled_parts
from joma.studies.cdag.cdag.run import LatentMLP
from joma.studies.cdag.cdag.run import loss as latent_loss
from joma.studies.hierarchy.shallow_first.run import QueryBlocks, SharedBlock, block_loss
from joma.studies.hierarchy.table1 import shared_loss
from joma.training import answer_loss, class_loss, next_token_loss
from joma.training.engine import room_to_compile
from joma.training.trainer import products

TOKENS = torch.arange(24).view(4, 6) % 5
CLASSES = torch.arange(4) % 3
ON = torch.rand(2, 5, 7, 5, generator=torch.Generator().manual_seed(0))  # (members, queries, samples, tokens)
TARGETS = torch.arange(70).view(2, 5, 7) % 5


def decoder(**options):
    return Decoder(DecoderConfig(vocabulary=5, width=8, mlp=8, context=6, layers=2, **options), [1, 2])


CASES = {
    "next token": (next_token_loss, decoder(), (TOKENS[:, :-1], TOKENS[:, 1:]), 3),
    "class": (class_loss, decoder(outputs=3, norm="pre-rms"), (TOKENS, CLASSES), 4),
    "answer": (answer_loss, decoder(tied=True), (TOKENS[:, :-1], torch.where(TOKENS[:, 1:] > 2, TOKENS[:, 1:], -1)), 3),
    "table 1": (shared_loss, decoder(outputs=3), (TOKENS[None], CLASSES.expand(2, -1), torch.ones(2, 4)), 2),
    "latent tree": (latent_loss, LatentMLP([1, 2], 5, 6, 3), (ON[:, 0], TARGETS[:, 0] % 3), 1),
    "query blocks": (block_loss, QueryBlocks([1, 2], 5, 5, residual=True), (ON, TARGETS), 1),
    "shared block": (block_loss, SharedBlock([1, 2], 5), (ON, TARGETS), 1),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_losses_are_made_of_parts(case):
    loss, networks, batch, parts = CASES[case]
    results = []
    for compiler, graphs in ((None, 0), ("aot_eager", parts)):
        counters.clear()
        with room_to_compile(), products("float32"):
            noise = keys(networks.seeds, 3)
            with compiled_parts(compiler):
                losses = loss(networks, batch, noise)
            results.append([losses, *torch.autograd.grad(losses.sum(), list(networks.parameters()))])
        assert counters["stats"]["unique_graphs"] == graphs
        assert not counters["graph_break"]
    for plain, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, plain)
