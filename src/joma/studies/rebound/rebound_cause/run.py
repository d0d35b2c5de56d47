"""The networks of the study of causes: several depths, twins that go on from the valley with parts frozen, and others.

Named by their depth: "2 layers". A twin is "2 layers, QK frozen", a network that differs from the beginning on is
"2 layers, no MLP". The change of entropy is split by groups of weights in all but the twins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from joma.claims.contract import Progress
from joma.data.text import Corpus
from joma.measure.rebound import FEWEST_SEEDS
from joma.recipes.language import LanguageModelConfig, Recipe, corpus, recipe, train_variants
from joma.runs import Run
from joma.training import Ensemble

BLOCK = "values, MLP and norms"
"""Everything in the blocks but queries and keys: values and output matrices, MLPs, norms."""
FROZEN: dict[str, tuple[str, ...]] = {
    "QK": ("QK",),
    BLOCK: ("value and output", "MLP", "norms"),
    "embeddings": ("embeddings",),
}
"""What twins have frozen, by groups of `joma.models.groups.parameter_groups`."""

ALTERED: dict[str, Callable[[Recipe], Recipe]] = {
    "identity": lambda base: base.with_decoder(activation="identity"),
    "no MLP": lambda base: base.with_decoder(mlp=0, activation="identity"),
    "no residual": lambda base: base.with_decoder(residual=False),
}
"""Networks of two layers that differ from the beginning on, three seeds of each."""
LATER = {"no MLP": 3}
"""Their valley, in valleys of the base. In the kept record of the study `nonlinearity`, in the mean over both layers,
the valley without MLP is at 6,000 steps, the others' at 2,000. Without residual there is none: entropy falls on."""
TWO = 2
"""Layers of the altered networks. Deeper ones train for fewer steps."""
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

    def __post_init__(self) -> None:
        super().__post_init__()
        end = min(end_of(self, layers) for layers in self.layers)
        if self.valley >= end:
            raise ValueError(f"valley must be below {end}, where training ends, got {self.valley}")
        least = max(LATER.values()) * self.valley
        if self.altered and (TWO not in self.layers or least >= self.steps):
            given = f"layers {', '.join(map(str, self.layers))} and {self.steps} steps"
            raise ValueError(f"altered needs {TWO} among the layers and more than {least} steps, got {given}")


def base_name(layers: int) -> str:
    """The network that nothing is changed in.

    >>> base_name(1), base_name(5)
    ('1 layer', '5 layers')
    """
    return f"{layers} layer{'s' if layers > 1 else ''}"


def twin_name(base: str, frozen: str) -> str:
    """Its twin with a part frozen from the valley on."""
    return f"{base}, {frozen} frozen"


def altered_name(change: str) -> str:
    """A network of two layers that differs from the beginning on."""
    return f"{base_name(TWO)}, {change}"


def valley_at(valley: int, name: str) -> int:
    """The step at which the way back of a network begins, where that of the bases begins at `valley`.

    >>> valley_at(2_000, "2 layers"), valley_at(2_000, "2 layers, no MLP")
    (2000, 6000)
    """
    return valley * {altered_name(change): times for change, times in LATER.items()}.get(name, 1)


def end_of(config: ReboundCauseConfig, layers: int) -> int:
    """The last step of networks of this depth."""
    return config.steps if layers <= TWO else config.deep_steps


def points(valley: int, end: int, every: int) -> tuple[int, ...]:
    """Measuring points: closer on the way down, where entropy moves fast.

    >>> points(4, 14, 2)
    (0, 2, 4, 8, 12, 14)
    """
    return tuple(sorted({*range(0, valley, every), *range(valley, end, 2 * every), end}))


def plan(config: ReboundCauseConfig, text: Corpus) -> dict[str, Recipe]:
    """All networks by their names."""

    def base(layers: int) -> Recipe:
        every = config.every * (1 if layers <= TWO else 2)
        plain = recipe(config, text, layers=layers, rates=(config.rate,))
        return plain.with_(steps=end_of(config, layers), every=every, allocate=config.allocate)

    found: dict[str, Recipe] = {}
    for layers in config.layers:
        one, name = base(layers), base_name(layers)
        found[name] = one.with_(keep_at=(config.valley,))
        for frozen, groups in FROZEN.items() if layers in config.twins else ():
            if layers < MANY or frozen == "QK":
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

    command = f"joma run {run.study} --device cpu --precision float32, or on a machine with a GPU"
    train_variants(variants, text, run, progress, share=0.95, adapt=measured, command=command)
