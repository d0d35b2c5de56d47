"""The claims about the rank of gradients, and from which size on an effect counts.

All thresholds were set after a look at networks of width 32 on Python source and before any network of the paper's size
was trained.
"""

from functools import partial

from joma.claims.contract import Claim

QUARTER = 4  # the smallest rank in the paper's table is a quarter of the width
MOST = 0.9  # of the energy: who keeps nine tenths keeps most
NEAR = 0.8  # of what two batches share at one step: subspaces that share as much have hardly moved
WIDELY = 10.0  # a large growth rate over a small one, as in the study thm2-rank
HALF = 0.5  # of the fall in stable rank, in logarithms

share_claim = partial(Claim, unit="%", ceiling=1.0)

LOW = share_claim(
    "gradient-is-low-rank",
    "GaLore Sec. 3.2",
    "The gradient of every weight matrix has a low stable rank.",
    matters=0.5,  # of the stable rank of a Gaussian matrix with the same norms: a factor of two
)
FALLS = share_claim(
    "gradient-rank-falls",
    "GaLore Lemma 3.3",
    "The stable rank of the gradient falls during training.",
    matters=0.1,  # of the untrained network's: what falls by less than a tenth stays where it is
)
CAPTURES = share_claim(
    "quarter-rank-captures",
    "GaLore Table 2",
    "A projector of a quarter of the full rank, the smallest share in the table, keeps most of the gradient's energy.",
    matters=0.1,  # of the energy: more than random matrices with the same norms would let it keep
)
SLOW = share_claim(
    "subspace-changes-slowly",
    "GaLore Sec. 1",
    "The subspace of the gradient changes slowly: a projector can be used for 200 steps.",
    matters=0.25,  # of the subspace: as much again as random subspaces of a quarter of the dimensions share
)
NODES_FALL = share_claim(
    "nodes-become-low-rank",
    "JoMA talk slide K",
    "With K > 1 nodes, V gradually becomes low rank. This is tested in the lowest layer of real decoders.",
    matters=0.1,  # as for gradients
    uses=("thm2-rank/nodes-low-rank",),
)
NODES_BELOW = share_claim(
    "nodes-gradient-is-lower",
    "JoMA talk slide K",
    "Training makes the gradient of V even lower in rank than V. This is tested in the lowest layer of real decoders.",
    matters=0.1,  # as for gradients
    uses=("thm2-rank/nodes-gradient-rank",),
)
ROWS = Claim(
    "nodes-rows-carry-it",
    "JoMA talk slide K",
    "The rank is low because the growth rates of the rows of V vary widely, more and more so as training goes on.",
    matters=1.0,  # a factor of two between the ratio of growth rates and that of the control
    unit="doublings",
    uses=("thm2-rank/nodes-row-growth",),
)
