"""Twins that go on from the valley with something held: networks, their record, and what is read from it.

Networks are those of Figure 6, named by their depth: "2 layers". A twin is "2 layers, shared size held", its control
"2 layers, shared size pushed elsewhere". Recorded beside loss and entropy (see `joma.recipes.language.training`), under
the name of each network:

    spread/shared, /specific   (members, layers, heads)   variance of logits over keys, on the fixed batch
    held/miss                  (members, layers)          of twins: how far the held thing is from its value at the
                                                          valley, as a share of that, just before it is pushed anew

The valley is one step of the config for all depths, layers and seeds, decided before the run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Least, Progress
from joma.data.text import Corpus
from joma.measure.intervals import compare
from joma.models.decoder import Decoder
from joma.probes.decoder import layer_sums, spread_of_layers
from joma.recipes.language import LanguageModelConfig, Recipe, corpus, recipe, train_variants
from joma.recipes.language.curves import alive, curve, steps_of
from joma.runs import Run
from joma.studies.rebound._cases import Case, base_name, comes_back, points
from joma.studies.rebound._held import Held, Hold
from joma.training import Ensemble

TWO = 2  # layers up to which the top one is judged; of deeper networks those that come back


@dataclass(frozen=True)
class TwinsConfig(LanguageModelConfig):
    """Models that differ in depth, where their twins begin, and how often they are pushed."""

    vocabulary: int = 80
    width: int = 16
    mlp: int = 16
    dropout: float = 0.0
    streams: int = 16
    length: int = 16
    sequence: int = 5
    valid_sequences: int = 10
    steps: int = 200
    every: int = 20
    """Steps between two measuring points on the way down; twice as many on the way back."""
    layers: tuple[int, ...] = (1,)
    rate: float = 1e-2
    """Of Adam."""
    seeds: int = 3
    valley: int = 140
    """The step whose state is held and at which twins leave, decided before the run."""
    batches: Annotated[int, Least(1)] = 4
    """Of the training text, spread over all that is read: the fixed batch on which what is held is measured."""
    refresh: Annotated[int, Least(1)] = 20
    """Steps after which what is held is measured and pushed anew."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.valley < self.steps:
            raise ValueError(f"valley must lie between 0 and {self.steps}, where training ends, got {self.valley}")
        if self.valley % self.refresh:
            raise ValueError(f"refresh must divide the valley, {self.valley}, got {self.refresh}")


@dataclass(frozen=True)
class Twins:
    """What the twins of a study hold, in all layers, by its name; and which of them have no control."""

    holds: Mapping[str, Hold]
    uncontrolled: tuple[str, ...] = ()  # no claim is about them alone: they stand beside the others

    def of(self, base: str) -> dict[str, Hold]:
        found: dict[str, Hold] = {}
        for held, hold in self.holds.items():
            found[twin_name(base, held)] = hold
            if held not in self.uncontrolled:
                found[twin_name(base, held, elsewhere=True)] = replace(hold, elsewhere=True)
        return found

    def plan(self, config: TwinsConfig, text: Corpus) -> tuple[dict[str, Recipe], dict[str, Hold]]:
        variants: dict[str, Recipe] = {}
        holds: dict[str, Hold] = {}
        for layers in config.layers:
            name, plain = base_name(layers), recipe(config, text, layers=layers, rates=(config.rate,))
            twins = self.of(name)
            variants[name] = plain.with_(keep_at=(config.valley,))
            variants |= {twin: plain.with_(branch_of=name, branch_at=config.valley) for twin in twins}
            holds |= twins
        return variants, holds

    def run(self, config: TwinsConfig, run: Run, progress: Progress) -> None:
        text = corpus(config, progress)
        variants, holds = self.plan(config, text)

        def adapted(name: str, plain: Ensemble) -> Ensemble:
            one, tokens = variants[name], fixed_batch(config, plain)
            at = tuple(point for point in points(config.valley, one.steps, one.every) if point >= one.branch_at)
            measures = {"valid": plain.measures["valid"], "spread": lambda decoder, members: spreads(decoder, tokens)}
            if name not in holds:
                return replace(plain, measures=measures, measure_at=at)
            measures["held"] = lambda decoder, members: {"miss": decoder.miss()}

            def networks(members: Sequence[int]) -> Held:
                seeds = [one.members[member][1] for member in members]
                return Held(one.decoder, seeds, holds[name], tokens.cpu(), at=config.valley, every=config.refresh)

            return replace(plain, networks=networks, tend=Held.tend, measures=measures, measure_at=at)

        train_variants(variants, text, run, progress, share=0.95, adapt=adapted)


def twin_name(base: str, held: str, *, elsewhere: bool = False) -> str:
    """A twin, or its control."""
    return f"{base}, {held} {'pushed elsewhere' if elsewhere else 'held'}"


def both_names(base: str, held: str) -> tuple[str, str]:
    """A twin and its control."""
    return twin_name(base, held), twin_name(base, held, elsewhere=True)


def fixed_batch(config: TwinsConfig, ensemble: Ensemble) -> Tensor:
    """Batches of training text, spread over what is read up to the end, (sequences, length)."""
    steps = np.linspace(0, config.steps - 1, config.batches).astype(int)
    return torch.cat([ensemble.batch(int(step), [0])[0].flatten(0, -2) for step in steps])


def spreads(decoder: Decoder, tokens: Tensor) -> dict[str, Tensor]:
    """Both parts of the variance of logits, (members, layers, heads)."""
    found = spread_of_layers(decoder, layer_sums(decoder, tokens))
    return {"shared": found.shared, "specific": found.specific}


def bases(run: Run) -> list[str]:
    """The networks that nothing was held in."""
    return [base_name(layers) for layers in sorted(int(layers) for layers in run.config["layers"])]


def entropies(run: Run, variant: str) -> np.ndarray:
    """(layers, seeds, points); NaN for seeds that diverged."""
    values = curve(run, variant, "valid/entropy")[0].mean(-1)  # (seeds, points, layers)
    return np.moveaxis(np.where(alive(run, variant)[0][:, None, None], values, np.nan), 2, 0)


def rises(run: Run, variant: str) -> np.ndarray:
    """How far entropy rises from the valley to the end, (layers, seeds)."""
    values, at = entropies(run, variant), int(np.searchsorted(steps_of(run, variant), int(run.config["valley"])))
    return np.asarray(values[..., -1] - values[..., at])


def judged_layers(run: Run) -> list[Case]:
    """The top layer of one and of two; of deeper networks the higher layers that come back, together."""
    found = []
    for name in bases(run):
        rise = rises(run, name)
        top = (len(rise) - 1,) if len(rise) <= TWO else tuple(range(1, len(rise)))
        back = tuple(layer for layer in top if comes_back(rise[layer]))
        found += [Case(name, back)] if back else []
    return found


def removed(run: Run, case: Case, variant: str) -> np.ndarray:
    """The share of the base's rise that a twin does not have, by seed; 1 if it stays at the valley."""
    base = case.mean(rises(run, case.base))
    return np.asarray((base - case.mean(rises(run, variant))) / compare(base).value)


def misses(run: Run, case: Case, variant: str) -> float:
    """How far the held thing was from its value at the valley: the mean over seeds, layers and points after it."""
    values = curve(run, variant, "held/miss")[0][alive(run, variant)[0]]  # (seeds, points, layers)
    return float(values[:, 1:, list(case.layers)].mean()) if len(values) else np.nan
