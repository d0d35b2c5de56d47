"""How long the host is busy with a training step, while the device has other work: what a slow host makes slow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from _galore_training import RANKS, Row, Training, makers, name_of

from joma.optim import GaLore
from joma.optim._matrix import Matrix
from joma.optim._update import Outcomes

BUSY = 80_000_000  # cycles for which the device is kept busy: some 40 milliseconds, longer than what is timed
TRIALS = 20


def host_times(size: str, dtype: torch.dtype, device: str) -> Iterator[Row]:
    """Milliseconds, the least of some: gradients, the steps of AdamW and GaLore, updates of per_layer, a refresh."""
    if device != "cuda":
        return
    ways = {name: Training(makers(size, "")[name], size, device, dtype) for name in ("adamw", "galore", "per_layer")}
    for training in ways.values():
        training.train(3)
    row: Row = {"part": "host", "size": size, "dtype": name_of(dtype), "rank": RANKS[size]}
    row["gradients_ms"] = _busy(lambda: (ways["adamw"].optimizer.zero_grad(), ways["adamw"].backward()))
    for name in ("adamw", "galore"):
        ways[name].backward()
        row[f"{name}_ms"] = _busy(ways[name].step)
    row |= _per_layer(ways["per_layer"]) | _refresh(ways["galore"])
    yield row


def _busy(call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(TRIALS):
        torch.cuda.synchronize()
        torch.cuda._sleep(BUSY)
        begin = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begin)
    torch.cuda.synchronize()
    return 1e3 * best


def _per_layer(training: Training) -> Row:
    """What hooks do in a backward, with gradients that are there already, and the step that follows."""
    optimizer = training.optimizer
    assert isinstance(optimizer, GaLore)
    parameters = list(training.model.parameters())[::-1]
    given = [torch.randn_like(each) for each in parameters]
    updates: list[int] = []
    own = optimizer._update_buckets

    def counted(buckets: list[object], *, captured: bool) -> None:
        updates.append(len(buckets))
        own(buckets, captured=captured)  # type: ignore[arg-type]

    def once() -> None:
        for each, gradient in zip(parameters, given, strict=True):
            each.grad = gradient
            GaLore._update_in_backward(optimizer, each)
        optimizer.step()

    optimizer._update_buckets = counted  # type: ignore[method-assign]
    once()
    del optimizer._update_buckets
    return {"per_layer_ms": _busy(once), "updates_of_per_layer": sum(updates)}


def _refresh(training: Training) -> Row:
    """The dearest refresh of one turn."""
    optimizer = training.optimizer
    assert isinstance(optimizer, GaLore)
    batches: dict[tuple[int, ...], list[Matrix]] = {}
    by_turn: dict[int, list[Matrix]] = {}
    for matrix in optimizer.matrices:
        by_turn.setdefault(matrix.turn[0], []).append(matrix)
    for batch in by_turn.values():
        batches.setdefault((len(batch), *batch[0].parameter.shape), batch)

    def once(batch: list[Matrix]) -> None:
        optimizer._follow(batch)
        optimizer._outcomes = Outcomes()

    return {"refresh_ms": max(_busy(lambda batch=batch: once(batch)) for batch in batches.values())}
