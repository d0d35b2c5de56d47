"""How the record judges what is claimed about gradients: stable rank, energy, subspaces."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from joma.claims.contract import Claim, Finding
from joma.claims.evidence import Test, at_least, at_most
from joma.claims.guards import hardest
from joma.claims.verdicts import by_effect, not_run
from joma.claims.words import show
from joma.measure.intervals import Comparison, compare
from joma.recipes.language_curves import best_loss, mean_over_seeds
from joma.recipes.language_findings import diverged, learned_nothing
from joma.runs import Run
from joma.studies.galore._lowrank_claims import CAPTURES, FALLS, LOW, MOST, NEAR, QUARTER, SLOW
from joma.studies.galore._lowrank_config import sides, variants
from joma.studies.galore._lowrank_networks import MATRICES, SHUFFLED, TEXT
from joma.studies.galore._lowrank_record import apart, gradient, probe, rank

Numbers = dict[str, dict[str, float]]


def judged(claim: Claim, expected: str, run: Run, judge: Callable[[], Finding]) -> Finding:
    """What `judge` finds; not run where a decoder learned no more than how frequent words are."""
    for name in variants(run.config):
        if reason := learned_nothing(run, name, rate=TEXT):
            return not_run(claim, expected, reason, f"joma run {run.study} with more --steps or another --rate")
    return judge()


def told(run: Run, numbers: Numbers) -> Numbers:
    """What stands beside a finding: numbers that are finite, and how many networks diverged."""
    kept = {name: {key: value for key, value in row.items() if np.isfinite(value)} for name, row in numbers.items()}
    return {name: row for name, row in kept.items() if row} | diverged(run, variants(run.config))


def _cases(run: Run, found: Callable[[str, int], Comparison]) -> dict[str, Comparison]:
    """One per decoder and kind of matrix."""
    return {
        f"{name}, {matrix}": found(name, place)
        for name in variants(run.config)
        for place, matrix in enumerate(MATRICES)
    }


def _over_matrices(values: np.ndarray, average: Callable[[np.ndarray], np.ndarray] = np.mean) -> float:
    """Mean over seeds of the mean over matrices; (seeds, ..., matrices)."""
    return mean_over_seeds([average(one) for one in values])


def _geometric(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(np.log(values).mean()))


def judge_low(run: Run) -> Finding:
    """The share of a Gaussian matrix's stable rank that the gradient lacks, at the end of training."""
    expected = (
        "At the end of training every kind of matrix has a gradient whose stable rank is at most half that of a "
        "Gaussian matrix with the same norms of rows and columns, and at most a quarter of the shorter side."
    )

    def judge() -> Finding:
        ends = {name: rank(run, name)[:, -1] for name in variants(run.config)}
        lacks = {name: 1 - end / rank(run, name, "gaussian")[:, -1] for name, end in ends.items()}
        largest = [mean_over_seeds(end[:, i]) / sides(run.config)[name] for name, end in ends.items() for i in _all()]
        return by_effect(
            LOW,
            _cases(run, lambda name, place: compare(lacks[name][:, place], 0.0)),
            expected=expected,
            what="share of the control's stable rank that is missing",
            size=[at_most("largest stable rank, as a share of the shorter side", max(largest), 1 / QUARTER, "%")],
            controls=_batches_are_large(run),
            details=told(run, _ranks_beside(run)),
        )

    return judged(LOW, expected, run, judge)


def _all() -> range:
    return range(len(MATRICES))


def _batches_are_large(run: Run) -> list[Test]:
    """A batch with fewer positions or targets than the shorter side would limit the rank by itself."""
    least = [float(min(run.value(f"{name}/batch/large"))) / side for name, side in sides(run.config).items()]
    return [at_least("fewest positions, words or targets in the large batch, per shorter side", min(least), 1.0)]


def _ranks_beside(run: Run) -> Numbers:
    """Geometric means over matrices of stable ranks and their controls; what limits a batch; the losses."""
    beside: Numbers = {}
    for name in variants(run.config):
        kinds = {
            "trained": rank(run, name)[:, -1],
            "untrained": rank(run, name)[:, 0],
            "shuffled targets": rank(run, name, text=SHUFFLED)[:, -1],
            "Gaussian, same norms": rank(run, name, "gaussian")[:, -1],
            "one training batch": rank(run, name, "small")[:, -1],
            "without the first direction": gradient(run, name, "large", "stable rank of the rest")[:, -1],
        }
        beside[f"stable rank, {name}"] = {kind: _over_matrices(values, _geometric) for kind, values in kinds.items()}
        beside[f"energy in the first direction, {name}"] = {
            f"{when}{whose}": _over_matrices(values[:, point])
            for when, point in (("untrained", 0), ("trained", -1))
            for whose, values in {
                "": gradient(run, name, "large", "energy 1"),
                ", in that of shuffled targets": probe(run, name, "kept/targets"),
            }.items()
        }
        for size in ("large", "small"):
            counts = map(float, run.value(f"{name}/batch/{size}"))
            beside[f"{size} batch, {name}"] = dict(zip(("positions", "words", "targets"), counts, strict=True))
        beside[f"best validation loss, {name}"] = _losses(run, name)
    return beside


def _losses(run: Run, name: str) -> dict[str, float]:
    own, twin = best_loss(run, name)
    by_frequency = float(run.value(f"{name}/loss by frequency"))
    return {"text": mean_over_seeds(own), "twins": mean_over_seeds(twin), "by frequency": by_frequency}


def fall(path: np.ndarray) -> np.ndarray:
    """The share that is lost from the first point to the last, (seeds, ...); path: (seeds, points, ...)."""
    return np.asarray(1 - path[:, -1] / path[:, 0])


