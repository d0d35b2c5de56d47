"""The memory of GaLore: the most that an allocator gave out or was asked for, and what states and projections hold."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import torch
from _galore_training import Maker, Row, Training, galore, makers, name_of

from joma.optim import GaLore, memory

MIB = 2**20


def peaks(size: str, dtype: torch.dtype, device: str, folder: str) -> Iterator[Row]:
    """Of two training steps on one sequence, the second without a refresh; one row per way."""
    if device != "cuda":
        return
    torch.ones(64, 64, device=device) @ torch.ones(64, 64, device=device)  # the library's own workspace
    for name, make in makers(size, folder, quick_start=True).items():
        yield {"part": "peak", "size": size, "dtype": name_of(dtype), "way": name, **_peak(make, size, device, dtype)}


def _peak(make: Maker, size: str, device: str, dtype: torch.dtype) -> Row:
    gc.collect()
    torch.cuda.empty_cache()
    before = _now("current")
    torch.cuda.reset_peak_memory_stats()
    training = Training(make, size, device, dtype, sequences=1)
    training.train()
    training.optimizer.zero_grad()
    first = _now("peak")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    training.train()
    later = _now("peak")
    found: Row = {}
    for what, known in before.items():
        found[f"{what}_mib"] = (later[what] - known) / MIB
        found[f"{what}_with_refresh_mib"] = (first[what] - known) / MIB
    ours = isinstance(training.optimizer, (GaLore, torch.optim.AdamW))
    formula = memory(training.model, training.optimizer).total.formula if ours else None
    return found | ({"formula_mib": formula.total / MIB} if formula is not None else {})


def _now(when: str) -> dict[str, int]:
    """Bytes that the allocator has given out, and those that it was asked for: it rounds up by as much as 1 MiB."""
    counts = torch.cuda.memory_stats()
    return {"peak": counts[f"allocated_bytes.all.{when}"], "requested_peak": counts[f"requested_bytes.all.{when}"]}


def state_memory(size: str, dtype: torch.dtype, device: str) -> Iterator[Row]:
    """Bytes of projections and states of the projected matrices against m r + 2 n r numbers."""
    training = Training(lambda model: galore(model, size), size, device, dtype, sequences=1)
    training.train()
    table = memory(training.model, training.optimizer)
    first = table.rows[0]
    assert first.formula is not None
    formula = first.formula.states + first.formula.projections
    measured = first.measured.states + first.measured.projections
    yield {
        "part": "memory",
        "size": size,
        "dtype": name_of(dtype),
        "projected_state_bytes": measured,
        "formula_bytes": formula,
        "ratio": measured / formula,
        "table": str(table).splitlines(),
    }
