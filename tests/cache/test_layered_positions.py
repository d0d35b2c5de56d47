"""Positions counted anew: where layers rotate by different angles, and where rotations are not what they seem.

Sinks are compared with the oracle, token by token, in float64. What cannot be found out must be refused: a model that
is taken for one without rotations gets sinks in the wrong places, and nobody hears of it.
"""

import inspect
from functools import cache
from itertools import product

import pytest
import torch
from later import some_now
from slow_cache import slow_losses
from tiny_models import LAYERED, fresh, layered
from torch import nn

from joma.cache import CacheError, evaluate, evicting, losses
from joma.cache._positions import rotations

BUDGET = 10
ALONE = [kind for kind in LAYERED if kind != "gemma4-shared"]  # its last layers read the keys of others
CASES = [(kind, policy) for policy, kind in product(["sinks", "h2o", "window"], LAYERED)]
MISTAKES = [*product(["positions of the text", "angles of the other layers"], ALONE)]
MISTAKES.remove(("angles of the other layers", "gemma4"))  # whose heads have other widths there
OPTIONS = {"window": {}, "sinks": {"sinks": 4}, "h2o": {"recent": 5}}
model_of = cache(layered)


def oracle(kind, tokens, policy, wrong=""):
    return slow_losses(model_of(kind), tokens, policy, BUDGET, **OPTIONS[policy], wrong=wrong)


@pytest.mark.parametrize(("kind", "policy"), [*CASES[:5], *some_now(CASES[5:], every=3)])
def test_a_policy_is_what_the_oracle_does(tokens, kind, policy):
    found = losses(model_of(kind), tokens, policy, BUDGET)
    torch.testing.assert_close(found, oracle(kind, tokens, policy), rtol=0, atol=1e-4)
    assert (found - losses(model_of(kind), tokens)).abs().max() > 0.1


@pytest.mark.parametrize(("wrong", "kind"), MISTAKES)
def test_sinks_in_other_places_would_be_seen(tokens, kind, wrong):
    found = losses(model_of(kind), tokens, "sinks", BUDGET)
    assert (found - oracle(kind, tokens, "sinks", wrong)).abs().max() > 0.05


@pytest.mark.parametrize("kind", ALONE)
def test_the_real_cache_says_what_the_masks_say(tokens, kind):
    model = model_of(kind)
    with torch.no_grad(), evicting(model, "sinks", BUDGET) as held:
        parts = [model(input_ids=part, past_key_values=held).logits for part in tokens.split([7] * 5 + [5], 1)]
    logits = torch.cat(parts, 1)[:, :-1].mT
    found = torch.nn.functional.cross_entropy(logits, tokens[:, 1:], reduction="none")
    torch.testing.assert_close(found, losses(model, tokens, "sinks", BUDGET), rtol=0, atol=1e-6)


def test_layers_that_read_the_keys_of_others_have_no_cache_to_cut():
    sentence = "the last 2 layers of Gemma4ForCausalLM read the keys of earlier layers"
    with pytest.raises(CacheError, match=sentence), evicting(model_of("gemma4-shared"), "window", BUDGET):
        pass


@pytest.mark.parametrize("kind", LAYERED)
def test_every_layer_has_its_rotation_and_no_note_says_otherwise(tokens, kind):
    assert all(rotations(model_of(kind)).values())
    heard = []
    evaluate(model_of(kind), tokens, policies=["sinks"], budgets=[BUDGET], notify=heard.append)
    assert not [line for line in heard if line.startswith(("note", "left out"))]


@pytest.mark.parametrize("changing", ["sliding_attention", "full_attention"])  # transformers asks for either first
def test_angles_that_depend_on_the_length_are_found_in_the_layers_that_have_them(tokens, changing):
    """Over four tokens they are the angles of the other layers: only which table a layer gets tells them apart."""
    config = type(model_of("olmo3").config)(**model_of("olmo3").config.to_dict())
    plain = {"rope_type": "default", "rope_theta": 10_000.0}
    config.rope_parameters = dict.fromkeys(["sliding_attention", "full_attention"], plain)
    config.rope_parameters[changing] = {**plain, "rope_type": "dynamic", "factor": 2.0}
    model = type(model_of("olmo3"))(config).double().eval()
    with pytest.raises(CacheError, match="positions of Olmo3ForCausalLM cannot be counted inside the cache"):
        losses(model, tokens, "sinks", BUDGET)
    assert losses(model, tokens, "window", BUDGET).isfinite().all()


class Unseen(nn.Module):
    """Tables in a form that nobody knows: no pair, no complex numbers."""

    def __init__(self, real):
        super().__init__()
        self.make = real.forward  # no module of the model gives a pair

    def forward(self, x, position_ids):
        return torch.stack(self.make(x, position_ids))


def test_a_rotation_that_is_none_is_found(tokens):
    """What a function is called is not believed: here the tables turn the wrong way."""
    model = fresh("llama").double().eval()
    assert all(rotations(model).values())
    rotary, calls = model.model.rotary_emb, []
    right = rotary.forward

    def backwards_when_asked_again(x, position_ids):
        calls.append(x)
        cos, sin = right(x, position_ids)
        return cos, sin if len(calls) == 1 else -sin

    rotary.forward = backwards_when_asked_again
    with pytest.raises(CacheError, match="cannot be counted inside the cache"):
        losses(model, tokens, "sinks", BUDGET)


def test_rotations_that_are_not_found_are_not_taken_for_none(tokens):
    """The hidden state is the same everywhere and keys are not: positions come in by a way that is not known."""
    model = fresh("llama").double().eval()
    real = model.model.rotary_emb
    model.model.rotary_emb = Unseen(real)
    heard = []
    found = evaluate(model, tokens, policies=["sinks", "window"], budgets=[BUDGET], notify=heard.append)
    assert list(found.of) == ["window"]
    assert not [line for line in heard if "no rotary positions" in line]
    assert [line for line in heard if line.startswith("left out: sinks: positions of LlamaForCausalLM cannot")]


def test_tables_that_were_copied_on_their_way_are_known_again(tokens):
    """As in a model that is spread over several devices."""
    model = model_of("gemma3")

    def copied(_, given, named):
        return given, {**named, "position_embeddings": tuple(one.clone() for one in named["position_embeddings"])}

    handles = [
        layer.self_attn.register_forward_pre_hook(copied, with_kwargs=True, prepend=True)
        for layer in model.model.layers
    ]
    try:
        found = losses(model, tokens, "sinks", BUDGET)
    finally:
        for handle in handles:
            handle.remove()
    assert torch.equal(found, losses(model, tokens, "sinks", BUDGET))


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_angles_that_depend_on_the_length_are_refused(kind, monkeypatch):
    model = fresh("llama")
    kind_of_module = type(model.model.rotary_emb)  # without what computes such angles, which would need a config
    monkeypatch.setattr(kind_of_module, "forward", inspect.unwrap(kind_of_module.forward))
    assert all(rotations(model).values())
    monkeypatch.setattr(model.model.rotary_emb, "rope_type", kind)
    with pytest.raises(CacheError, match="positions of LlamaForCausalLM cannot be counted inside the cache"):
        rotations(model)


def test_positions_that_are_learned_are_no_rotations():
    assert not any(rotations(fresh("gpt2").eval()).values())


def test_listening_leaves_nothing_behind():
    model = fresh("llama").eval()
    rotations(model)
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
