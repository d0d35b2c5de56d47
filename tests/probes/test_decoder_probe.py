"""Measures on our decoder: each against the same quantity from `joma.measure`, `joma.theory` or the forward pass."""

import math

import numpy as np
import pytest
import torch

from joma.measure import attention_stats, coherence, stable_rank
from joma.models import Decoder, DecoderConfig
from joma.probes import attention_entropy
from joma.probes import decoder as probe
from joma.theory.invariant import softmax_estimate
from joma.training import cross_entropy, next_token_loss

CONFIG = DecoderConfig(vocabulary=23, width=12, mlp=16, heads=2, layers=3, context=9)


@pytest.fixture
def decoder():
    made = Decoder(CONFIG, [4, 5, 6])
    with torch.no_grad():  # sharper than at the start, so that rows differ
        made.qkv *= 3
        made.qkv_bias += torch.randn(made.qkv_bias.shape, generator=torch.Generator().manual_seed(0))
    return made


def text(sequences, length, words=23, seed=0):
    return torch.randint(words, (sequences, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def test_entropy_is_that_of_the_attention_measure(decoder):
    tokens, seen = text(5, 9), {}
    decoder.features(tokens, look=lambda layer, name, value: seen.update({(layer, name): value}))
    found = probe.ensemble_entropy(decoder, tokens)
    assert found.shape == (3, 3, 2)
    for layer in range(3):
        for member in range(3):
            query, key = (seen[layer, name][member] for name in ("query", "key"))
            expected = attention_stats(query, key).entropy.mean((0, 2))
            torch.testing.assert_close(found[member, layer], expected.double(), rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_members_that_read_their_own_text(decoder):
    tokens = text(5, 9)
    alike, own = probe.ensemble_entropy(decoder, tokens), tokens.expand(3, 5, 9).clone()
    torch.testing.assert_close(probe.ensemble_entropy(decoder, own), alike)
    own[1] = text(5, 9, seed=4)
    found = probe.ensemble_entropy(decoder, own.tolist())
    torch.testing.assert_close(found[::2], alike[::2])
    torch.testing.assert_close(found[1], probe.ensemble_entropy(decoder, own[1])[1])
    assert not torch.allclose(found[1], alike[1])


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 2, 8])
def test_the_entropy_of_a_decoder_on_a_text(decoder, batch):
    tokens = text(3, 20)
    expected = probe.ensemble_entropy(decoder, tokens[:, :18].reshape(6, 9))
    found = attention_entropy(decoder, tokens.numpy(), context=9, batch=batch)
    torch.testing.assert_close(found, expected)
    one = attention_entropy(decoder, tokens[0].tolist(), context=9, batch=batch)
    torch.testing.assert_close(one, probe.ensemble_entropy(decoder, tokens[0, :18].view(2, 9)))


@torch.no_grad()
def test_validation_in_pieces_is_validation_at_once(decoder, monkeypatch):
    inputs, targets = text(11, 9), text(11, 9, seed=1)
    whole = probe.validation(decoder, inputs, targets, cross_entropy)
    monkeypatch.setattr(probe, "AT_ONCE", 2 * 9 * 23)
    pieces = probe.validation(decoder, inputs, targets, cross_entropy)
    torch.testing.assert_close(pieces["loss"], whole["loss"], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(pieces["entropy"], whole["entropy"], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(whole["loss"].float(), next_token_loss(decoder, (inputs, targets)))
    torch.testing.assert_close(whole["entropy"], probe.ensemble_entropy(decoder, inputs))


@pytest.mark.parametrize("shape", [(3, 2, 16, 16), (40, 8), (5, 7, 30)])
def test_stable_ranks_are_those_of_the_spectrum(shape):
    w = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(probe.stable_ranks(w), stable_rank(w.double()), rtol=3e-5, atol=0)


def test_stable_ranks_at_the_edges():
    w = torch.zeros(5, 6, 6)
    w[1] = torch.eye(6)
    w[2, 0, 0] = 1e-30
    w[3] = 1e30 * torch.diag(torch.tensor([1.0, 1.0 - 1e-7, 0.0, 0.0, 0.0, 0.0]))
    w[4] = math.nan
    found = probe.stable_ranks(w)
    torch.testing.assert_close(found[:4], torch.tensor([0.0, 6.0, 1.0, 2.0]).double(), rtol=1e-5, atol=0)
    assert found[4].isnan()


@torch.no_grad()
def test_ranks_of_weights_and_gradients(decoder):
    found = probe.weight_ranks(decoder)
    torch.testing.assert_close(found["up"], stable_rank(decoder.up.double()), rtol=3e-5, atol=0)
    query, key, _ = decoder.qkv.double().split(12, dim=-1)
    first = query[..., :6] @ key[..., :6].mT
    assert found["query_key"].shape == (3, 3, 2)
    torch.testing.assert_close(found["query_key"][..., 0], stable_rank(first), rtol=3e-5, atol=0)
    batch = text(4, 9), text(4, 9, seed=1)
    ranks = probe.gradient_rank(decoder, lambda decoder: next_token_loss(decoder, batch))
    for member, seed in enumerate((4, 5, 6)):
        alone = Decoder(CONFIG, [seed])
        alone.load_state_dict({name: value[member : member + 1] for name, value in decoder.state_dict().items()})
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(next_token_loss(alone, batch).sum(), [alone.up])
        torch.testing.assert_close(ranks[member], stable_rank(gradient[0].double()), rtol=1e-3, atol=0)
    without = Decoder(CONFIG.with_(mlp=0, activation="identity"), [0])
    assert set(probe.weight_ranks(without)) == {"query_key"}


@torch.no_grad()
def test_a_validation_in_float64_keeps_its_digits(decoder, monkeypatch):
    """Over several pieces of the text."""
    precise = Decoder(CONFIG, [4, 5, 6]).double()
    precise.load_state_dict(
        {name: value.to(precise.state_dict()[name]) for name, value in decoder.state_dict().items()}
    )
    inputs, targets = text(5, 9), text(5, 9, seed=1)
    monkeypatch.setattr(probe, "AT_ONCE", 2 * 9 * decoder.out.shape[1])
    found = probe.validation(precise, inputs, targets, cross_entropy)["loss"]
    right = targets.expand(3, 5, 9)[..., None]
    wanted = -precise(inputs).log_softmax(-1).gather(-1, right).flatten(1).mean(-1)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)


@torch.no_grad()
def test_coherence_of_embeddings(monkeypatch):
    made = Decoder(DecoderConfig(vocabulary=60, width=8, mlp=8), [0, 1])
    found = probe.embedding_coherence(made)
    torch.testing.assert_close(found.float(), coherence(made.embedding).mean, rtol=1e-5, atol=0)
    unit = made.embedding.double() / made.embedding.double().norm(dim=-1, keepdim=True)
    above = torch.einsum("mid,mjd->mij", unit, unit).abs().triu(1).sum((1, 2)) / (60 * 59 / 2)
    torch.testing.assert_close(found, above, rtol=1e-12, atol=0)
    orthonormal = Decoder(DecoderConfig(vocabulary=8, width=8, mlp=8, embeddings="orthonormal"), [0])
    assert probe.embedding_coherence(orthonormal).item() < 1e-6
    monkeypatch.setattr(probe, "WORDS", 40)
    assert (probe.embedding_coherence(made) - found).abs().max() < 0.05


@torch.no_grad()
def test_a_member_that_diverged_disturbs_no_other(decoder):
    inputs, targets = text(3, 9), text(3, 9, seed=1)
    measures = {
        "valid": lambda: probe.validation(decoder, inputs, targets, cross_entropy)["loss"],
        "entropy": lambda: probe.ensemble_entropy(decoder, inputs),
        "up": lambda: probe.weight_ranks(decoder)["up"],
        "gradient": lambda: probe.gradient_rank(decoder, lambda d: next_token_loss(d, (inputs, targets))),
        "coherence": lambda: probe.embedding_coherence(decoder),
    }
    before = {name: measure() for name, measure in measures.items()}
    for parameter in decoder.parameters():
        parameter[1] = math.nan
    for name, measure in measures.items():
        after = measure()
        torch.testing.assert_close(after[[0, 2]], before[name][[0, 2]])
        assert after[1].isnan().all(), name


ONE_HEAD = CONFIG.with_(heads=1)


@torch.no_grad()
@pytest.mark.parametrize("positions", ["none", "learned", "sinusoidal"])
def test_logits_are_those_of_the_forward_pass(positions):
    """The logit of key word l, averaged over query words: every pair is put through the model."""
    words, context = 7, 2
    made = Decoder(ONE_HEAD.with_(vocabulary=words, positions=positions, context=context), [0, 1]).double()
    made.qkv_bias += torch.randn(made.qkv_bias.shape, generator=torch.Generator().manual_seed(0))
    frequency = torch.linspace(1, 2, words).double()
    frequency /= frequency.sum()
    pairs = torch.cartesian_prod(torch.arange(words), torch.arange(words))  # key at place 0, query at place 1
    seen = {}
    if positions != "none":  # both places must be alike on average, as for a query that may stand anywhere
        made.sinusoids[1] = made.sinusoids[0]
        if positions == "learned":
            made.position[:, 1] = made.position[:, 0]
    made.features(pairs, look=lambda layer, name, value: seen.setdefault((layer, name), value))
    logits = seen[0, "logits"][:, :, 0, 1, 0].view(2, words, words)  # (members, key, query)
    expected = logits @ frequency
    found, _ = probe.logit_terms(made, frequency)
    centred = [part - part.mean(-1, keepdim=True) for part in (found, expected)]  # a constant over keys is free
    torch.testing.assert_close(*centred)


@torch.no_grad()
def test_squares_are_how_hidden_nodes_see_an_attended_word():
    """Without norm and with a linear MLP, swapping the one attended word moves the hidden nodes by v of that word."""
    config = DecoderConfig(
        vocabulary=6, width=8, mlp=5, context=1, norm="none", residual=False, activation="identity", positions="none"
    )
    made = Decoder(config, [0, 1]).double()
    seen = {}
    made.features(torch.arange(6)[:, None], look=lambda layer, name, value: seen.update({name: value}))
    constant = made.projection_bias[:, 0, None] @ made.up[:, 0] + made.up_bias[:, 0, None]
    hidden = seen["hidden"][:, :, 0] - constant  # (members, words, nodes); the value's bias is zero at the start
    _, squares = probe.logit_terms(made, torch.full((6,), 1 / 6).double())
    torch.testing.assert_close(squares, hidden.square().sum(-1))


def test_no_logits_where_the_theorem_has_none():
    frequency = torch.full((23,), 1 / 23)
    for changes in ({"heads": 2}, {"norm": "pre-layer"}, {"mlp": 0, "activation": "identity"}):
        assert probe.logit_terms(Decoder(ONE_HEAD.with_(**changes), [0]), frequency) is None
    assert probe.logit_estimate(Decoder(CONFIG, [0]), (torch.zeros(1, 23),) * 2, frequency, words=5) == {}


@torch.no_grad()
def test_the_estimate_is_that_of_theorem_1():
    frequency = torch.linspace(1, 3, 23).double()
    frequency /= frequency.sum()
    before, after = (Decoder(ONE_HEAD.with_(norm="post-rms"), [seed]).double() for seed in (0, 1))
    start, end = (probe.logit_terms(made, frequency) for made in (before, after))
    found = probe.logit_estimate(after, start, frequency, words=15)
    often = frequency.argsort(descending=True)[:15]

    def v(made):
        through = made.qkv[0, 0, :, 24:] @ made.projection[0, 0] * made.attention_scale[0, 0]
        return made.embedding[0] * math.sqrt(12) @ through @ made.up[0, 0]

    estimate = softmax_estimate(
        torch.stack([v(before), v(after)]), method="published", z0=start[0][0], mean_attention=frequency
    )
    moved = (end[0] - start[0])[0][often]
    for name, values in (("theorem", (estimate[1] - start[0][0])[often]), ("frequency", frequency[often].log())):
        assert found[name].item() == pytest.approx(np.corrcoef(values, moved)[0, 1], abs=1e-9)
    still = probe.logit_estimate(before, start, frequency, words=15)
    assert all(value.isnan().all() for value in still.values())


def test_norms_on_queries_and_keys_leave_no_factors_and_no_theorem():
    """Logits are then no longer bilinear in what is read: nothing is said rather than something wrong."""
    shape = DecoderConfig(vocabulary=9, width=8, mlp=8, qk_norm=True)
    with pytest.raises(ValueError, match="this decoder has qk_norm"):
        probe.ensemble_spread(Decoder(shape, seeds=[0]), torch.zeros(2, 4, dtype=torch.long))
    assert probe.logit_terms(Decoder(shape, seeds=[0]), torch.full((9,), 1 / 9)) is None
