"""Arrays where tensors are wanted: one sentence, from every measure."""

import numpy as np
import pytest
import torch

from joma.measure import alignment, attention, embedding, intervals, spectrum, superposition

W, Q, T = np.eye(4), np.zeros((1, 1, 3, 4)), torch.zeros(1, 1, 3, 4)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: spectrum.spectrum(W), "w"),
        (lambda: spectrum.spectrum(torch.eye(4), start=W), "start"),
        (lambda: spectrum.stable_rank(W), "w"),
        (lambda: spectrum.spectral_norm(W), "w"),
        (lambda: spectrum.effective_rank(W), "w"),
        (lambda: embedding.coherence(W), "vectors"),
        (lambda: attention.attention_stats(Q, Q), "q"),
        (lambda: attention.attention_stats(T, Q), "k"),
        (lambda: attention.attention_stats(T, T, key_padding=np.ones((1, 3), bool)), "key_padding"),
        (lambda: attention.attention_with_stats(T, T, Q), "v"),
        (lambda: alignment.best_neuron_correlation(W, W), "activity"),
        (lambda: superposition.peaks(np.zeros((2, 3, 4))), "activations"),
        (lambda: superposition.superposition(W, torch.zeros(4, 4), torch.zeros(4, 1)), "height"),
        (lambda: intervals.mean_interval(W), "values"),
    ],
)
def test_an_array_is_refused_by_name(call, name):
    with pytest.raises(ValueError, match=f"^{name} must be a tensor, got ndarray: torch.as_tensor makes one of it$"):
        call()
