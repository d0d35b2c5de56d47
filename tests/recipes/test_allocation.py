"""Allocation while a language model trains: it closes, it is local, and it equals single-group moves to first order."""

import json
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from kills import ends_the_same_after_a_kill

from joma.models import products
from joma.models.decoder import Decoder
from joma.models.groups import parameter_groups
from joma.probes.decoder import ensemble_entropy
from joma.recipes.language import LanguageModelConfig, corpus, recipe, train_variants
from joma.recipes.language.allocation import allocation, frozen_parts, layer_entropies
from joma.recipes.language.curves import allocated, curve
from joma.recipes.language.training import ensemble
from joma.runs import Run

CONFIG = LanguageModelConfig(
    tokens=20_000,
    vocabulary=60,
    width=8,
    mlp=12,
    streams=4,
    length=10,
    sequence=2,
    valid_sequences=3,
    steps=40,
    every=10,
)


@pytest.fixture(scope="module")
def text():
    return corpus(CONFIG)


def base(text):
    return recipe(CONFIG, text, layers=2, rates=(1e-2,)).with_(keep_at=(20,), allocate=6)


@pytest.fixture(scope="module")
def run(text, tmp_path_factory):
    run = Run.create(tmp_path_factory.mktemp("allocation") / "a.sqlite", study="x", config={})
    twin = base(text).with_(branch_of="base", branch_at=20, frozen=("layer 1 QK", "embeddings"), keep_at=())
    train_variants({"base": base(text), "twin": twin}, text, run, lambda share, doing: None)
    return run


def test_the_parts_close(run):
    groups, parts = allocated(run, "base")
    change, gap = (curve(run, "base", f"allocation/{name}") for name in ("change", "gap"))
    assert parts.shape == (1, 3, 5, len(groups), 2)
    assert np.abs(change).max() > 0.05
    assert np.allclose(parts.sum(3), change, atol=gap.max() + 1e-6)
    # At most 14 nodes are spent, and kinks of ReLU may want more. A part that is missing would be much of the change.
    assert gap.max() < 5e-3 * np.abs(change).max()


def test_a_group_that_cannot_matter_is_exactly_zero(run):
    groups, parts = allocated(run, "base")
    after = [i for i, name in enumerate(groups) if name in ("output", "layer 1 MLP") or name.startswith("layer 2")]
    assert not parts[..., after, 0].any()
    assert parts[..., groups.index("layer 1 MLP"), 1].any()


def test_errors_of_parts_are_recorded_one_by_one(run):
    errors, parts = (allocated(run, "base", what)[1] for what in ("part_errors", "parts"))
    assert errors.shape == parts.shape
    assert np.isfinite(errors).all()
    assert (errors[parts != 0] > 0).all()
    assert not errors[parts == 0].any(), "what cannot matter has no error"
    assert errors.max() < 0.1 * np.abs(parts).max()


def test_parts_are_as_near_to_the_truth_as_their_errors_say(text):
    """The truth: two hundred midpoints in float64, on a long way with many kinks."""
    shape, tokens = base(text).decoder, text.tokens["valid"][:60].long().view(6, 10)
    decoder = Decoder(shape, [0])
    before = {name: p.detach().clone() for name, p in decoder.named_parameters()}
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in decoder.parameters():
            p += 0.3 * torch.randn(p.shape, generator=generator)
    found = allocation(shape, tokens, 6)["allocation"](decoder, before, [0])
    off = (found["parts"][0] - parts_by_midpoints(decoder, before, tokens)).abs()
    assert off.max() > 1e-4, "there are kinks to miss"
    # Single parts can be further off than they moved last: what bounds a part is the sum of the errors.
    assert bool((off.sum(0) <= found["part_errors"][0].sum(0) + 3e-5).all())


def parts_by_midpoints(decoder, before, tokens, count=200):
    """(groups, layers) of one member, slowly: the sum over small steps of gradient times step."""
    start = {name: p.double() for name, p in before.items()}
    move = {name: p.detach().double() - start[name] for name, p in decoder.named_parameters()}
    wide, done = deepcopy(decoder).double(), {name: torch.zeros(2, *p.shape).double() for name, p in start.items()}
    for node in (np.arange(count) + 0.5) / count:
        here = {name: (start[name] + node * move[name]).requires_grad_() for name in start}
        for layer, entropy in enumerate(layer_entropies(wide, here, tokens)[0]):
            slopes = torch.autograd.grad(entropy, list(here.values()), retain_graph=True, materialize_grads=True)
            for name, slope in zip(here, slopes, strict=True):
                done[name][layer] += slope * move[name] / count
    groups = parameter_groups(decoder.config, by_layer=True).values()
    return torch.stack([sum(_of_layers(done, part) for part in group) for group in groups])


def _of_layers(done, part):
    name, index = (part, ...) if isinstance(part, str) else part
    return torch.stack([of_layer[index].sum() for of_layer in done[name]])


def test_a_twin_keeps_what_comes_after_it_left(text):
    twin = base(text).with_(branch_of="base", branch_at=20, keep_at=(10, 20, 30))
    assert ensemble(twin, text).keep_at == (30,)


def test_what_is_frozen_has_no_part(run):
    groups, parts = allocated(run, "twin")
    assert run.steps("twin/allocation/parts").tolist() == [20, 30, 40]
    still = [groups.index(name) for name in ("embeddings", "layer 1 QK")]
    assert not parts[..., still, :].any()
    assert parts.any()


