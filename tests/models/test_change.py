"""Changes of what attention gets: none is none to the last bit, each acts at its place, and a compiler takes them."""

from __future__ import annotations

import math

import pytest
import torch

from joma.models import Decoder, DecoderConfig
from joma.models.change import Change
from joma.models.dropout import keys
from joma.models.parts import compiled_parts
from joma.training import next_token_loss

SMALL = DecoderConfig(vocabulary=13, width=8, heads=2, mlp=12, layers=2, context=6, dropout=0.3)
TOKENS = torch.randint(13, (3, 7), generator=torch.Generator().manual_seed(0))
MEMBERS = 2
NOISE = keys(torch.arange(MEMBERS, dtype=torch.int32), 4)


class Moved(Change):
    def __init__(self, seed):
        drawn = torch.Generator().manual_seed(seed)
        self.shift = torch.randn(MEMBERS, 1, 1, 8, generator=drawn)
        self.scale = torch.rand(MEMBERS, 1, 2, 1, 1, generator=drawn) + 0.5
        self.offsets = torch.randn(MEMBERS, 13, generator=drawn)

    def read(self, x):
        return x + self.shift

    def ask(self, query):
        return query * self.scale

    def score(self, logits, query, key, tokens):
        member = torch.arange(MEMBERS, device=tokens.device)[:, None, None]
        return logits + self.offsets[member, tokens][:, :, None, None]


class Decoded(Decoder):
    always: tuple[Change, ...] = ()

    def features(self, tokens, *, noise=None, look=None, change=()):
        return super().features(tokens, noise=noise, look=look, change=change or self.always)


def loss_and_gradients(change, noise, **options):
    decoder = Decoded(SMALL.with_(**options), seeds=range(MEMBERS))
    decoder.always = change
    loss = next_token_loss(decoder, (TOKENS[:, :-1], TOKENS[:, 1:]), noise)
    return [loss, *torch.autograd.grad(loss.sum(), list(decoder.parameters()))]


@pytest.mark.parametrize("noise", [None, NOISE])
@pytest.mark.parametrize("norm", ["post-layer", "pre-layer"])
def test_no_change_is_none_to_the_last_bit(noise, norm):
    without = loss_and_gradients((), noise, norm=norm)
    for one, other in zip(without, loss_and_gradients((Change(), Change()), noise, norm=norm), strict=True):
        assert torch.equal(one, other)


def seen(decoder, change):
    found = {}
    decoder.features(
        TOKENS[:, :-1], look=lambda layer, name, value: found.update({(layer, name): value}), change=change
    )
    return found


def test_each_change_acts_at_its_place_and_in_its_layer():
    decoder, moved = Decoder(SMALL, seeds=range(MEMBERS)).double(), Moved(3)
    for name in ("shift", "scale", "offsets"):
        setattr(moved, name, getattr(moved, name).double())
    plain, changed = seen(decoder, ()), seen(decoder, (Change(), moved))
    for name in ("input", "query", "logits", "attention", "stream"):
        assert torch.equal(plain[0, name], changed[0, name]), "the layer below sees nothing of it"
    x = plain[0, "stream"] + moved.shift
    torch.testing.assert_close(changed[1, "input"], x)
    qkv = torch.einsum("mblw,mwu->mblu", x, decoder.qkv[:, 1]) + decoder.qkv_bias[:, 1, None, None]
    query, key, value = (part.unflatten(-1, (2, 4)).transpose(2, 3) for part in qkv.split(8, -1))
    logits = torch.einsum("mbhqd,mbhkd->mbhqk", query * moved.scale, key) / math.sqrt(4)
    for m in range(MEMBERS):
        for b in range(3):
            logits[m, b] += moved.offsets[m, TOKENS[b, :-1]]
    logits = logits.masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), -math.inf)
    torch.testing.assert_close(changed[1, "logits"], logits)
    torch.testing.assert_close(changed[1, "mixed"], logits.softmax(-1) @ value)


def test_the_fast_path_without_logits_gives_the_same():
    class NoScore(Moved):
        score = Change.score

    decoder = Decoder(SMALL, seeds=range(MEMBERS)).double()
    change = (NoScore(1), NoScore(2))
    for one in change:
        one.shift, one.scale = one.shift.double(), one.scale.double()
    assert [change[0].scores, Moved(1).scores] == [False, True]
    fast = decoder(TOKENS[:, :-1], change=change)
    torch.testing.assert_close(fast, decoder(TOKENS[:, :-1], change=change, look=lambda *_: None))
    assert (fast - decoder(TOKENS[:, :-1])).abs().max() > 1e-3


