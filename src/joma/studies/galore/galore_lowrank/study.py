"""Are the gradients of real decoders of low rank, do they become so, and does their subspace stay?"""

from collections.abc import Callable
from typing import Any

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, Study
from joma.claims.declare import Claims
from joma.claims.guards import beyond, hardest
from joma.claims.verdicts import Test, at_least, at_most, by_effect
from joma.figures.bands import mean_and_band
from joma.figures.reading import between, listing, number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, PURPLE, Axes, Figure, panels, step_axis
from joma.measure.intervals import Comparison, compare
from joma.recipes.language import PAPER, called, same_text
from joma.recipes.language.curves import best_loss, diverged, learned_nothing, mean_over_seeds, steps_of
from joma.runs import Run
from joma.studies.galore.galore_lowrank import run as decoders
from joma.studies.galore.galore_lowrank.run import SHUFFLED, gradient, probe, projector_ranks, rank, run, variants

QUARTER = 4  # the smallest rank in the paper's table is a quarter of the width
MOST = 0.9  # of the energy: who keeps nine tenths keeps most
NEAR = 0.8  # of what two batches share at one step: subspaces that share as much have hardly moved
WIDELY = 10.0  # a large growth rate over a small one, as in the study thm2-rank
HALF = 0.5  # of the fall in stable rank, in logarithms


Numbers = dict[str, dict[str, float]]
Evidence = Callable[[Run, Claim], dict[str, Any]]


def _learned_nothing(run: Run) -> tuple[str, dict[str, int]] | None:
    reasons = (learned_nothing(run, name, rate=decoders.TEXT) for name in variants(run))
    return next(((reason, {"steps": 2 * run.config["steps"]}) for reason in reasons if reason), None)


CLAIMS = Claims(guard=_learned_nothing)


def _judge(
    name: str, source: str, *, unit: str = "%", ceiling: float | None = 1.0, **options: Any
) -> Callable[[Evidence], Evidence]:
    """Declare a claim that is judged by what a function gives as evidence."""

    def register(evidence: Evidence) -> Evidence:
        def judge(run: Run, claim: Claim) -> Finding:
            given = evidence(run, claim)
            finite = {name: {k: x for k, x in row.items() if np.isfinite(x)} for name, row in given["details"].items()}
            details = {name: row for name, row in finite.items() if row} | diverged(run, variants(run))
            return by_effect(claim, **given | {"details": details})

        CLAIMS.declare(name, source, evidence.__doc__ or "", unit=unit, ceiling=ceiling, **options)(judge)
        return evidence

    return register


def _cases(run: Run, found: Callable[[str, int], Comparison]) -> dict[str, Comparison]:
    return {f"{name}, {matrix}": found(name, i) for name in variants(run) for i, matrix in enumerate(decoders.MATRICES)}


def _over_matrices(values: np.ndarray) -> float:
    return mean_over_seeds([one.mean() for one in values])


def _batches_are_large(run: Run) -> list[Test]:
    """A batch with fewer positions or targets than the shorter side would limit the rank by itself."""
    least = [float(min(run.value(f"{name}/batch/large"))) / side for name, side in variants(run).items()]
    return [at_least("fewest positions, words or targets in the large batch, per shorter side", min(least), 1.0)]


