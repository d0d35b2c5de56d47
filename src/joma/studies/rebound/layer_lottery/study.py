"""The study `layer-lottery`: its claims and their judges."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from joma.claims.contract import Claim, Finding, Study
from joma.claims.evidence import at_least
from joma.claims.verdicts import by_effect, not_run
from joma.measure.intervals import compare
from joma.recipes.language import PAPER, same_text
from joma.runs import Run
from joma.studies.rebound.layer_lottery.figures import draw_distances, draw_map
from joma.studies.rebound.layer_lottery.record import (
    PATTERNS,
    between_seeds,
    halves,
    inner,
    learned,
    members,
    patterns,
    share_of_position,
    twins,
    winner,
)
from joma.studies.rebound.layer_lottery.run import LayerLotteryConfig, run

FEWEST = 5
"""Seeds that must have learned: with fewer there is no mean over others to deviate from."""
SAME = 0.9  # a correlation of two patterns from which on they count as the same
MOST = 0.5  # of the variance: where position explains more, it sets the pattern
QUARTER = 0.25
"""A correlation that matters. That of two seeds is the share of the variance that position explains: a quarter of
it. Quick runs had been seen when this was set, no run at paper scale."""
CORRELATION: dict[str, Any] = {"matters": QUARTER, "ceiling": 1.0}
NATS: dict[str, Any] = {
    "matters": 0.05,
    "unit": "nats",
}  # what curves of single runs of one recipe were seen to differ by

FIGURE, SETS = "JoMA Fig. 6", "sets how far its attention entropy drops, how far it comes back and where it ends."
POSITION = Claim("position", FIGURE, f"Over all layers, the position of a layer {SETS}", **CORRELATION)
INNER = Claim(
    "position-of-inner-layers",
    FIGURE,
    f"Between the bottom and the top layers, the position of a layer {SETS}",
    **CORRELATION,
)
TOP = Claim(
    "top-layers-come-back",
    FIGURE,
    "Attention entropy comes back further in the top half of the layers than in the bottom half.",
    uses=("fig6/fig6-top-layers",),
    **NATS,
)
BOTTOM = Claim(
    "bottom-layers-stay-sparse",
    FIGURE,
    "Attention entropy ends lower in the bottom half of the layers than in the top half.",
    uses=("fig6/fig6-bottom-layers",),
    **NATS,
)
ROUNDING = Claim(
    "rounding",
    FIGURE,
    "Rounding does not decide which layer does what: networks that differ only in rounding end with the same pattern.",
    **CORRELATION,
)
WEIGHTS = Claim(
    "initial-weights",
    FIGURE,
    "The initial weights decide which layer does what: networks with the same weights end with the same pattern under "
    "other dropout and with another order of the data.",
    **CORRELATION,
)
NOISE = Claim(
    "dropout-and-data",
    FIGURE,
    "Dropout and the order of the data decide which layer does what: networks that share both end with the same "
    "pattern from other weights.",
    **CORRELATION,
)


def _too_few(claim: Claim, expected: str, run: Run, kinds: tuple[str, ...] = ()) -> Finding | None:
    """The finding where too few networks learned for this claim; None if enough did."""
    counts = {kind: len(members(run, kind)) for kind in ("seed", *kinds)}
    if counts["seed"] >= FEWEST and all(counts[kind] >= 2 for kind in kinds):
        return None
    found = ", ".join(f"{count} of kind {kind}" for kind, count in counts.items())
    reason = f"too few networks learned more than how frequent words are: {found}"
    return not_run(claim, expected, reason, f"joma run layer-lottery --steps {2 * run.config['steps']}")


def _left_out(run: Run) -> dict[str, dict[str, float]]:
    lost = int((~learned(run)).sum())
    return {"networks that learned nothing": {"left out": float(lost)}} if lost else {}


def judge_position(claim: Claim, which: Callable[[int], slice], run: Run) -> Finding:
    """The correlation between seeds; position must also explain most of the variance, and more than shuffled layers."""
    expected = (
        f"the patterns of two seeds correlate, by at least {QUARTER:g} and beyond chance (95 %); position explains at "
        f"least {MOST:.0%} of the variance within a network"
    )
    if finding := _too_few(claim, expected, run):
        return finding
    layers, seeds = which(int(run.config["layers"])), members(run, "seed")
    found = {name: pattern[seeds] for name, pattern in patterns(run).items()}
    shares = {name: share_of_position(found[name][:, layers]) for name in PATTERNS}
    return by_effect(
        claim,
        {name: between_seeds(found[name][:, layers]) for name in PATTERNS},
        expected=expected,
        what="mean correlation of two seeds",
        size=[at_least(f"{name}, share of the variance", share.value, MOST, "%") for name, share in shares.items()],
        details={"share that 5 % of shufflings exceed": {name: share.chance for name, share in shares.items()}}
        | {f"layer with the largest {name}, most often": winner(found[name], layers) for name in PATTERNS}
        | _left_out(run),
    )


def judge_halves(claim: Claim, name: str, run: Run) -> Finding:
    """Top half minus bottom half; layers that are shuffled have a difference of zero."""
    expected = f"the difference is at least {claim.matters:g} nats and beyond chance (95 %)"
    if finding := _too_few(claim, expected, run):
        return finding
    each = patterns(run)[name][members(run, "seed")]
    found = halves(each)
    return by_effect(
        claim,
        compare(found),
        expected=expected,
        what="top half minus bottom half",
        details={"seeds": {"in which it is so": float((found > 0).sum()), "of": float(len(found))}}
        | {"mean by layer": {f"{layer + 1}": float(mean) for layer, mean in enumerate(each.mean(0))}}
        | _left_out(run),
    )


def judge_twins(claim: Claim, kinds: tuple[str, ...], run: Run) -> Finding:
    """Where entropy ends, layer by layer, as a deviation from the mean of the other seeds: twins beside strangers."""
    expected = (
        f"what is special to a network is alike in its twin: a correlation of at least {SAME:g}, above that of other "
        "seeds beyond chance (95 %)"
    )
    if finding := _too_few(claim, expected, run, kinds):
        return finding
    found = patterns(run)
    names = {kind: "rounding alone" if kind == "rounding" else f"other {kind}" for kind in kinds}
    cases = {names[kind]: twins(run, kind, found["end"]) for kind in kinds}
    return by_effect(
        claim,
        cases,
        expected=expected,
        what="correlation with its twin",
        over="pairs",
        size=[at_least(f"{name}, mean correlation", one.value, SAME) for name, one in cases.items()],
        details={
            f"{names[kind]}, other patterns": {
                name: twins(run, kind, found[name]).value for name in ("drop", "rebound")
            }
            for kind in kinds
        }
        | _left_out(run),
    )


STUDY = Study(
    name="layer-lottery",
    title="Which layer does what: set by position, by the seed, or by rounding?",
    version=1,
    claims={
        POSITION: partial(judge_position, POSITION, lambda layers: slice(None)),
        INNER: partial(judge_position, INNER, inner),
        TOP: partial(judge_halves, TOP, "rebound"),
        BOTTOM: partial(judge_halves, BOTTOM, "end"),
        ROUNDING: partial(judge_twins, ROUNDING, ("rounding",)),
        WEIGHTS: partial(judge_twins, WEIGHTS, ("dropout", "order")),
        NOISE: partial(judge_twins, NOISE, ("weights",)),
    },
    quick=LayerLotteryConfig(),
    # 50 networks of ten layers must fit into three minutes of one GPU. So the words are cut to 5,000 and the steps to
    # 10,000, at twice Figure 6's rate: as far as Figure 6 is at step 20,000 of 58,580. There its five patterns
    # correlate with those of the end by 0.80 to 0.93 (at step 10,000 by 0.58 to 0.77).
    paper=LayerLotteryConfig(
        **PAPER | {"vocabulary": 5_000, "steps": 10_000, "every": 250, "valid_sequences": 100},
        length=35,
        layers=10,
        rate=2e-4,
        seeds=22,
        twins=7,
    ),
    run=run,
    draw=lambda run: [draw_map(run), draw_distances(run)],
    check=same_text,
    about=(
        "Networks whose layers start as copies of one block are trained from many seeds. For every layer it is "
        "measured how far attention entropy drops, how far it comes back and where it ends. These patterns are "
        "compared between seeds, with shuffled layers as control. Twins of some seeds differ in rounding alone, in "
        "dropout, in the order of the data or in the initial weights. Twins are compared by what is special to a "
        "network: the deviation from the mean of the other seeds. Networks that learn only how frequent words are do "
        "not count."
    ),
)
