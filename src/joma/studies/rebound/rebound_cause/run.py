"""The networks of the study of causes: several depths, twins that go on from the valley with parts frozen, and others.

Named by their depth: "2 layers". A twin is "2 layers, QK frozen" or "5 layers, layer 3 MLP frozen", a network that
differs from the beginning on is "2 layers, no MLP". The change of entropy is split by groups of weights in all but the
twins.

The record is read back by ways. The way down is from the start to the valley, the way back from the valley to the end.
The valley is one step of the config for all depths, layers and seeds, decided before the run, and not the lowest point
of each curve.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from joma.claims.contract import Progress
from joma.data.text import Corpus
from joma.measure.intervals import compare
from joma.measure.rebound import FEWEST_SEEDS
from joma.recipes.language import LanguageModelConfig, Recipe, corpus, recipe, train_variants
from joma.recipes.language.curves import alive, allocated, curve, steps_of
from joma.runs import Run
from joma.studies.rebound._cases import MATTERS as MATTERS
from joma.studies.rebound._cases import Case as Case
from joma.studies.rebound._cases import base_name as base_name
from joma.studies.rebound._cases import comes_back as comes_back
from joma.studies.rebound._cases import points
from joma.training import Ensemble

BLOCK = "values, MLP and norms"
"""Everything in the blocks but queries and keys: values and output matrices, MLPs, norms."""
FROZEN: dict[str, tuple[str, ...]] = {
    "QK": ("QK",),
    BLOCK: ("value and output", "MLP", "norms"),
    "embeddings": ("embeddings",),
}
"""What twins have frozen, by groups of `joma.models.groups.parameter_groups`."""
MLP = "MLP"  # of the twins in which nothing but MLPs is frozen: those of all layers

ALTERED: dict[str, Callable[[Recipe], Recipe]] = {
    "identity": lambda base: base.with_decoder(activation="identity"),
    "no MLP": lambda base: base.with_decoder(mlp=0, activation="identity"),
    "no residual": lambda base: base.with_decoder(residual=False),
}
"""Networks of two layers that differ from the beginning on, three seeds of each."""
LATER = {"no MLP": 3}
"""Their valley, in valleys of the base. In the kept record of the study `nonlinearity`, in the mean over both layers,
the valley without MLP is at 6,000 steps, the others' at 2,000. Without residual there is none: entropy falls on."""
TWO = 2  # layers of the altered networks. Deeper ones train for fewer steps.
MANY = 10
"""Layers from which on only queries and keys are frozen, for time. In Figure 6's record the first of ten layers does
not come back, so that frozen embeddings would tell nothing there."""


@dataclass(frozen=True)
class ReboundCauseConfig(LanguageModelConfig):
    """Models that differ in depth, and where their twins begin."""

    vocabulary: int = 80
    width: int = 24
    mlp: int = 24
    dropout: float = 0.0
    streams: int = 64
    length: int = 16
    sequence: int = 5
    valid_sequences: int = 10
    steps: int = 240
    every: int = 30
    """Steps between two measuring points on the way down; twice as many on the way back, and in deep networks."""
    layers: tuple[int, ...] = (1,)
    rate: float = 1e-2
    """Of Adam."""
    seeds: int = 4
    valley: int = 140
    """The step at which the way back begins and twins leave, decided before the run."""
    twins: tuple[int, ...] = (1,)
    """Depths that have twins."""
    deep_steps: int = 240
    """The last step of networks of more than two layers."""
    allocate: int = 24
    """Validation sequences on which changes of entropy are split by groups of weights."""
    altered: bool = False
    """Whether networks without residual, without MLP and with a linear MLP are trained beside those of two layers."""
    mlp_twins: bool = False
    """Whether depths that have twins, from two layers on, also have some with nothing but MLPs frozen: all of them, and
    that of each layer below the last."""
    own_order: bool = False
    """Whether each seed reads the text in an order of its own, so that intervals hold that chance too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        end = min(end_of(self, layers) for layers in self.layers)
        if self.valley >= end:
            raise ValueError(f"valley must be below {end}, where training ends, got {self.valley}")
        if self.mlp_twins and not any(TWO <= layers < MANY for layers in {*self.layers} & {*self.twins}):
            given = f"layers {', '.join(map(str, self.layers))} and twins {', '.join(map(str, self.twins))}"
            raise ValueError(f"mlp_twins needs a depth from {TWO} to {MANY - 1} among layers and twins, got {given}")
        least = max(LATER.values()) * self.valley
        if self.altered and (TWO not in self.layers or least >= self.steps):
            given = f"layers {', '.join(map(str, self.layers))} and {self.steps} steps"
            raise ValueError(f"altered needs {TWO} among the layers and more than {least} steps, got {given}")


def twin_name(base: str, frozen: str) -> str:
    """Its twin with a part frozen from the valley on."""
    return f"{base}, {frozen} frozen"


def layer_mlp(layer: int) -> str:
    """The group of one layer's MLP, counted from 1."""
    return f"layer {layer} MLP"


