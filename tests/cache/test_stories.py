"""A model that was trained: top-k costs next to nothing, and knowing what is attended to beats chance."""

import os
from pathlib import Path

import pytest
import torch
from llama2c import load_model

from joma.cache import losses

SEQUENCES, LENGTH = 6, 160


@pytest.fixture(scope="module")
def story():
    """The model and what it tells when asked at random."""
    folder = os.environ.get("JOMA_DATA")
    if not folder or not (Path(folder) / "stories260K").is_dir():
        pytest.skip("JOMA_DATA names no folder with stories260K")
    model = load_model(Path(folder) / "stories260K" / "stories260K.bin")
    options = {"max_new_tokens": LENGTH - 1, "do_sample": True, "top_k": 0, "pad_token_id": 0, "eos_token_id": None}
    torch.manual_seed(0)
    with torch.inference_mode():
        return model, model.generate(torch.ones(SEQUENCES, 1, dtype=torch.long), **options)


def added(story, policy, keep, **options):
    """Nats per token that eviction adds, over the second half."""
    found = losses(*story, policy, keep, **options) - losses(*story)
    return found[:, LENGTH // 2 :].mean().item()


@pytest.mark.long
def test_top_k_costs_less_as_more_is_kept(story):
    costs = [added(story, "top-k", keep) for keep in (0.05, 0.1, 0.2, 0.5)]
    assert costs == sorted(costs, reverse=True)
    assert 0.01 < costs[0] < 0.1
    assert abs(costs[-1]) < 0.005


@pytest.mark.long
def test_who_knows_the_attention_loses_less_than_chance(story):
    best, oracle, causal, chance = (added(story, p, 0.2, sinks=0) for p in ("top-k", "h2o-oracle", "h2o", "random"))
    assert best < oracle < causal < chance
    assert chance > 0.05
