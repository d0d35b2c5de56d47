"""Logits of `spread` that are rescaled, against T x T logits built query by query; and entropies of Gaussian logits."""

import numpy as np
import pytest
import torch

from joma.models import Decoder, DecoderConfig
from joma.studies.rebound.spread import record
from joma.studies.rebound.spread.run import (
    entropies_scaled,
    held_scales,
)
from joma.theory.spread import gaussian_entropy


def by_hand(decoder, tokens, scale):
    """Entropies and parts of the variance, (members, layers, heads, ...), from T x T logits built query by query.

    scale(part, member, layer, head): what the shared and the specific logits are multiplied by.
    """
    inputs, config = [], decoder.config
    decoder.features(tokens, look=lambda layer, name, x: inputs.append(x) if name == "input" else None)
    width, d = config.width, config.width // config.heads
    shape = (decoder.members, config.layers, config.heads)
    entropy, parts = np.zeros(shape), np.zeros((*shape, 3))
    for member, layer, head in np.ndindex(*shape):
        x = inputs[layer][member].double().numpy()
        weight, bias = (getattr(decoder, name)[member, layer].double().numpy() for name in ("qkv", "qkv_bias"))
        own = slice(head * d, head * d + d)
        q, k = ((x @ weight[:, p : p + width] + bias[p : p + width])[..., own] for p in (0, width))
        mean = q.reshape(-1, d).mean(0)
        rows = []
        for window in range(len(q)):
            for i in range(q.shape[1]):
                a = scale("shared", member, layer, head) * (k[window, : i + 1] @ mean) / np.sqrt(d)
                b = scale("specific", member, layer, head) * (k[window, : i + 1] @ (q[window, i] - mean)) / np.sqrt(d)
                p = np.exp(a + b - (a + b).max())
                p /= p.sum()
                cross = 2 * (a * b).mean() - 2 * a.mean() * b.mean()
                rows.append([-(p * np.log(p)).sum(), a.var(), b.var(), cross])
        entropy[member, layer, head], *parts[member, layer, head] = np.mean(rows, axis=0)
    return entropy, parts


@pytest.fixture(scope="module")
def network():
    decoder = Decoder(DecoderConfig(vocabulary=20, width=8, mlp=8, layers=2, heads=2, context=7), seeds=[0, 1])
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        decoder.qkv.mul_(2)
        decoder.qkv_bias.copy_(torch.randn(decoder.qkv_bias.shape, generator=generator))
    return decoder, torch.randint(20, (5, 7), generator=generator)


def test_rescaled_entropies_are_those_of_logits_built_by_hand(network):
    decoder, tokens = network
    with torch.no_grad():
        one = torch.ones(2, 2, 2, dtype=torch.float64)
        shared, specific = (one + torch.rand(2, 2, 2, generator=torch.Generator().manual_seed(s)) for s in (1, 2))
        pairs = [(one, one), (shared, specific), (0 * one, one), (one, 0 * one)]
        found_here = entropies_scaled(decoder, tokens, pairs)
        for (a, b), entropy in zip(pairs, found_here, strict=True):
            size = {"shared": a.numpy(), "specific": b.numpy()}
            wanted, _ = by_hand(decoder, tokens, lambda part, *place, size=size: size[part][place])
            np.testing.assert_allclose(entropy.numpy(), wanted, rtol=1e-5)


def test_held_sizes_are_those_of_the_valley(network):
    decoder, tokens = network
    with torch.no_grad():
        _, parts = by_hand(decoder, tokens, lambda *place: 1.0)
        sizes = torch.from_numpy(parts)
        now = dict(zip(("shared", "specific", "cross"), sizes.unbind(-1), strict=True))
        now |= {"variance": sizes.sum(-1), "growth": torch.full((2, 2, 2), 4.0, dtype=torch.float64)}
        then = {"shared": 3 * now["shared"], "specific": now["specific"] / 2, "growth": now["growth"] / 4}
        held = dict(zip(record.HELD, held_scales(then, now), strict=True))

        def sizes_of(way):
            pair = dict(zip(("shared", "specific"), held[way], strict=True))
            return by_hand(decoder, tokens, lambda part, *place: pair[part][place].item())[1]

        both, mixture, weights = (sizes_of(way) for way in ("both sizes", "mixture", "weights"))
        np.testing.assert_allclose(both[..., 0], 3 * parts[..., 0])
        np.testing.assert_allclose(both[..., 1], parts[..., 1] / 2)
        np.testing.assert_allclose(mixture.sum(-1), parts.sum(-1))
        np.testing.assert_allclose(mixture[..., 0] / mixture[..., 1], 6 * parts[..., 0] / parts[..., 1])
        np.testing.assert_allclose(weights, parts / 4)
        np.testing.assert_allclose(sizes_of("shared size")[..., :2], parts[..., :2] * [3, 1])
        np.testing.assert_allclose(sizes_of("specific size")[..., :2], parts[..., :2] * [1, 0.5])


def test_parts_that_are_zero_stay_zero():
    zero, one = torch.zeros(1), torch.ones(1)
    now = {"shared": zero, "specific": one, "cross": zero, "variance": one, "growth": one}
    for shared, specific in held_scales({"shared": one, "specific": one, "growth": one}, now):
        assert torch.isfinite(shared).all()
        assert torch.isfinite(specific).all()


@pytest.mark.parametrize("largest", [0.0, 3.0, 60.0])
def test_entropies_of_gaussian_logits_between_the_nodes(largest):
    length = 9
    s2 = np.unique([0.0, largest / 300, largest / 7, largest / 2, largest])
    of = record.gaussian_mean(length, largest)
    for one, entropy in zip(s2, of(s2), strict=True):
        # rows of n logits of variance v have v (n - 1)/n in the mean
        v = one / np.mean([(n - 1) / n for n in range(1, length + 1)])
        wanted = np.mean([float(gaussian_entropy(v, float(n))) for n in range(1, length + 1)])
        assert entropy == pytest.approx(wanted, abs=1e-5)


def test_gaussian_entropies_are_those_of_logits_that_are_drawn():
    draw, length = np.random.default_rng(0), 6
    entropy, variance = [], []
    for n in range(1, length + 1):
        logits = draw.normal(size=(40_000, n)) * 1.4
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        entropy.append(-(p * np.log(p)).sum(1).mean())
        variance.append(logits.var(1).mean())
    s2 = np.array([np.mean(variance)])
    assert record.gaussian_mean(length, 4.0)(s2)[0] == pytest.approx(np.mean(entropy), abs=5e-3)
