"""Finding subspaces against a full SVD; GaLore against galore-torch step for step; gradients that are not finite."""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Iterator

import torch
from _galore_training import Row, fastest
from _peers import galore_torch

from joma.optim import GaLore, find_projector


def _matrices(rows: int, columns: int, rank: int, device: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator(device).manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, generator=generator)

    falling = torch.logspace(0, -2, rank, device=device)
    low = (draw(rows, rank) * falling) @ draw(rank, columns)
    return {"low rank and noise": low + 0.01 * low.std() * draw(rows, columns), "Gaussian": draw(rows, columns)}


def projectors(rows: int, columns: int, ranks: list[int], device: str, rounds: int) -> Iterator[Row]:
    """`find_projector` against torch.linalg.svd(full_matrices=False)."""
    for rank in ranks:
        for kind, gradient in _matrices(rows, columns, rank, device).items():
            yield _projector(gradient, rank, kind, device, rounds)


def _projector(gradient: torch.Tensor, rank: int, kind: str, device: str, rounds: int) -> Row:
    before = gradient + 0.1 * gradient.std() * torch.randn_like(gradient)
    start = find_projector(before, rank).basis
    ours, warm = find_projector(gradient, rank), find_projector(gradient, rank, start=start)
    exact = find_projector(gradient, rank, "exact")
    calls = {
        "projector": lambda: find_projector(gradient, rank),
        "projector_warm": lambda: find_projector(gradient, rank, start=start),
    }
    times = fastest(calls, device, rounds)
    times |= fastest({"svd": lambda: torch.linalg.svd(gradient, full_matrices=False)}, device, min(rounds, 2))
    best = _energy(exact.basis, gradient)
    return {
        "part": "refresh",
        "size": "x".join(map(str, gradient.shape)),
        "rank": rank,
        "matrix": kind,
        **{f"{name}_ms": value for name, value in times.items()},
        "times_faster": times["svd"] / times["projector"],
        "times_faster_warm": times["svd"] / times["projector_warm"],
        "energy": _energy(ours.basis, gradient),
        "energy_ratio": _energy(ours.basis, gradient) / best,
        "energy_ratio_warm": _energy(warm.basis, gradient) / best,
        "fell_back": ours.exact or warm.exact,
    }


def _energy(basis: torch.Tensor, gradient: torch.Tensor) -> float:
    """The captured share, in float64; the basis is that of the rows."""
    whole = gradient.double()
    return float(((basis.double().mT @ whole).norm() / whole.norm()) ** 2)


def peer(folder: str, small: bool, device: str, rounds: int) -> Iterator[Row]:
    """The same gradients for both, 12 updates, a refresh every 5; tall, wide and square matrices and a bias."""
    theirs_of = galore_torch(folder)
    if theirs_of is None:
        return
    shapes = [(96, 64), (64, 96), (64, 64)] if small else [(1376, 512), (512, 1376), (512, 512)]
    generator = torch.Generator().manual_seed(0)
    start = [0.02 * torch.randn(*shape, generator=generator) for shape in (*shapes, (10,))]
    rank, rate, decay, epsilon, beta, scale = 8, 0.01, 0.1, 1e-6, 0.999, 0.25
    ours, theirs = ([torch.nn.Parameter(each.clone().to(device)) for each in start] for _ in range(2))
    options = {"rank": rank, "update_proj_gap": 5, "scale": scale, "proj_type": "std"}
    their = theirs_of.module.AdamW(
        [{"params": theirs[:-1], **options}, {"params": theirs[-1:]}],
        lr=rate, weight_decay=decay, eps=epsilon, no_deprecation_warning=True,
    )  # fmt: skip
    ways = {"rank": rank, "refresh": 5, "scale": scale, "projector": "exact", "skip": ()}
    our = GaLore(ours, torch.optim.Adam, lr=rate, weight_decay=0, **ways)  # type: ignore[arg-type]
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
    row: Row = {"part": "peer", "peer": "galore-torch 1.0", "updates": 12, "refreshes": 3, "largest_difference": worst}
    yield row | _peer_refresh(small, device, rounds)


def _peer_refresh(small: bool, device: str, rounds: int) -> Row:
    projector = importlib.import_module("galore_torch.galore_projector").GaLoreProjector(8 if small else 128)
    rows, columns = (96, 64) if small else (4096, 11008)
    gradient = torch.randn(rows, columns, device=device)
    side = "right" if rows >= columns else "left"
    ways = {
        "peer_refresh": lambda: projector.get_orthogonal_matrix(gradient, projector.rank, side),
        "our_refresh": lambda: find_projector(gradient, projector.rank),
    }
    times = fastest(ways, device, min(rounds, 2))
    return {"size": f"{rows}x{columns}", "rank": projector.rank, **{f"{name}_ms": t for name, t in times.items()}}


def finite_check(device: str) -> Iterator[Row]:
    """On this device, too: NaN and infinity anywhere in a gradient are seen, alone and beside alike matrices."""
    missed = tried = 0
    values = (float("nan"), float("inf"), -float("inf"))
    for value, fused, count in itertools.product(values, (False, True), (1, 3)):
        weights = [torch.nn.Parameter(torch.zeros(300, 200, device=device)) for _ in range(count)]
        optimizer = GaLore(weights, rank=4, nonfinite="skip", fused=fused, skip=())
        for place in ((0, 0), (299, 199), (150, 7)):
            for weight in weights:
                weight.grad = torch.ones_like(weight)
            optimizer.step()
            weights[-1].grad[place] = value
            seen, before = optimizer.skipped, [weight.detach().clone() for weight in weights]
            optimizer.step()
            same = all(torch.equal(one, other) for one, other in zip(weights, before, strict=True))
            missed += optimizer.skipped != seen + 1 or not same
            tried += 1
    yield {"part": "finite check", "tried": tried, "missed": missed}
