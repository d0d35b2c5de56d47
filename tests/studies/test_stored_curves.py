"""The stored runs of Figures 6 and 8, where they are at hand: they begin with the weights that our seeds give."""

import os

import numpy as np
import pytest
import torch

from joma.data.text import streams, windows
from joma.models import Decoder
from joma.probes.decoder import attention_entropy
from joma.studies._language_models import corpus, recipe
from joma.studies._stored_curves import SEEDS, find_stored
from joma.studies.entropy_over_training import STUDY


@pytest.mark.skipif("JOMA_DATA" not in os.environ, reason="needs the data under JOMA_DATA")
@pytest.mark.parametrize("layers", [1, 2, 5, 10])
def test_the_stored_runs_begin_with_our_weights(layers):
    stored = find_stored("")
    if stored is None:
        pytest.skip("needs reference/wikitext2_runs.json under JOMA_DATA")
    text = corpus(STUDY.paper)
    variant = recipe(STUDY.paper, text, layers=layers)
    sequences, _ = windows(streams(text.tokens["valid"], variant.valid_streams).long(), variant.decoder.context)
    for theirs in (run for run in stored if run["layers"] == layers and run["lr"] == 1e-4):
        with torch.no_grad():
            decoder = Decoder(variant.decoder, seeds=[SEEDS[theirs["seed"]]])
            ours = attention_entropy(decoder, sequences[variant.sequence, :1])[0, :, 0]
        np.testing.assert_allclose(ours, theirs["entropy"][0], atol=2e-5)
