"""QKClip against the rule of its source, written out in float64 for each architecture (`clipped`)."""

import pytest
import torch

pytest.importorskip("transformers")

from clipped import FAMILIES, attentions, build, clip_slowly, largest, text

from joma.models import Decoder, DecoderConfig
from joma.optim import QKClip


def between(tables):
    """A threshold with heads on both sides, in the middle of all."""
    return torch.tensor(tables, dtype=torch.float64).flatten().quantile(0.5).item()


def clipped(kind, threshold, dtype=torch.float64, **options):
    model = build(kind, dtype)
    clip = QKClip(model, threshold, **options)
    model(text())
    clip.step()
    clip.remove()
    return model, clip


@pytest.mark.parametrize("kind", FAMILIES)
def test_weights_are_those_of_the_rule(kind):
    slow = build(kind)
    before = largest(slow, text())
    threshold = between(before)
    clip_slowly(slow, kind, before, threshold)
    model, clip = clipped(kind, threshold)
    for (name, parameter), (_, expected) in zip(model.named_parameters(), slow.named_parameters(), strict=True):
        torch.testing.assert_close(
            parameter, expected, rtol=1e-12, atol=1e-13, msg=lambda why, name=name: f"{name}: {why}"
        )
    torch.testing.assert_close(
        torch.stack([*clip.largest.values()]), torch.tensor(before, dtype=torch.float64), rtol=1e-9, atol=1e-9
    )
    assert len(clip.largest) == len(attentions(model)) == 2
    assert any(not torch.equal(*pair) for pair in zip(model.parameters(), build(kind).parameters(), strict=True))


def decoder_and_logits(ids, **options):
    """A decoder, and (members, layers, heads) largest logits of whole matrices."""
    shape = {"vocabulary": 7, "layers": 3, "width": 8, "heads": 2, "mlp": 8, "context": 6}
    decoder = Decoder(DecoderConfig(**shape, **options), seeds=[0, 1]).double()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())))
    products = {}
    decoder(ids, look=lambda layer, name, value: products.__setitem__((layer, name), value.detach()))
    hidden = torch.ones(6, 6, dtype=torch.bool).triu(1)
    logits = [products[i, "query"] @ products[i, "key"].mT / 2 for i in range(3)]
    return decoder, torch.stack([each.masked_fill(hidden, -torch.inf).amax((1, 3, 4)) for each in logits], 1)


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_members_of_a_decoder_are_clipped_each_for_itself(qk_norm, given):
    ids = torch.arange(24).view(4, 6) % 7
    decoder, before = decoder_and_logits(ids, qk_norm=qk_norm)
    threshold = before.quantile(0.5).item()
    clip = QKClip(decoder, threshold, probe=None if given else ids)
    clip.step(before if given else None)
    slow, _ = decoder_and_logits(ids, qk_norm=qk_norm)
    with torch.no_grad():
        for member, layer, head in torch.cartesian_prod(*map(torch.arange, before.shape)).tolist():
            root = (threshold / max(threshold, before[member, layer, head].item())) ** 0.5
            for first in (0,) if qk_norm else (0, 8):
                at = slice(first + 4 * head, first + 4 * head + 4)
                for name in ("query_scale", "key_scale") if qk_norm else ("qkv", "qkv_bias"):
                    getattr(slow, name)[member, layer, ..., at] *= root
    for (name, parameter), expected in zip(decoder.named_parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-12, atol=0, msg=lambda why, name=name: f"{name}: {why}")
    assert clip.clips["attention"].view(before.shape).equal((before > threshold).long())
