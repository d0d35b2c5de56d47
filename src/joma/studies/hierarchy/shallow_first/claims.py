"""What the study `shallow-first` claims, of which networks, which differences would matter, and the record."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from joma.claims.contract import Claim
from joma.runs import Run
from joma.studies.hierarchy._networks import Fates

STUDY = "shallow-first"
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


def _claim(
    name: str, says: str, corrected: str | None = None, *, place: str = "Sec. 5", uses: Sequence[str], **numbers: Any
) -> Claim:
    ids = tuple(one if "/" in one else f"{STUDY}/{one}" for one in uses)
    return Claim(name, f"JoMA {place}", says, corrected, uses=ids, **numbers)


_pull, _delay = partial(_claim, matters=RATIO, unit="%"), partial(_claim, matters=DOUBLING, unit="doublings of time")
_first, _share = partial(_claim, matters=LEAD), partial(_claim, matters=SHARE)

TOKEN_PULL = _pull(
    "pull-towards-a-token",
    "The higher the common ancestor of l and query m, the smaller P(l|m) and the target weight of l given m. Tested "
    "here where a left-out token is predicted.",
    uses=("thm5/shallow-means-often",),
)
CLASS_PULL = _pull(
    "pull-towards-the-class",
    "The higher the common ancestor of l and query m, the smaller the target weight of l given m. Tested here where "
    "the class at the root is predicted.",
    "The pull towards the node of m's class is the same at every height below the class's latent. It falls only "
    "through the root, because the part of P(l, m) that depends on the height is the same in every class.",
    uses=("thm5/shallow-means-often",),
)
FIRST = _first(
    "attention-first",
    "A query first attends to the tokens of its own lowest hierarchy.",
    "This is so where a left-out token is predicted. Where the class is predicted, siblings of the query come last.",
    uses=("pull-towards-a-token", "pull-towards-the-class"),
)
WEIGHTS = _first(
    "weights-first",
    "The MLP weights that tie a query to the tokens of its own lowest hierarchy grow first.",
    "This is so where a left-out token is predicted.",
    uses=("pull-towards-a-token", "pull-towards-the-class"),
)
REACH = _delay(
    "reaches-out",
    "Attention then reaches out: the higher the common ancestor of two tokens, the later the attention between them "
    "peaks.",
    uses=("attention-first",),
)
EVENTUALLY = _share(
    "weak-pairs-in-the-end",
    "In the end, a query also attends to tokens with which it rarely co-occurs.",
    place="Fig. 5",
    uses=("reaches-out",),
)
PICKED = _share(
    "not-picked-up",
    "Among far tokens, a query reaches out to those that no other token has picked up.",
    uses=("reaches-out",),
)
TOGETHER = _first(
    "attention-first-shared",
    "Where all queries share one MLP, as in eq. 1, a query also attends first to its own lowest hierarchy.",
    uses=("attention-first",),
)
TRANSFORMER = _first(
    "attention-first-decoder",
    "In a Transformer that learns its embeddings, a query also attends first to its own lowest hierarchy.",
    uses=("attention-first",),
)
NODES = _first(
    "weights-first-decoder",
    "In a Transformer, the nodes of the MLP first connect a query to the tokens of its own lowest hierarchy.",
    uses=("weights-first",),
)
BOTTOM_UP = _delay(
    "bottom-up",
    "The lowest level of the hierarchy is learned first, and the levels above are built on it.",
    place="Fig. 5",
    uses=("thm5/shallow-means-often",),
)


# What a network's series holds, (points, members, true or permuted tree, L + 3):
ALONE, ORDER, MOVED = DEPTH, DEPTH + 1, DEPTH + 2
"""After the means by height: by how much tokens without a sibling exceed others as far from the query; the rank
correlation of the change since the start with lowness; how much has moved."""


def fates(run: Run, *names: str) -> Fates:
    """Of the members of these networks, one after the other.

    Even guesses lose ln(tokens) or ln(classes); the loss of blocks is summed over the queries, one a token.
    """
    tokens, found = 10 * run.config["classes"], []
    for name in names:
        guessed = np.log(run.config["classes"] if name.endswith("class") else tokens)
        chance = guessed if name == DECODER else tokens * guessed
        diverged = run.array(f"{name}/diverged_at")[-1] >= 0
        for what in ("attention", "weights", "says"):
            if f"{name}/{what}" in run:
                diverged = diverged | ~np.isfinite(run.array(f"{name}/{what}")).all((0, 2, 3))
        found.append(Fates(diverged, run.array(f"{name}/train_loss")[-1] <= (1 - LEARNED) * chance))
    return Fates.joined(found)


def series(run: Run, name: str, what: str = "attention") -> Any:
    """Of the members that learned; of all where none did, for a figure to show."""
    values = run.array(f"{name}/{what}")
    kept = fates(run, name).kept
    return values[:, kept] if kept.any() else values


def by_height(values: Any) -> tuple[Any, Any]:
    """Of a series: means over pairs at each height, in the true and the permuted tree, (points, members, L) each."""
    return values[:, :, 0, :DEPTH], values[:, :, 1, :DEPTH]


def column(values: Any, which: int) -> tuple[Any, Any]:
    """Of a series: ALONE, ORDER or MOVED, in the true and the permuted tree, (points, members) each."""
    return values[:, :, 0, which], values[:, :, 1, which]


def early(values: Any) -> Any:
    """Of each member the first measuring point at which a tenth of the whole movement of a series has happened."""
    moved = values[:, :, 0, MOVED]
    begun = moved >= EARLY * moved.max(0)
    begun[0] = False
    begun[-1] = True  # where nothing moves
    return begun.argmax(0)


def contrasts(run: Run) -> tuple[Any, Any]:
    """ln p by which the decoder prefers a token at height h to one at h + 1, given m: (points, members, L - 1) each."""
    true, permuted = by_height(series(run, DECODER, "says"))
    return -np.diff(true, axis=-1), -np.diff(permuted, axis=-1)
