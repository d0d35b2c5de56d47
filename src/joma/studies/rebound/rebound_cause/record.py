"""What the study of causes recorded, read back: ways down and back of every layer, and what they came through.

The way down is from the start to the valley, the way back from the valley to the end. The valley is one step of the
config for all depths, layers and seeds, decided before the run, and not the lowest point of each curve.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

import numpy as np

from joma.measure.intervals import compare
from joma.recipes.language.curves import alive, allocated, curve, steps_of
from joma.runs import Run
from joma.studies.rebound.rebound_cause.run import ALTERED, TWO, altered_name, base_name, valley_at

Way = Literal["down", "back"]

MATTERS = 0.05
"""Nats of entropy: about what curves of single runs of one recipe were seen to differ by (RMS). Decided before any run,
as in the ablations."""
KINDS = ("own QK", "embeddings", "lower MLP", "lower value and output", "lower norms", "lower QK")
"""Weights that a layer's attention can see: its own queries and keys, and what they read."""
BLIND = "cannot matter"
"""Weights that it cannot see: its own values, output matrix, MLP and norms, what lies above, and the output."""


def kind_of(group: str, layer: int) -> str:
    """What a group of weights is to a layer, counted from 1.

    >>> kind_of("layer 2 QK", 2), kind_of("layer 1 MLP", 2), kind_of("layer 2 MLP", 2), kind_of("output", 2)
    ('own QK', 'lower MLP', 'cannot matter', 'cannot matter')
    """
    if group == "embeddings":
        return group
    found = re.fullmatch(r"layer (\d+) (.+)", group)
    if found is None or int(found[1]) > layer:
        return BLIND
    if int(found[1]) < layer:
        return f"lower {found[2]}"
    return "own QK" if found[2] == "QK" else BLIND


def depths(run: Run) -> list[int]:
    """Numbers of layers that were trained."""
    return sorted(int(layers) for layers in run.config["layers"])


def altered(run: Run) -> list[str]:
    """The networks of two layers that differ from the beginning on."""
    return [altered_name(change) for change in ALTERED] if run.config["altered"] else []


def bases(run: Run) -> list[str]:
    """The networks that nothing was changed in."""
    return [base_name(layers) for layers in depths(run)]


def valley_of(run: Run, variant: str) -> int:
    """The step at which its way back begins."""
    return valley_at(int(run.config["valley"]), variant)


def parts(run: Run, variant: str) -> dict[str, np.ndarray]:
    """By kind, the part of each change between measuring points, (layers, seeds, points); NaN for diverged seeds."""
    groups, values = allocated(run, variant)
    values = np.where(alive(run, variant)[0][:, None, None, None], values[0], np.nan)  # (seeds, points, groups, layers)
    found = {kind: np.zeros((values.shape[-1], *values.shape[:2])) for kind in (*KINDS, BLIND)}
    for place, group in enumerate(groups):
        for layer in range(values.shape[-1]):
            found[kind_of(group, layer + 1)][layer] += values[:, :, place, layer]
    return found


def on_the_way(run: Run, variant: str, way: Way) -> np.ndarray:
    """Which measuring points end an interval of the way, (points,) bool."""
    steps, valley = steps_of(run, variant), valley_of(run, variant)
    return np.asarray((steps > 0) & (steps <= valley) if way == "down" else steps > valley)


def parts_of_way(run: Run, variant: str, way: Way) -> dict[str, np.ndarray]:
    """By kind, its part of the change on the whole way, (layers, seeds)."""
    chosen = on_the_way(run, variant, way)
    return {kind: values[..., chosen].sum(-1) for kind, values in parts(run, variant).items()}


def changes(run: Run, variant: str) -> np.ndarray:
    """(layers, seeds, points) of entropy between measuring points, on the sequences on which it was split."""
    return np.moveaxis(curve(run, variant, "allocation/change")[0], -1, 0)


def change_of_way(run: Run, variant: str, way: Way) -> np.ndarray:
    """That change on the whole way, (layers, seeds)."""
    return np.asarray(changes(run, variant)[..., on_the_way(run, variant, way)].sum(-1))


def entropies(run: Run, variant: str) -> np.ndarray:
    """(layers, seeds, points) over all sequences; NaN for seeds that diverged."""
    values = curve(run, variant, "valid/entropy")[0].mean(-1)  # (seeds, points, layers)
    return np.moveaxis(np.where(alive(run, variant)[0][:, None, None], values, np.nan), 2, 0)


def rises(run: Run, variant: str) -> np.ndarray:
    """How far entropy rises from the valley to the end, (layers, seeds)."""
    values, at = entropies(run, variant), int(np.searchsorted(steps_of(run, variant), valley_of(run, variant)))
    return np.asarray(values[..., -1] - values[..., at])


def comes_back(rise: np.ndarray) -> bool:
    """Whether a layer's rebound over seeds matters and is beyond chance."""
    found = compare(rise)
    return found.low > 0 and found.value >= MATTERS


class Case(NamedTuple):
    """Layers of one depth that are judged together, from 0 on."""

    base: str
    layers: tuple[int, ...]

    @property
    def name(self) -> str:
        """As in "2 layers: layer 2"."""
        if self.base == base_name(1):
            return self.base
        return f"{self.base}: layer{'s' if len(self.layers) > 1 else ''} {_ranges(self.layers)}"

    def mean(self, values: np.ndarray) -> np.ndarray:
        """Over its layers, of (layers, ...)."""
        return np.asarray(values[list(self.layers)].mean(0))


def _ranges(layers: tuple[int, ...]) -> str:
    """Counted from 1, neighbours together: "2 to 4, 6"."""
    first = [layer for layer in layers if layer - 1 not in layers]
    last = [layer for layer in layers if layer + 1 not in layers]
    pairs = zip(first, last, strict=True)
    return ", ".join(f"{low + 1}" if low == high else f"{low + 1} to {high + 1}" for low, high in pairs)


def first_layers(run: Run) -> list[Case]:
    """First layers that come back, one case per depth."""
    return [Case(name, (0,)) for name in bases(run) if comes_back(rises(run, name)[0])]


def higher_layers(run: Run) -> list[Case]:
    """Higher layers that come back, those of one depth together; where none does, all of them if their mean does."""
    found = []
    for name in bases(run):
        rise = rises(run, name)
        every = tuple(range(1, len(rise)))
        back = tuple(n for n in every if comes_back(rise[n]))
        if not back and every and comes_back(rise[1:].mean(0)):
            back = every
        found += [Case(name, back)] if back else []
    return found


def mean_parts(run: Run, case: Case, way: Way = "back") -> dict[str, float]:
    """Means over seeds of the whole change of a way, and of its parts that can be seen, for a finding's `details`."""
    split = {"change": change_of_way(run, case.base, way)} | parts_of_way(run, case.base, way)
    seen = {kind: case.mean(split[kind]) for kind in ("change", *KINDS)}
    return {kind: compare(values).value for kind, values in seen.items() if kind == "change" or values.any()}


def altered_cases(run: Run) -> list[Case]:
    """Every layer of the altered networks."""
    return [Case(name, (layer,)) for name in altered(run) for layer in range(TWO)]
