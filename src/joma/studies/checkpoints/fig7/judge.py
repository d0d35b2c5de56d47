"""What the study `fig7` claims and how it judges: drops, rebounds and coherence over seeds, layer by layer."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import torch

from joma.claims.claim import Claim
from joma.claims.evidence import below
from joma.claims.finding import Finding
from joma.claims.guards import at_paper_scale, beyond, hardest
from joma.claims.verdicts import by_effect, not_run
from joma.measure.intervals import compare
from joma.measure.rebound import drop_and_rebound
from joma.runs import Run
from joma.studies.checkpoints._seeds import UNLEARNED, learned, left_out, prefix

BACK = 0.02  # of its drop: what a curve must come back by, as in `joma.measure.rebound`
DROP = 0.05  # of its start: the smallest drop that matters
CLOSE = 0.01  # of |cos|, which goes from 0 to 1: the smallest distance from the bound that matters
NEAR_ORTHOGONAL = 2.0  # times the mean |cos| of random vectors: up to there, vectors count as almost orthogonal
LEVEL = 0.99  # of the intervals of drops and rebounds, as in `joma.measure.rebound`
COMMAND = at_paper_scale("fig7")

RANK_TOP = Claim(
    "rank-of-top-layers",
    "JoMA Fig. 7",
    "In the top layers, the stable rank of the MLP's lower matrix drops and then bounces back.",
    matters=BACK,
    unit="%",
)
RANK_BOTTOM = Claim(
    "rank-of-bottom-layers",
    "JoMA Fig. 7",
    "In the bottom layers, the stable rank of the MLP's lower matrix drops and does not bounce back.",
    matters=DROP,
    unit="%",
    ceiling=1.0,
)
ENTROPY = Claim(
    "entropy-over-checkpoints",
    "JoMA Fig. 7",
    "Over training, attention entropy drops and bounces back, less clearly than the stable rank.",
    matters=BACK,
    unit="%",
)
EMBEDDING = Claim(
    "embeddings-nearly-orthogonal",
    "JoMA talk slide embeddings",
    "At every layer, the vectors of different tokens are almost orthogonal.",
    matters=CLOSE,
    ceiling=1.0,
)


class _Moves(NamedTuple):
    """What the curves of all layers do, (seeds, layers) each."""

    start: Any
    drop: Any
    back: Any

    def share_back(self, layer: int) -> Any:
        """(seeds,) of the layer's mean drop what comes back; where nothing drops, nothing can."""
        drop = self.drop[:, layer].mean()
        return np.zeros(len(self.back)) if drop <= 0 else self.back[:, layer] / drop

    def share_dropped(self, layer: int) -> Any:
        """(seeds,) of its start what is lost in the valley."""
        return self.drop[:, layer] / self.start[:, layer]


def _moves(run: Run, name: str, kept: list[int]) -> _Moves:
    """Each network read in the valley of the others; one alone in its own, where chance would come back, too."""
    curves = _curves(run, name, kept)
    if not np.isfinite(curves).all():  # the others have no valley without it: nothing is known
        nothing = np.full_like(curves[:, 0], np.nan)
        return _Moves(nothing, nothing, nothing)
    if len(kept) == 1:
        place = prefix(kept[0])
        drop, back = (run.value(f"{place}{name}/{part}")[None] for part in ("drop", "rebound"))
    else:
        over_seeds = torch.from_numpy(np.ascontiguousarray(curves.transpose(2, 0, 1)))
        drop, back = (part.numpy().T for part in drop_and_rebound(over_seeds))
    return _Moves(curves[:, 0], drop, back)


def _curves(run: Run, name: str, kept: list[int]) -> Any:
    """(seeds, points, layers) at the steps that all networks have."""
    steps = [run.value(f"{prefix(number)}steps") for number in kept]
    common = reduce(np.intersect1d, steps)
    curves = [run.value(f"{prefix(number)}layers/{name}") for number in kept]
    return np.stack([curve[np.isin(at, common)] for curve, at in zip(curves, steps, strict=True)])


def _top(run: Run) -> Finding:
    expected = "every layer of the upper half drops, and comes back by at least 2 % of its drop"
    if not (kept := learned(run, "loss")):
        return not_run(RANK_TOP, expected, UNLEARNED, COMMAND)
    moves = _moves(run, "stable rank", kept)
    return _rebounds(RANK_TOP, run, "stable rank", kept, moves, range(_half(moves), moves.drop.shape[1]), expected)


