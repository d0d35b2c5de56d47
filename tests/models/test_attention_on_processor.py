"""Attention that nobody looks into, on a CPU: short and long, against the one that is written out, in float64."""

from __future__ import annotations

import pytest
import torch

from joma.models._attention import SHORT, attend, attend_on_processor


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("heads", "length"), [(1, 5), (3, 4), (2, SHORT + 1)])
def test_it_and_its_gradients_are_those_of_attention_written_out(heads, length, causal):
    generator = torch.Generator().manual_seed(length)
    shape = (2, 3, heads, length, 4)  # members, batch, heads, length, head width
    parts = [torch.randn(shape, dtype=torch.double, generator=generator).requires_grad_() for _ in range(4)]
    query, key, value, by = parts
    slow = attend(query, key, value, kind="softmax", causal=causal, sink=None, drop=lambda x: x, see=lambda *_: None)
    fast = attend_on_processor(query, key, value, causal=causal)
    torch.testing.assert_close(fast, slow)
    found, wanted = (torch.autograd.grad((one * by).sum(), parts[:3], retain_graph=True) for one in (fast, slow))
    torch.testing.assert_close(found, wanted)
