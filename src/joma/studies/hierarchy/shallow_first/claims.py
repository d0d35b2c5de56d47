"""What the study `shallow-first` claims, of which networks, and which differences would matter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from joma.claims.contract import Claim

EARLY = 0.1  # "first" is when a tenth of the whole movement has happened
LEAD = 0.25  # siblings must be ahead of the control by so much of the typical movement of a pair
SHARE = 0.05  # attention must exceed its control by so much of an even share
RATIO = 0.05  # of the siblings' pull: smaller differences between heights do not matter
DOUBLING = 1.0  # of time: at quick scale two measuring points, so not a matter of which of them was highest
LEARNED = 0.01  # a network learned if its loss ends below that of even guesses by so much of it
DEPTH = 4
FAR = DEPTH - 2  # where the highest ancestor below the root, H = L - 1, stands in an array by height

SHARED, DECODER = "shared", "decoder"
TARGETS = {"token": "asked for a token", "class": "asked for the class"}
NETWORKS = ("bare token", "residual token", "bare class", "residual class", SHARED, DECODER)
"""One block per query, without and with the residual, asked for a left-out token or the class; others for a token."""
STUDY = "shallow-first"


def _claim(
    name: str, says: str, corrected: str | None = None, *, place: str = "Sec. 5", uses: Sequence[str], **numbers: Any
) -> Claim:
    ids = tuple(one if "/" in one else f"{STUDY}/{one}" for one in uses)
    return Claim(name, f"JoMA {place}", says, corrected, uses=ids, **numbers)


TOKEN_PULL = _claim(
    "pull-towards-a-token",
    "The higher the common ancestor of l and query m, the smaller P(l|m) and the target weight of l given m. Tested "
    "here where a left-out token is predicted.",
    uses=("thm5/shallow-means-often",),
    matters=RATIO,
    unit="%",
)
CLASS_PULL = _claim(
    "pull-towards-the-class",
    "The higher the common ancestor of l and query m, the smaller the target weight of l given m. Tested here where "
    "the class at the root is predicted.",
    "The pull towards the node of m's class is the same at every height below the class's latent. It falls only "
    "through the root, because the part of P(l, m) that depends on the height is the same in every class.",
    uses=("thm5/shallow-means-often",),
    matters=RATIO,
    unit="%",
)
FIRST = _claim(
    "attention-first",
    "A query first attends to the tokens of its own lowest hierarchy.",
    "This is so where a left-out token is predicted. Where the class is predicted, siblings of the query come last.",
    uses=("pull-towards-a-token", "pull-towards-the-class"),
    matters=LEAD,
)
WEIGHTS = _claim(
    "weights-first",
    "The MLP weights that tie a query to the tokens of its own lowest hierarchy grow first.",
    "This is so where a left-out token is predicted.",
    uses=("pull-towards-a-token", "pull-towards-the-class"),
    matters=LEAD,
)
REACH = _claim(
    "reaches-out",
    "Attention then reaches out: the higher the common ancestor of two tokens, the later the attention between them "
    "peaks.",
    uses=("attention-first",),
    matters=DOUBLING,
    unit="doublings of time",
)
EVENTUALLY = _claim(
    "weak-pairs-in-the-end",
    "In the end, a query also attends to tokens with which it rarely co-occurs.",
    place="Fig. 5",
    uses=("reaches-out",),
    matters=SHARE,
)
PICKED = _claim(
    "not-picked-up",
    "Among far tokens, a query reaches out to those that no other token has picked up.",
    uses=("reaches-out",),
    matters=SHARE,
)
TOGETHER = _claim(
    "attention-first-shared",
    "Where all queries share one MLP, as in eq. 1, a query also attends first to its own lowest hierarchy.",
    uses=("attention-first",),
    matters=LEAD,
)
TRANSFORMER = _claim(
    "attention-first-decoder",
    "In a Transformer that learns its embeddings, a query also attends first to its own lowest hierarchy.",
    uses=("attention-first",),
    matters=LEAD,
)
NODES = _claim(
    "weights-first-decoder",
    "In a Transformer, the nodes of the MLP first connect a query to the tokens of its own lowest hierarchy.",
    uses=("weights-first",),
    matters=LEAD,
)
BOTTOM_UP = _claim(
    "bottom-up",
    "The lowest level of the hierarchy is learned first, and the levels above are built on it.",
    place="Fig. 5",
    uses=("thm5/shallow-means-often",),
    matters=DOUBLING,
    unit="doublings of time",
)
