"""The claims about what brings attention back: the paper's, that a layer does it by itself, and its rival.

What matters is 0.05 nats in all of them, as in the ablations: about what curves of single runs of one recipe were seen
to differ by (RMS).
"""

from __future__ import annotations

from joma.claims.contract import Claim
from joma.studies.rebound._cause_record import MATTERS

FIGURE_6 = ("fig6/fig6-one-layer", "fig6/fig6-top-layers")


def _claim(name: str, source: str, says: str) -> Claim:
    return Claim(name, source, says, matters=MATTERS, unit="nats", uses=FIGURE_6)


OWN_FIRST = _claim(
    "own-qk-first-layer",
    "JoMA Sec. 4",
    "The joint dynamics of a layer's MLP and attention make its attention dense again. Tested in first layers: their "
    "own queries and keys raise their entropy more than the embeddings do.",
)
OWN_HIGHER = _claim(
    "own-qk-higher-layers",
    "JoMA Sec. 4",
    "The joint dynamics of a layer's MLP and attention make its attention dense again. Tested in higher layers: their "
    "own queries and keys raise their entropy more than all weights below them.",
)
NEEDS_QK = _claim(
    "needs-qk-to-move",
    "JoMA Sec. 4",
    "Attention becomes dense again because its logits go on to change. Tested here: with all queries and keys frozen "
    "from the valley on, it does not.",
)
NEEDS_BLOCK = _claim(
    "needs-mlp-to-move",
    "JoMA Sec. 5",
    "Attention becomes dense again because slow components of the MLP catch up. Tested here: with values, output "
    "matrices, MLPs and norms frozen from the valley on, it does not.",
)
NEEDS_EMBEDDINGS = _claim(
    "first-layer-needs-embeddings",
    "JoMA Sec. 2",
    "The theory keeps embeddings as they are. Tested against it: the first layer does not come back with embeddings "
    "frozen from the valley on.",
)
LOWER_MLP = _claim(
    "higher-layers-by-lower-mlp",
    "JoMA Sec. 5",
    "What MLPs below have learned decides what attention above picks up. Tested in higher layers: of all groups of "
    "weights, MLPs below them raise their entropy most.",
)
CLOSES = Claim(
    "parts-close",
    "JoMA Fig. 6",
    "The changes of attention entropy in the figure are sums over groups of weights. Tested here: the parts add up to "
    "the change, and weights that attention cannot see have no part in it.",
)
