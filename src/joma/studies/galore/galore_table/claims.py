"""The claims about GaLore's table, and from which size on a difference counts."""

from functools import partial
from math import log

from joma.claims.contract import Claim

GAP = log(34.88 / 34.06)
"""Nats by which GaLore is behind full rank in the paper, at 60 million parameters."""
MATTERS = 0.02  # nats, 2 % of perplexity: the paper calls methods that are GAP = 0.024 apart comparable
SLOWER = 0.1  # of a step: what the paper calls negligible
ROUNDING = 0.05  # of the bytes: what the issue of memory allows between count and formula

loss_claim = partial(Claim, matters=MATTERS, unit="nats")

CLOSE = loss_claim(
    "close-to-full-rank",
    "GaLore Table 2",
    "GaLore trains almost as well as full rank, and much better than factors of the same rank.",
)
FIRST = Claim(
    "full-rank-is-best",
    "GaLore Table 2",
    "No method with low rank reaches the perplexity of full rank.",
    corrected="No method with low rank reaches full rank if full rank may have GaLore's smaller rate in the blocks.",
    matters=GAP / 2,  # half of what the paper prints between full rank and the next method
    unit="nats",
)
ADAPTERS = loss_claim(
    "better-than-adapters", "GaLore Table 2", "GaLore reaches a lower perplexity than LoRA and ReLoRA of the same rank."
)
FACTORS = loss_claim(
    "factors-are-worst",
    "GaLore Table 2",
    "Weights that are products of two factors have the highest perplexity of all methods.",
)
SUBSPACE = loss_claim(
    "subspace-of-the-gradient",
    "GaLore Sec. 4",
    "The leading singular vectors of the gradient are the right subspace to train in: a random one is worse.",
)
MEMORY = Claim(
    "memory-of-states",
    "GaLore Table 1",
    "For an m x n matrix with m <= n, GaLore keeps m r + 2 n r numbers where Adam keeps 2 m n.",
)
TIME = Claim(
    "little-overhead",
    "GaLore Sec. 4",
    "Computing subspaces and projecting costs less than a tenth of the time of a step.",
    matters=0.01,  # of a step: less would not be seen in a bill
    unit="%",
)
PRINTED = loss_claim(
    "printed-perplexities",
    "GaLore Table 2",
    "At 60 million parameters full rank has perplexity 34.06, GaLore 34.88, LoRA 34.99, ReLoRA 37.04, low rank 78.18.",
)
