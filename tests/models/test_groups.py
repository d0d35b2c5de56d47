"""Groups of a decoder's parameters: every entry is in one of them, whatever the shape."""

import pytest
import torch

from joma.models import Decoder, DecoderConfig
from joma.models.groups import parameter_groups

SHAPES = {
    "plain": {},
    "no MLP": {"mlp": 0, "activation": "identity"},
    "pre-norm": {"norm": "pre-layer"},
    "pre-rms": {"norm": "pre-rms", "positions": "learned"},
    "no norm": {"norm": "none", "projection": False},
    "post-rms": {"norm": "post-rms"},
    "tied": {"tied": True},
    "frozen": {"embeddings": "frozen"},
    "tied and frozen": {"embeddings": "frozen", "tied": True},
    "sink": {"attention": "learned-sink"},
    "QK-norm": {"qk_norm": True},
    "VO-norm and gate": {"vo_norm": True, "gate": "attention"},
    "gate of the MLP": {"gate": "mlp"},
}


def decoder_of(shape):
    given = {"vocabulary": 9, "width": 8, "mlp": 12, "layers": 2, "heads": 2, "context": 6}
    return Decoder(DecoderConfig(**given | SHAPES[shape]), seeds=[0, 1])


@pytest.mark.parametrize("by_layer", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_entry_is_in_one_group(shape, by_layer):
    decoder = decoder_of(shape)
    counted = {name: torch.zeros_like(p) for name, p in decoder.named_parameters()}
    for parts in parameter_groups(decoder.config, by_layer=by_layer).values():
        assert parts
        for part in parts:
            name, index = (part, ...) if isinstance(part, str) else part
            counted[name][index] += 1
    assert all(bool((count == 1).all()) for count in counted.values())


def test_queries_and_keys_are_what_attention_reads():
    """To change every other group of a layer leaves its logits as they are."""
    decoder = decoder_of("plain")
    seen = {}

    def logits():
        decoder(torch.arange(6)[None], look=lambda layer, name, x: seen.update({f"{layer} {name}": x.detach()}))
        return seen["1 logits"]

    before = logits().clone()
    groups = parameter_groups(decoder.config, by_layer=True)
    for name in ("layer 2 value and output", "layer 2 MLP", "layer 2 norms", "output", "layer 2 QK"):
        with torch.no_grad():
            for part in groups[name]:
                key, index = (part, ...) if isinstance(part, str) else part
                getattr(decoder, key)[index] += 0.1
        assert torch.equal(logits(), before) == (name != "layer 2 QK")
