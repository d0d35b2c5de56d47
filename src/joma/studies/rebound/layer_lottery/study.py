"""Is it a coin toss which layer drops deepest, which comes back and which stays sparse, or is it set by position?

What was fixed when: the inner layers are judged by themselves because in Figure 6's five seeds of ten layers the two
topmost layers ended high with every seed; those runs had been seen. What matters was decided before any run of this
study at paper scale.
"""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, Study
from joma.claims.guards import at_paper_scale
from joma.claims.verdicts import at_least, by_effect, not_run, only_at_paper_scale
from joma.figures.labels import label_lines
from joma.figures.reading import listing, number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, PURPLE, Axes, panels, step_axis
from joma.measure.intervals import compare
from joma.recipes.language import PAPER, called, same_text
from joma.recipes.language.curves import steps_of
from joma.runs import Run
from joma.studies.rebound.layer_lottery import run as lottery
from joma.studies.rebound.layer_lottery.run import LayerLotteryConfig, run

FEWEST = 5  # seeds that must have learned: with fewer there is no mean over others to deviate from
SAME = 0.9  # a correlation of two patterns from which on they count as the same
MOST = 0.5  # of the variance: where position explains more, it sets the pattern
QUARTER = 0.25
"""A correlation that matters. That of two seeds is the share of the variance that position explains: a quarter of
it. Quick runs had been seen when this was set, no run at paper scale."""
CORRELATION: dict[str, Any] = {"matters": QUARTER, "ceiling": 1.0}
DEEP = 10  # layers of the networks in Figure 6 that the claims are about
NATS: dict[str, Any] = {"matters": 0.05, "unit": "nats"}  # what single runs of one recipe were seen to differ by

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
    counts = {kind: len(lottery.members(run, kind)) for kind in ("seed", *kinds)}
    if counts["seed"] >= FEWEST and _too_short(run):
        reason = f"of {run.config['layers']} layers none comes back by step {run.config['steps']:,}"
        return only_at_paper_scale(claim, expected, reason, at_paper_scale(run.study))
    if counts["seed"] >= FEWEST and all(counts[kind] >= 2 for kind in kinds):
        return None
    found = ", ".join(f"{count} of kind {kind}" for kind, count in counts.items())
    reason = f"too few networks learned more than how frequent words are: {found}"
    return not_run(claim, expected, reason, steps=2 * run.config["steps"])


def _too_short(run: Run) -> bool:
    """Whether there are fewer layers than in the paper, and none comes back: what a layer does is not seen then."""
    rebounds = lottery.patterns(run)["rebound"][lottery.members(run, "seed")]
    return int(run.config["layers"]) < DEEP and not (rebounds.mean(0) >= NATS["matters"]).any()


def _left_out(run: Run) -> dict[str, dict[str, float]]:
    lost = int((~lottery.learned(run)).sum())
    return {"networks that learned nothing": {"left out": float(lost)}} if lost else {}


def judge_position(claim: Claim, which: Callable[[int], slice], run: Run) -> Finding:
    """The correlation between seeds; position must also explain most of the variance, and more than shuffled layers."""
    expected = (
        f"the patterns of two seeds correlate, by at least {QUARTER:g} and beyond chance; position explains at "
        f"least {MOST:.0%} of the variance within a network"
    )
    if finding := _too_few(claim, expected, run):
        return finding
    layers, seeds = which(int(run.config["layers"])), lottery.members(run, "seed")
    found = {name: pattern[seeds] for name, pattern in lottery.patterns(run).items()}
    shares = {name: lottery.share_of_position(found[name][:, layers]) for name in lottery.PATTERNS}
    return by_effect(
        claim,
        {name: lottery.between_seeds(found[name][:, layers]) for name in lottery.PATTERNS},
        expected=expected,
        what="mean correlation of two seeds",
        size=[at_least(f"{name}, share of the variance", share.value, MOST, "%") for name, share in shares.items()],
        details={"share that 5 % of shufflings exceed": {name: share.chance for name, share in shares.items()}}
        | {f"layer with the largest {n}, most often": lottery.winner(found[n], layers) for n in lottery.PATTERNS}
        | _left_out(run),
    )


