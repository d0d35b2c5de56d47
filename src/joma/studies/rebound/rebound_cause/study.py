"""The study `rebound-cause`: the paper's claims, that a layer comes back by itself, and their rivals.

What matters is 0.05 nats in all of them, as in the ablations: about what curves of single runs of one recipe were seen
to differ by (RMS).
"""

from __future__ import annotations

from functools import partial

from joma.claims.contract import Claim, Study
from joma.recipes.language import PAPER, same_text
from joma.studies.rebound.rebound_cause.figures import draw_bars, draw_parts, draw_twins
from joma.studies.rebound.rebound_cause.judge import judge_closing, judge_lower_mlp, judge_own, judge_twin
from joma.studies.rebound.rebound_cause.record import MATTERS, first_layers, higher_layers
from joma.studies.rebound.rebound_cause.run import BLOCK, ReboundCauseConfig, run


def _claim(name: str, source: str, says: str) -> Claim:
    return Claim(name, source, says, matters=MATTERS, unit="nats", uses=("fig6/fig6-one-layer", "fig6/fig6-top-layers"))


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

STUDY = Study(
    name="rebound-cause",
    title="Why attention comes back: a layer's own weights, or what it reads",
    version=1,
    claims={
        OWN_FIRST: partial(judge_own, OWN_FIRST, first_layers),
        OWN_HIGHER: partial(judge_own, OWN_HIGHER, higher_layers),
        NEEDS_QK: partial(judge_twin, NEEDS_QK, "QK"),
        NEEDS_BLOCK: partial(judge_twin, NEEDS_BLOCK, BLOCK),
        NEEDS_EMBEDDINGS: partial(judge_twin, NEEDS_EMBEDDINGS, "embeddings"),
        LOWER_MLP: partial(judge_lower_mlp, LOWER_MLP),
        CLOSES: partial(judge_closing, CLOSES),
    },
    quick=ReboundCauseConfig(),
    paper=ReboundCauseConfig(
        **PAPER | {"valid_sequences": 40, "steps": 10_000, "every": 250, "seeds": 6},
        dropout=0.2,
        length=35,
        layers=(1, 2, 5, 10),
        twins=(1, 2, 5, 10),
        rate=1e-4,
        valley=2_000,
        deep_steps=6_000,
        allocate=100,
        altered=True,
    ),
    run=run,
    draw=lambda run: [draw_parts(run), draw_bars(run), draw_twins(run)],
    check=same_text,
    about=(
        "Figure 6's language models are trained, and the change of each layer's entropy is split by groups of weights: "
        "its own queries and keys, the embeddings, and the weights of layers below. The split is exact up to a closing "
        "error that is reported. Twins go on from the valley with queries and keys, or values, MLPs and norms, or "
        "embeddings frozen. Only layers that come back are judged. Networks of five and ten layers train for 6,000 "
        "steps, the others for 10,000; with ten layers only queries and keys are frozen. Quick scale trains "
        "small models on Python source."
    ),
)
