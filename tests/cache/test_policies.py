"""Every policy against the oracle that goes token by token, and against the mistakes that others made."""

import itertools
import math
from copy import deepcopy
from functools import partial

import pytest
import torch
from later import some_now
from slow_cache import slow_losses
from tiny_models import KINDS, LENGTH

from joma.cache import POLICIES, losses, rule
from joma.cache.policies import Call, random, top_k, uniform_draws

BUDGET = 10


def draw(layer, row, head, position, seed=0):
    number = seed
    for part in (layer, row, head, position):
        number = splitmix64(number + part)
    return (number >> 11) / 2**53


def splitmix64(number):
    number = (number + 0x9E3779B97F4A7C15) % 2**64
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    number = (number ^ number >> 27) * 0x94D049BB133111EB % 2**64
    return number ^ number >> 31


def oracle(model, tokens, policy, budget=BUDGET, wrong="", seed=0, **given):
    settled = rule(policy, budget, LENGTH, **given)
    options = {"sinks": settled.sinks, "recent": settled.recent, "prompt": settled.prompt}
    return slow_losses(model, tokens, policy, budget, wrong=wrong, **options, draw=partial(draw, seed=seed))


@pytest.mark.parametrize(("kind", "policy"), some_now(itertools.product(KINDS, POLICIES), every=3))
def test_a_policy_is_what_the_oracle_does_token_by_token(models, tokens, kind, policy):
    found = losses(models[kind], tokens, policy, BUDGET)
    # transformers' tables of rotations are in float32, and those of the oracle are not
    tolerance = 1e-4 if policy == "sinks" else 1e-5 if kind == "llama" else 1e-10
    torch.testing.assert_close(found, oracle(models[kind], tokens, policy), rtol=0, atol=tolerance)
    if policy != "full":
        assert (found - losses(models[kind], tokens)).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("sinks", {"sinks": 1}),
        ("sinks", {"sinks": 0}),
        ("h2o", {"sinks": 3, "recent": 0.3}),
        ("h2o", {"recent": 0.0}),
        ("h2o-oracle", {"sinks": 2, "recent": 0.2}),
        ("snapkv", {"sinks": 2, "recent": 0.3, "prompt": 25}),
        ("snapkv", {"prompt": 7}),
        ("random", {"sinks": 0, "recent": 0.2}),
        ("random", {"recent": 1.0}),
        ("random", {"seed": 2**62 + 3}),
    ],
)
def test_options_mean_what_they_say(models, tokens, policy, options):
    found = losses(models["llama"], tokens, policy, BUDGET, **options)
    wanted = oracle(models["llama"], tokens, policy, **options)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("policy", "wrong"),
    [
        ("sinks", "sinks dropped"),
        ("sinks", "positions of the text"),
        ("sinks", "one key too many"),
        ("h2o", "early scores frozen"),
        ("h2o", "scored by the last queries"),
        ("h2o", "first head of a group alone"),
        ("h2o", "one key too many"),
        ("random", "sinks dropped"),
    ],
)
def test_mistakes_that_others_made_would_be_seen(models, tokens, policy, wrong):
    found = losses(models["llama"], tokens, policy, BUDGET)
    assert (found - oracle(models["llama"], tokens, policy, wrong=wrong)).abs().max() > 1e-2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", POLICIES)
def test_all_kept_is_full_attention_bit_for_bit(models, tokens, kind, policy):
    model = deepcopy(models[kind]).float()
    with torch.no_grad():
        logits = model(input_ids=tokens).logits
    assert model.config._attn_implementation == "sdpa"
    told, wanted = logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
    own = torch.nn.functional.cross_entropy(told, wanted, reduction="none").view(2, -1)
    assert torch.equal(losses(model, tokens, policy, 1.0), own)
    assert torch.equal(losses(model, tokens, policy, LENGTH), own)
    assert model.config._attn_implementation == "sdpa"


def test_top_k_is_monotone():
    """The sets grow with the budget, so the attention they hold does too."""
    query, key = torch.randn(2, 4, 2, 20, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).unbind(2)
    key = key[:, :2].contiguous()
    weights = Call(rule("full", 1.0, 20), query, key, 0.5, key[:, :, :0, 0]).logits.softmax(-1).sum(2)
    held = [torch.zeros(2, 2, 20, 20, dtype=torch.bool)]
    for budget in range(1, 20):
        seen = top_k(Call(rule("top-k", budget, 20), query, key, 0.5, key[:, :, :0, 0])).seen
        assert (seen.sum(-1) == torch.arange(1, 21).clamp(max=budget)).all()
        assert (held[-1] <= seen).all()
        held.append(seen)
    mass = torch.stack([(weights * seen).sum(-1) for seen in held])
    assert (mass.diff(dim=0) >= 0).all()


def test_draws_are_numbers_that_other_machines_have_too():
    """They depend on seed, layer, row, head and position alone, and on none of them in the same way."""
    assert splitmix64(0) == 0xE220A8397B1DCDAF  # as published
    key, seed = torch.zeros(2, 3, 4, 1, dtype=torch.float64), 2**63 - 1
    call = Call(rule("random", 2, 4, seed=seed), key, key, 1.0, key[:, :, :0, 0], seen=7, layer=5, row=11)
    for row, head, position in itertools.product(range(2), range(3), range(4)):
        wanted = draw(5, 11 + row, head, 7 + position, seed)
        assert uniform_draws(call)[row, head, position].item() == wanted


def test_random_draws_any_key_as_often():
    """Of 2,000 heads, each of the keys that may go stays in as many as another."""
    key = torch.zeros(500, 4, 30, 2)
    settled = rule("random", 12, 30, sinks=2, recent=1 / 3)
    stays = random(Call(settled, key, key, 1.0, key[:, :, :0, 0])).kept.float().mean((0, 1))
    assert (stays[:2] == 1).all()
    assert (stays[-4:] == 1).all()
    chance = 6 / 24
    assert (stays[2:-4] - chance).abs().max() < 4.5 * math.sqrt(chance * (1 - chance) / 2000)
    assert math.isclose(stays.sum().item(), 12, rel_tol=1e-6)
