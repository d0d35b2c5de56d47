"""Why weights differ from those of galore-torch 1.0: one thing after another is made equal, until they are the same.

A LLaMA of two layers is trained for ten updates on random tokens, at rank 16, with one subspace or with a refresh every
three updates, and with 4 or 64 sequences. The number is the distance between the projected weights of both as a share
of how far galore-torch moved them. galore-torch is taken from `--peer FOLDER`, or from PYTHONPATH.

    python benchmarks/compare_galore_torch.py [--peer FOLDER]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from _peers import galore_torch, is_block_matrix

from joma.models.llama import Llama, LlamaConfig
from joma.optim import GaLore, Projector, _update, find_projector

SHAPE = LlamaConfig(vocabulary=200, width=64, mlp=172, heads=4, layers=2, context=32)
RANK, UPDATES, EPSILON, BETA = 16, 10, 1e-6, 0.999
Weights = dict[str, torch.Tensor]


class Together(GaLore):
    staggered = False  # as galore-torch refreshes


def train(make: Callable[[Llama], torch.optim.Optimizer], sequences: int, *, their_epsilon: bool = False) -> Weights:
    model = Llama(SHAPE, seed=0)
    optimizer = make(model)
    for update in range(UPDATES):
        generator = torch.Generator().manual_seed(update)
        tokens = torch.randint(SHAPE.vocabulary, (sequences, SHAPE.context), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
        for group in optimizer.param_groups if their_epsilon else ():
            group["eps"] = EPSILON / math.sqrt(1 - BETA ** (update + 1))
        optimizer.step()
    return {name: each.detach() for name, each in model.named_parameters() if is_block_matrix(name, each)}


def with_signs_of_the_svd(gradient: torch.Tensor, rank: int, kind: Any, **options: Any) -> Projector:
    found, exact = find_projector(gradient, rank, kind, **options), find_projector(gradient, rank, "exact")
    overlap = (found.basis * exact.basis).sum(-2, keepdim=True)
    return found._replace(basis=found.basis * torch.where(overlap < 0, -1.0, 1.0))


def distance(ours: Weights, theirs: Weights) -> float:
    start = dict(Llama(SHAPE, seed=0).named_parameters())
    apart = sum(float((ours[name] - theirs[name]).norm()) ** 2 for name in theirs)
    return math.sqrt(apart / sum(float((theirs[name] - start[name]).detach().norm()) ** 2 for name in theirs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", default="", help="folder with the package galore_torch")
    peer = galore_torch(parser.parse_args().peer)
    if peer is None:
        raise SystemExit("galore_torch is not here: give its folder with --peer")
    steps: list[tuple[str, dict[str, Any], bool, bool]] = [
        ("nothing", {}, False, False),
        ("weight decay", {"weight_decay": 0.0}, False, False),
        ("epsilon", {"weight_decay": 0.0}, True, False),
        ("refreshes at the same updates", {"weight_decay": 0.0, "together": True}, True, False),
        ("signs of the directions", {"weight_decay": 0.0, "together": True}, True, True),
        ("the SVD itself", {"weight_decay": 0.0, "projector": "exact"}, True, False),
    ]
    for refresh in (200, 3):
        for sequences in (4, 64):
            theirs = train(lambda model: peer.whole(model, RANK, refresh), sequences)  # noqa: B023
            print(f"refresh every {refresh} updates, {sequences} sequences; made equal, one after the other:")
            for name, options, their_epsilon, their_signs in steps:
                _update.find_projector = with_signs_of_the_svd if their_signs else find_projector
                kind, others = (Together, {"weight_decay": 0.0}) if "together" in options else (GaLore, options)
                make = lambda model: kind(model, rank=RANK, refresh=refresh, lr=1e-3, **others)  # noqa: B023
                print(f"  {name:<32} {distance(train(make, sequences, their_epsilon=their_epsilon), theirs):.6f}")


if __name__ == "__main__":
    main()
