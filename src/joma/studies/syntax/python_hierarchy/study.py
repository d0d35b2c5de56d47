"""What `python-hierarchy` claims and how it judges: gains over controls, order of learning, depth."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from joma.claims.contract import Claim, Finding, Study
from joma.claims.evidence import at_least
from joma.claims.guards import at_paper_scale, beyond, hardest
from joma.claims.verdicts import Numbers, by_effect, not_run
from joma.measure.intervals import compare
from joma.runs import Run
from joma.studies.syntax.python_hierarchy.figures import draw
from joma.studies.syntax.python_hierarchy.record import FEWEST, LEVELS, Scores, slope
from joma.studies.syntax.python_hierarchy.run import PythonHierarchyConfig, run

MARGIN = 0.02  # of correlation: the smallest gain over a control that matters
SHARE = 0.05  # of what all hidden nodes together tell: the smallest gain of the best one that matters
HIGH = 0.8  # of what all hidden nodes together tell: what one node must tell to stand for a latent
LATER = 0.1  # octaves of training time a level: by how much higher levels must come later
DEEPER = 0.01  # of correlation a level: by how much higher levels must gain more in the last block than in the first
COMMAND = at_paper_scale("python-hierarchy")

_claim = partial(Claim, matters=MARGIN, ceiling=1.0)
ALIGN = _claim(
    "nodes-align-with-syntax",
    "JoMA Sec. 5",
    "Training makes hidden nodes of the MLP stand for the latent variables behind the tokens. Here these are kinds of "
    "syntax.",
)
BEYOND = _claim(
    "nodes-hold-combinations", "JoMA Sec. 1", "Hidden nodes learn combinations of tokens, not single tokens."
)
ONE_NODE = _claim(
    "one-node-each",
    "JoMA Sec. 6",
    "For every latent there is one hidden node that correlates highly with it.",
    matters=SHARE,
    unit="%",
    uses=("python-hierarchy/nodes-align-with-syntax",),
)
ORDER = Claim(
    "lower-levels-first",
    "JoMA Sec. 5",
    "Low levels of the hierarchy are learned before higher levels. Their tokens occur together most often.",
    matters=LATER,
    unit="octaves",
    uses=("thm5/shallow-means-often",),
)
DEPTH = Claim(
    "higher-levels-in-later-blocks",
    "JoMA Sec. 5",
    "Later blocks build higher levels from what earlier blocks have learned.",
    matters=DEEPER,
)


def _gain(claim: Claim, version: str, what: str, expected: str, run: Run) -> Finding:
    scores = Scores(run)
    if reason := scores.unlearned:
        return not_run(claim, expected, reason, COMMAND)
    trained, found = scores.of("neuron", version)[-1], scores.against_controls("neuron", version)
    controls = {name.removeprefix("beside "): one.control for name, one in found.items()}
    if version == "labels":
        controls["the current token alone, for comparison"] = float(scores.token.mean())
    return by_effect(
        claim,
        hardest(claim, found),
        what=what,
        expected=expected,
        details=_and_lost(scores, {"by level": _by_level(trained), "controls": controls}),
    )


def _one_node(run: Run) -> Finding:
    """The share in what all nodes tell, against the untrained one; the best node must also exceed its own controls."""
    expected = (
        "one node reaches at least 80 % of the correlation of all hidden nodes together, and more than before training"
    )
    scores = Scores(run)
    if reason := scores.unlearned:
        return not_run(ONE_NODE, expected, reason, COMMAND)
    best, all_nodes = (scores.of(place, "labels").mean(-1) for place in ("neuron", "hidden"))
    share = best / all_nodes
    (gain,) = hardest(ALIGN, scores.against_controls("neuron", "labels")).values()
    return by_effect(
        ONE_NODE,
        {"beside the untrained network": compare(share[-1], share[0])},
        what="correlation of the best hidden node, as a share of that of all nodes together",
        expected=expected,
        size=[at_least("lower end of this share", compare(share[-1]).low, HIGH, "%")],
        controls=[beyond(ALIGN, "gain of the best node's correlation over its hardest control", gain)],
        details=_and_lost(scores, {}),
    )


def _order(run: Run) -> Finding:
    """Compared with 0 octaves, which is the mean over all orders of the levels."""
    expected = "the higher the level, the later all hidden nodes together gain what they tell beyond the token"
    scores = Scores(run)
    reason, learned = scores.unlearned, int(np.isfinite(scores.rise()).sum())
    if not reason and scores.written.shape[1] > 1 and learned < FEWEST:  # of one network alone it is undecided
        levels = f"only {learned} of {len(LEVELS)} levels of syntax were learned"
        reason = f"{levels}, and {FEWEST} are needed for an order"
    if reason:
        return not_run(ORDER, expected, reason, COMMAND)
    steps = {level: float(2**octave) for level, octave in zip(LEVELS, scores.rise(), strict=True)}
    return by_effect(
        ORDER,
        compare(scores.order()),
        what="delay of each level behind the one below it",
        expected=expected,
        details=_and_lost(scores, {"step at the middle of the gain": steps}),
    )


def _depth(run: Run) -> Finding:
    expected = "the higher the level, the larger the lead of the last block's best node over the first block's"
    scores = Scores(run)
    if reason := scores.unlearned:
        return not_run(DEPTH, expected, reason, COMMAND)
    after, before, rank = scores.deepening(-1), scores.deepening(0), np.arange(len(LEVELS))
    return by_effect(
        DEPTH,
        {"beside the untrained network": compare(slope(after, rank), slope(before, rank))},
        what="growth per level of the last block's lead over the first block, in correlation",
        expected=expected,
        details=_and_lost(scores, {"lead of the last block": _by_level(after)}),
    )


def _by_level(values: Any) -> dict[str, float]:
    return {level: float(value) for level, value in zip(LEVELS, values.mean(0), strict=True)}


def _and_lost(scores: Scores, details: dict[str, dict[str, float]]) -> Numbers:
    lost = {"diverged and left out": {"networks": float(scores.diverged)}} if scores.diverged else {}
    return details | lost


STUDY = Study(
    name="python-hierarchy",
    title="Section 5 on real code: hidden nodes and the syntax of Python",
    version=3,
    claims={
        ALIGN: partial(
            _gain,
            ALIGN,
            "labels",
            "correlation of the best hidden node with a label",
            "the best hidden node, chosen on other files, correlates with the label more than every control",
        ),
        BEYOND: partial(
            _gain,
            BEYOND,
            "beyond",
            "correlation of the best hidden node with a label, beyond the token",
            "the best hidden node correlates more than every control with the part of the label that the token does "
            "not tell",
        ),
        ONE_NODE: _one_node,
        ORDER: _order,
        DEPTH: _depth,
    },
    quick=PythonHierarchyConfig(),
    paper=PythonHierarchyConfig(
        tokens=2_000_000,
        held_out=0.2,
        vocabulary=4096,
        layers=4,
        width=256,
        heads=4,
        mlp=1024,
        context=256,
        dropout=0.2,
        batch=16,
        steps=3000,
        rate=5e-4,
        points=16,
        seeds=5,
        shuffled=2,
        windows=128,
        device="cuda",
    ),
    run=run,
    draw=draw,
    about=(
        "Decoders learn to predict the next token of the source of sympy. They are tested on files they never saw. "
        "Every frequent label of the syntax tree (expressions, statements, blocks, definitions) is a latent. The best "
        "hidden node for a label is chosen on one half of these files and scored on the other half, "
        "over training. There are three controls: the same network before training, networks trained on shuffled "
        "tokens, and labels rotated within their file. Much of the syntax can be read from the current token. "
        "Therefore the part of the label that the token does not tell is scored too: the label minus its mean given "
        "the token. Every seed has its own weights, its own batches and its own halves of the files."
    ),
)
