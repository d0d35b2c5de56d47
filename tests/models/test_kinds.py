"""Rotary positions, ALiBi, norms of values, gates against their formulas; members of several kinds in one program."""

from __future__ import annotations

import math

import pytest
import torch
from small_decoders import SMALL, TOKENS, shaken

from joma.models import Decoder
from joma.models.dropout import keys
from joma.models.parts import compiled_parts

HEADS, WIDTH = 2, 4
KINDS = {
    "plain": {}, "qk": {"qk_norm": True}, "vo": {"vo_norm": True}, "gate": {"gate": "attention"},
    "mlp": {"gate": "mlp"}, "off": {"attention": "off-by-one"}, "sink": {"attention": "learned-sink"},
    "learned": {"positions": "learned"}, "none": {"positions": "none"}, "rotary": {"positions": "rotary"},
    "alibi": {"positions": "alibi"},
}  # fmt: skip


def rms(x):
    return x / (x.square().mean() + torch.finfo(x.dtype).eps).sqrt()


def by_hand(decoder, member, kind):
    """The features of one member's single pre-norm block, one query, head and key at a time, in float64."""

    def part(name):
        value = getattr(decoder, name)[member, 0]
        return value.detach()

    def norm(x, scale, shift):
        return (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt() * scale + shift

    place = {"sinusoidal": decoder.sinusoids, "learned": getattr(decoder, "position", [None] * 2)[member]}
    out = []
    for sequence in TOKENS:
        x = decoder.embedding[member][sequence].detach() * math.sqrt(8)
        if kind.positions in place:
            x = x + place[kind.positions].detach()
        read = [norm(row, part("attention_scale"), part("attention_shift")) for row in x]
        q, k, v = (
            [row @ part("qkv")[:, 8 * i : 8 * i + 8] + part("qkv_bias")[8 * i : 8 * i + 8] for row in read]
            for i in range(3)
        )
        for t in range(6):
            mixed = torch.zeros(8, dtype=torch.double)
            for h in range(HEADS):
                of = slice(WIDTH * h, WIDTH * h + WIDTH)
                ask, keys_, values = q[t][of], [one[of] for one in k], [one[of] for one in v]
                if kind.qk_norm:
                    ask = rms(ask) * part("query_scale")[of]
                    keys_ = [rms(one) * part("key_scale")[of] for one in keys_]
                if kind.vo_norm:
                    values = [rms(one) * part("value_scale")[of] for one in values]
                logits = []
                for s in range(t + 1):
                    if kind.positions == "rotary":  # pair (i, i + 2) as a complex number, turned by t - s steps
                        pairs = [complex(float(ask[i]), float(ask[i + 2])) for i in range(2)]
                        theirs = [complex(float(keys_[s][i]), float(keys_[s][i + 2])) for i in range(2)]
                        angle = [(t - s) * 10_000 ** (-i / 2) for i in range(2)]
                        turn = [complex(math.cos(a), math.sin(a)) for a in angle]
                        logit = sum((p * w * o.conjugate()).real for p, o, w in zip(pairs, theirs, turn, strict=True))
                    else:
                        logit = float(ask @ keys_[s])
                    logit /= math.sqrt(WIDTH)
                    logits.append(logit - (2 ** (-8 * (h + 1) / HEADS) * (t - s) if kind.positions == "alibi" else 0))
                idle = {"softmax": 0.0, "off-by-one": 1.0}.get(kind.attention)
                idle = math.exp(float(part("sink")[h])) if idle is None else idle
                total = idle + sum(map(math.exp, logits))
                head = sum((math.exp(a) / total * one for a, one in zip(logits, values, strict=False)), torch.zeros(4))
                mixed[of] = rms(head) * part("mixed_scale")[of] if kind.vo_norm else head
            if kind.gate == "attention":
                mixed = mixed * (read[t] @ part("gate") + part("gate_bias")).sigmoid()
            y = x[t] + mixed @ part("projection") + part("projection_bias")
            seen = norm(y, part("mlp_scale"), part("mlp_shift"))
            up = (seen @ part("up") + part("up_bias")).clamp(min=0) @ part("down") + part("down_bias")
            if kind.gate == "mlp":
                up = up * (seen @ part("mlp_gate") + part("mlp_gate_bias")).sigmoid()
            out.append(norm(y + up, decoder.last_scale[member].detach(), decoder.last_shift[member].detach()))
    return torch.stack(out).view(3, 6, 8)


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_its_formula(name):
    kind = SMALL.with_(layers=1, norm="pre-layer", **KINDS[name])
    decoder = shaken(Decoder(kind, seeds=[3, 4]))
    found = decoder.features(TOKENS)
    for member in range(2):  # angles and slopes are kept as float32 numbers
        torch.testing.assert_close(found[member], by_hand(decoder, member, kind), rtol=2e-6, atol=2e-6)


def mixture(layers=2, dropout=0.0):
    kinds = [SMALL.with_(layers=layers, dropout=dropout, **changes) for changes in KINDS.values()]
    return kinds, Decoder(kinds[0], seeds=[5] * len(kinds) + [6], kinds=kinds, of=[*range(len(kinds)), 2])


def test_members_of_several_kinds_are_what_they_are_alone():
    """Features, attention, and gradients; what belongs to another kind has a gradient of zero."""
    kinds, decoder = mixture(dropout=0.2)
    noise = keys(decoder.seeds, 3)
    found = decoder.features(TOKENS, noise=noise)
    weights = dict(decoder.named_parameters())
    gradients = dict(zip(weights, torch.autograd.grad(found.square().sum((1, 2, 3)).sum(), weights.values(),
                                                      allow_unused=True), strict=True))  # fmt: skip
    for member, (kind, seed) in enumerate([*((kind, 5) for kind in kinds), (kinds[2], 6)]):
        alone = Decoder(kind, seeds=[seed])
        theirs = alone.features(TOKENS, noise=noise[member : member + 1])
        torch.testing.assert_close(found[member], theirs[0], rtol=1e-4, atol=1e-5)
        names = [name for name, _ in alone.named_parameters() if not name.startswith("out")]
        wanted = torch.autograd.grad(theirs.square().sum(), [alone.get_parameter(name) for name in names])
        for name, gradient in zip(names, wanted, strict=True):
            assert torch.equal(weights[name][member], alone.get_parameter(name)[0]), name
            torch.testing.assert_close(gradients[name][member], gradient[0], rtol=1e-3, atol=1e-4)
        for name in set(weights) - set(names) - {"out", "out_bias"}:
            assert gradients[name][member].abs().sum() == 0, (kind, name)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_kinds_are_compiled_without_a_break():
    from torch._dynamo.utils import counters

    from joma.training.engine import room_to_compile

    _, decoder = mixture()
    plain = decoder.features(TOKENS)
    counters.clear()
    with room_to_compile(), compiled_parts("aot_eager"):
        torch.testing.assert_close(decoder.features(TOKENS), plain)
    assert not counters["graph_break"]


def test_the_kind_of_a_member_is_part_of_its_state():
    kinds, decoder = mixture()
    other = Decoder(kinds[0], seeds=[9] * 12, kinds=kinds, of=[0] * 12)
    other.load_state_dict(decoder.state_dict())
    assert torch.equal(other.features(TOKENS), decoder.features(TOKENS))


def test_a_gate_starts_at_a_half_and_a_single_head_has_a_slope():
    plain, gated = (Decoder(SMALL.with_(gate=gate, layers=1), seeds=[0]) for gate in ("none", "attention"))
    with torch.no_grad():
        plain.get_parameter("projection").mul_(0.5)
    torch.testing.assert_close(plain.features(TOKENS), gated.features(TOKENS))
    assert Decoder(SMALL.with_(heads=1, positions="alibi"), seeds=[0]).get_buffer("slopes").tolist() == [[1 / 16]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": "rotary", "heads": 8}, "rotary positions need heads of even width, got 1"),
        ({"gate": "mlp", "mlp": 0, "activation": "identity"}, "gate must be none or attention where there is no MLP"),
        ({"gate": "both"}, "gate must be one of none, attention, mlp, got 'both'"),
    ],
)
def test_options_that_cannot_be_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        SMALL.with_(**changes)


@pytest.mark.parametrize(
    ("kinds", "of", "message"),
    [
        ([SMALL, SMALL.with_(norm="none")], [0, 1], "kinds must differ from config in attention, positions"),
        ([SMALL, SMALL.with_(attention="sigmoid")], [0, 1], "kinds cannot mix sigmoid attention"),
        ([SMALL], [0], "of must name one of 1 kinds for each of 2 members, got"),
        ([SMALL], [0, 1], "of must name one of 1 kinds for each of 2 members, got"),
    ],
)
def test_kinds_that_cannot_be_one_program_are_refused(kinds, of, message):
    with pytest.raises(ValueError, match=message):
        Decoder(SMALL, seeds=[0, 1], kinds=kinds, of=of)
