"""Fixtures; what builds them is in checkpoint_series, which tests may import."""

import shutil

import numpy as np
import pytest
import torch
from checkpoint_series import LAYERS, WIDTH, WORDS, make_series, scan
from patience import PATIENCE

from joma.host import limits


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """How long an honest tokenizer or hub takes says how busy the machine is."""
    monkeypatch.setattr(limits, "TOKENIZER_SECONDS", float(PATIENCE))
    monkeypatch.setattr(limits, "LISTING_SECONDS", float(PATIENCE))


@pytest.fixture
def tokens(tmp_path):
    np.save(tmp_path / "tokens.npy", np.random.default_rng(0).integers(0, WORDS, 100))
    return tmp_path / "tokens.npy"


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


@pytest.fixture(scope="session")
def pristine(neox, tmp_path_factory):
    """A folder with step0, step1, step2, step10, step100: sorted by name they would be in the wrong order.

    It is to be read and left as it is.
    """
    return make_series(neox, tmp_path_factory.mktemp("pristine") / "series", (0, 1, 2, 10, 100))


@pytest.fixture
def series(pristine, tmp_path):
    return shutil.copytree(pristine, tmp_path / "series")


@pytest.fixture(scope="session")
def scanned(pristine, tmp_path_factory):
    status, found = scan(pristine, "--jobs", 1, out=tmp_path_factory.mktemp("scanned"))
    assert status == 0
    return found