def judge_halves(claim: Claim, name: str, run: Run) -> Finding:
    """Top half minus bottom half; layers that are shuffled have a difference of zero."""
    expected = f"the difference is at least {claim.matters:g} nats and beyond chance"
    if finding := _too_few(claim, expected, run):
        return finding
    if name == "rebound" and lottery.no_turn_seen(run).all():
        reason = "entropy still falls at the end of training in every layer: whether it comes back later is not seen"
        return not_run(claim, expected, reason, f"joma run {run.study} --steps {4 * run.config['steps']}")
    each = lottery.patterns(run)[name][lottery.members(run, "seed")]
    found = lottery.halves(each)
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
        "seeds beyond chance"
    )
    if finding := _too_few(claim, expected, run, kinds):
        return finding
    found = lottery.patterns(run)
    names = {kind: "rounding alone" if kind == "rounding" else f"other {kind}" for kind in kinds}
    cases = {names[kind]: lottery.twins(run, kind, found["end"]) for kind in kinds}

    def others(kind: str) -> dict[str, float]:
        return {name: lottery.twins(run, kind, found[name]).value for name in ("drop", "rebound")}

    return by_effect(
        claim,
        cases,
        expected=expected,
        what="correlation with its twin",
        over="pairs",
        size=[at_least(f"{name}, mean correlation", one, SAME) for name, one in cases.items()],
        details={f"{names[kind]}, other patterns": others(kind) for kind in kinds} | _left_out(run),
    )


LOOKS = {
    "rounding": ("rounding alone", BLUE),
    "dropout": ("other dropout", ORANGE),
    "order": ("other data order", GREEN),
    "weights": ("other weights", PURPLE),
    "seed": ("other seed", CONTROL),
}
"""What a twin differs in, and its colour; two seeds are no twins and come last."""
Shares = Mapping[tuple[str, str], lottery.Share]