def _entropy(run: Run) -> Finding:
    expected = (
        "every layer drops, and comes back by at least 2 % of its drop; the stable rank comes back by a larger share"
    )
    if not (kept := learned(run, "loss")):
        return not_run(ENTROPY, expected, UNLEARNED, COMMAND)
    moves, rank = (_moves(run, name, kept) for name in ("entropy", "stable rank"))
    layers = range(moves.drop.shape[1])
    clearer = _mean_back(moves, layers) - _mean_back(rank, range(_half(rank), rank.drop.shape[1]))
    less = below(
        "share of the drop that comes back, minus that of the stable rank in the top layers", clearer, 0.0, "%"
    )
    return _rebounds(ENTROPY, run, "entropy", kept, moves, layers, expected, [less])


def _rebounds(
    claim: Claim,
    run: Run,
    name: str,
    kept: list[int],
    moves: _Moves,
    layers: Iterable[int],
    expected: str,
    size: Iterable[Any] = (),
) -> Finding:
    """Compared with 0, which is what curves without a rebound give in the mean; what does not drop cannot come back."""
    some = list(layers)
    (least,) = hardest(
        RANK_BOTTOM, {_name(layer): compare(moves.share_dropped(layer), level=LEVEL) for layer in some}
    ).values()
    return by_effect(
        claim,
        {_name(layer): compare(moves.share_back(layer), level=LEVEL) for layer in some},
        what="share of the drop that comes back",
        expected=expected,
        size=list(size),
        controls=[beyond(RANK_BOTTOM, "drop as a share of the start, in the layer where it is least certain", least)],
        details=_numbers(run, name, kept, moves, some),
    )


def _bottom(run: Run) -> Finding:
    expected = "every layer of the lower half drops, and none comes back by 2 % of its drop or more"
    if not (kept := learned(run, "loss")):
        return not_run(RANK_BOTTOM, expected, UNLEARNED, COMMAND)
    moves = _moves(run, "stable rank", kept)
    some = list(range(_half(moves)))
    if not some:
        return not_run(RANK_BOTTOM, expected, "a network with one layer has no bottom layers", COMMAND)
    most = float(np.max([compare(moves.share_back(layer), level=LEVEL).high for layer in some]))
    return by_effect(
        RANK_BOTTOM,
        {_name(layer): compare(moves.share_dropped(layer), level=LEVEL) for layer in some},
        what="drop as a share of the start",
        expected=expected,
        size=[below("upper end of the largest share of a drop that comes back", most, BACK, "%")],
        details=_numbers(run, "stable rank", kept, moves, some),
    )


def _embedding(run: Run) -> Finding:
    """1 - |cos| compared with 1 - what counts as almost orthogonal, which follows from the width alone."""
    expected = "at every layer, a mean |cos| of at most twice that of random vectors"
    if not (kept := learned(run, "loss")):
        return not_run(EMBEDDING, expected, UNLEARNED, COMMAND)
    met = np.stack([run.value(f"{prefix(number)}coherence")[-1] for number in kept])  # (seeds, layers + 1, 2)
    layers = range(met.shape[1])
    return by_effect(
        EMBEDDING,
        {_stage(layer): compare(1 - met[:, layer, 0], 1 - NEAR_ORTHOGONAL * met[:, layer, 1]) for layer in layers},
        what="1 - mean |cos| between vectors of different tokens",
        expected=expected,
        details={
            _stage(layer): {
                "mean |cos|": float(met[:, layer, 0].mean()),
                "of random vectors": float(met[:, layer, 1].mean()),
            }
            for layer in layers
        }
        | left_out(run, kept),
    )


def _half(moves: _Moves) -> int:
    """The first of the top layers."""
    return int(moves.drop.shape[1]) // 2


def _mean_back(moves: _Moves, layers: Iterable[int]) -> float:
    return float(np.mean([moves.share_back(layer) for layer in layers]))


def _name(layer: int) -> str:
    return f"layer {layer}"


def _stage(layer: int) -> str:
    return f"behind layer {layer - 1}" if layer else "embedding"


def _numbers(run: Run, name: str, kept: list[int], moves: _Moves, layers: list[int]) -> dict[str, dict[str, float]]:
    """Of each layer, means over networks, and what a random walk as rough as the curve would do."""

    def walk(part: str, layer: int) -> float:
        return float(np.mean([run.value(f"{prefix(number)}{name}/{part}_margin")[layer] for number in kept]))

    return {
        _name(layer): {
            "drop": float(moves.drop[:, layer].mean()),
            "drop of a random walk": walk("drop", layer),
            "rebound": float(moves.back[:, layer].mean()),
            "rebound of a random walk": walk("rebound", layer),
        }
        for layer in layers
    } | left_out(run, kept)


CLAIMS = {RANK_TOP: _top, RANK_BOTTOM: _bottom, ENTROPY: _entropy, EMBEDDING: _embedding}
