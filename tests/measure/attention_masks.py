"""Masks of attention as tables have them, made into tensors; and statistics compared with those of the matrix."""

import torch

from joma.measure.attention import AttentionStats


def options(given, *, batch=2, heads=4, queries=37, keys=37, device="cpu"):
    """Shapes of a bias and flags as tensors; with "hidden" a bias hides keys, a whole column of one sample too."""
    generator = torch.Generator().manual_seed(0)
    made = {name: value for name, value in given.items() if name != "hidden"}
    if "bias" in made:
        bias = made["bias"] = torch.randn(made["bias"], generator=generator)
        if given.get("hidden"):
            bias[torch.rand(bias.shape, generator=generator) > 0.6] = -torch.inf
            bias[0, :, 3] = -torch.inf
    if "sinks" in made:
        made["sinks"] = torch.randn(heads, generator=generator)
    if "key_padding" in made:
        made["key_padding"] = torch.rand(batch, keys, generator=generator) > 0.4
        made["key_padding"][0, :10] = False  # the first queries of this sample see nothing at all
    if "query_padding" in made:
        made["query_padding"] = torch.rand(batch, queries, generator=generator) > 0.4
    return {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in made.items()}


def close(got, want: AttentionStats, tolerance):
    for name, a, b in zip(AttentionStats._fields, got, want, strict=True):
        scale = max(1.0, b[b.isfinite()].abs().max().item()) if name == "effective_keys" else 1.0
        assert a.dtype == torch.float32
        a, b = (x.double().cpu() for x in (a, b))
        torch.testing.assert_close(a, b, rtol=1e-5, atol=tolerance * scale, msg=lambda m, name=name: f"{name}: {m}")
