"""Is it a coin toss which layer drops deepest, which comes back and which stays sparse, or is it set by position?

The blocks of a network start as copies of one. Many seeds are trained, and twins of some of them that differ in one
thing: rounding, dropout, the order of the data, or the initial weights (`_lottery_networks`).

What was fixed when: the inner layers are judged by themselves because in Figure 6's five seeds of ten layers the two
topmost layers ended high with every seed; those runs had been seen. What matters was decided before any run of this
study at paper scale.
"""

from __future__ import annotations

from dataclasses import dataclass

from joma.claims.contract import Claim, Drawing, Finding, Progress, Study, each_claim
from joma.claims.evidence import at_least
from joma.claims.verdicts import by_effect, not_run
from joma.measure.intervals import compare
from joma.recipes.language import PAPER, LanguageModelConfig, corpus, recipe, same_text
from joma.runs import Run
from joma.studies.rebound._lottery_figures import draw_distances, draw_map
from joma.studies.rebound._lottery_networks import train_lottery
from joma.studies.rebound._lottery_patterns import (
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

FEWEST = 5
"""Seeds that must have learned: with fewer there is no mean over others to deviate from."""
SAME = 0.9  # a correlation of two patterns from which on they count as the same
MOST = 0.5  # of the variance: where position explains more, it sets the pattern
QUARTER = 0.25
"""A correlation that matters. That of two seeds is the share of the variance that position explains: a quarter of
it. Quick runs had been seen when this was set, no run at paper scale."""


@dataclass(frozen=True)
class Config(LanguageModelConfig):
    """Deep networks, many seeds, and twins of the first of them."""

    vocabulary: int = 100
    width: int = 16
    mlp: int = 16
    streams: int = 4
    length: int = 16
    sequence: int = 2
    valid_sequences: int = 3
    steps: int = 75
    every: int = 15
    layers: int = 5
    rate: float = 6e-3
    seeds: int = 7
    twins: int = 3
    """Of the seeds, how many have twins: one of each kind."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers < 5:
            raise ValueError(
                f"layers must be at least 5, so that three lie between the bottom and the top, got {self.layers}"
            )
        if self.twins > self.seeds:
            raise ValueError(f"twins must be at most {self.seeds}, the number of seeds, got {self.twins}")


def _pattern_claim(name: str, which: str) -> Claim:
    return Claim(
        name,
        "JoMA Fig. 6",
        f"{which} the position of a layer sets how far its attention entropy drops, how far it comes back and where it "
        "ends.",
        matters=QUARTER,
        ceiling=1.0,
    )


POSITION = _pattern_claim("position", "Over all layers,")
INNER = _pattern_claim("position-of-inner-layers", "Between the bottom and the top layers,")
TOP = Claim(
    "top-layers-come-back",
    "JoMA Fig. 6",
    "Attention entropy comes back further in the top half of the layers than in the bottom half.",
    matters=0.05,  # nats: what curves of single runs of one recipe were seen to differ by, as in Figure 6
    unit="nats",
    uses=("fig6/fig6-top-layers",),
)
BOTTOM = Claim(
    "bottom-layers-stay-sparse",
    "JoMA Fig. 6",
    "Attention entropy ends lower in the bottom half of the layers than in the top half.",
    matters=0.05,
    unit="nats",
    uses=("fig6/fig6-bottom-layers",),
)
ROUNDING = Claim(
    "rounding",
    "JoMA Fig. 6",
    "Rounding does not decide which layer does what: networks that differ only in rounding end with the same pattern.",
    matters=QUARTER,
    ceiling=1.0,
)
WEIGHTS = Claim(
    "initial-weights",
    "JoMA Fig. 6",
    "The initial weights decide which layer does what: networks with the same weights end with the same pattern under "
    "other dropout and with another order of the data.",
    matters=QUARTER,
    ceiling=1.0,
)
NOISE = Claim(
    "dropout-and-data",
    "JoMA Fig. 6",
    "Dropout and the order of the data decide which layer does what: networks that share both end with the same "
    "pattern from other weights.",
    matters=QUARTER,
    ceiling=1.0,
)


def run(config: Config, run: Run, progress: Progress) -> None:
    """Train all seeds and twins as one ensemble."""
    text = corpus(config, progress)
    train_lottery(recipe(config, text, layers=config.layers, rates=(config.rate,)), config.twins, text, run, progress)


def _untold(claim: Claim, expected: str, run: Run, kinds: tuple[str, ...] = ()) -> Finding | None:
    """The finding where too few networks learned for this claim; None if enough did."""
    counts = {kind: len(members(run, kind)) for kind in ("seed", *kinds)}
    if counts["seed"] >= FEWEST and all(counts[kind] >= 2 for kind in kinds):
        return None
    found = ", ".join(f"{count} of kind {kind}" for kind, count in counts.items())
    reason = f"too few networks learned more than how frequent words are: {found}"
    return not_run(claim, expected, reason, f"joma run layer-lottery --steps {2 * run.config['steps']}")


def _position(run: Run) -> Finding:
    return _set_by_position(POSITION, run, slice(None))


def _inner(run: Run) -> Finding:
    return _set_by_position(INNER, run, inner(int(run.config["layers"])))


def _set_by_position(claim: Claim, run: Run, layers: slice) -> Finding:
    """The correlation between seeds; position must also explain most of the variance, and more than shuffled layers."""
    expected = (
        f"the patterns of two seeds correlate, by at least {QUARTER:g} and beyond chance (95 %); position explains at "
        f"least {MOST:.0%} of the variance within a network"
    )
    if untold := _untold(claim, expected, run):
        return untold
    seeds, found = members(run, "seed"), patterns(run)
    shares = {name: share_of_position(found[name][seeds][:, layers]) for name in PATTERNS}
    return by_effect(
        claim,
        {name: between_seeds(found[name][seeds][:, layers]) for name in PATTERNS},
        expected=expected,
        what="mean correlation of two seeds",
        size=[at_least(f"{name}, share of the variance", share.value, MOST, "%") for name, share in shares.items()],
        details={"share that 5 % of shufflings exceed": {name: share.chance for name, share in shares.items()}}
        | {f"layer with the largest {name}, most often": winner(found[name][seeds], layers) for name in PATTERNS}
        | _left_out(run),
    )


def _top(run: Run) -> Finding:
    return _by_halves(TOP, run, "rebound")


def _bottom(run: Run) -> Finding:
    return _by_halves(BOTTOM, run, "end")


def _by_halves(claim: Claim, run: Run, name: str) -> Finding:
    """Top half minus bottom half; layers that are shuffled have a difference of zero."""
    expected = f"the difference is at least {claim.matters:g} nats and beyond chance (95 %)"
    if untold := _untold(claim, expected, run):
        return untold
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


def _rounding(run: Run) -> Finding:
    return _as_its_twin(ROUNDING, run, ("rounding",))


def _weights(run: Run) -> Finding:
    return _as_its_twin(WEIGHTS, run, ("dropout", "order"))


def _noise(run: Run) -> Finding:
    return _as_its_twin(NOISE, run, ("weights",))


def _as_its_twin(claim: Claim, run: Run, kinds: tuple[str, ...]) -> Finding:
    """Where entropy ends, layer by layer, as a deviation from the mean of the other seeds: twins beside strangers."""
    expected = (
        f"what is special to a network is alike in its twin: a correlation of at least {SAME:g}, above that of other "
        "seeds beyond chance (95 %)"
    )
    if untold := _untold(claim, expected, run, kinds):
        return untold
    found = patterns(run)
    cases = {_differs_in(kind): twins(run, kind, found["end"]) for kind in kinds}
    return by_effect(
        claim,
        cases,
        expected=expected,
        what="correlation with its twin",
        over="pairs",
        size=[at_least(f"{name}, mean correlation", one.value, SAME) for name, one in cases.items()],
        details={
            f"{_differs_in(kind)}, other patterns": {
                name: twins(run, kind, found[name]).value for name in ("drop", "rebound")
            }
            for kind in kinds
        }
        | _left_out(run),
    )


def _differs_in(kind: str) -> str:
    return "rounding alone" if kind == "rounding" else f"other {kind}"


def _left_out(run: Run) -> dict[str, dict[str, float]]:
    lost = int((~learned(run)).sum())
    return {"networks that learned nothing": {"left out": float(lost)}} if lost else {}


def draw(run: Run) -> list[Drawing]:
    """Where every layer ends in every network; how alike twins are, and from when on."""
    return [draw_map(run), draw_distances(run)]


STUDY = Study(
    name="layer-lottery",
    title="Which layer does what: set by position, by the seed, or by rounding?",
    version=1,
    claims=(POSITION, INNER, TOP, BOTTOM, ROUNDING, WEIGHTS, NOISE),
    quick=Config(),
    # 50 networks of ten layers must fit into three minutes of one GPU. So the words are cut to 5,000 and the steps to
    # 10,000, at twice Figure 6's rate: as far as Figure 6 is at step 20,000 of 58,580. There its five patterns
    # correlate with those of the end by 0.80 to 0.93 (at step 10,000 by 0.58 to 0.77).
    paper=Config(
        **PAPER | {"vocabulary": 5_000, "steps": 10_000, "every": 250, "valid_sequences": 100},
        length=35,
        layers=10,
        rate=2e-4,
        seeds=22,
        twins=7,
    ),
    run=run,
    judge=each_claim(_position, _inner, _top, _bottom, _rounding, _weights, _noise),
    draw=draw,
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