# matters: of the stable rank of a Gaussian matrix with the same norms: a factor of two
@_judge("gradient-is-low-rank", "GaLore Sec. 3.2", matters=0.5)
def _low(run: Run, claim: Claim) -> dict[str, Any]:
    """The gradient of every weight matrix has a low stable rank.

    Expected: At the end of training every kind of matrix has a gradient whose stable rank is at most half that of a
    Gaussian matrix with the same norms of rows and columns, and at most a quarter of the shorter side.
    """
    ends = {name: rank(run, name)[:, -1] for name in variants(run)}
    lacks = {name: 1 - end / rank(run, name, "gaussian")[:, -1] for name, end in ends.items()}
    largest = max(mean_over_seeds(one) / side for name, side in variants(run).items() for one in ends[name].T)
    details: Numbers = {}
    for name in variants(run):
        kinds = {
            "trained": rank(run, name)[:, -1],
            "untrained": rank(run, name)[:, 0],
            "shuffled targets": rank(run, name, text=SHUFFLED)[:, -1],
            "Gaussian, same norms": rank(run, name, "gaussian")[:, -1],
            "one training batch": rank(run, name, "small")[:, -1],
            "without the first direction": gradient(run, name, "large", "stable rank of the rest")[:, -1],
        }
        details[f"stable rank, {name}"] = {
            kind: mean_over_seeds([np.exp(np.log(one).mean()) for one in values]) for kind, values in kinds.items()
        }
        first, shared = gradient(run, name, "large", "energy 1"), probe(run, name, "kept/targets")
        details[f"energy in the first direction, {name}"] = {
            f"{when}{whose}": _over_matrices(values[:, point])
            for when, point in (("untrained", 0), ("trained", -1))
            for whose, values in (("", first), (", in that of shuffled targets", shared))
        }
        for size in ("large", "small"):
            counts = map(float, run.value(f"{name}/batch/{size}"))
            details[f"{size} batch, {name}"] = dict(zip(("positions", "words", "targets"), counts, strict=True))
        own, twin = map(mean_over_seeds, best_loss(run, name))
        by_frequency = float(run.value(f"{name}/loss by frequency"))
        details[f"best validation loss, {name}"] = {"text": own, "twins": twin, "by frequency": by_frequency}
    return {
        "found": _cases(run, lambda name, i: compare(lacks[name][:, i], 0.0)),
        "what": "share of the control's stable rank that is missing",
        "size": [at_most("largest stable rank, as a share of the shorter side", largest, 1 / QUARTER, "%")],
        "controls": _batches_are_large(run),
        "details": details,
    }


def _fall(path: np.ndarray) -> np.ndarray:
    return np.asarray(1 - path[:, -1] / path[:, 0])


# matters: of the untrained network's: what falls by less than a tenth stays where it is
@_judge("gradient-rank-falls", "GaLore Lemma 3.3", matters=0.1)
def _falls(run: Run, claim: Claim) -> dict[str, Any]:
    """The stable rank of the gradient falls during training.

    Expected: From the first step to the last the stable rank of every kind of matrix falls by at least 10 %, and by as
    much more than in twins that are trained on shuffled targets.
    """
    lost = {name: [_fall(rank(run, name, text=text)) for text in (decoders.TEXT, SHUFFLED)] for name in variants(run)}

    def found(name: str, i: int) -> Comparison:
        own, twin = (part[:, i] for part in lost[name])
        (one,) = hardest(claim, {"nothing": compare(own), "twins": compare(own, twin)}).values()
        return one

    details = {
        f"share lost, mean over matrices, {name}": {"text": _over_matrices(own), "twins": _over_matrices(twin)}
        for name, (own, twin) in lost.items()
    }
    return {"found": _cases(run, found), "what": "share of the untrained stable rank that is lost", "details": details}


# matters: of the energy: more than random matrices with the same norms would let it keep
@_judge("quarter-rank-captures", "GaLore Table 2", matters=0.1)
def _captures(run: Run, claim: Claim) -> dict[str, Any]:
    """A projector of a quarter of the full rank, the smallest share in the table, keeps most of the gradient's energy.

    Expected: At the end of training the first m/4 directions hold at least 90 % of the energy, and at least 10 % more
    than in a Gaussian matrix with the same norms of rows and columns.
    """
    kept = {
        name: [gradient(run, name, batch, "energy m/4")[:, -1].mean(1) for batch in ("large", "gaussian")]
        for name in variants(run)
    }
    smallest = min(mean_over_seeds(one) for own, _ in kept.values() for one in own.T)
    details: Numbers = {}
    for name in variants(run):
        details[f"energy by directions, {name}"] = {
            count: _over_matrices(gradient(run, name, "large", f"energy {count}")[:, -1])
            for count in ("1", "4", "m/16", "m/4")
        }
        details[f"energy in m/4, {name}"] = {
            kind: _over_matrices(gradient(run, name, batch, "energy m/4", text=text)[:, point])
            for kind, batch, text, point in (
                ("untrained", "large", decoders.TEXT, 0),
                ("shuffled targets", "large", SHUFFLED, -1),
                ("one training batch", "small", decoders.TEXT, -1),
            )
        }
    return {
        "found": _cases(run, lambda name, i: compare(*(part[:, i] for part in kept[name]))),
        "what": "share of the energy in the first m/4 directions",
        "size": [at_least("smallest share of energy", smallest, MOST, "%")],
        "controls": _batches_are_large(run),
        "details": details,
    }


