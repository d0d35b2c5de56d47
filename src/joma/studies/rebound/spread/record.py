"""What `spread` recorded, read back: sizes and factors at the start, at the valley and at the end.

The valley is one step of the config for all networks, decided before the run. Heads are averaged: logarithms of them
where factors are compared, sizes where nats are.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from joma.measure.rebound import FEWEST_SEEDS
from joma.recipes.language.curves import alive, curve, learned_nothing, steps_of
from joma.runs import Run
from joma.studies.rebound._cases import Case, base_name, comes_back
from joma.studies.rebound.rebound_cause.run import TWO
from joma.theory.spread import gaussian_entropy

SGD = "SGD"
SHUFFLED, QK, EMBEDDINGS = "text shuffled", "QK frozen", "embeddings frozen"
HELD = ("both sizes", "shared size", "specific size", "mixture", "weights")
"""What is brought back to the valley, after it (before, nothing is):

    both sizes      shared and specific logits have the sizes that they had at the valley
    shared size     the shared ones alone; specific size: the others alone
    mixture         their sizes have the ratio of the valley, but s2 stays that of now
    weights         all logits are multiplied as if |A| were that of the valley
"""
NODES = 16  # of the interpolation of Gaussian entropies between variances. The test has its error: below 1e-5 nats


def norms_before(heads: int) -> str:
    """What networks with norms before and several heads are called."""
    return f"norms before, {heads} heads"


def bases(run: Run) -> list[str]:
    """The networks that the claims speak of."""
    depths = [base_name(int(layers)) for layers in run.config["layers"]]
    others = (SGD, norms_before(int(run.config["many_heads"]))) if run.config["others"] else ()
    return [*depths, *(f"{base_name(TWO)}, {other}" for other in others)]


def controls(run: Run, base: str) -> dict[str, str]:
    """By what is done to them, the controls of these networks: those of two layers have some."""
    return {what: f"{base}, {what}" for what in (SHUFFLED, QK, EMBEDDINGS) if f"{base}, {what}/rates" in run}


def unsound(run: Run, variant: str) -> str:
    """Why networks show nothing: they diverged, or learned nothing. Empty if they do."""
    if (left := int(alive(run, variant).sum())) < FEWEST_SEEDS:
        return f"too many runs of {variant} diverged: {left} are left"
    return learned_nothing(run, variant)


def values(run: Run, variant: str, what: str) -> np.ndarray:
    """One measure, (layers, seeds, points, heads); one head where all have the same. NaN for seeds that diverged."""
    found = curve(run, variant, what)[0]  # (seeds, points, layers[, heads])
    return _by_layer(run, variant, found if found.ndim == 4 else found[..., None])


def gaussian(run: Run, variant: str) -> np.ndarray:
    """The entropy of Gaussian logits of the variance, (layers, seeds, points, heads)."""
    return _by_layer(run, variant, np.moveaxis(run.value(f"{variant}/gaussian entropy"), 0, 1))


def _by_layer(run: Run, variant: str, found: np.ndarray) -> np.ndarray:
    kept = alive(run, variant)[0][:, None, None, None]
    return np.moveaxis(np.where(kept, found.astype(np.float64), np.nan), 2, 0)


def valley_at(run: Run, variant: str) -> int:
    """The measuring point of the valley."""
    return int(np.searchsorted(steps_of(run, variant), int(run.config["valley"])))


def log_change(run: Run, variant: str, what: str, *, back: bool = False) -> np.ndarray:
    """How far ln of a measure rises, (layers, seeds): from start to valley, or `back`, from valley to end."""
    with np.errstate(divide="ignore", invalid="ignore"):  # what is zero has no logarithm, and its seed is left out
        logs = np.log(values(run, variant, f"spread/{what}")).mean(-1)
    change = _change(run, variant, logs, back=back)
    return np.where(np.isfinite(change), change, np.nan)


def case_logs(run: Run, case: Case, what: str, *, variant: str = "", back: bool = False) -> np.ndarray:
    """`log_change` meant over the layers of a case, (seeds,); of another variant's same layers, if one is named."""
    return case.mean(log_change(run, variant or case.base, what, back=back))