def test_a_change_cannot_show_what_follows():
    decoder, change, other = Decoder(SMALL, seeds=range(MEMBERS)), (Moved(1), Moved(2)), TOKENS[:, :-1].clone()
    other[:, -1] = (other[:, -1] + 1) % 13
    one, two = (decoder(tokens, change=change) for tokens in (TOKENS[:, :-1], other))
    torch.testing.assert_close(one[:, :, :-1], two[:, :, :-1])


class Flat(Change):
    def score(self, logits, query, key, tokens):
        return torch.zeros_like(logits)


def test_logits_are_scored_before_keys_are_hidden():
    """So that no score, whatever it makes of them, lets a query see what follows it."""
    found = seen(Decoder(SMALL, seeds=range(MEMBERS)), (Flat(), Flat()))
    wanted = torch.ones(6, 6).tril() / torch.arange(1.0, 7.0)[:, None]
    for layer in range(2):
        torch.testing.assert_close(found[layer, "attention"], wanted.expand(MEMBERS, 3, 2, 6, 6))


@pytest.mark.parametrize("look", [None, lambda *_: None])
def test_scores_count_whether_anybody_looks_or_not(look):
    """Attention that is flat mixes the mean of the values: with it a layer's output is that of zero queries."""
    decoder = Decoder(SMALL, seeds=range(MEMBERS)).double()
    flat = decoder(TOKENS[:, :-1], change=(Flat(), Flat()), look=look)
    with torch.no_grad():
        decoder.qkv[..., :8] = 0.0
        decoder.qkv_bias[..., :8] = 0.0
    torch.testing.assert_close(flat, decoder(TOKENS[:, :-1]))


class Asked(Change):
    def __init__(self, shift):
        self.shift = shift

    def ask(self, query):
        return query + self.shift


def test_only_queries_are_asked():
    decoder, shift = Decoder(SMALL, seeds=range(MEMBERS)), torch.randn(4, generator=torch.Generator().manual_seed(5))
    plain, changed = seen(decoder, ()), seen(decoder, (Asked(shift), Change()))
    torch.testing.assert_close(changed[0, "query"], plain[0, "query"] + shift)
    assert torch.equal(changed[0, "key"], plain[0, "key"])


@pytest.mark.parametrize("norm", ["post-layer", "pre-layer", "none"])
def test_what_is_read_otherwise_stays_in_the_stream(norm):
    """Attention that gives nothing leaves no trace of what it read."""
    decoder = Decoder(SMALL.with_(norm=norm), seeds=range(MEMBERS))
    with torch.no_grad():
        decoder.projection.zero_()
        decoder.projection_bias.zero_()
    plain, changed = seen(decoder, ()), seen(decoder, (Moved(1), Moved(2)))
    for layer in range(2):
        assert not torch.allclose(plain[layer, "input"], changed[layer, "input"])
        assert torch.equal(plain[layer, "stream"], changed[layer, "stream"])


def test_members_with_their_own_tokens_get_their_own_offsets():
    decoder, change = Decoder(SMALL, seeds=range(MEMBERS)), (Moved(1), Moved(2))
    own = torch.stack([TOKENS[:, :-1], TOKENS[:, 1:]])
    both = decoder(own, change=change)
    for member in range(MEMBERS):
        torch.testing.assert_close(both[member], decoder(own[member], change=change)[member])


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_one_compiled_block_serves_all_layers():
    def made():
        return Moved(1), Moved(2)

    plain = loss_and_gradients(made(), NOISE)
    torch.compiler.reset()
    with compiled_parts("aot_eager"), torch._dynamo.config.patch(error_on_recompile=True):
        compiled = loss_and_gradients(made(), NOISE)
        again = loss_and_gradients(made(), NOISE)  # objects of a twin: no new code
    for one, two, three in zip(plain, compiled, again, strict=True):
        torch.testing.assert_close(one, two)
        assert torch.equal(two, three)


def test_a_change_for_some_layers_is_refused():
    with pytest.raises(ValueError, match=r"change must be one for each of 2 layers, or \(\), got 1"):
        Decoder(SMALL, seeds=[0]).features(TOKENS[:, :-1], change=[Change()])
