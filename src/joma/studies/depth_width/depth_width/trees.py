"""The trees that networks read here: a deep HBLT, and one with a single level that says as much about the class.

Depth of the hierarchy is what they differ in. Both have the same classes, the same tokens, and the same loss of the
best possible reader: the uncertainty ρ of the flat tree is chosen for that.
"""

from collections.abc import Sequence
from math import log, prod

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from joma.data.hierarchy import HBLT
from joma.data.samples import streams

HALVINGS = 12
"""Of the interval in which the flat tree's ρ is sought."""
SEARCH = 300
"""Steps of the logistic regression: its loss then moves by less than 1e-4 nats."""


class Tree:
    """Classes that each have a latent of their own, a branching below it, and one ρ for all edges."""

    def __init__(self, classes: int, branching: Sequence[int], rho: float) -> None:
        self.classes, self.branching, self.rho = classes, tuple(branching), rho
        self.hblt = HBLT.one_per_class(classes, self.branching, rho)

    @property
    def depth(self) -> int:
        return self.hblt.depth

    def log_posterior(self, on: Tensor) -> Tensor:
        """log P[class | tokens], (..., classes), by passing likelihoods up. on: (..., tokens), not permuted."""
        copies = (1 + self.rho) / 2
        edge = torch.tensor([[copies, 1 - copies], [1 - copies, copies]], dtype=torch.float64)
        likely = torch.stack([~on, on], -1).double().unflatten(-2, (self.classes, -1))  # P[below | node is 0, 1]
        for children in reversed(self.branching):
            likely = (likely @ edge).unflatten(-2, (-1, children)).prod(-2)
        off, own = (likely @ edge).squeeze(-2).log().unbind(-1)  # P[tokens of k | the class is not k, is k]
        known: Tensor = (off.sum(-1, keepdim=True) - off + own).log_softmax(-1)
        return known

    def uncertainty(self, samples: int) -> float:
        """Mean entropy of the class given the tokens, in nats: the lowest loss that any reader can have."""
        drawn = self.hblt.sample(samples, generator=streams(0, [0], step=-1)[0])
        known = self.log_posterior(drawn.on)
        return float(-(known.exp() * known).sum(-1).mean())

    def linear_loss(self, samples: int) -> float:
        """Loss on fresh samples of the best reader that adds up the tokens: logistic regression on as many."""
        one, other = (self.hblt.sample(samples, generator=streams(0, [0], step=step)[0]) for step in (-2, -3))
        weight = _regression(F.pad(one.on.double(), (0, 1), value=1.0), F.one_hot(one.labels, self.classes).double())
        return float(F.cross_entropy(F.pad(other.on.double(), (0, 1), value=1.0) @ weight, other.labels))


def _regression(seen: Tensor, wanted: Tensor) -> Tensor:
    """The weights of the most likely logistic regression, by steps with a fixed bound of the curvature (Böhning 1992).

    torch has a general search, but loading it takes longer than all of this.
    """
    bound = torch.linalg.cholesky(seen.mT @ seen + 1e-6 * torch.eye(seen.shape[-1], dtype=seen.dtype))
    weight = torch.zeros(seen.shape[-1], wanted.shape[-1], dtype=seen.dtype)
    for _ in range(SEARCH):
        weight += 2 * torch.cholesky_solve(seen.mT @ (wanted - (seen @ weight).softmax(-1)), bound)
    return weight


def flattened(tree: Tree, samples: int) -> Tree:
    """The tree of one level with as many tokens whose best reader has the same loss."""
    wanted, leaves = tree.uncertainty(samples), prod(tree.branching)
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        less_certain = Tree(tree.classes, (leaves,), middle).uncertainty(samples) > wanted
        low, high = (middle, high) if less_certain else (low, middle)
    return Tree(tree.classes, (leaves,), (low + high) / 2)


class TreeReader:
    """What the members of an ensemble read of several trees, each (tree, seed) with its own order of tokens."""

    def __init__(
        self, trees: Sequence[Tree], *, seed: int, seeds: int, batch: int, valid_samples: int, device: str
    ) -> None:
        self.trees, self.seed, self.seeds, self.size = trees, seed, seeds, batch
        self.valid_samples, self.device = valid_samples, device
        own = range(seeds)
        self._permuted = [tree.hblt.permuted(streams(seed, own, step=-1)).to(device) for tree in trees]
        self.vocabulary, self.context = trees[0].hblt.vocabulary, trees[0].hblt.length
        self.outputs = trees[0].classes

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Fresh tokens (trees * seeds, batch, length) and their classes."""
        return self._draw(step, self.size)

    def _draw(self, step: int, count: int) -> tuple[Tensor, Tensor]:
        drawn = [
            tree.sample((self.seeds, count), generator=streams(self.seed, range(self.seeds), step, device=self.device))
            for tree in self._permuted
        ]
        return torch.cat([sample.tokens for sample in drawn]), torch.cat([sample.labels for sample in drawn])

    def halves(self) -> list[tuple[Tensor, Tensor]]:
        """To choose the rate on and to judge on."""
        return [self._draw(step, self.valid_samples) for step in (-4, -5)]

    def known_without(self) -> np.ndarray:
        """The loss of a reader that knows nothing, (trees,)."""
        return np.full(len(self.trees), log(self.outputs))

    def ideal(self, samples: int) -> np.ndarray:
        """(trees, 2): the lowest loss that is possible, and that of a reader that adds up the tokens."""
        return np.array([[tree.uncertainty(samples), tree.linear_loss(samples)] for tree in self.trees])
