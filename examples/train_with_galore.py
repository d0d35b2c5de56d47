"""Train a small LLaMA with AdamW and with GaLore, and compare memory: python examples/train_with_galore.py"""

import argparse

import torch
import torch.nn.functional as F

from joma.models.llama import Llama, LlamaConfig
from joma.optim import GaLore, memory

CONFIG = LlamaConfig(vocabulary=100, width=64, mlp=128, heads=4, layers=2, context=32)
OPTIMIZERS = {
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
    "GaLore": lambda model: GaLore(model, torch.optim.AdamW, rank=8, lr=0.01),
}


def main() -> None:
    """Print one line per optimizer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args().steps
    text = torch.randint(100, (8, 33), generator=torch.Generator().manual_seed(0))
    for name, make in OPTIMIZERS.items():
        model = Llama(CONFIG, seed=0)
        optimizer = make(model)
        for _ in range(steps):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
            loss.backward()
            optimizer.step()
        states = memory(model, optimizer).total.measured.states
        print(f"{name}: loss {loss.item():.2f}, optimizer's state {states / 2**10:.0f} KiB")


if __name__ == "__main__":
    main()
