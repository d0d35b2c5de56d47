"""GaLore: finding the subspace, a training step, the memory at peak, and galore-torch 1.0 step for step.

- refresh: `find_projector` against torch.linalg.svd(full_matrices=False), for a matrix with a falling spectrum (rank r
  plus noise) and a Gaussian one; `energy_ratio` is the captured energy over that of the SVD. `warm` starts from the
  basis of a gradient that differs by a tenth.
- step: optimizer step and whole training step of two LLaMAs, GaLore with fused AdamW inside against fused AdamW, and
  the optimizer step as a CUDA graph. Refreshes are timed apart: each turn in a step of its own.
- peak: the most bytes that the allocator had given out, bfloat16 and float32, beside the formula.
- memory: bytes of projections and states of the projected matrices against m r + 2 n r numbers.
- peer: GaLore in the conventions of galore-torch (exact SVD, epsilon before the bias correction, decay after the
  update) against galore-torch itself, largest difference of any weight relative to the largest change; and the time
  of its refresh. galore-torch is taken from `--peer FOLDER` or from PYTHONPATH; without it what needs it is left out.

    python benchmarks/bench_galore.py [--device cuda] [--parts step,peak,refresh,memory,peer,finite] [--record]

`--small` takes small matrices and a small model, as a CPU does.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import itertools
import math
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from _peers import galore_torch
from _record import record

from joma.optim import GaLore, find_projector, memory

RANK, REFRESH = 128, 200
MINUTES = 2.5  # after which galore-torch is left out of what is still to be measured
Maker = Callable[[torch.nn.Module], torch.optim.Optimizer]


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def fastest(ways: dict[str, Callable[[], object]], device: str, rounds: int) -> dict[str, float]:
    """The fastest of several rounds in milliseconds, each way once per round, after one round to warm up."""
    best = dict.fromkeys(ways, float("inf"))
    for turn in range(rounds + 1):
        for name, call in ways.items():
            wait(device)
            begin = time.perf_counter()
            call()
            wait(device)
            if turn:
                best[name] = min(best[name], 1e3 * (time.perf_counter() - begin))
    return best


def matrices(rows: int, columns: int, rank: int, device: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator(device).manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, generator=generator)

    falling = torch.logspace(0, -2, rank, device=device)
    low = (draw(rows, rank) * falling) @ draw(rank, columns)
    return {"low rank and noise": low + 0.01 * low.std() * draw(rows, columns), "Gaussian": draw(rows, columns)}


def refreshes(rows: int, columns: int, ranks: list[int], device: str, rounds: int) -> list[dict[str, object]]:
    found = []
    for rank in ranks:
        for kind, gradient in matrices(rows, columns, rank, device).items():
            found.append(refresh(gradient, rank, kind, device, rounds))
    return found


def refresh(gradient: torch.Tensor, rank: int, kind: str, device: str, rounds: int) -> dict[str, object]:
    before = gradient + 0.1 * gradient.std() * torch.randn_like(gradient)
    start = find_projector(before, rank).basis
    ours, warm = find_projector(gradient, rank), find_projector(gradient, rank, start=start)
    exact = find_projector(gradient, rank, "exact")
    times = fastest(
        {
            "projector": lambda: find_projector(gradient, rank),
            "projector_warm": lambda: find_projector(gradient, rank, start=start),
        },
        device,
        rounds,
    )
    times |= fastest({"svd": lambda: torch.linalg.svd(gradient, full_matrices=False)}, device, min(rounds, 2))
    return {
        "part": "refresh",
        "size": "x".join(map(str, gradient.shape)),
        "rank": rank,
        "matrix": kind,
        **{f"{name}_ms": value for name, value in times.items()},
        "times_faster": times["svd"] / times["projector"],
        "times_faster_warm": times["svd"] / times["projector_warm"],
        "energy": energy(ours.basis, gradient),
        "energy_ratio": energy(ours.basis, gradient) / energy(exact.basis, gradient),
        "energy_ratio_warm": energy(warm.basis, gradient) / energy(exact.basis, gradient),
        "fell_back": ours.exact or warm.exact,
    }


def energy(basis: torch.Tensor, gradient: torch.Tensor) -> float:
    """The captured share, in float64; the basis is that of the rows."""
    whole = gradient.double()
    return float(((basis.double().mT @ whole).norm() / whole.norm()) ** 2)


SIZES: dict[str, dict[str, int]] = {
    "tiny": {"vocabulary": 500, "width": 64, "mlp": 172, "heads": 4, "layers": 2, "context": 32},
    "60M": {},
    "330M": {"width": 2048, "mlp": 5461, "heads": 16, "layers": 4},
}
RANKS = {"tiny": 16, "60M": RANK, "330M": 512}  # a quarter of the width


def llama(size: str, device: str, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    from joma.models.llama import Llama, LlamaConfig

    return Llama(LlamaConfig(**SIZES[size]), seed=0).to(device, dtype)


class Training:
    """A model, an optimizer and a batch; autocast to bfloat16 on a GPU."""

    def __init__(
        self, make: Maker, size: str, device: str, *, sequences: int = 64, dtype: torch.dtype = torch.float32
    ) -> None:
        self.model, self.device = llama(size, device, dtype), device
        self.optimizer = make(self.model)
        vocabulary, context = (500, 32) if size == "tiny" else (32_000, 256)
        generator = torch.Generator().manual_seed(0)
        sequences = min(sequences, 4) if size == "tiny" else sequences
        self.tokens = torch.randint(vocabulary, (sequences, context), generator=generator).to(device)

    def backward(self) -> None:
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            logits = self.model(self.tokens)
        F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), self.tokens[:, 1:].flatten()).backward()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.optimizer.zero_grad()
            self.backward()
            self.optimizer.step()

    def only_steps(self, count: int) -> None:
        for _ in range(count):
            self.optimizer.step()


def adamw(model: torch.nn.Module, **more: object) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True, **more)  # type: ignore[arg-type]


def galore(model: torch.nn.Module, size: str, **more: object) -> GaLore:
    return GaLore(model, torch.optim.AdamW, rank=RANKS[size], refresh=10**9, lr=1e-3, fused=True, **more)  # type: ignore[arg-type]


def step(size: str, device: str, rounds: int, folder: str, dtype: torch.dtype) -> list[dict[str, object]]:
    """A training step and the optimizer alone, without refreshes; then a step with the refreshes of one turn.

    `galore_tf32` is the optimizer where float32 products may be TF32.
    """
    count = 2 if size == "tiny" else 10
    makers: dict[str, Maker] = {
        "adamw": adamw,
        "galore": lambda model: galore(model, size),
        "per_layer": lambda model: galore(model, size, per_layer=True),
    }
    if theirs := galore_torch(folder):
        makers["galore_torch"] = lambda model: theirs.whole(model, RANKS[size], 10**9)
    ways = {name: Training(make, size, device, dtype=dtype) for name, make in makers.items()}
    whole = fastest({name: lambda one=one: one.steps(count) for name, one in ways.items()}, device, rounds)
    plain = {name: one for name, one in ways.items() if name != "per_layer"}
    for one in plain.values():
        one.backward()
    alone = fastest({name: lambda one=one: one.only_steps(count) for name, one in plain.items()}, device, rounds)
    torch.set_float32_matmul_precision("high")
    alone |= fastest({"galore_tf32": lambda: plain["galore"].only_steps(count)}, device, rounds)
    torch.set_float32_matmul_precision("highest")
    row: dict[str, object] = {
        "part": "step",
        "size": size,
        "dtype": str(dtype).removeprefix("torch."),
        "rank": RANKS[size],
        "parameters": entries(ways["adamw"]),
    }
    row |= {"tokens": ways["adamw"].tokens.numel()}
    row |= {f"{name}_training_step_ms": value / count for name, value in whole.items()}
    row |= {f"{name}_optimizer_step_ms": value / count for name, value in alone.items()}
    for name in ("galore", "per_layer"):
        row |= {f"{name}_{key}": value for key, value in refresh_steps(ways[name], device).items()}
    row["tf32_optimizer_step_over_adamw"] = alone["galore_tf32"] / alone["adamw"]
    row["optimizer_step_over_adamw"] = alone["galore"] / alone["adamw"]
    row["training_step_over_adamw"] = whole["galore"] / whole["adamw"]
    row["per_layer_training_step_over_adamw"] = whole["per_layer"] / whole["adamw"]
    for name in ("galore", "per_layer"):
        amortised = whole[name] / count + float(row[f"{name}_refresh_ms_per_update"])  # type: ignore[arg-type]
        row[f"{name}_with_refreshes_over_adamw"] = amortised / (whole["adamw"] / count)
    if device == "cuda":
        row |= captured_steps(size, rounds, dtype)
    return [row]


def entries(training: Training) -> int:
    return sum(each.numel() for each in training.model.parameters())


def refresh_steps(training: Training, device: str, cycles: int = 2) -> dict[str, float]:
    """Each turn of the refreshes in a step of its own: the slowest over the fastest plain step, and the cost in all.

    The cost is shared out over REFRESH updates.
    """
    optimizer = training.optimizer
    assert isinstance(optimizer, GaLore)
    turns = optimizer.matrices[0].turn[1]

    def timed() -> float:
        wait(device)
        begin = time.perf_counter()
        training.steps(1)
        wait(device)
        return 1e3 * (time.perf_counter() - begin)

    plain = min(timed() for _ in range(5))
    for group in optimizer.param_groups:
        group["refresh"] = turns
    best: dict[int, float] = {}
    for _ in range(cycles + 1):  # the first warms up
        for _ in range(turns):
            at = optimizer.matrices[0].count % turns
            best[at] = min(timed(), best[at]) if at in best else math.inf
    for group in optimizer.param_groups:
        group["refresh"] = 10**9
    more = sum(max(0.0, each - plain) for each in best.values())
    return {
        "refresh_turns": turns,
        "plain_step_alone_ms": plain,
        "slowest_refresh_step_ms": max(best.values()),
        "slowest_refresh_step_over_plain": max(best.values()) / plain,
        "refresh_ms_per_update": more / REFRESH,
    }


def captured_steps(size: str, rounds: int, dtype: torch.dtype) -> dict[str, object]:
    """The optimizer alone as a CUDA graph: AdamW and GaLore, both capturable."""
    found: dict[str, object] = {}
    makers: dict[str, Maker] = {
        "adamw": lambda model: adamw(model, capturable=True),
        "galore": lambda model: galore(model, size, capturable=True),
    }
    graphs, kept = {}, []
    for name, make in makers.items():
        training = Training(make, size, "cuda", sequences=1, dtype=dtype)
        kept.append(training)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            training.steps(3)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                training.optimizer.step()
        except Exception as error:  # said in the record: the other numbers are worth having
            found[f"{name}_captured"] = f"{type(error).__name__}: {error}"[:300]
            continue
        weight = next(iter(training.model.parameters()))
        before = weight.detach().clone()
        graph.replay()
        found[f"{name}_replay_moves_the_weights"] = not torch.equal(before, weight)
        graphs[name] = graph.replay
    times = fastest(
        {name: lambda play=play: [play() for _ in range(10)] for name, play in graphs.items()}, "cuda", rounds
    )
    found |= {f"{name}_captured_optimizer_step_ms": value / 10 for name, value in times.items()}
    if len(times) == 2:
        found["captured_optimizer_step_over_adamw"] = times["galore"] / times["adamw"]
    return found


def peaks(size: str, device: str, folder: str, until: float) -> list[dict[str, object]]:
    """The most bytes that the allocator had given out, in two training steps on one sequence; the first refreshes."""
    if device != "cuda":
        return []
    torch.ones(64, 64, device=device) @ torch.ones(64, 64, device=device)  # the library's own workspace
    makers: dict[str, Maker] = {
        "adamw": adamw,
        "galore": lambda model: galore(model, size),
        "per_layer": lambda model: galore(model, size, per_layer=True),
    }
    if theirs := galore_torch(folder):
        makers["galore_torch"] = lambda model: theirs.whole(model, RANKS[size], 10**9)
        makers["galore_torch_in_backward"] = lambda model: theirs.in_backward(model, RANKS[size], 10**9)
    rows: list[dict[str, object]] = []
    for dtype in (torch.bfloat16, torch.float32):
        row: dict[str, object] = {"part": "peak", "size": size, "dtype": str(dtype).removeprefix("torch.")}
        for name, make in makers.items():
            if time.perf_counter() > until and name.startswith("galore_torch"):  # its SVDs take minutes
                row[f"{name}_peak_mib"] = "left out: no time"
                continue
            row |= {f"{name}_{key}": value for key, value in peak(make, size, device, dtype).items()}
        rows.append(row)
    return rows


def peak(make: Maker, size: str, device: str, dtype: torch.dtype) -> dict[str, float]:
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    training = Training(make, size, device, sequences=1, dtype=dtype)
    training.steps(1)
    training.optimizer.zero_grad()
    first = torch.cuda.max_memory_allocated() - before
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    training.steps(1)
    found = {"peak_mib": (torch.cuda.max_memory_allocated() - before) / 2**20, "peak_with_refresh_mib": first / 2**20}
    known = isinstance(training.optimizer, (GaLore, torch.optim.AdamW))
    formula = memory(training.model, training.optimizer).total.formula if known else None
    return found | ({"formula_mib": formula.total / 2**20} if formula is not None else {})


def state_memory(size: str, device: str) -> list[dict[str, object]]:
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        training = Training(lambda model: galore(model, size), size, device, sequences=1, dtype=dtype)
        training.steps(1)
        table = memory(training.model, training.optimizer)
        first = table.rows[0]
        assert first.formula is not None
        formula = first.formula.states + first.formula.projections
        measured = first.measured.states + first.measured.projections
        rows.append(
            {
                "part": "memory",
                "size": size,
                "dtype": str(dtype).removeprefix("torch."),
                "projected_state_bytes": measured,
                "formula_bytes": formula,
                "ratio": measured / formula,
                "table": str(table).splitlines(),
            }
        )
    return rows


def peer(folder: str, small: bool, device: str, rounds: int) -> list[dict[str, object]]:
    """The same gradients for both, 12 updates, a refresh every 5; tall, wide and square matrices and a bias."""
    theirs_of = galore_torch(folder)
    if theirs_of is None:
        return []
    module = theirs_of.module
    shapes = [(96, 64), (64, 96), (64, 64)] if small else [(1376, 512), (512, 1376), (512, 512)]
    generator = torch.Generator().manual_seed(0)
    start = [0.02 * torch.randn(*shape, generator=generator) for shape in (*shapes, (10,))]
    rank, rate, decay, epsilon, beta, scale = 8, 0.01, 0.1, 1e-6, 0.999, 0.25
    ours, theirs = ([torch.nn.Parameter(each.clone().to(device)) for each in start] for _ in range(2))
    options = {"rank": rank, "update_proj_gap": 5, "scale": scale, "proj_type": "std"}
    their = module.AdamW(
        [{"params": theirs[:-1], **options}, {"params": theirs[-1:]}],
        lr=rate, weight_decay=decay, eps=epsilon, no_deprecation_warning=True,
    )  # fmt: skip
    our = GaLore(ours, torch.optim.Adam, rank=rank, refresh=5, scale=scale, projector="exact", lr=rate, weight_decay=0)
    worst = 0.0
    for turn in range(1, 13):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape, generator=generator).to(device)
            b.grad = a.grad.clone()
        for group in our.param_groups:  # epsilon before the bias correction
            group["eps"] = epsilon / math.sqrt(1 - beta**turn)
        our.step()
        with torch.no_grad():
            for each in ours:  # decay after the update
                each.mul_(1 - rate * decay)
        their.step()
        moved = max(float((b.detach() - s.to(device)).abs().max()) for b, s in zip(theirs, start, strict=True))
        apart = max(float((a - b).detach().abs().max()) for a, b in zip(ours, theirs, strict=True))
        worst = max(worst, apart / moved)
    times = peer_refresh(small, device, rounds)
    return [
        {
            "part": "peer",
            "peer": "galore-torch 1.0",
            "updates": 12,
            "refreshes": 3,
            "largest_difference": worst,
            **times,
        }
    ]


def peer_refresh(small: bool, device: str, rounds: int) -> dict[str, object]:
    projector = importlib.import_module("galore_torch.galore_projector").GaLoreProjector(RANK if not small else 8)
    rows, columns = (96, 64) if small else (4096, 11008)
    gradient = torch.randn(rows, columns, device=device)
    side = "right" if rows >= columns else "left"
    ways = {
        "peer_refresh": lambda: projector.get_orthogonal_matrix(gradient, projector.rank, side),
        "our_refresh": lambda: find_projector(gradient, projector.rank),
    }
    times = fastest(ways, device, min(rounds, 2))
    return {"size": f"{rows}x{columns}", "rank": projector.rank, **{f"{name}_ms": t for name, t in times.items()}}


def finite_check(device: str) -> list[dict[str, object]]:
    """On this device, too: NaN and infinity anywhere in a gradient are seen."""
    missed = 0
    for value, fused in itertools.product((float("nan"), float("inf"), -float("inf")), (False, True)):
        weight = torch.nn.Parameter(torch.zeros(300, 200, device=device))
        optimizer = GaLore([weight], rank=4, nonfinite="skip", fused=fused)
        for place in ((0, 0), (299, 199), (150, 7)):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
            weight.grad[place] = value
            seen, before = optimizer.skipped, weight.detach().clone()
            optimizer.step()
            missed += optimizer.skipped != seen + 1 or not torch.equal(weight, before)
    return [{"part": "finite check", "tried": 18, "missed": missed}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--parts", default="step,peak,refresh,memory,peer,finite")
    parser.add_argument("--small", action="store_true", help="small matrices and a small model: seconds on a CPU")
    parser.add_argument("--peer", default="", help="folder with the package galore_torch")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    device, rounds = arguments.device, arguments.rounds
    small = arguments.small or device == "cpu"
    shapes = (512, 1376, [16, 128]) if small else (4096, 11008, [128, 1024])
    sizes = ["tiny"] if small else ["60M", "330M"]
    dtypes = [torch.float32] if small else [torch.float32, torch.bfloat16]
    folder, until = arguments.peer, time.perf_counter() + 60 * MINUTES
    parts: dict[str, Callable[[], list[dict[str, object]]]] = {
        "step": lambda: [row for size in sizes for kind in dtypes for row in step(size, device, rounds, folder, kind)],
        "peak": lambda: [row for size in sizes for row in peaks(size, device, folder, until)],
        "refresh": lambda: refreshes(*shapes, device, rounds),
        "memory": lambda: [row for size in sizes for row in state_memory(size, device)],
        "peer": lambda: peer(folder, small, device, rounds),
        "finite": lambda: finite_check(device),
    }
    rows = []
    for name in arguments.parts.split(","):
        for row in parts[name]():
            rows.append(row)
            for key, value in row.items():
                print(f"  {key:>40}  {value:.5g}" if isinstance(value, float) else f"  {key:>40}  {value}", flush=True)
            print()
    record("galore", rows, on="" if device == "cuda" else "cpu")


if __name__ == "__main__":
    main()
