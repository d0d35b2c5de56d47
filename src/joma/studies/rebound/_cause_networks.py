"""The networks of the study of causes: several depths, twins that go on from the valley with parts frozen, and others.

Named by their depth: "2 layers". A twin is "2 layers, QK frozen", a network that differs from the beginning on is
"2 layers, no MLP". The change of entropy is split by groups of weights in all but the twins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from joma.claims.contract import NotRun, Progress
from joma.data.text import Corpus
from joma.host.devices import lacking
from joma.measure.rebound import FEWEST_SEEDS
from joma.recipes.language import LanguageModelConfig, Recipe, ensemble, frequency_loss, recipe
from joma.recipes.language.allocation import group_names
from joma.recipes.language.text import remember_corpus
from joma.runs import Run
from joma.training import Ensemble, train_all

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
class Config(LanguageModelConfig):
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
        if min(self.layers) < 1:
            raise ValueError(f"layers must be at least 1, got {min(self.layers)}")
        end = min(end_of(self, layers) for layers in self.layers)
        if not 0 < self.valley < end:
            raise ValueError(f"valley must lie above 0 and below {end}, where training ends, got {self.valley}")
        if self.altered and (TWO not in self.layers or max(LATER.values()) * self.valley >= self.steps):
            raise ValueError(
                f"altered needs {TWO} among the layers and more than {max(LATER.values()) * self.valley} steps, got "
                f"layers {', '.join(map(str, self.layers))} and {self.steps} steps"
            )


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


def valley_of(valley: int, name: str) -> int:
    """The step at which the way back of a network begins, where that of the bases begins at `valley`.

    >>> valley_of(2_000, "2 layers"), valley_of(2_000, "2 layers, no MLP")
    (2000, 6000)
    """
    return valley * {altered_name(change): times for change, times in LATER.items()}.get(name, 1)


def end_of(config: Config, layers: int) -> int:
    """The last step of networks of this depth."""
    return config.steps if layers <= TWO else config.deep_steps


def twins_of(layers: int) -> list[str]:
    """What is frozen in twins of this depth."""
    return [frozen for frozen in FROZEN if layers < MANY or frozen == "QK"]


def points(valley: int, end: int, every: int) -> tuple[int, ...]:
    """Measuring points: closer on the way down, where entropy moves fast.

    >>> points(4, 14, 2)
    (0, 2, 4, 8, 12, 14)
    """
    return tuple(sorted({*range(0, valley, every), *range(valley, end, 2 * every), end}))


def plan(config: Config, text: Corpus) -> dict[str, Recipe]:
    """All networks by their names."""
    found: dict[str, Recipe] = {}
    for layers in config.layers:
        found |= _depth(config, text, layers)
    for change in ALTERED if config.altered else ():
        found[altered_name(change)] = _altered(change, config, text)
    return found


def _altered(change: str, config: Config, text: Corpus) -> Recipe:
    """With few seeds and points: no verdict hangs on it."""
    base = _base(config, text, TWO)
    return ALTERED[change](base).with_(seeds=base.seeds[:FEWEST_SEEDS], every=2 * base.every)


def _base(config: Config, text: Corpus, layers: int) -> Recipe:
    whole = recipe(config, text, layers=layers, rates=(config.rate,))
    return whole.with_(
        steps=end_of(config, layers), every=config.every * (1 if layers <= TWO else 2), allocate=config.allocate
    )


def _depth(config: Config, text: Corpus, layers: int) -> dict[str, Recipe]:
    base, name = _base(config, text, layers), base_name(layers)
    leaves = {"branch_of": name, "branch_at": config.valley, "allocate": 0}
    several = twins_of(layers) if layers in config.twins else []
    twins = {twin_name(name, frozen): base.with_(frozen=FROZEN[frozen], **leaves) for frozen in several}
    return {name: base.with_(keep_at=(config.valley,)), **twins}


def train_plan(config: Config, text: Corpus, run: Run, progress: Progress) -> None:
    """Train all networks into the run, measured at their points: loss, entropy, and the parts of its changes."""
    if gap := lacking(config.device):
        raise NotRun(str(gap), f"joma run {run.study} --device cpu --precision float32, or on a machine with a GPU")
    remember_corpus(text, run)
    variants = plan(config, text)
    for name, variant in variants.items():
        _remember(run, name, variant, text)
    trained = {
        name: _measured(ensemble(variant, text), variant, valley_of(config.valley, name))
        for name, variant in variants.items()
    }
    train_all(trained, run, progress=lambda done, doing: progress(0.95 * done, doing))


def _remember(run: Run, name: str, variant: Recipe, text: Corpus) -> None:
    run.keep(f"{name}/rates", lambda: np.array(variant.rates))
    run.keep(f"{name}/seeds", lambda: np.array(variant.seeds))
    run.keep(f"{name}/loss by frequency", lambda: frequency_loss(variant, text))
    if variant.allocate:
        run.keep(f"{name}/groups", lambda: group_names(variant.decoder))


def _measured(whole: Ensemble, variant: Recipe, valley: int) -> Ensemble:
    at = [point for point in points(valley, variant.steps, variant.every) if point >= variant.branch_at]
    return replace(whole, measures={"valid": whole.measures["valid"]}, measure_at=tuple(at))
