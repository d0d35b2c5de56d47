"""The time of a step: the optimizer alone, whole training steps, steps with a refresh, and the step as a CUDA graph."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from _galore_training import (
    RANKS,
    SEQUENCES,
    Maker,
    Row,
    Training,
    adamw,
    allowing_tf32,
    fastest,
    galore,
    in_turns,
    makers,
    name_of,
    timed,
    variants,
)

from joma.optim import GaLore

REFRESH = 200  # updates over which the cost of all refreshes is shared out
BLOCK = 200.0  # milliseconds that are timed at once, about
TURNS = 4  # times as many rounds for whole training steps, of which optimizers are a small part


def _head(part: str, size: str, dtype: torch.dtype) -> Row:
    return {"part": part, "size": size, "dtype": name_of(dtype), "rank": RANKS[size]}


def _count(milliseconds: float) -> int:
    """Steps of such a length that are timed at once."""
    return max(1, min(100, int(BLOCK / max(milliseconds, 1e-3))))


def optimizer_steps(size: str, dtype: torch.dtype, device: str, rounds: int, folder: str) -> Iterator[Row]:
    """The optimizer alone, without refreshes; `galore_tf32`: where float32 products may be TF32."""
    ways = {}
    for name, make in makers(size, folder, quick_start=True).items():
        if name in ("adamw", "galore", "galore_torch"):
            ways[name] = Training(make, size, device, dtype, sequences=1)
            ways[name].train(2)
            ways[name].backward()
    count = _count(timed(ways["galore"].step, device))
    calls = {name: lambda one=one: one.step(count) for name, one in ways.items()}
    times = fastest(calls, device, rounds)
    if dtype == torch.float32:
        with allowing_tf32():
            times |= fastest({"galore_tf32": calls["galore"]}, device, rounds)
    row = _head("optimizer", size, dtype) | {f"{name}_ms": value / count for name, value in times.items()}
    yield row | {f"{name}_over_adamw": times[name] / times["adamw"] for name in times if name != "adamw"}


def training_steps(size: str, dtype: torch.dtype, device: str, rounds: int, folder: str) -> Iterator[Row]:
    """Whole training steps, without refreshes: the fastest of each, and quartiles of ratios in one round."""
    ways = {}
    for name, make in makers(size, folder, quick_start=True).items():
        if name != "galore_torch_in_backward":
            ways[name] = Training(make, size, device, dtype)
            ways[name].train(2)
    count = _count(timed(ways["adamw"].train, device))
    calls = {name: lambda one=one: one.train(count) for name, one in ways.items()}
    for name, context in variants(size, dtype).items():
        with context():
            other = Training(makers(size, "")["galore"], size, device, dtype)
            other.train(2)
        calls[name] = partial(_train_in, context, other, count)
    turns = in_turns(calls, device, TURNS * rounds)
    row = _head("training", size, dtype) | {"tokens": ways["adamw"].tokens.numel(), "rounds": TURNS * rounds}
    row |= {f"{name}_ms": min(times) / count for name, times in turns.items()}
    for name, times in turns.items():
        if name != "adamw":
            pairs = [one / other for one, other in zip(times, turns["adamw"], strict=True)]
            row[f"{name}_over_adamw"] = min(times) / min(turns["adamw"])
            row[f"{name}_over_adamw_quartiles"] = statistics.quantiles(pairs, n=4)
    yield row


def _train_in(context: Callable[[], AbstractContextManager[object]], training: Training, count: int) -> None:
    with context():
        training.train(count)


def refresh_steps(size: str, dtype: torch.dtype, device: str, name: str = "galore", cycles: int = 4) -> Iterator[Row]:
    """Steps with a refresh and plain ones take turns: the slowest over the fastest, and the cost in all.

    Of each step of a cycle the fastest time of some cycles counts: what else a host does is not the refresh.
    """
    training = Training(makers(size, "")[name], size, device, dtype)
    optimizer = training.optimizer
    assert isinstance(optimizer, GaLore)
    training.train(3)
    turns = optimizer.matrices[0].turn[1]
    for group in optimizer.param_groups:
        group["refresh"] = 2 * turns  # a turn in every other step
    best = dict.fromkeys(range(2 * turns), math.inf)
    for cycle in range(cycles + 1):  # the first warms up
        for _ in best:
            at = optimizer.matrices[0].count % len(best)
            took = timed(training.train, device)
            if cycle:
                best[at] = min(took, best[at])
    plain = min(best[at] for at in best if at % 2)
    refreshed = [best[at] for at in best if at % 2 == 0]
    yield _head("refresh steps", size, dtype) | {
        "way": name,
        "refresh_turns": turns,
        "cycles": cycles,
        "plain_training_step_ms": plain,
        "mean_refresh_step_ms": statistics.mean(refreshed),
        "slowest_refresh_step_ms": max(best.values()),  # a subspace that has not settled goes on in the step after
        "slowest_refresh_step_over_plain": max(best.values()) / plain,
        "refresh_ms_per_update": sum(max(0.0, each - plain) for each in refreshed) / REFRESH,
    }


def graph_steps(size: str, dtype: torch.dtype, device: str, rounds: int) -> Iterator[Row]:
    """The optimizer alone as a CUDA graph: AdamW and GaLore, both capturable."""
    if device == "cuda":
        names, call = ("adamw", "galore", *variants(size, dtype)), lambda training: training.optimizer.step()
        yield _head("graph", size, dtype) | _as_graphs(names, size, dtype, 1, call, 100, rounds)


def graph_training_steps(size: str, dtype: torch.dtype, device: str, rounds: int) -> Iterator[Row]:
    """Whole training steps as a CUDA graph, without refreshes: here no host is too slow."""
    if device == "cuda":
        names, call = ("adamw", "galore", "per_layer", *variants(size, dtype)), lambda training: training.train()
        yield _head("graph training", size, dtype) | _as_graphs(names, size, dtype, SEQUENCES, call, 8, rounds)


def _as_graphs(
    names: Sequence[str],
    size: str,
    dtype: torch.dtype,
    sequences: int,
    call: Callable[[Training], None],
    replays: int,
    rounds: int,
) -> Row:
    """Milliseconds of a call that is captured, and over that of AdamW."""
    row: Row = {}
    graphs, kept = {}, []
    for name in names:
        make: Maker = partial(_capturable, name=name, size=size)
        try:
            with variants(size, dtype).get(name, nullcontext)():
                kept.append(Training(make, size, "cuda", dtype, sequences=sequences))
                graphs[name] = _captured(kept[-1], call)
        except Exception as error:  # said in the record: the other numbers are worth having
            row[f"{name}_captured"] = f"{type(error).__name__}: {error}"[:300]
            continue
        weight = next(iter(kept[-1].model.parameters()))
        before = weight.detach().clone()
        graphs[name].replay()
        row[f"{name}_replay_moves_the_weights"] = not torch.equal(before, weight)
    calls = {name: lambda graph=graph: [graph.replay() for _ in range(replays)] for name, graph in graphs.items()}
    turns = in_turns(calls, "cuda", rounds)
    row |= {f"{name}_ms": min(times) / replays for name, times in turns.items()}
    for name in turns.keys() - {"adamw"} if "adamw" in turns else ():
        pairs = [one / other for one, other in zip(turns[name], turns["adamw"], strict=True)]
        row[f"{name}_over_adamw"] = min(turns[name]) / min(turns["adamw"])
        row[f"{name}_over_adamw_quartiles"] = statistics.quantiles(pairs, n=4)
    return row


def _capturable(model: torch.nn.Module, name: str, size: str) -> torch.optim.Optimizer:
    if name == "adamw":
        return adamw(model, capturable=True)
    return galore(model, size, capturable=True, per_layer=name == "per_layer")


def _captured(training: Training, call: Callable[[Training], None]) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        training.train(3)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call(training)
    return graph
