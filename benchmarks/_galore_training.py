"""What GaLore's benchmarks train: LLaMAs of four sizes, with fused AdamW, with GaLore and with galore-torch."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from _peers import galore_torch
from torch import Tensor

from joma.models.llama import Llama, LlamaConfig
from joma.optim import GaLore, _matrix

SIZES: dict[str, dict[str, int]] = {
    "tiny": {"vocabulary": 500, "width": 64, "mlp": 172, "heads": 4, "layers": 2, "context": 32},
    "20M": {"vocabulary": 8000, "width": 384, "mlp": 1024, "heads": 6, "layers": 8, "context": 64},
    "60M": {},
    "330M": {"width": 2048, "mlp": 5461, "heads": 16, "layers": 4},  # an odd side, as LLaMA 1B of the paper has it
    "340M": {"width": 2048, "mlp": 5632, "heads": 16, "layers": 4},  # a side that tensor cores like
}
RANKS = {"tiny": 16, "20M": 96, "60M": 128, "330M": 512, "340M": 512}  # a quarter of the width
SEQUENCES = 64  # in a batch
NEVER = 10**9  # updates between refreshes where none is wanted after the first
Maker = Callable[[torch.nn.Module], torch.optim.Optimizer]
Row = dict[str, object]


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def timed(call: Callable[[], object], device: str) -> float:
    """Milliseconds."""
    wait(device)
    begin = time.perf_counter()
    call()
    wait(device)
    return 1e3 * (time.perf_counter() - begin)


def in_turns(ways: dict[str, Callable[[], object]], device: str, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each way in each round, after one round to warm up; each round begins with another way.

    A device that gets hot is slower for who comes later.
    """
    found: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for turn in range(rounds + 1):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            took = timed(ways[name], device)
            if turn:
                found[name].append(took)
    return found


def fastest(ways: dict[str, Callable[[], object]], device: str, rounds: int) -> dict[str, float]:
    """The fastest of several rounds in milliseconds."""
    return {name: min(times) for name, times in in_turns(ways, device, rounds).items()}


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@cache
def _drawn(size: str) -> Llama:
    """Drawn once: on a CPU that takes seconds."""
    return Llama(LlamaConfig(**SIZES[size]), seed=0)


class Training:
    """A model, an optimizer and a batch; autocast to bfloat16 on a GPU."""

    def __init__(self, make: Maker, size: str, device: str, dtype: torch.dtype, *, sequences: int = SEQUENCES) -> None:
        self.model, self.device = copy.deepcopy(_drawn(size)).to(device, dtype), device
        self.optimizer = make(self.model)
        shape = self.model.config
        generator = torch.Generator().manual_seed(0)
        sequences = min(sequences, 4) if size == "tiny" else sequences
        self.tokens = torch.randint(shape.vocabulary, (sequences, shape.context), generator=generator).to(device)

    def backward(self) -> None:
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            logits = self.model(self.tokens)
        F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), self.tokens[:, 1:].flatten()).backward()

    def train(self, count: int = 1) -> None:
        for _ in range(count):
            self.optimizer.zero_grad()
            self.backward()
            self.optimizer.step()

    def step(self, count: int = 1) -> None:
        """The optimizer alone, with gradients that are there."""
        for _ in range(count):
            self.optimizer.step()


def adamw(model: torch.nn.Module, **more: object) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True, **more)  # type: ignore[arg-type]


def galore(model: torch.nn.Module, size: str, **more: object) -> GaLore:
    return GaLore(model, torch.optim.AdamW, rank=RANKS[size], refresh=NEVER, lr=1e-3, fused=True, **more)  # type: ignore[arg-type]


def makers(size: str, folder: str, *, quick_start: bool = False) -> dict[str, Maker]:
    """By name; galore-torch where it is. With quick_start its first bases are any, which saves minutes of SVDs."""
    found: dict[str, Maker] = {
        "adamw": adamw,
        "galore": lambda model: galore(model, size),
        "per_layer": lambda model: galore(model, size, per_layer=True),
    }
    if theirs := galore_torch(folder, quick_start=quick_start):
        found["galore_torch"] = lambda model: theirs.whole(model, RANKS[size], NEVER)
        found["galore_torch_in_backward"] = lambda model: theirs.in_backward(model, RANKS[size], NEVER)
    return found


def variants(size: str, dtype: torch.dtype) -> dict[str, Callable[[], AbstractContextManager[Any]]]:
    """What else GaLore could do at a size and precision, by name; each holds while its context is open."""
    found: dict[str, Callable[[], AbstractContextManager[Any]]] = {}
    if dtype == torch.float32:
        found["galore_tf32"] = allowing_tf32
    elif SIZES[size].get("mlp", 0) % _matrix.ALIGNED:
        found["galore_unpadded"] = lambda: patch.object(_matrix, "PADDED_ON", ())
        found["galore_addmm"] = lambda: patch.object(_matrix, "add_padded_product", _addmm_padded)
    return found


@contextmanager
def allowing_tf32() -> Iterator[None]:
    """float32 products may be TF32."""
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


def _addmm_padded(weight: Tensor, basis: Tensor, compact: Tensor, scale: float, shrink: float) -> None:
    """In one product, into a matrix whose rows are not aligned."""
    rows, columns = compact.shape
    padded = compact.new_empty(rows, columns + -columns % _matrix.ALIGNED)[:, :columns].copy_(compact)
    weight.addmm_(basis, padded, beta=shrink, alpha=scale)
