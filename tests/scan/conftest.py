"""Fixtures; what builds them is in checkpoint_series, which tests may import."""

import pytest
import torch
from checkpoint_series import LAYERS, WIDTH, WORDS, make_series
from patience import PATIENCE

from joma.host import limits


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """How long an honest tokenizer or hub takes says how busy the machine is."""
    monkeypatch.setattr(limits, "TOKENIZER_SECONDS", float(PATIENCE))
    monkeypatch.setattr(limits, "LISTING_SECONDS", float(PATIENCE))


@pytest.fixture(scope="session")
def neox():
    """A small GPT-NeoX."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    torch.manual_seed(0)
    config = GPTNeoXConfig(
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        intermediate_size=4 * WIDTH,
        vocab_size=WORDS,
        max_position_embeddings=16,
    )
    return GPTNeoXForCausalLM(config)


@pytest.fixture
def series(neox, tmp_path):
    """A folder with step0, step1, step2, step10, step100: sorted by name they would be in the wrong order."""
    return make_series(neox, tmp_path / "series", (0, 1, 2, 10, 100))
