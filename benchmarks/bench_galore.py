"""GaLore: finding the subspace, a training step, the memory of the state, and galore-torch 1.0 step for step.

- refresh: `find_projector` against torch.linalg.svd(full_matrices=False), for a matrix with a falling spectrum (rank r
  plus noise) and a Gaussian one; `energy_ratio` is the captured energy over that of the SVD. `warm` starts from the
  basis of a gradient that differs by a tenth.
- step: optimizer step and whole training step of a LLaMA, GaLore with fused AdamW inside against fused AdamW. A
  refresh is timed apart and shared out over the `refresh` updates that it serves.
- memory: bytes of projections and states of the projected matrices against (m r + 2 n r) * 4.
- peer: GaLore in the conventions of galore-torch (exact SVD, epsilon before the bias correction, decay after the
  update) against galore-torch itself, largest difference of any weight relative to the largest change; and the time
  of its refresh. `--peer FOLDER` is where the wheel was unpacked; without it this part is left out.

    python benchmarks/bench_galore.py [--device cuda] [--parts refresh,step,memory,peer] [--small] [--record]
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import math
import sys
import time
import types
from collections.abc import Callable

import torch
import torch.nn.functional as F
from _record import record

from joma.optim import GaLore, find_projector, memory

RANK, REFRESH = 128, 200


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


def llama(small: bool, device: str) -> torch.nn.Module:
    from joma.models.llama import Llama, LlamaConfig

    shape = {"vocabulary": 500, "width": 64, "mlp": 172, "heads": 4, "layers": 2, "context": 32} if small else {}
    return Llama(LlamaConfig(**shape), seed=0).to(device)


class Training:
    """A model, an optimizer and a batch; float32 weights, autocast to bfloat16 on a GPU."""

    def __init__(self, make: Callable[[torch.nn.Module], torch.optim.Optimizer], small: bool, device: str) -> None:
        self.model, self.device = llama(small, device), device
        self.optimizer = make(self.model)
        vocabulary, context, batch = (500, 32, 4) if small else (32_000, 256, 64)
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(vocabulary, (batch, context), generator=generator).to(device)

    def backward(self) -> None:
        self.optimizer.zero_grad()
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            logits = self.model(self.tokens)
        F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), self.tokens[:, 1:].flatten()).backward()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.backward()
            self.optimizer.step()

    def only_steps(self, count: int) -> None:
        for _ in range(count):
            self.optimizer.step()


def adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


def galore(model: torch.nn.Module, *, per_layer: bool = False, small: bool = False) -> GaLore:
    return GaLore(
        model, torch.optim.AdamW, rank=16 if small else RANK, refresh=10**9, lr=1e-3, fused=True, per_layer=per_layer
    )


def step(small: bool, device: str, rounds: int) -> list[dict[str, object]]:
    """Without refreshes, which are timed apart: a run of steps is too short to hold its share of them."""
    count = 2 if small else 20
    ways = {
        "adamw": Training(adamw, small, device),
        "galore": Training(lambda model: galore(model, small=small), small, device),
        "galore_per_layer": Training(lambda model: galore(model, small=small, per_layer=True), small, device),
    }
    whole = fastest({name: lambda one=one: one.steps(count) for name, one in ways.items()}, device, rounds)
    plain = {name: one for name, one in ways.items() if name != "galore_per_layer"}
    for one in plain.values():
        one.backward()
    alone = fastest({name: lambda one=one: one.only_steps(count) for name, one in plain.items()}, device, rounds)
    found: dict[str, float] = {}
    for name in ("galore", "galore_per_layer"):
        found[name] = refresh_cost(ways[name], device, rounds)
    row: dict[str, object] = {"part": "step", "tokens": ways["adamw"].tokens.numel(), "rank": 16 if small else RANK}
    row |= {f"{name}_training_step_ms": value / count for name, value in whole.items()}
    row |= {f"{name}_optimizer_step_ms": value / count for name, value in alone.items()}
    row |= {f"{name}_refresh_ms": value for name, value in found.items()}
    for name, cost in found.items():
        amortised = (whole[name] / count) + cost / REFRESH
        row[f"{name}_training_step_with_refresh_ms"] = amortised
        row[f"{name}_over_adamw"] = amortised / (whole["adamw"] / count)
    row["galore_optimizer_over_adamw"] = (alone["galore"] / count + found["galore"] / REFRESH) / (
        alone["adamw"] / count
    )
    row |= {f"{name}_peak_bytes": peak(one) for name, one in ways.items()} if device == "cuda" else {}
    return [row]


def refresh_cost(training: Training, device: str, rounds: int) -> float:
    """What a training step with a refresh of every subspace takes more than one without."""
    optimizer = training.optimizer
    assert isinstance(optimizer, GaLore)

    def run(refresh: int) -> None:
        for group in optimizer.param_groups:
            group["refresh"] = refresh
        training.steps(1)
        for group in optimizer.param_groups:
            group["refresh"] = 10**9

    times = fastest({"with": lambda: run(1), "without": lambda: run(10**9)}, device, rounds)
    return max(0.0, times["with"] - times["without"])


def peak(training: Training) -> int:
    """Bytes that one training step on one sequence needs beyond what is held before it: gradients above all."""
    training.tokens = training.tokens[:1]
    training.optimizer.zero_grad()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    training.steps(1)
    return torch.cuda.max_memory_allocated() - before


def state_memory(small: bool, device: str) -> list[dict[str, object]]:
    rows = []
    for per_layer in (False, True):
        training = Training(lambda model, each=per_layer: galore(model, small=small, per_layer=each), small, device)
        training.steps(1)
        table = memory(training.model, training.optimizer)
        first = table.rows[0]
        assert first.formula is not None
        formula = first.formula.states + first.formula.projections
        measured = first.measured.states + first.measured.projections
        rows.append(
            {
                "part": "memory",
                "per_layer": per_layer,
                "projected_state_bytes": measured,
                "formula_bytes": formula,
                "ratio": measured / formula,
                "table": str(table).splitlines(),
            }
        )
    return rows


def peer_module(folder: str) -> types.ModuleType:
    """galore-torch, whose 8-bit optimizer wants bitsandbytes at import: an empty one will do, it is not used."""
    sys.path.insert(0, folder)
    for name in ("bitsandbytes", "bitsandbytes.optim", "bitsandbytes.optim.optimizer"):
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules["bitsandbytes.optim.optimizer"].Optimizer2State = object  # type: ignore[attr-defined]
    if importlib.util.find_spec("transformers") is None:
        for name in ("transformers", "transformers.utils", "transformers.utils.versions"):
            sys.modules.setdefault(name, types.ModuleType(name))
        sys.modules["transformers.utils.versions"].require_version = lambda words: None  # type: ignore[attr-defined]
    return importlib.import_module("galore_torch.adamw")


def peer(folder: str, small: bool, device: str, rounds: int) -> list[dict[str, object]]:
    """The same gradients for both, 12 updates, a refresh every 5; tall, wide and square matrices and a bias."""
    module = peer_module(folder)
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
    parser.add_argument("--parts", default="refresh,step,memory,peer,finite")
    parser.add_argument("--small", action="store_true", help="small matrices and a small model: seconds on a CPU")
    parser.add_argument("--peer", default="", help="folder with the package galore_torch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    device, rounds = arguments.device, arguments.rounds
    small = arguments.small or device == "cpu"
    sizes = (512, 1376, [16, 128]) if small else (4096, 11008, [128, 1024])
    parts: dict[str, Callable[[], list[dict[str, object]]]] = {
        "refresh": lambda: refreshes(*sizes, device, rounds),
        "step": lambda: step(small, device, rounds),
        "memory": lambda: state_memory(small, device),
        "peer": lambda: peer(arguments.peer, small, device, rounds) if arguments.peer else [],
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
