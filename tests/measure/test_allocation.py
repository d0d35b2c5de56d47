"""Change allocation of a trained decoder: it closes, and it is what single moves do."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from joma.measure import attention_stats
from joma.measure.allocation import allocate
from joma.models import Decoder, DecoderConfig

TOKENS = torch.randint(20, (12, 10), generator=torch.Generator().manual_seed(5))
QK = slice(0, 16)


def at(layer, *more):
    return (slice(None), layer, *more)


def by_layer(layer):
    qkv = [("qkv", at(layer, slice(None), QK)), ("qkv_bias", at(layer, QK))]
    value = [("qkv", at(layer, slice(None), slice(16, 24))), ("qkv_bias", at(layer, slice(16, 24)))]
    value += [(name, at(layer)) for name in ("projection", "projection_bias")]
    mlp = [(name, at(layer)) for name in ("up", "up_bias", "down", "down_bias")]
    return {f"qk {layer}": qkv, f"value {layer}": value, f"mlp {layer}": mlp}


GROUPS = {**by_layer(0), **by_layer(1), "embedding": ["embedding"], "output": ["out", "out_bias"]}


def entropies(decoder):
    """Mean attention entropy of every layer, (members, layers)."""

    def measure(parameters):
        seen = {}
        functional_call(
            decoder, parameters, (TOKENS,), {"look": lambda layer, name, x: seen.update({(layer, name): x})}
        )
        return torch.stack([layer_entropy(seen, layer) for layer in range(decoder.config.layers)], -1)

    def layer_entropy(seen, layer):
        query, key = (seen[layer, name] for name in ("query", "key"))
        return attention_stats(query.flatten(0, 1), key.flatten(0, 1)).entropy.view(len(query), -1).mean(-1)

    return measure


def trained(dtype, activation, seeds=(0, 1), stops=(0, 10, 20)):
    """A decoder of two layers and its states along some steps of Adam."""
    config = DecoderConfig(vocabulary=20, width=8, mlp=16, layers=2, context=10, activation=activation)
    decoder = Decoder(config, seeds=seeds).to(dtype)
    optimizer = torch.optim.Adam(decoder.parameters(), lr=1e-2)
    states = []
    for step in range(stops[-1] + 1):
        if step in stops:
            states.append({name: p.detach().clone() for name, p in decoder.named_parameters()})
        logits = decoder(TOKENS[:, :-1]).flatten(0, 2)
        optimizer.zero_grad()
        F.cross_entropy(logits, TOKENS[:, 1:].expand(len(seeds), -1, -1).reshape(-1)).backward()
        optimizer.step()
    return decoder, states


@pytest.fixture(scope="module")
def double():
    decoder, states = trained(torch.float64, "gelu")
    return decoder, states, allocate(entropies(decoder), states, GROUPS, members=True)


@pytest.fixture(scope="module")
def single():
    decoder, states = trained(torch.float32, "relu")
    return decoder, states, allocate(entropies(decoder), states, GROUPS, members=True)


@pytest.mark.parametrize("type_", ["single", "double"])
def test_the_entropy_of_a_trained_decoder_closes(type_, request):
    decoder, states, found = request.getfixturevalue(type_)
    assert found.groups == (*GROUPS, "rest")
    assert found.parts.shape == (2, 9, 2, 2)
    assert found.closed.all()
    assert found.reasons == ()
    levels = torch.stack([entropies(decoder)(state).detach() for state in states]).double()
    torch.testing.assert_close(found.change, levels.diff(dim=0))
    assert (found.change.abs().amax(0) > 0.01).all()  # something happened
    eps = torch.finfo(states[0]["qkv"].dtype).eps
    size = torch.maximum(levels.abs().amax(), found.parts.abs().sum(1))
    assert ((found.parts.sum(1) - found.change).abs() <= 1e-3 * found.change.abs() + 16 * eps * size).all()
    assert (found.error <= 1e-3 * found.change.abs().sum(0) + 3 * 16 * eps * size.amax(0)).all()


def test_float32_and_float64_agree(double):
    decoder, states, wanted = double
    function = entropies(Decoder(decoder.config, seeds=[0, 1]))
    found = allocate(
        function, [{name: p.float() for name, p in state.items()} for state in states], GROUPS, members=True
    )
    assert (found.parts - wanted.parts).abs().max() < 2e-3 * wanted.parts.abs().max()


def test_what_comes_later_in_the_network_gets_exactly_zero(double):
    found = dict(zip(double[2].groups, double[2].parts.unbind(1), strict=True))
    for group in ("output", "value 1", "mlp 1"):
        assert not found[group].any()
    assert not found["qk 1"][..., 0].any()
    assert found["qk 1"][..., 1].all()


def test_members_together_are_members_alone(double):
    decoder, states, found = double
    for member in range(2):
        one = Decoder(decoder.config, seeds=[member]).double()
        alone = [{name: p[member : member + 1] for name, p in state.items()} for state in states]
        apart = allocate(entropies(one), alone, GROUPS, tolerance=1e-3)
        assert apart.parts.shape == (2, 9, 1, 2)
        error = found.gaps.amax() + apart.gaps.amax()
        assert ((apart.parts[:, :, 0] - found.parts[:, :, member]).abs() <= 10 * error).all()


def test_small_moves_are_finite_differences_of_single_groups(double):
    decoder, states, _ = double
    function, start = entropies(decoder), states[-1]
    generator = torch.Generator().manual_seed(0)
    step = {name: 1e-5 * torch.randn(p.shape, generator=generator, dtype=p.dtype) for name, p in start.items()}
    found = allocate(function, [start, {name: p + step[name] for name, p in start.items()}], GROUPS, members=True)
    assert found.nodes.tolist() == [2]
    for group, part in zip(found.groups, found.parts[0], strict=True):
        listed = GROUPS.get(group, ["attention_scale", "attention_shift", "mlp_scale", "mlp_shift"])
        moved = {name: p.clone() for name, p in start.items()}
        for entry in listed:
            name, index = entry if isinstance(entry, tuple) else (entry, ...)
            moved[name][index] += step[name][index]
        difference = (function(moved) - function(start)).detach()
        torch.testing.assert_close(part, difference, rtol=2e-3, atol=1e-9)
