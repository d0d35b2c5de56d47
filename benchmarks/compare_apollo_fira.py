"""APOLLO and Fira beside apollo-torch 1.0.3 and fira 1.0.2: how far weights are apart after sixty updates.

Matrices of three shapes get the same random gradients, whose sizes differ by a factor of 100, three times each. The
number is the distance between the weights of both as a share of how far the package moved them, the largest of all
cases. Growth is not limited: the packages compare norms before Adam's bias correction, joma after it. APOLLO has the
projection that apollo-torch drew. The packages are taken from `--peer FOLDER` (several), or from PYTHONPATH.

    python benchmarks/compare_apollo_fira.py [--peer FOLDER ...]
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch
from torch import Tensor, nn

from joma.optim import APOLLO, Fira

SHAPES, SEEDS, UPDATES, RATE = ((16, 40), (40, 16), (24, 24)), 3, 60, 0.01
NEVER = 10**6  # updates until a refresh
COMMON = {"lr": RATE, "eps": 1e-8, "weight_decay": 0.0}


def gradients(shape: tuple[int, int], seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = 10 ** (2 * torch.rand(UPDATES, generator=generator) - 1)
    return [size * torch.randn(shape, generator=generator) for size in sizes]


def apart(mine: Any, theirs: Any, ours: nn.Parameter, other: nn.Parameter, seed: int, before: Any = None) -> float:
    start = other.detach().clone()
    for gradient in gradients(tuple(other.shape), seed):
        ours.grad, other.grad = gradient.clone(), gradient.clone()
        if before is not None:
            before()
        theirs.step()
        mine.step()
    return float((ours - other).detach().norm() / (other.detach() - start).norm())


def apollo(peer: Any, start: Tensor, seed: int, rank: int, scaling: str) -> float:
    ours, other = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    mine = APOLLO([("w", ours)], rank=rank, refresh=NEVER, scale=2**0.5, scaling=scaling, growth=None, **COMMON)
    group = {"params": [other], "rank": rank, "proj": "random", "scale_type": scaling, "scale": 2}
    theirs = peer([group | {"update_proj_gap": NEVER, "proj_type": "std"}], disable_nl=True, **COMMON)

    def share_projection() -> None:
        """Theirs is drawn when it is first used; its directions are about sqrt(m / rank) long."""
        (matrix,), state = mine.matrices, theirs.state[other]
        if not matrix.found:
            state["projector"] = theirs._initialize_projector(theirs.param_groups[0], state)
            state["projector"].project(other.grad, 0)
            drawn, project = state["projector"].ortho_matrix, state["projector"].project
            state["projector"].project = lambda gradient, _: project(gradient, 1)  # 0 would draw another
            basis = drawn if drawn.shape[0] == matrix.shorter else drawn.T
            matrix.take_subspace(basis * (rank / matrix.shorter) ** 0.5, torch.zeros(rank))
            matrix.refreshed = 0

    return apart(mine, theirs, ours, other, seed, share_projection)


def fira(peer: Any, start: Tensor, seed: int) -> float:
    ours, other = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    mine = Fira([("w", ours)], rank=4, refresh=10, projector="exact", growth=None, **COMMON)
    group = {"params": [other], "rank": 4, "update_proj_gap": 10, "alpha": 1.0, "proj_type": "std"}
    theirs = peer([group], no_deprecation_warning=True, **COMMON)

    def lift_limit() -> None:
        if "scaling_grad" in theirs.state[other]:
            theirs.state[other]["scaling_grad"] = torch.tensor(1e30)

    return apart(mine, theirs, ours, other, seed, lift_limit)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peer", action="append", default=[], metavar="FOLDER", help="where a package is")
    sys.path[:0] = parser.parse_args().peer
    try:
        from apollo_torch.apollo import AdamW as PeerApollo
        from fira import FiraAdamW
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error.name} is not here: give its folder with --peer") from None

    found: dict[str, list[float]] = {"APOLLO, by channel": [], "APOLLO, rank 1, tensor": [], "Fira": []}
    for shape in SHAPES:
        for seed in range(SEEDS):
            start = torch.randn(shape, generator=torch.Generator().manual_seed(100 + seed))
            found["APOLLO, by channel"].append(apollo(PeerApollo, start, seed, 4, "channel"))
            found["APOLLO, rank 1, tensor"].append(apollo(PeerApollo, start, seed, 1, "tensor"))
            found["Fira"].append(fira(FiraAdamW, start, seed))
    for name, each in found.items():
        print(f"{name:24}{max(each):.1e} at most, of {len(each)} cases")


if __name__ == "__main__":
    main()