def test_it_is_the_first_order_of_single_moves(text):
    variant = base(text)
    decoder = Decoder(variant.decoder, [0, 1]).double()
    tokens = text.tokens["valid"][:60].long().view(6, 10)
    before = {name: p.detach().clone() for name, p in decoder.named_parameters()}
    generator = torch.Generator().manual_seed(1)
    moves = {name: 1e-5 * torch.randn(p.shape, generator=generator, dtype=p.dtype) for name, p in before.items()}
    with torch.no_grad():
        for name, p in decoder.named_parameters():
            p += moves[name]
    found = allocation(variant.decoder, tokens, 6)["allocation"](decoder, before, [0, 1])
    start = layer_entropies(decoder, before, tokens).detach()
    for i, parts in enumerate(parameter_groups(variant.decoder, by_layer=True).values()):
        alone = {name: p.clone() for name, p in before.items()}
        for part in parts:
            name, index = (part, ...) if isinstance(part, str) else part
            alone[name][index] += moves[name][index]
        moved = layer_entropies(decoder, alone, tokens).detach() - start
        assert torch.allclose(found["parts"][:, i], moved, atol=3e-8)


def test_entropies_are_those_of_the_probe(text):
    decoder = Decoder(base(text).decoder, [0, 1])
    tokens = text.tokens["valid"][:60].long().view(6, 10)
    found = layer_entropies(decoder, dict(decoder.named_parameters()), tokens)
    assert torch.allclose(found, ensemble_entropy(decoder, tokens).mean(-1), atol=1e-6)


def test_a_member_that_diverged_disturbs_no_other(text):
    decoder = Decoder(base(text).decoder, [0, 1])
    before = {name: p.detach().clone() for name, p in decoder.named_parameters()}
    with torch.no_grad():
        decoder.up[0, 0, 0, 0] = torch.inf
        decoder.qkv += 0.01
    tokens = text.tokens["valid"][:60].long().view(6, 10)
    found = allocation(base(text).decoder, tokens, 6)["allocation"](decoder, before, [0, 1])
    assert set(found) == {"parts", "part_errors", "change", "gap"}
    for name, values in found.items():
        assert bool(values[0].isnan().all()), name
        assert bool(values[1].isfinite().all()), name


def test_errors_of_parts_are_known_where_few_nodes_close_their_sum(text):
    """A short way on which two nodes are enough for the sum; how far parts still move takes more of them."""
    decoder = Decoder(base(text).decoder, [0]).double()
    before = {name: p.detach().clone() for name, p in decoder.named_parameters()}
    with torch.no_grad():
        decoder.qkv *= 1 + 1e-4
    tokens = text.tokens["valid"][:60].long().view(6, 10)
    found = allocation(base(text).decoder, tokens, 6)["allocation"](decoder, before, [0])
    assert float(found["gap"].max()) < 1e-9
    assert bool(found["part_errors"].isfinite().all())
    assert float(found["part_errors"].max()) < 1e-6


def test_sequences_are_spread_over_all_that_there_are(text):
    decoder = Decoder(base(text).decoder, [0, 1]).double()
    before = deepcopy(decoder)
    with torch.no_grad():
        decoder.qkv *= 1.3
    tokens = text.tokens["valid"][:120].long().view(12, 10)
    start = {name: p.detach() for name, p in before.named_parameters()}
    found = allocation(base(text).decoder, tokens, 3)["allocation"](decoder, start, [0, 1])
    change = [ensemble_entropy(one, tokens[[0, 5, 11]]).mean(-1) for one in (before, decoder)]
    torch.testing.assert_close(found["change"], change[1] - change[0], atol=1e-6, rtol=0)
    assert float(found["change"].abs().min()) > 1e-4


@pytest.mark.long
def test_a_kill_between_two_points_changes_nothing(text, run, tmp_path):
    names = ("allocation/parts", "allocation/gap", "valid/entropy")
    ends_the_same_after_a_kill(ensemble(base(text), text), run, tmp_path / "a.sqlite", names)


def test_frozen_groups_that_do_not_exist_are_one_sentence(text):
    with pytest.raises(ValueError, match=r"frozen must name groups of parameters, embeddings, QK, .* got 'qk'"):
        frozen_parts(base(text).decoder, ["qk"])


def test_the_groups_are_named(run):
    names = json.loads(bytes(run.value("base/groups")).decode())
    assert names[:3] == ["embeddings", "layer 1 QK", "layer 1 value and output"]


def test_entropies_are_made_of_float32_though_the_decoder_trains_in_half(text):
    decoder = Decoder(base(text).decoder, [0])
    seen = []
    features = decoder.features

    def watched(*arguments, **options):
        seen.append(products._HALF["on"])
        return features(*arguments, **options)

    decoder.features = watched
    with products.half_products():
        layer_entropies(decoder, dict(decoder.named_parameters()), text.tokens["valid"][None, :10].long())
        assert products._HALF["on"]
    assert seen == [False]


@pytest.mark.parametrize("attention", ["off-by-one", "learned-sink", "sigmoid", "relu"])
def test_entropy_of_logits_is_not_taken_for_that_of_other_attention(text, attention):
    """Their entropy, which is recorded beside it, is not that of a softmax of their logits."""
    shape = replace(base(text).decoder, attention=attention)
    with pytest.raises(ValueError, match=f"entropy of softmax attention, and the decoder's is {attention}"):
        allocation(shape, text.tokens["valid"][None, :10].long(), 1)