# matters: of the subspace: as much again as random subspaces of a quarter of the dimensions share
@_judge("subspace-changes-slowly", "GaLore Sec. 1", matters=0.25)
def _slow(run: Run, claim: Claim) -> dict[str, Any]:
    """The subspace of the gradient changes slowly: a projector can be used for 200 steps.

    Expected: Over the last {refresh} steps the first m/4 directions share at least 25 % more than random subspaces, and
    at least 80 % of what the gradients of two large batches share.
    """
    chance = {name: (side // QUARTER) / side for name, side in variants(run).items()}
    shared, near, details = {}, [], Numbers()
    for name in variants(run):
        first, last = decoders.after_refresh(run, name)[[0, -1]]

        def kept(what: str, point: int = last, text: int = decoders.TEXT, name: str = name) -> float:
            return _over_matrices(probe(run, name, what, text=text)[:, point])

        both = (probe(run, name, f"subspace/{what}")[:, last].mean(1) for what in ("before", "batches"))
        shared[name], batches = both
        near += [mean_over_seeds(a) / mean_over_seeds(b) for a, b in zip(shared[name].T, batches.T, strict=True)]
        details[f"overlap, {name}"] = {
            "over the last refresh": kept("subspace/before"),
            "over the first refresh": kept("subspace/before", first),
            "of two batches": kept("subspace/batches"),
            "with shuffled targets in the same network": kept("subspace/targets"),
            "over the last refresh, twins": kept("subspace/before", text=SHUFFLED),
        }
        details[f"energy of a new batch that is kept, {name}"] = {
            "by its own projector": kept("kept/own"),
            "by another batch's": kept("kept/batch"),
            "by another batch's, a refresh before": kept("kept/before"),
        }
    return {
        "found": _cases(run, lambda name, i: compare(shared[name][:, i], chance[name])),
        "what": "overlap of the first m/4 directions over one refresh",
        "size": [at_least("smallest overlap, as a share of that of two batches", min(near), NEAR, "%")],
        "details": details,
    }


def _both(run: Run, name: str, which: str) -> tuple[np.ndarray, np.ndarray]:
    return probe(run, name, f"nodes/{which}"), probe(run, name, f"nodes/{which}", text=SHUFFLED)


def _ends(own: np.ndarray, twin: np.ndarray) -> dict[str, float]:
    """Means over seeds of (seeds, points): untrained, trained, and of the trained twins."""
    parts = {"untrained": own[:, 0], "trained": own[:, -1], "twins": twin[:, -1]}
    return {name: mean_over_seeds(part) for name, part in parts.items()}


# matters: as for gradients
@_judge("nodes-become-low-rank", "JoMA talk slide K", matters=0.1, uses=("thm2-rank/nodes-low-rank",))
def _nodes_fall(run: Run, claim: Claim) -> dict[str, Any]:
    """With K > 1 nodes, V gradually becomes low rank. This is tested in the lowest layer of real decoders.

    Expected: V loses at least 10 % of its untrained stable rank, and as much more than in twins that are trained on
    shuffled targets.
    """
    paths = {name: _both(run, name, "V") for name in variants(run)}
    lost = {name: [_fall(path) for path in both] for name, both in paths.items()}
    return {
        "found": {name: compare(own) for name, (own, _) in lost.items()},
        "what": "share of the untrained stable rank of V that is lost",
        "controls": [beyond(claim, f"more than in twins, {name}", compare(*both)) for name, both in lost.items()],
        "details": {f"stable rank of V, {name}": _ends(*both) for name, both in paths.items()},
    }


# matters: as for gradients
@_judge("nodes-gradient-is-lower", "JoMA talk slide K", matters=0.1, uses=("thm2-rank/nodes-gradient-rank",))
def _nodes_below(run: Run, claim: Claim) -> dict[str, Any]:
    """Training makes the gradient of V even lower in rank than V. This is tested in the lowest layer of real decoders.

    Expected: At the end the stable rank of V' is below that of V by a share that is at least 10 % larger than in the
    untrained network.
    """
    cases, details = {}, Numbers()
    for name in variants(run):
        ranks = [_both(run, name, which) for which in ("V'", "V")]
        own, twin = (1 - growth / v for growth, v in zip(*ranks, strict=True))
        cases[name] = compare(own[:, -1], own[:, 0])
        details[f"stable rank of V', {name}"] = _ends(*ranks[0])
        details[f"share by which V' is below V, {name}"] = _ends(own, twin)
    return {"found": cases, "what": "share by which the stable rank of V' is below that of V", "details": details}


# matters: a factor of two between the ratio of growth rates and that of the control
@_judge(
    "nodes-rows-carry-it",
    "JoMA talk slide K",
    matters=1.0,
    unit="doublings",
    ceiling=None,
    uses=("thm2-rank/nodes-row-growth",),
)
def _rows(run: Run, claim: Claim) -> dict[str, Any]:
    """The rank is low because the growth rates of the rows of V vary widely, more and more so as training goes on.

    Expected: At the end a large row of V' (90 %) is at least {WIDELY:g} times a small one (10 %). This ratio is twice
    that of the untrained network. The norms of rows and columns alone give half of the fall from the stable rank of a
    Gaussian matrix to that of V', in logarithms.
    """
    spread = {name: _both(run, name, "spread") for name in variants(run)}
    share = {name: [_by_norms(run, name, text) for text in (decoders.TEXT, SHUFFLED)] for name in spread}
    details = {f"ratio of growth rates, {name}": _ends(*both) for name, both in spread.items()}
    details |= {f"share of the fall that norms alone give, {name}": _ends(*both) for name, both in share.items()}
    ratios, explained = (min(mean_over_seeds(own[:, -1]) for own, _ in part.values()) for part in (spread, share))
    return {
        "found": {name: compare(np.log2(own[:, -1]), np.log2(own[:, 0])) for name, (own, _) in spread.items()},
        "what": "logarithm of a large growth rate over a small one",
        "size": [
            at_least("smallest ratio of growth rates", ratios, WIDELY),
            at_least("smallest share of the fall that norms alone give", explained, HALF, "%"),
        ],
        "details": details,
    }


def _by_norms(run: Run, name: str, text: int) -> np.ndarray:
    """The share of the way, in logarithms, from equal norms to V' that a Gaussian matrix with the norms of V' goes."""
    reached, by_its_norms, equal = (
        np.log(probe(run, name, f"nodes/{which}", text=text))
        for which in ("V'", "V' by its norms", "V' of equal norms")
    )
    return np.asarray((equal - by_its_norms) / (equal - reached))


Line = tuple[np.ndarray, str, str]  # (seeds, points), colour, dashes


def _title(run: Run, name: str) -> str:
    if name == decoders.SERIES:
        return f"{name}: {run.config['series_layers']} layers, m = {run.config['series_width']}"
    return f"Figure 6: {name}, m = {run.config['width']}"


def _mean(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.nanmean(values, axis=0))


def _about(run: Run) -> str:
    return f"{run.config['seeds']} seeds, {called(run.config['corpus'])}"


def _draw_matrices(run: Run) -> Drawing:
    names = list(variants(run))
    figure, axes = panels(len(names), width=4.2, height=3.0)
    ends: dict[str, list[float]] = {}
    for name, axis in zip(names, axes, strict=True):
        for label, values, colour, marker in (
            ("Gaussian, same norms", rank(run, name, "gaussian")[:, -1], CONTROL, "D"),
            ("trained", rank(run, name)[:, -1], BLUE, "o"),
            ("untrained", rank(run, name)[:, 0], GREEN, "s"),
            ("shuffled targets", rank(run, name, text=decoders.SHUFFLED)[:, -1], ORANGE, "^"),
        ):
            mean = _mean(values)
            axis.plot(range(len(mean)), mean, color=colour, marker=marker, ms=5, ls="none", label=label)
            ends.setdefault(label, []).extend(mean)
        axis.set_xticks(range(len(decoders.MATRICES)), decoders.MATRICES)
        axis.set(yscale="log", xlabel="gradient by this matrix", ylabel="stable rank", title=_title(run, name))
        _plain_ticks(axis)
    axes[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    start, end, twins = (ends[label] for label in ("untrained", "trained", "shuffled targets"))
    higher = sum(last > first for first, last in zip(start, end, strict=True))
    caption = (
        f"The gradient of every kind of matrix has a stable rank {between(end)} after training and {between(start)} "
        f"before. Training raises it for {higher} of {len(end)} kinds. Networks that are trained on shuffled targets, "
        f"from which only the frequency of words can be learned, have {between(twins)}. Grey: Gaussian matrices with "
        f"the same norms of rows and columns. Geometric means over layers, mean of {_about(run)}."
    )
    return Drawing("gradient-ranks", caption, figure)


def _plain_ticks(axis: Axes) -> None:
    """1, 2, 5, 10 ... instead of powers of ten: the ranks span less than two of them."""
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    low, high = axis.get_ylim()
    ticks = [tick for power in range(5) for tick in (10**power, 2 * 10**power, 5 * 10**power) if tick <= high]
    axis.set_ylim(min(low, 0.9), high)
    axis.set_yticks(ticks)
    axis.yaxis.set_major_formatter(ScalarFormatter())
    axis.yaxis.set_minor_formatter(NullFormatter())


def _over_training(run: Run, ylabel: str, lines: Callable[[str], dict[str, Line]], **look: Any) -> Figure:
    figure, axes = panels(len(variants(run)), width=4.4)
    for name, axis in zip(variants(run), axes, strict=True):
        for label, (path, colour, dashes) in lines(name).items():
            path = path[np.isfinite(path).all(1)]
            mean_and_band(axis, steps_of(run, name), path, over=0, color=colour, label=label, ls=dashes, **look)
        axis.set(yscale="log", ylabel=ylabel, title=_title(run, name))
        _plain_ticks(axis)
        step_axis(axis)
    return figure


def _draw_training(run: Run) -> Drawing:
    def path(name: str, batch: str = "large", text: int = decoders.TEXT) -> np.ndarray:
        return np.asarray(np.exp(np.log(rank(run, name, batch, text=text)).mean(-1)))

    def lines(name: str) -> dict[str, Line]:
        return {
            "Gaussian,\nsame norms": (path(name, "gaussian"), CONTROL, "-"),
            "text": (path(name), BLUE, "-"),
            "shuffled\ntargets": (path(name, text=decoders.SHUFFLED), ORANGE, "-"),
        }

    figure = _over_training(run, "stable rank of the gradient", lines, marker="o", ms=3)
    means = {name: _mean(path(name)) for name in variants(run)}
    ends = listing(f"from {number(mean[0])} to {number(mean[-1])} ({name})" for name, mean in means.items())
    caption = (
        f"Over training the stable rank of gradients goes {ends}. Geometric mean over all matrices and "
        f"layers; lines: mean of {_about(run)}; bands: their range. Grey: Gaussian matrices with the norms of rows and "
        "columns of the text's gradients. Orange: networks trained on shuffled targets, of their own gradients."
    )
    return Drawing("rank-over-training", caption, figure)


def _draw_subspaces(run: Run) -> Drawing:
    names = list(variants(run))
    figure, axes = panels(len(names), 2, width=4.4)
    energies = [_draw_energy(axis, run, name) for axis, name in zip(axes, names, strict=False)]
    below = zip(axes[len(names) :], names, strict=True)
    overlaps = [f"{number(_draw_overlap(axis, run, name), '%')} ({name})" for axis, name in below]
    refresh = run.config["refresh"]
    hollow = any(len(_longer_before(run, name)) for name in names)
    longer = "; hollow: with those of the point before, which is longer ago" if hollow else ""
    caption = (
        f"At the end of training a quarter of the directions holds {between(energies, '%')} of the gradient's energy "
        f"(upper row, mean over matrices). Over the last {refresh} steps these directions share {listing(overlaps)}. "
        f"Lower row: overlap of the first m/4 directions with those of {refresh} steps earlier (blue{longer}), of two "
        "batches at one step (green), and with those for shuffled targets in the same network (orange). Means over "
        f"matrices, layers and {_about(run)}."
    )
    return Drawing("energy-and-subspace", caption, figure)


def _draw_energy(axis: Axes, run: Run, name: str) -> float:
    ranks = projector_ranks(variants(run)[name])
    order = np.argsort(ranks)
    x, last = np.array(ranks)[order], {}
    for label, batch, point, text, colour in (
        ("shuffled\ntargets", "large", -1, decoders.SHUFFLED, ORANGE),
        ("untrained", "large", 0, decoders.TEXT, GREEN),
        ("trained", "large", -1, decoders.TEXT, BLUE),
        ("Gaussian,\nsame norms", "gaussian", -1, decoders.TEXT, CONTROL),
    ):
        energies = (decoders.gradient(run, name, batch, f"energy {r}", text=text) for r in ("1", "4", "m/16", "m/4"))
        path = np.array([_mean(energy[:, point].mean((1, 2))) for energy in energies])[order]
        axis.plot(x, path, color=colour, marker="o", ms=4, label=label)
        last[label] = float(path[-1])
    axis.set(xscale="log", xlabel="first r directions", ylabel="share of energy", ylim=(0, 1.03))
    axis.set_xticks(x, [str(r) for r in x])
    axis.minorticks_off()
    axis.set_title(_title(run, name))
    return last["trained"]


def _longer_before(run: Run, name: str) -> np.ndarray:
    """The points whose neighbour before is more than one refresh away."""
    return np.setdiff1d(np.arange(1, len(steps_of(run, name))), decoders.after_refresh(run, name))


def _draw_overlap(axis: Axes, run: Run, name: str) -> float:
    x, side = steps_of(run, name), variants(run)[name]
    near, far = decoders.after_refresh(run, name), _longer_before(run, name)
    two, before, targets = (
        _mean(probe(run, name, f"subspace/{which}")[:, 1:].mean((2, 3))) for which in ("batches", "before", "targets")
    )
    look: Any = {"marker": "o", "ms": 4}
    axis.plot(x[1:], two, color=GREEN, label="two batches", **look)
    axis.plot(x[near], before[near - 1], color=BLUE, label="a refresh\nbefore", **look)
    if len(far):
        axis.plot(x[far], before[far - 1], color=BLUE, label="longer\nbefore", mfc="none", ls="none", **look)
    axis.plot(x[1:], targets, color=ORANGE, label="shuffled\ntargets", **look)
    axis.axhline((side // QUARTER) / side, color=INK, ls=":", lw=1.0, label="random")
    axis.set(ylabel="overlap, first m/4 directions", ylim=(0, 1.03), title=_title(run, name))
    step_axis(axis)
    return float(before[near[-1] - 1])


def _draw_nodes(run: Run) -> Drawing:
    def lines(name: str) -> dict[str, Line]:
        return {
            "V' by its\nnorms alone": (probe(run, name, "nodes/V' by its norms"), CONTROL, "--"),
            "V": (probe(run, name, "nodes/V"), BLUE, "-"),
            "V'": (probe(run, name, "nodes/V'"), PURPLE, "-"),
            "V, shuffled": (probe(run, name, "nodes/V", text=decoders.SHUFFLED), ORANGE, "-"),
        }

    ends = []
    for name in variants(run):
        paths = {which: _mean(probe(run, name, f"nodes/{which}")) for which in ("V", "V'")}
        moves = [f"{which} from {number(path[0])} to {number(path[-1])}" for which, path in paths.items()]
        ends.append(f"{' and '.join(moves)} ({name})")
    caption = (
        f"Stable rank in the lowest layer over training: {listing(ends)}. V has one row per frequent word "
        "and one column per node of the MLP; V' is its gradient. Dashed: Gaussian matrices with the norms of rows and "
        "columns of V', which is all that the talk's dynamics changes of V'. Orange: V of twins that are trained on "
        f"shuffled targets. Lines: mean of {_about(run)}; bands: their range."
    )
    return Drawing("nodes", caption, _over_training(run, "stable rank", lines))


STUDY = Study(
    name="galore-lowrank",
    title="GaLore: the rank of gradients over the training of decoders",
    version=1,
    claims=CLAIMS,
    quick=decoders.GaloreLowrankConfig(
        vocabulary=200, width=32, mlp=32, dropout=0.0, streams=4, valid_sequences=3, steps=60, every=30, refresh=20,
        pairs=2, seeds=5, batches=2, layers=(1,), series_layers=2, series_width=32, series_heads=2, series_length=35,
        series_streams=4, series_batches=2, series_vocabulary=200, series_steps=60,
    ),
    paper=decoders.GaloreLowrankConfig(
        **PAPER | {"steps": 5_800, "every": 2_900, "valid_sequences": 40},
        layers=(1, 5), rate=1e-4, seeds=5, pairs=4, batches=8, series_layers=6, series_width=512, series_heads=8,
        series_length=512, series_streams=8, series_batches=4, series_vocabulary=16_384, series_steps=1_000,
        series_rate=3e-4,
    ),
    run=run,
    draw=lambda run: [_draw_matrices(run), _draw_training(run), _draw_subspaces(run), _draw_nodes(run)],
    check=same_text,
    about=(
        "Decoders of Figure 6 and one of the size of Figure 7's series train on a text. Others read the same text but "
        "predict words from a shuffled copy: they can learn how frequent words are and nothing else. On "
        "the way, the gradient of a large fixed batch is taken by every weight matrix. Its stable rank, the energy in "
        "its first directions and the overlap of these directions over one refresh of GaLore's projector are recorded. "
        "The same is recorded for Gaussian matrices with the same norms of rows and columns, for a second batch, and "
        "for one training batch. V of the talk is read from the lowest layer. Numbers are means over layers. A network "
        "that learns no more than how frequent words are does not count."
    ),
)  # fmt: skip
