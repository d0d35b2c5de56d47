"""The decoder against torch's own Transformer layer, its options, its refusals; dropout's statistics."""

from __future__ import annotations

import math

import pytest
import torch
from small_decoders import SMALL, TOKENS, shaken
from torch import nn

from joma.models import Decoder, DecoderConfig
from joma.models.dropout import dropout, keys
from joma.models.parts import compiled_parts


def torch_layer(decoder, member, layer, *, pre):
    """torch's own layer with the weights of one member's block."""
    config = decoder.config
    theirs = nn.TransformerEncoderLayer(
        config.width, config.heads, config.mlp, dropout=config.dropout, activation=config.activation, batch_first=True,
        norm_first=pre,
    ).eval()  # fmt: skip
    pairs = {
        "self_attn.in_proj_weight": "qkv", "self_attn.in_proj_bias": "qkv_bias",
        "self_attn.out_proj.weight": "projection", "self_attn.out_proj.bias": "projection_bias",
        "linear1.weight": "up", "linear1.bias": "up_bias", "linear2.weight": "down", "linear2.bias": "down_bias",
        "norm1.weight": "attention_scale", "norm1.bias": "attention_shift",
        "norm2.weight": "mlp_scale", "norm2.bias": "mlp_shift",
    }  # fmt: skip
    state = dict(theirs.state_dict())  # with norms of one and zero, where the decoder has none
    for name, ours in pairs.items():
        if not hasattr(decoder, ours):
            continue
        value = getattr(decoder, ours)[member, layer]
        state[name] = value.T if value.ndim == 2 else value
    theirs.load_state_dict(state)
    return theirs


@pytest.mark.parametrize("norm", ["post-layer", "pre-layer"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_equals_torchs_layers(norm, activation):
    decoder = shaken(Decoder(SMALL.with_(norm=norm, activation=activation), seeds=[3, 4]))
    mask = nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.double)
    ours = decoder.features(TOKENS)
    for member in range(2):
        x = decoder.embedding[member][TOKENS] * math.sqrt(8) + decoder.sinusoids
        for layer in range(2):
            x = torch_layer(decoder, member, layer, pre=norm == "pre-layer").double()(x, src_mask=mask, is_causal=True)
        if norm == "pre-layer":
            x = nn.functional.layer_norm(x, (8,), decoder.last_scale[member], decoder.last_shift[member])
        torch.testing.assert_close(ours[member], x, rtol=1e-10, atol=1e-10)
        logits = x @ decoder.out[member].T + decoder.out_bias[member]
        torch.testing.assert_close(decoder(TOKENS)[member], logits, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "post-rms"},
        {"norm": "pre-rms"},
        {"norm": "none"},
        {"mlp": 0, "activation": "identity"},
        {"residual": False},
        {"projection": False},
        {"positions": "learned"},
        {"positions": "none"},
        {"embeddings": "frozen"},
        {"embeddings": "orthonormal", "vocabulary": 8},
        {"activation": "silu"},
        {"causal": False},
    ],
)
def test_members_are_what_they_are_alone(changes):
    config = SMALL.with_(dropout=0.3, **changes)
    tokens = TOKENS % config.vocabulary
    noise = keys(torch.tensor([7, 9], dtype=torch.int32), 4)
    both = Decoder(config, seeds=[7, 9])
    for member, seed in enumerate((7, 9)):
        alone = Decoder(config, seeds=[seed])
        torch.testing.assert_close(both(tokens)[member], alone(tokens)[0])
        noisy = alone(tokens, noise=noise[member : member + 1])[0]
        torch.testing.assert_close(both(tokens, noise=noise)[member], noisy)
        assert not torch.allclose(noisy, alone(tokens)[0])


def test_every_option_changes_what_is_computed():
    plain = Decoder(SMALL, seeds=[0])(TOKENS)
    for changes in (
        {"norm": "pre-layer"}, {"norm": "post-rms"}, {"norm": "none"}, {"activation": "identity"},
        {"residual": False}, {"projection": False}, {"copies": True}, {"positions": "none"}, {"causal": False},
        {"heads": 1}, {"mlp": 0, "activation": "identity"},
    ):  # fmt: skip
        assert not torch.allclose(Decoder(SMALL.with_(**changes), seeds=[0])(TOKENS), plain), changes