def judge_falls(run: Run) -> Finding:
    """What is lost of the untrained stable rank, beside nothing and beside the twins."""
    expected = (
        f"From the first step to the last the stable rank of every kind of matrix falls by at least {show(0.1, '%')}, "
        "and by as much more than in twins that are trained on shuffled targets."
    )

    def judge() -> Finding:
        lost = {name: [fall(rank(run, name, text=text)) for text in (TEXT, SHUFFLED)] for name in variants(run.config)}

        def found(name: str, place: int) -> Comparison:
            own, twin = (part[:, place] for part in lost[name])
            (one,) = hardest(FALLS, {"nothing": compare(own), "twins": compare(own, twin)}).values()
            return one

        return by_effect(
            FALLS,
            _cases(run, found),
            expected=expected,
            what="share of the untrained stable rank that is lost",
            details=told(
                run,
                {
                    f"share lost, mean over matrices, {name}": {
                        "text": _over_matrices(own),
                        "twins": _over_matrices(twin),
                    }
                    for name, (own, twin) in lost.items()
                },
            ),
        )

    return judged(FALLS, expected, run, judge)


def judge_captures(run: Run) -> Finding:
    """Energy that the best projector of rank m/4 keeps, beside a Gaussian matrix with the same norms."""
    expected = (
        f"At the end of training the first m/4 directions hold at least {show(MOST, '%')} of the energy, and at least "
        f"{show(0.1, '%')} more than in a Gaussian matrix with the same norms of rows and columns."
    )

    def judge() -> Finding:
        kept = {
            name: [gradient(run, name, batch, "energy m/4")[:, -1].mean(1) for batch in ("large", "gaussian")]
            for name in variants(run.config)
        }
        smallest = min(mean_over_seeds(own[:, place]) for own, _ in kept.values() for place in _all())
        return by_effect(
            CAPTURES,
            _cases(run, lambda name, place: compare(*(part[:, place] for part in kept[name]))),
            expected=expected,
            what="share of the energy in the first m/4 directions",
            size=[at_least("smallest share of energy", smallest, MOST, "%")],
            controls=_batches_are_large(run),
            details=told(run, _energies_beside(run)),
        )

    return judged(CAPTURES, expected, run, judge)


def _energies_beside(run: Run) -> Numbers:
    """Means over matrices: by the number of directions, and of the controls."""
    beside: Numbers = {}
    for name in variants(run.config):
        beside[f"energy by directions, {name}"] = {
            energy.removeprefix("energy "): _over_matrices(gradient(run, name, "large", energy)[:, -1])
            for energy in ("energy 1", "energy 4", "energy m/16", "energy m/4")
        }
        beside[f"energy in m/4, {name}"] = {
            "untrained": _over_matrices(gradient(run, name, "large", "energy m/4")[:, 0]),
            "shuffled targets": _over_matrices(gradient(run, name, "large", "energy m/4", text=SHUFFLED)[:, -1]),
            "one training batch": _over_matrices(gradient(run, name, "small", "energy m/4")[:, -1]),
        }
    return beside


def judge_slow(run: Run) -> Finding:
    """Overlap of subspaces at the last two points, beside random ones; and beside two batches at one step."""
    expected = (
        f"Over the last {run.config['refresh']} steps the first m/4 directions share at least {show(0.25, '%')} more "
        f"than random subspaces, and at least {show(NEAR, '%')} of what the gradients of two large batches share."
    )

    def judge() -> Finding:
        shared = {name: _last_overlaps(run, name) for name in variants(run.config)}
        chance = {name: (side // QUARTER) / side for name, side in sides(run.config).items()}
        near = [
            mean_over_seeds(before[:, place]) / mean_over_seeds(batches[:, place])
            for before, batches in shared.values()
            for place in _all()
        ]
        return by_effect(
            SLOW,
            _cases(run, lambda name, place: compare(shared[name][0][:, place], chance[name])),
            expected=expected,
            what="overlap of the first m/4 directions over one refresh",
            size=[at_least("smallest overlap, as a share of that of two batches", min(near), NEAR, "%")],
            details=told(run, _slow_beside(run)),
        )

    return judged(SLOW, expected, run, judge)


def _last_overlaps(run: Run, name: str) -> list[np.ndarray]:
    """Over the last refresh, and of two batches at its end, (seeds, matrices) each."""
    return [probe(run, name, f"subspace/{what}")[:, apart(run, name)[-1]].mean(1) for what in ("before", "batches")]


def _slow_beside(run: Run) -> Numbers:
    """Means over matrices: overlaps with other subspaces, and the energy of a new batch that a projector keeps."""
    beside: Numbers = {}
    for name in variants(run.config):
        first, last = apart(run, name)[[0, -1]]
        beside[f"overlap, {name}"] = {
            "over the last refresh": _over_matrices(probe(run, name, "subspace/before")[:, last]),
            "over the first refresh": _over_matrices(probe(run, name, "subspace/before")[:, first]),
            "of two batches": _over_matrices(probe(run, name, "subspace/batches")[:, last]),
            "with shuffled targets in the same network": _over_matrices(probe(run, name, "subspace/targets")[:, last]),
            "over the last refresh, twins": _over_matrices(probe(run, name, "subspace/before", text=SHUFFLED)[:, last]),
        }
        beside[f"energy of a new batch that is kept, {name}"] = {
            "by its own projector": _over_matrices(probe(run, name, "kept/own")[:, last]),
            "by another batch's": _over_matrices(probe(run, name, "kept/batch")[:, last]),
            "by another batch's, a refresh before": _over_matrices(probe(run, name, "kept/before")[:, last]),
        }
    return beside