def twins_of(config: ReboundCauseConfig, layers: int) -> dict[str, tuple[str, ...]]:
    """What the twins of a depth have frozen, by the name of it."""
    if layers not in config.twins:
        return {}
    if layers >= MANY:
        return {"QK": FROZEN["QK"]}
    alone = [MLP, *map(layer_mlp, range(1, layers))] if config.mlp_twins and layers >= TWO else []
    return FROZEN | {frozen: (frozen,) for frozen in alone}


def altered_name(change: str) -> str:
    """A network of two layers that differs from the beginning on."""
    return f"{base_name(TWO)}, {change}"


def valley_at(valley: int, name: str) -> int:
    """The step at which the way back of a network begins, where that of the bases begins at `valley`."""
    return valley * {altered_name(change): times for change, times in LATER.items()}.get(name, 1)


def end_of(config: ReboundCauseConfig, layers: int) -> int:
    """The last step of networks of this depth."""
    return config.steps if layers <= TWO else config.deep_steps


def plan(config: ReboundCauseConfig, text: Corpus) -> dict[str, Recipe]:
    """All networks by their names."""

    def base(layers: int) -> Recipe:
        every = config.every * (1 if layers <= TWO else 2)
        plain = recipe(config, text, layers=layers, rates=(config.rate,))
        options = {"allocate": config.allocate, "own_order": config.own_order}
        return plain.with_(steps=end_of(config, layers), every=every, **options)

    found: dict[str, Recipe] = {}
    for layers in config.layers:
        one, name = base(layers), base_name(layers)
        found[name] = one.with_(keep_at=(config.valley,))
        for frozen, groups in twins_of(config, layers).items():
            twin = one.with_(frozen=groups, branch_of=name, branch_at=config.valley, allocate=0)
            found[twin_name(name, frozen)] = twin
    for change, alter in ALTERED.items() if config.altered else ():  # few seeds and points: no verdict hangs on them
        one = base(TWO)
        found[altered_name(change)] = alter(one).with_(seeds=one.seeds[:FEWEST_SEEDS], every=2 * one.every)
    return found


def run(config: ReboundCauseConfig, run: Run, progress: Progress) -> None:
    """Train all depths and their twins, measured at their points: loss, entropy, and the parts of its changes."""
    text = corpus(config, progress)
    variants = plan(config, text)

    def measured(name: str, plain: Ensemble) -> Ensemble:
        variant = variants[name]
        every = points(valley_at(config.valley, name), variant.steps, variant.every)
        at = tuple(point for point in every if point >= variant.branch_at)
        return replace(plain, measures={"valid": plain.measures["valid"]}, measure_at=at)

    train_variants(variants, text, run, progress, share=0.95, adapt=measured)


Way = Literal["down", "back"]

KINDS = ("own QK", "embeddings", "lower MLP", "lower value and output", "lower norms", "lower QK")
"""Weights that a layer's attention can see: its own queries and keys, and what they read."""
BLIND = "cannot matter"
"""Weights that it cannot see: its own values, output matrix, MLP and norms, what lies above, and the output."""


def kind_of(group: str, layer: int) -> str:
    """What a group of weights is to a layer, counted from 1."""
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


def parts(run: Run, variant: str, what: Literal["parts", "part_errors"] = "parts") -> dict[str, np.ndarray]:
    """By kind, the part of each change between measuring points, (layers, seeds, points); NaN for diverged seeds."""
    groups, values = allocated(run, variant, what)
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


def error_of_way(run: Run, variant: str, way: Way) -> np.ndarray:
    """The numerical errors of all its parts on the whole way, added up, (layers, seeds)."""
    chosen = on_the_way(run, variant, way)
    return np.asarray(sum(values[..., chosen].sum(-1) for values in parts(run, variant, "part_errors").values()))


def beyond_error(part: np.ndarray, control: np.ndarray, error: np.ndarray) -> np.ndarray:
    """A part moved towards its control by the numerical error, and not past it: what is left of their difference."""
    apart = part - control
    return np.asarray(control + np.sign(apart) * np.maximum(np.abs(apart) - error, 0.0))


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


def frozen_in(run: Run, base: str) -> list[str]:
    """What the twins of a base have frozen, those with one layer's MLP last."""
    names = [*FROZEN, MLP, *map(layer_mlp, range(1, len(rises(run, base))))]
    return [frozen for frozen in names if f"{twin_name(base, frozen)}/valid/entropy" in run]


def altered_cases(run: Run) -> list[Case]:
    """Every layer of the altered networks."""
    return [Case(name, (layer,)) for name in altered(run) for layer in range(TWO)]