def test_positions_are_coded_as_published():
    """sin and cos of position / 10000^(2i/width), as in "Attention is all you need", one number at a time."""
    decoder = Decoder(SMALL.with_(width=10, heads=2, context=7), seeds=[0])
    for position in range(7):
        for i in range(5):
            angle = position / 10_000 ** (2 * i / 10)
            pair = decoder.sinusoids[position, 2 * i : 2 * i + 2].tolist()
            assert pair == pytest.approx([math.sin(angle), math.cos(angle)], abs=1e-6)


def test_causality():
    decoder = Decoder(SMALL, seeds=[0])
    changed = TOKENS.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 13
    torch.testing.assert_close(decoder(TOKENS)[:, :, :-1], decoder(changed)[:, :, :-1])
    free = Decoder(SMALL.with_(causal=False), seeds=[0])
    assert not torch.allclose(free(TOKENS)[:, :, 0], free(changed)[:, :, 0])


def test_copies_start_alike_and_frozen_embeddings_do_not_train():
    decoder = Decoder(SMALL.with_(copies=True, embeddings="frozen"), seeds=[0, 1])
    assert torch.equal(decoder.qkv[:, 0], decoder.qkv[:, 1])
    assert not torch.equal(decoder.qkv[0], decoder.qkv[1])
    assert "embedding" not in dict(decoder.named_parameters())
    orthonormal = Decoder(SMALL.with_(embeddings="orthonormal", vocabulary=8), seeds=[0]).embedding[0]
    torch.testing.assert_close(orthonormal @ orthonormal.T, torch.eye(8), atol=1e-5, rtol=0)


def test_tied_embeddings_are_one_tensor_with_one_gradient():
    untied, tied = (Decoder(SMALL.with_(tied=tied), seeds=[0, 1]) for tied in (False, True))
    assert torch.equal(tied.out, untied.embedding)
    assert len(list(tied.parameters())) == len(list(untied.parameters())) - 1
    with torch.no_grad():
        untied.out.copy_(untied.embedding)
    torch.testing.assert_close(tied(TOKENS), untied(TOKENS))
    (both,) = torch.autograd.grad(tied(TOKENS).square().sum(), [tied.embedding])
    parts = torch.autograd.grad(untied(TOKENS).square().sum(), [untied.embedding, untied.out])
    torch.testing.assert_close(both, parts[0] + parts[1])
    assert all("out" not in dict(one.named_parameters()) and "out" in one.state_dict()
               for one in [Decoder(SMALL.with_(tied=True, embeddings="frozen"), seeds=[0])])  # fmt: skip


