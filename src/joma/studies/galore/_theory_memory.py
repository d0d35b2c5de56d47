"""The memory columns of the paper's tables against its own formula, from the configurations of the models."""

from __future__ import annotations

import torch
from torch import Tensor

from joma.theory.galore import adam_bytes, galore_bytes, lora_bytes

MODELS = ("60M", "130M", "350M", "1B")
HIDDEN, INTERMEDIATE, LAYERS = (512, 768, 1024, 2048), (1376, 2048, 2736, 5461), (8, 12, 24, 24)
"""The paper's Table 5. It has 32 layers and 24 heads for 1B; the published configuration has 24 and 32."""
RANKS, VOCABULARY = (128, 256, 256, 512), 32000
NOMINAL = (60e6, 130e6, 350e6, 1.33e9)
"""Parameters in round numbers, as the paper seems to have counted weights."""
UNITS = {"GB (10⁹)": 1e9, "GiB (2³⁰)": 2.0**30, "1.024 · 10⁹": 1.024e9}
PRINTED_STATES = (0.13, 0.28, 0.54, 1.78)
PRINTED_TOTAL = (0.24, 0.52, 1.22, 4.38)
PRINTED_LORA = (0.17, 0.37, 0.72, 2.38)
PRINTED_ADAM = (0.23, 0.51, 1.37, 5.20)


def count() -> dict[str, Tensor]:
    """Bytes by model: weights, and states of Adam, GaLore and LoRA. Embeddings and head are trained in full."""
    m, n = torch.tensor(HIDDEN, dtype=torch.float64), torch.tensor(INTERMEDIATE, dtype=torch.float64)
    rank, layers = torch.tensor(RANKS, dtype=torch.float64), torch.tensor(LAYERS, dtype=torch.float64)
    square, wide = (adam_bytes(m, side) for side in (m, n))
    embeddings = adam_bytes(2 * VOCABULARY, m)
    norms = 2 * (2 * layers + 1) * m
    found = {"embedding states": embeddings.states}
    for name, of in (("galore", galore_bytes), ("lora", lora_bytes)):
        four, three = (of(m, side, rank) for side in (m, n))  # attention and MLP
        found[f"{name} matrices"] = layers * sum(
            (times * (one.states + one.projection) for times, one in ((4, four), (3, three))), torch.zeros(())
        )
    weights = layers * (4 * square.weights + 3 * wide.weights) + embeddings.weights + norms
    return {
        **found,
        "weights": weights,
        "adam": 2 * weights,
        "galore": found["galore matrices"] + embeddings.states + 2 * norms,
        "lora": found["lora matrices"] + embeddings.states,
        "nominal weights": 2 * torch.tensor(NOMINAL, dtype=torch.float64),
        "printed states": torch.tensor(PRINTED_STATES, dtype=torch.float64),
        "printed total": torch.tensor(PRINTED_TOTAL, dtype=torch.float64),
        "printed lora": torch.tensor(PRINTED_LORA, dtype=torch.float64),
        "printed adam": torch.tensor(PRINTED_ADAM, dtype=torch.float64),
    }
