"""GaLore's bases in 8 bits: what they save, what a step costs, and what becomes of the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from _galore_training import RANKS, Row, Training, fastest, galore, name_of
from _live_memory import LiveMemory

import joma
from joma.models.llama import Llama, LlamaConfig
from joma.optim import GaLore, Projected, find_projector, memory

MIB = 2**20
KEPT = {"own": None, "int8": torch.int8}
TEXT = LlamaConfig(vocabulary=256, width=64, mlp=172, heads=4, layers=2, context=64)
STEPS, ROWS = 200, 8


def low_bits(size: str, dtype: torch.dtype, device: str, rounds: int) -> Iterator[Row]:
    """Bytes of the bases, the most bytes at one time, the optimizer's step; beside bases as parameters have them."""
    head = {"part": "lowbit", "size": size, "dtype": name_of(dtype), "rank": RANKS[size]}
    trainings: dict[str, Training] = {}
    for name, kept in KEPT.items():
        training = Training(
            lambda model, kept=kept: galore(model, size, projected=Projected(basis_dtype=kept)),
            size,
            device,
            dtype,
            sequences=1,
        )
        training.tokens = training.tokens[:, :8]  # so that activations are small
        training.train()
        held = [*training.model.parameters(), *training.model.buffers(), training.tokens]
        held += [
            one
            for state in training.optimizer.state.values()
            for one in state.values()
            if isinstance(one, torch.Tensor)
        ]
        training.optimizer.zero_grad()
        with LiveMemory(*held) as live:
            training.train()
        table = memory(training.model, training.optimizer).total
        assert table.formula is not None
        trainings[name] = training
        yield head | {
            "way": name,
            "projections_mib": table.measured.projections / MIB,
            "projections_formula_mib": table.formula.projections / MIB,
            "peak_mib": live.peak / MIB,
            "formula_mib": table.formula.total / MIB,
        }
    times = fastest({name: one.step for name, one in trainings.items()}, device, rounds)
    steps = {f"{name}_ms": value for name, value in times.items()}
    yield head | {"way": "time", **steps, **{f"{name}_over_own": value / times["own"] for name, value in times.items()}}


def text_loss(kept: torch.dtype | None, seed: int, bases: list[torch.Tensor] | None = None) -> float:
    """Of a small LLaMA on the source of this package, byte by byte, on the last tenth of the text.

    - bases: takes subspaces of the gradients at the end, not rounded
    """
    files = sorted(Path(joma.__file__).parent.rglob("*.py"))
    text = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8).long()
    cut, length = len(text) * 9 // 10, TEXT.context + 1
    model = Llama(TEXT, seed=seed)
    optimizer = GaLore(model, rank=TEXT.width // 4, refresh=50, lr=0.01, projected=Projected(basis_dtype=kept))

    def loss_at(starts: torch.Tensor) -> torch.Tensor:
        rows = text[starts[:, None] + torch.arange(length)]
        return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    drawn = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_at(torch.randint(cut - length, (ROWS,), generator=drawn)).backward()
        optimizer.step()
    if bases is not None:
        bases += [find_projector(matrix.parameter.grad, matrix.rank, "exact").basis for matrix in optimizer.matrices]
    with torch.no_grad():
        return float(loss_at(torch.linspace(cut, len(text) - length, 256).long()))


def low_bit_losses(seeds: int = 3) -> Iterator[Row]:
    """The loss with bases in 8 bits minus that with float32 ones, of each seed; how orthonormal bases are."""
    ways = {"float32": None, "bfloat16": torch.bfloat16, "int8": torch.int8}
    bases: list[torch.Tensor] = []
    wide = [text_loss(None, seed, bases) for seed in range(seeds)]
    yield {"part": "lowbit_loss", "way": "float32", "steps": STEPS, "losses": wide}
    for name in ("bfloat16", "int8"):
        apart = [text_loss(ways[name], seed) - one for seed, one in enumerate(wide)]
        yield {"part": "lowbit_loss", "way": name, "mean_more": sum(apart) / seeds, "more": apart}
    yield from _apart("trained", bases)
    yield from _apart("random, 4096 x 128", [torch.linalg.qr(torch.randn(4096, 128))[0]])


def _apart(title: str, bases: list[torch.Tensor]) -> Iterator[Row]:
    """How far from one P^T P is, after rounding in several ways: the spectral norm, mean and most."""
    for name, make in _forms().items():
        found = [make(basis.double()) for basis in bases]
        apart = [float(torch.linalg.matrix_norm(one.mT @ one - torch.eye(one.shape[-1]).double(), 2)) for one in found]
        row = {"part": "lowbit_loss", "way": name, "matrix": title}
        yield row | {"mean_apart": sum(apart) / len(apart), "most_apart": max(apart)}


def _forms() -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Ways of rounding a basis; blocks are of 256 entries, from the smallest to the largest, as in Q-GaLore."""

    def column(basis: torch.Tensor, largest: int) -> torch.Tensor:
        codes = (basis / basis.abs().amax(0) * largest).round()
        return codes / torch.linalg.vector_norm(codes, dim=0)

    def blocks(basis: torch.Tensor, levels: int) -> torch.Tensor:
        low, high = (each[:, None] for each in basis.reshape(-1, 256).aminmax(dim=1))
        step = (high - low) / levels
        return (((basis.reshape(-1, 256) - low) / step).round() * step + low).reshape(basis.shape)

    return {
        "column, int8": lambda basis: column(basis, 127),
        "blocks of 256, int8": lambda basis: blocks(basis, 255),
    }
