"""What `collapse` measures, against slow ways to the same numbers."""

import numpy as np
import pytest
import torch

from joma.models import Decoder, DecoderConfig
from joma.probes.decoder import leading_inputs
from joma.studies.stability.collapse.measures import (
    attention_and_loss,
    everything,
    first_order_entropy,
    sign_diversity,
    update_entropies,
)
from joma.training import next_token_loss

SHAPE = DecoderConfig(vocabulary=13, width=8, heads=2, mlp=12, layers=2, context=6, norm="pre-layer", activation="gelu")
TOKENS, TARGETS = torch.randint(13, (2, 4, 6), generator=torch.Generator().manual_seed(0))


def decoder(seeds=(3, 4, 5), **changes):
    return Decoder(SHAPE.with_(**changes), list(seeds))


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_loss_gradient_entropy_and_logits_of_one_member_alone():
    three = decoder()
    with torch.no_grad():
        found = everything(TOKENS, TARGETS)(three, [0, 1, 2])
    for at, seed in enumerate((3, 4, 5)):
        alone = decoder([seed])
        loss = next_token_loss(alone, (TOKENS, TARGETS)).sum()
        loss.backward()
        assert float(found["loss"][at]) == pytest.approx(float(loss.detach()), rel=1e-5)
        norm = np.sqrt(sum(float(p.grad.double().square().sum()) for p in alone.parameters()))
        assert float(found["gradient_norm"][at]) == pytest.approx(norm, rel=1e-4)
        logits, attention = {}, {}

        def look(layer, name, value, logits=logits, attention=attention):
            {"logits": logits, "attention": attention}.get(name, {})[layer] = value.detach()[0]

        alone.features(TOKENS, look=look)
        for layer in range(2):
            for head in range(2):
                assert float(found["largest_logit"][at, layer, head]) == pytest.approx(
                    float(logits[layer][:, head].max()), rel=1e-5
                )
                rows = attention[layer][:, head].double()
                wanted = float(-(rows * rows.clamp(min=1e-300).log()).sum(-1).mean())
                assert float(found["entropy"][at, layer, head]) == pytest.approx(wanted, rel=1e-4)
        for layer in range(2):
            matrices = [*alone.qkv[0, layer].detach().split(8, -1)[:2], alone.up[0, layer], alone.down[0, layer]]
            for matrix, w in enumerate(matrices):
                values = torch.linalg.svdvals(w.detach().double())
                rank = float(values.square().sum() / values[0] ** 2)
                assert float(found["stable_rank"][at, layer, matrix]) == pytest.approx(rank, rel=1e-4)
    few = attention_and_loss(TOKENS, TARGETS)(three, [0, 1, 2])
    for name in ("loss", "entropy", "largest_logit"):
        torch.testing.assert_close(few[name].detach(), found[name])


def test_sign_diversity_by_counting():
    inputs, weights = drawn(2, 3, 11, 5), drawn(2, 3, 2, 5, 7, seed=1)
    inputs = inputs + 0.6
    found = sign_diversity(inputs, weights)
    assert found.shape == (2, 3, 2)
    for at in np.ndindex(2, 3, 2):
        direction = torch.linalg.svd(weights[at]).U[:, 0]
        positive = int((inputs[at[:2]] @ direction > 0).sum())
        assert float(found[at]) == pytest.approx(min(positive, 11 - positive) / 11)
    assert len(set(found.flatten().tolist())) > 3
    spoiled = weights.clone()
    spoiled[1, 2, 0, 0, 0] = torch.nan
    assert sign_diversity(inputs, spoiled).isnan().nonzero().tolist() == [[1, 2, 0]]


def test_leading_inputs_are_singular_vectors():
    for shape in ((5, 5), (4, 9), (9, 4)):
        w = drawn(3, *shape)
        found = leading_inputs(w)
        wanted = torch.linalg.svd(w).U[..., 0]
        torch.testing.assert_close((found * wanted).sum(-1).abs(), torch.ones(3, dtype=torch.float64))
    assert leading_inputs(torch.full((3, 3), torch.nan)).isnan().all()


def oracle(q0, k0, q1, k1):
    change = (q1 - q0) @ k0.T + q0 @ (k1 - k0).T
    share = np.linalg.svd(change.numpy(), compute_uv=False) ** 2
    share = share[share > 0] / share.sum()
    return float(-(share * np.log(share)).sum())


@pytest.mark.parametrize("size", [1.0, 1e-6])
def test_spectral_entropy_of_a_change_against_its_svd(size):
    q0, k0, q1, k1 = (drawn(2, 10, 3, seed=seed) for seed in range(4))
    q1, k1 = q0 + size * q1, k0 + 0.1 * size * k1
    found = first_order_entropy(q0, k0, q1, k1)
    for at in range(2):
        assert float(found[at]) == pytest.approx(oracle(q0[at], k0[at], q1[at], k1[at]), abs=2e-5)


def test_spectral_entropy_of_special_changes():
    q0, k0 = drawn(10, 3), drawn(10, 3, seed=1)
    assert float(first_order_entropy(q0, k0, q0, k0)) == 0.0
    one = q0.clone()
    one[:, 1] = one[:, 1] + drawn(10, seed=2)
    assert float(first_order_entropy(q0, k0, one, k0)) == pytest.approx(0.0, abs=1e-5)  # of rank one
    keys = k0 + drawn(10, 3, seed=3)
    assert float(first_order_entropy(q0, k0, q0, keys)) == pytest.approx(oracle(q0, k0, q0, keys), abs=2e-5)
    assert first_order_entropy(q0, k0, q0 * torch.nan, k0).isnan()
    assert float(first_order_entropy(q0, k0, q0 + 1, k0)) > 0  # disturbed by nothing beside it


def test_changes_are_those_since_the_point_before_and_since_the_start():
    start, middle, end = decoder(), decoder((13, 14, 15)), decoder((23, 24, 25))
    between = update_entropies(lambda members: decoder([3 + member for member in members]))
    before = {name: p.detach() for name, p in middle.named_parameters()}
    found = between(end, before, [0, 1, 2])

    def heads(one, member, layer, head):
        query, key, _ = one.qkv[member, layer].detach().double().split(8, -1)
        return query[:, 4 * head : 4 * head + 4], key[:, 4 * head : 4 * head + 4]

    for at in np.ndindex(3, 2, 2):
        now = heads(end, *at)
        assert float(found["update_entropy"][at]) == pytest.approx(oracle(*heads(middle, *at), *now), abs=2e-5)
        assert float(found["drift_entropy"][at]) == pytest.approx(oracle(*heads(start, *at), *now), abs=2e-5)
    some = between(decoder((25,)), {name: p.detach()[2:] for name, p in middle.named_parameters()}, [2])
    torch.testing.assert_close(some["drift_entropy"][0], found["drift_entropy"][2])


def test_a_member_that_is_not_finite_disturbs_no_other():
    sound, spoiled = decoder(), decoder()
    with torch.no_grad():
        spoiled.qkv[1] = torch.nan
        plain, found = (everything(TOKENS, TARGETS)(one, [0, 1, 2]) for one in (sound, spoiled))
    for name, values in found.items():
        torch.testing.assert_close(values[[0, 2]], plain[name][[0, 2]], msg=name)
        if name != "stable_rank":
            assert values[1].isnan().any(), name
    assert found["stable_rank"][1, :, :2].isnan().all()
