"""The tiny models, saved and opened again, and a text."""

import pytest
import torch
from tiny_models import KINDS, LENGTH, TOKENS, fresh


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    from transformers import AutoModelForCausalLM

    found = {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp(kind)
        fresh(kind).save_pretrained(folder)
        found[kind] = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    return found


@pytest.fixture(scope="session")
def tokens():
    return torch.randint(TOKENS, (2, LENGTH), generator=torch.Generator().manual_seed(0))
