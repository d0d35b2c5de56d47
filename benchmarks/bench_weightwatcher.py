"""Stable rank of a layer against WeightWatcher, for the same output only.

    pip install weightwatcher && python benchmarks/bench_weightwatcher.py [--record]

WeightWatcher computes all eigenvalues of a layer (`get_ESD`) and takes stable rank, norms and a power-law fit from
them; only the eigenvalues are timed, and the stable rank is read off them. joma certifies the largest one and stops.
"""

import time
from importlib.util import find_spec

import torch
from _record import record

from joma.measure.spectrum import spectrum

SIZES = ((1024, 4096, 5), (2048, 8192, 3), (4096, 16384, 1))
"""Rows, columns, and how often to measure: the widest takes minutes."""


def best(calls, rounds):
    """Fastest of several rounds in seconds, each call once a round. Both have been called before: they are warm."""
    fastest = [float("inf")] * len(calls)
    for _ in range(rounds):
        for i, call in enumerate(calls):
            start = time.perf_counter()
            call()
            fastest[i] = min(fastest[i], time.perf_counter() - start)
    return fastest


def compare(weightwatcher, rows, columns, rounds):
    torch.manual_seed(0)
    layer = torch.nn.Linear(columns, rows, bias=False)
    weight = layer.weight.detach()
    watcher = weightwatcher.WeightWatcher(model=torch.nn.Sequential(layer))
    number = int(watcher.describe().layer_id.iloc[0])
    eigenvalues = watcher.get_ESD(layer=number)
    ours = spectrum(weight, tolerance=1e-3)
    slow, fast = best([lambda: watcher.get_ESD(layer=number), lambda: spectrum(weight, tolerance=1e-3)], rounds)
    return {
        "size": f"{rows}x{columns}",
        "weightwatcher_s": slow,
        "joma_s": fast,
        "ratio": slow / fast,
        "stable_rank_weightwatcher": float(eigenvalues.sum() / eigenvalues.max()),
        "stable_rank_joma": float(ours.stable_rank),
        "certified": float(ours.error.max()),
    }


def main():
    if find_spec("weightwatcher") is None:
        print("bench_weightwatcher: skipped, weightwatcher is not installed (pip install weightwatcher)")
        return
    import weightwatcher

    rows = []
    for size in SIZES:
        rows.append(compare(weightwatcher, *size))
        print(rows[-1], flush=True)
    record("weightwatcher", rows)


if __name__ == "__main__":
    main()