def half_change(run: Run, variant: str, part: str) -> np.ndarray:
    """How far half of a part of s2 rises from valley to end, (layers, seeds): nats, to second order."""
    return _change(run, variant, values(run, variant, f"spread/{part}").mean(-1) / 2, back=True)


def rises(run: Run, variant: str) -> np.ndarray:
    """How far entropy rises from valley to end, (layers, seeds)."""
    return _change(run, variant, values(run, variant, "valid/entropy").mean(-1), back=True)


def removed(run: Run, variant: str, held: str) -> np.ndarray:
    """How far entropy at the end falls if that is held at the valley, (layers, seeds)."""
    entropy, scaled = (values(run, variant, of)[:, :, -1].mean(-1) for of in ("valid/entropy", f"spread/held/{held}"))
    return np.asarray(entropy - scaled)


def _change(run: Run, variant: str, curves: np.ndarray, *, back: bool) -> np.ndarray:
    at = valley_at(run, variant)
    return np.asarray(curves[:, :, -1] - curves[:, :, at] if back else curves[:, :, at] - curves[:, :, 0])


def errors(run: Run, variant: str, *, others: bool = False) -> np.ndarray:
    """Root mean square error, over training, of the entropy that follows from s2, (layers, seeds)."""
    entropy, said = values(run, variant, "valid/entropy"), gaussian(run, variant)
    if others:
        said = np.roll(said, -1, axis=0 if len(said) > 1 else 1)
    return np.asarray(np.sqrt(((entropy - said) ** 2).mean(2)).mean(-1))


def all_cases(run: Run, variant: str) -> list[Case]:
    """The first layer, and the higher ones together."""
    layers = values(run, variant, "valid/entropy").shape[0]
    return [Case(variant, (0,)), *([Case(variant, tuple(range(1, layers)))] if layers > 1 else [])]


def cases_back(run: Run, variant: str) -> list[Case]:
    """The same, of layers that come back; those that do not are left out."""
    rise = rises(run, variant)
    back = [tuple(layer for layer in case.layers if comes_back(rise[layer])) for case in all_cases(run, variant)]
    return [Case(variant, layers) for layers in back if layers]


def keep_gaussian(run: Run, variants: Sequence[str], length: int) -> None:
    """Record the entropy of Gaussian logits of every variance that was recorded."""
    found = {name: run.array(f"{name}/spread/variance").astype(np.float64) for name in variants}
    found = {name: np.where(np.isfinite(one), one, np.nan) for name, one in found.items()}  # of networks that diverged
    largest = max(float(np.nan_to_num(one).max()) for one in found.values())
    if missing := [name for name in variants if f"{name}/gaussian entropy" not in run]:
        of = gaussian_mean(length, largest)
        for name in missing:
            run.keep(f"{name}/gaussian entropy", lambda one=found[name]: of(one).astype(np.float32))  # type: ignore[misc]


def gaussian_mean(length: int, largest: float) -> Callable[[np.ndarray], np.ndarray]:
    """From s2, up to `largest`, to the mean entropy of Gaussian logits of queries that see 1 to `length` keys.

    A row of n independent logits of variance v has the variance v (n - 1)/n in the mean, so that s2, the mean over
    rows, is v times the mean of (n - 1)/n. Nothing is fitted. Between nodes it is interpolated in ln(1 + s2).
    """
    keys = torch.arange(1, length + 1, dtype=torch.float64)
    share, end = float((1 - 1 / keys).mean()), max(float(np.log1p(largest)), 1e-6)

    def at_nodes(place: np.ndarray) -> np.ndarray:
        variance = torch.from_numpy(np.expm1(end * (place + 1) / 2)).clamp(min=0) / share
        return gaussian_entropy(variance[:, None], keys).mean(-1).numpy()

    series = np.polynomial.chebyshev.chebinterpolate(at_nodes, NODES - 1)  # type: ignore[type-var]
    return lambda s2: np.asarray(np.polynomial.chebyshev.chebval(2 * np.log1p(s2) / end - 1, series))
