"""The study `fig10`: its claims with their judges, its sizes."""

from __future__ import annotations

import numpy as np

from joma.claims.contract import Claim, Finding, Study
from joma.claims.verdicts import by_effect, not_run
from joma.measure.intervals import compare
from joma.runs import Run
from joma.studies.checkpoints._seeds import UNLEARNED, learned, left_out, prefix
from joma.studies.checkpoints.fig10.figures import draw
from joma.studies.checkpoints.fig10.run import NETWORKS, Fig10Config, run

MARGIN = 0.05  # of all neurons: the smallest difference from a control that matters

UNRELATED = Claim(
    "neurons-hold-unrelated-patterns",
    "JoMA Fig. 10",
    "One MLP neuron is switched on by several combinations of tokens that are unrelated to each other.",
    matters=MARGIN,
    unit="%",
    ceiling=1.0,
)
LEARNED = Claim(
    "superposition-is-learned",
    "JoMA App. A.4",
    "Training makes a neuron hold several queries with their patterns.",
    matters=MARGIN,
    unit="%",
    ceiling=1.0,
    uses=("fig10/neurons-hold-unrelated-patterns",),
)


def _more_neurons(run: Run, claim: Claim, case: str, control: str, than: str) -> Finding:
    """The share of neurons with two patterns or more, network by network, compared with the same in a control."""
    kept, expected = learned(run, "losses"), f"more neurons with two or more groups of related contexts than {than}"
    if not kept:
        return not_run(claim, expected, UNLEARNED, "joma verify fig10")

    def shares(series: str) -> list[float]:
        return [float((run.value(prefix(number) + series) >= 2).mean()) for number in kept]

    def alike(network: str) -> float:
        return -float(np.median([np.median(run.value(f"{prefix(number)}{network}/z")) for number in kept]))

    return by_effect(
        claim,
        {case: compare(shares("trained/patterns"), shares(control))},
        what="share of neurons that hold two or more patterns",
        expected=expected,
        details={
            "neurons": {"of each network": float(run.value("trained/patterns").size)},
            "contexts more alike than shuffled contexts, in standard deviations": {
                network: alike(network) for network in NETWORKS
            },
            **left_out(run, kept),
        },
    )


def _unrelated(run: Run) -> Finding:
    case = "beside contexts shuffled between neurons"
    return _more_neurons(run, UNRELATED, case, "trained/shuffled_patterns", "with shuffled contexts")


def _learned(run: Run) -> Finding:
    return _more_neurons(run, LEARNED, "beside the untrained network", "untrained/patterns", "before training")


STUDY = Study(
    name="fig10",
    title="Figure 10: pattern superposition in MLP neurons",
    version=2,
    claims={UNRELATED: _unrelated, LEARNED: _learned},
    quick=Fig10Config(),
    paper=Fig10Config(
        model="EleutherAI/pythia-70m", texts=4000, length=128, characters=10_000_000, device="cuda", seeds=1
    ),
    run=run,
    draw=draw,
    about=(
        "For every MLP neuron, the 20 contexts that switch it on most are taken, each from another text. A context is "
        "described by a tf-idf vector of the tokens that its query attends to. Two contexts are related when they are "
        "closer than 99 % of the pairs from different neurons. Three or more contexts that are connected by triangles "
        "of related pairs form a pattern. A neuron with two patterns fires on unrelated combinations of tokens. There "
        "are two controls: contexts shuffled between neurons, and the same network before training. Shares of neurons "
        "are compared over networks of several seeds. A single given model has no interval, so its findings are "
        "undecided."
    ),
)