def test_look_sees_every_layer():
    decoder = Decoder(SMALL, seeds=[0, 1])
    seen = {}
    decoder.features(TOKENS, look=lambda layer, name, value: seen.__setitem__((layer, name), value))
    names = ("input", "query", "key", "logits", "attention", "mixed", "hidden", "stream")
    assert set(seen) == {(layer, name) for layer in range(2) for name in names}
    assert seen[1, "attention"].shape == (2, 3, 2, 6, 6)
    assert seen[1, "hidden"].shape == (2, 3, 6, 12)
    torch.testing.assert_close(seen[0, "attention"].sum(-1), torch.ones(2, 3, 2, 6))
    torch.testing.assert_close(seen[1, "input"], seen[0, "stream"])  # no norm stands before this attention


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"heads": 3}, "width 8 cannot be shared by 3 heads"),
        ({"embeddings": "orthonormal"}, "13 words cannot have orthonormal embeddings of width 8"),
        ({"dropout": 1.0}, "dropout must be"),
        ({"mlp": 0}, "nothing to activate"),
        ({"mlp": -1}, "mlp must be"),
        ({"norm": "batch"}, "norm must be one of"),
        (
            {"attention": "linear"},
            "attention must be one of softmax, off-by-one, learned-sink, sigmoid, relu, got 'linear'",
        ),
        ({"layers": 0}, "layers must be at least 1"),
        ({"vocabulary": 1}, "nothing to learn"),
        ({"outputs": 0}, "outputs must be at least 1"),
        ({"width": 9, "heads": 1}, "even width"),
        ({"tied": True, "outputs": 3}, "tied embeddings give 13 outputs, one per word, got 3"),
    ],
)
def test_refusals(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        SMALL.with_(**changes)


def test_refuses_no_members_and_long_sequences():
    with pytest.raises(ValueError, match="at least one member"):
        Decoder(SMALL, seeds=[])
    for impossible in (torch.zeros(3, dtype=torch.long), torch.zeros(5, 1, 3, dtype=torch.long)):
        with pytest.raises(ValueError, match=r"tokens must have shape \(batch, length\)"):
            Decoder(SMALL, [0, 1])(impossible)
    for token in (-1, SMALL.vocabulary):  # the second would be the first word of the second member
        with pytest.raises(ValueError, match=f"tokens must lie between 0 and {SMALL.vocabulary - 1}, got"):
            Decoder(SMALL, [0, 1])(torch.full((1, 3), token))
    with pytest.raises(ValueError, match="longer than the context of 6"):
        Decoder(SMALL, seeds=[0])(torch.zeros(1, 7, dtype=torch.long))


def test_dropout_is_fair_and_independent():
    """Rates within 4 sigma; no correlation between neighbours, places, steps or members."""
    seeds = torch.arange(2, dtype=torch.int32)
    n, p = 200_000, 0.2
    x = torch.ones(2, n)
    base = dropout(x, p, keys(seeds, 3), 1) > 0
    sigma = math.sqrt(p * (1 - p) / n)
    assert (base.double().mean(1) - (1 - p)).abs().max() < 4 * sigma
    for other in (
        base.roll(1, 1),
        dropout(x, p, keys(seeds, 3), 2) > 0,
        dropout(x, p, keys(seeds, 4), 1) > 0,
        base.flip(0),
    ):
        both = (base & other).double().mean(1)
        assert (both - (1 - p) ** 2).abs().max() < 6 * sigma
    kept = dropout(x, p, keys(seeds, 3), 1)
    assert set(kept.unique().tolist()) == {0.0, 1.25}
    assert dropout(x, 0.0, keys(seeds, 3), 1) is x


def test_dropout_is_where_torchs_layer_has_it():
    """Mean and spread over draws: a place too few or too many, or another share, shows in the spread."""
    draws = 4_000
    config = DecoderConfig(vocabulary=13, width=8, heads=2, mlp=12, context=6, dropout=0.3, norm="none")
    decoder = shaken(Decoder(config, seeds=[3]))
    tokens = TOKENS[:1].expand(draws, -1)
    ours = decoder.features(tokens, noise=keys(decoder.seeds, torch.tensor(0)))[0]
    torch.manual_seed(0)
    theirs = torch_layer_without_norm(decoder, tokens)
    error = (ours.var(0) + theirs.var(0)).div(draws).sqrt()
    assert ((ours.mean(0) - theirs.mean(0)).abs() < 5 * error).all()
    torch.testing.assert_close(ours.std(0).mean(), theirs.std(0).mean(), rtol=0.02, atol=0)


def torch_layer_without_norm(decoder, tokens):
    """torch's own layer in training, its norms taken out, on the embeddings of the first member."""
    theirs = torch_layer(decoder, 0, 0, pre=False).double().train()
    theirs.norm1 = theirs.norm2 = nn.Identity()
    x = decoder.embedding[0][tokens] * math.sqrt(decoder.config.width) + decoder.sinusoids
    x = nn.functional.dropout(x, decoder.config.dropout)
    mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], dtype=torch.double)
    return theirs(x, src_mask=mask, is_causal=True)


def test_a_seed_starts_as_torchs_modules_do():
    decoder = Decoder(SMALL.with_(heads=1, copies=True), seeds=[6, 7])
    torch.manual_seed(7)
    layer = nn.TransformerEncoderLayer(8, 1, 12)
    embedding, out = nn.Embedding(13, 8), nn.Linear(8, 13)
    nn.init.uniform_(embedding.weight, -0.1, 0.1)
    nn.init.uniform_(out.weight, -0.1, 0.1)
    for block in range(SMALL.layers):
        ours = torch_layer(decoder, 1, block, pre=False).state_dict()
        assert all(torch.equal(value, ours[name]) for name, value in layer.state_dict().items())
    assert torch.equal(decoder.embedding[1], embedding.weight)
    assert torch.equal(decoder.out[1], out.weight)


KINDS = ("softmax", "off-by-one", "learned-sink", "sigmoid", "relu")