def draw_map(run: Run) -> Drawing:
    """Final entropies, layers x seeds, sorted; beside them seeds and their rounding twins, row under row."""
    end = lottery.patterns(run)["end"]
    seeds = _sorted(end, lottery.members(run, "seed"))
    of = run.value(f"{lottery.NETWORKS}/of")
    twin = {int(of[one]): int(one) for one in lottery.members(run, "rounding")}
    pairs = np.array([one for seed in seeds if int(seed) in twin for one in (int(seed), twin[int(seed)])], dtype=int)
    figure, axes = panels(3, width=3.1, height=max(2.8, 0.13 * max(len(seeds), 1) + 1.4))
    shown = end[np.isfinite(end).all(1)]
    limits = (float(shown.min()), float(shown.max())) if len(shown) else (0.0, 1.0)
    drawn = _colour_map(axes[0], end[seeds], limits)
    axes[0].set(title="Seeds: entropy at the end", ylabel=f"{len(seeds)} seeds, sorted", xlabel="layer")
    axes[0].set_yticks([])
    _colour_map(axes[1], end[pairs], limits)
    axes[1].set(title="Seed and copy (rounding)", ylabel="pairs", xlabel="layer")
    axes[1].set_yticks(np.arange(0, len(pairs), 2) + 1.0, [f"{i + 1}" for i in range(len(pairs) // 2)], fontsize=7)
    for edge in range(2, len(pairs), 2):
        axes[1].axhline(edge, color="white", lw=2.5)
    if drawn is not None:
        bar = figure.colorbar(drawn, ax=axes[:2], shrink=0.8)
        bar.ax.set(xlabel="nats", ylabel="attention entropy")
    layers = {"all layers": slice(None), "inner layers": lottery.inner(int(run.config["layers"]))}
    chosen = {name: pattern[lottery.members(run, "seed")] for name, pattern in lottery.patterns(run).items()}
    places = product(layers, lottery.PATTERNS)
    shares = {(which, name): lottery.share_of_position(chosen[name][:, layers[which]]) for which, name in places}
    _draw_shares(axes[2], shares)
    alike = {which: lottery.between_seeds(chosen["end"][:, part]).value for which, part in layers.items()}
    explained = {which: number(shares[which, "end"].value, "%") for which in layers}
    caption = (
        f"Position explains {explained['all layers']} of how the entropy at the end differs between layers, and "
        f"{explained['inner layers']} among the inner layers ({layers['inner layers'].start + 1} to "
        f"{layers['inner layers'].stop}). Two seeds' patterns correlate by {alike['all layers']:.2f}, those of the "
        f"inner layers by {alike['inner layers']:.2f}. Left: one row "
        "per seed, one column per layer from the input on; rows are sorted by what differs most between seeds. "
        f"Middle: rows in pairs, a seed and its copy that differs only in rounding. {len(seeds)} networks of "
        f"{run.config['layers']} layers on {called(run.config['corpus'])}, step {run.config['steps']:,}."
    )
    return Drawing("layers-by-seed", caption, figure)


def _sorted(end: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """Seeds by what differs most between them: the first principal component of the deviations from the mean."""
    if not len(seeds):
        return seeds
    deviations = end[seeds] - end[seeds].mean(0)
    return np.asarray(seeds[np.argsort(np.linalg.svd(deviations, full_matrices=False)[0][:, 0])])


def _colour_map(axis: Axes, rows: np.ndarray, limits: tuple[float, float]) -> Any:
    if not len(rows):
        axis.text(0.5, 0.5, "none learned", ha="center", transform=axis.transAxes)
        return None
    layers = rows.shape[1]
    drawn = axis.pcolormesh(np.arange(layers + 1) + 0.5, np.arange(len(rows) + 1), rows, vmin=limits[0], vmax=limits[1])
    axis.invert_yaxis()
    axis.set_xticks(range(1, layers + 1))
    return drawn


def _draw_shares(axis: Axes, shares: Shares) -> None:
    for place, name in enumerate(lottery.PATTERNS):
        for shift, which, colour in ((-0.17, "all layers", BLUE), (0.17, "inner layers", ORANGE)):
            found = shares[which, name]
            axis.bar(place + shift, 100 * found.value, 0.3, color=colour, label=which if place == 0 else None)
            axis.plot([place + shift - 0.17, place + shift + 0.17], [100 * found.chance] * 2, color=INK, lw=1.4)
    axis.plot([], [], color=INK, lw=1.4, label="95 % of shuffled layers")
    axis.set_xticks(range(len(lottery.PATTERNS)), lottery.PATTERNS)
    axis.set(ylim=(0, 135), xlabel="pattern of entropy", ylabel="share of variance (%)", title="Explained by position")
    axis.set_yticks([0, 25, 50, 75, 100])
    axis.legend(loc="upper left", fontsize=7.5)


def draw_distances(run: Run) -> Drawing:
    """How far twins are apart over training, and how alike what is special to them is at the end."""
    figure, axes = panels(2, width=3.9, height=3.0)
    for kind, (label, colour) in LOOKS.items():
        rows = lottery.distance(run, kind)
        if len(rows):  # the middle pair; twins that are still the same are at the smallest distance there is
            middle = np.maximum(np.median(rows, axis=0), 1e-8)
            axes[0].plot(steps_of(run, lottery.NETWORKS)[1:], middle[1:], color=colour, label=label)
    if axes[0].get_lines():
        axes[0].set_yscale("log")
    axes[0].set(ylabel="distance of entropies (nats)", title="From when on copies differ")
    step_axis(axes[0])
    label_lines(axes[0])
    pairs = {kind: lottery.twin_pairs(run, kind, lottery.patterns(run)["end"]) for kind in lottery.KINDS[1:]}
    for place, (kind, rows) in enumerate(pairs.items()):
        label, colour = LOOKS[kind]
        axes[1].plot(np.full(len(rows), place), rows[:, 0], "o", ms=4, color=colour, alpha=0.7, label=label)
        if len(rows):
            axes[1].plot([place - 0.25, place + 0.25], [rows[:, 0].mean()] * 2, color=colour, lw=2)
    strangers = np.concatenate([rows[:, 1] for rows in pairs.values()])
    if len(strangers):
        axes[1].axhline(float(np.mean(strangers)), color=CONTROL, ls="--", lw=1.2, label="other seeds")
    axes[1].axhline(1.0, color=INK, lw=0.6)
    axes[1].set_xticks(range(len(pairs)), ["rounding\nalone", "dropout", "data\norder", "initial\nweights"])
    axes[1].set(xlabel="the copy differs in", ylabel="correlation with its copy", title="What is special to a network")
    axes[1].set_ylim(-1.05, 1.1)
    means = [f"{compare(rows[:, 0]).value:.2f} with {LOOKS[kind][0]}" for kind, rows in pairs.items() if len(rows)]
    caption = (
        "A network and its copy are alike in what is special to them by a correlation of "
        f"{listing(means) if means else 'nothing: no pair learned'}; other seeds by {compare(strangers).value:.2f} "
        "(dashed). Left: the distance of entropies between a network and its copy, RMS over layers, of the middle "
        "pair. Right: correlation of where the layers end, as deviations from the mean of the other seeds; one dot "
        "per pair, bars: means."
    )
    return Drawing("copies", caption, figure)


STUDY = Study(
    name="layer-lottery",
    title="Which layer does what: set by position, by the seed, or by rounding?",
    version=1,
    claims={
        POSITION: partial(judge_position, POSITION, lambda layers: slice(None)),
        INNER: partial(judge_position, INNER, lottery.inner),
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
        **PAPER | {"vocabulary": 5_000, "steps": 10_000, "every": 250, "valid_sequences": 100}, length=35, layers=10,
        rate=2e-4, seeds=22, twins=7,
    ),
    run=run,
    draw=lambda run: [draw_map(run), draw_distances(run)],
    check=same_text,
    about=(
        "Networks whose layers start as copies of one block are trained from many seeds. For every layer it is "
        "measured how far attention entropy drops, how far it comes back and where it ends. These patterns are "
        "compared between seeds, with shuffled layers as control. Copies of some seeds differ in rounding alone, in "
        "dropout, in the order of the data or in the initial weights. Copies are compared by what is special to a "
        "network: the deviation from the mean of the other seeds. Networks that learn only how frequent words are do "
        "not count."
    ),
)  # fmt: skip