def seen(decoder, *names):
    found = {}
    decoder.features(TOKENS, look=lambda layer, name, value: found.__setitem__((layer, name), value))
    return [torch.stack([found[layer, name] for layer in range(decoder.config.layers)], 1) for name in names]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_attention_is_its_formula(kind, causal):
    decoder = shaken(Decoder(SMALL.with_(attention=kind, causal=causal), seeds=[3, 4]))
    logits, attention = seen(decoder, "logits", "attention")  # (members, layers, batch, heads, queries, keys)
    keys_seen = torch.arange(1.0, 7.0).double()[:, None] if causal else 6.0
    odds = logits.exp()  # 0 where a key is not seen
    if kind == "sigmoid":
        expected = 1 / (1 + keys_seen / odds)
    elif kind == "relu":
        expected = logits.clamp(min=0) / keys_seen
        assert (logits > 0).any()
    else:
        more = {"softmax": 0.0, "off-by-one": 1.0}.get(kind)
        more = decoder.sink.exp()[:, :, None, :, None, None] if more is None else more
        expected = odds / (odds.sum(-1, keepdim=True) + more)
    torch.testing.assert_close(attention, expected, rtol=1e-10, atol=1e-12)
    assert (attention.triu(1) == 0).all() == causal


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_looking_changes_nothing(kind):
    decoder = shaken(Decoder(SMALL.with_(attention=kind), seeds=[0, 1]))
    torch.testing.assert_close(decoder(TOKENS), decoder(TOKENS, look=lambda *_: None), rtol=1e-10, atol=1e-12)


def test_a_learned_sink_starts_as_off_by_one_and_learns():
    plain, learned = (Decoder(SMALL.with_(attention=kind), seeds=[0, 1]) for kind in ("off-by-one", "learned-sink"))
    assert learned.sink.shape == (2, 2, 2)  # members, layers, heads
    torch.testing.assert_close(plain(TOKENS), learned(TOKENS))
    (gradient,) = torch.autograd.grad(learned(TOKENS).square().sum(), [learned.sink])
    assert (gradient != 0).all()
    with torch.no_grad():
        learned.sink.fill_(30.0)
    assert seen(learned, "attention")[0].max() < 1e-9, "all attention goes to nothing"
    for kind in KINDS[1:3]:
        assert ("sink" in dict(Decoder(SMALL.with_(attention=kind), [0]).named_parameters())) == (kind != "off-by-one")


@pytest.mark.parametrize("kind", KINDS)
def test_members_attend_alone_whatever_the_kind(kind):
    both = shaken(Decoder(SMALL.with_(attention=kind), seeds=[7, 9]))
    changed = shaken(Decoder(SMALL.with_(attention=kind), seeds=[7, 9]))
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter[1] *= 1.5
    assert torch.equal(both(TOKENS)[0], changed(TOKENS)[0])
    assert not torch.allclose(both(TOKENS)[1], changed(TOKENS)[1])


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS[2:])  # softmax is compiled by many other tests, off-by-one is like the third
def test_every_kind_of_attention_is_compiled_whole(kind):
    from torch._dynamo.utils import counters

    from joma.training.engine import room_to_compile
    from joma.training.trainer import products

    found = []
    for compiler in (None, "aot_eager"):
        decoder = shaken(Decoder(SMALL.with_(attention=kind), seeds=[0, 1]))
        counters.clear()
        with room_to_compile(), products("float32"), compiled_parts(compiler):
            loss = decoder.features(TOKENS).square().sum()
        found.append([loss, *torch.autograd.grad(loss, [decoder.qkv])])
        assert not counters["graph_break"]
    for plain, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, plain)


def test_norms_on_queries_and_keys_begin_with_scales_of_one_and_other_weights_as_without():
    plain, normed = (Decoder(SMALL.with_(qk_norm=norm), seeds=[0, 1]) for norm in (False, True))
    assert (normed.get_parameter("query_scale") == 1).all()
    assert (normed.get_parameter("key_scale") == 1).all()
    for name, value in plain.named_parameters():
        assert torch.equal(value, normed.get_parameter(name)), name
    with torch.no_grad():
        normed.get_parameter("qkv").mul_(100.0)
    assert seen(normed, "logits")[0].max() <= (SMALL.width // SMALL.heads) ** 0.5 + 1e-4, "logits are bounded"
    torch.testing.assert_close(normed(TOKENS), normed(TOKENS, look=lambda *_: None), rtol=1e-4, atol=1e-5)
