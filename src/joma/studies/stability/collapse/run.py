"""The networks of `collapse`: decoders with norms before, at healthy rates and at rates that are too high.

Two ensembles, "plain" and "QK-norm". In each, members of one seed are twins: they begin with the same weights and read
the same text. Kinds of members, by their learning rate:

    healthy     `healthy_rate`, from the first step and with a short warm-up
    sudden      each of `high_rates`, from the first step
    warmed      each of `high_rates`, with the same short warm-up
    rising      a warm-up that does not end: the rate rises to each of `top_rates` at the last step

The healthy members of `open_seeds` further seeds calibrate the rules and are judged by none. QK-norm has the kinds
sudden and rising alone. So have the remedies, four further ensembles, at `bench_high_rates` and `bench_top_rates`:

    QK-clip             a head whose largest logit was above `clip_at` is scaled down to it before every step
    restored rank       every `restore_every` steps the attention's matrices get one singular value, of the same norm
    clipped gradient    gradients are clipped at a tenth of the norm at which those of all others are
    lower rate          `lower` times the rate of their twins, which is what is recorded as theirs

Recorded over steps under the name of the ensemble:

    probe/loss                                  (members,)                   on a fixed batch of validation text
    probe/entropy, /largest_logit               (members, layers, heads)     of attention there
    probe/gradient_norm                         (members,)                   plain: of all parameters
    probe/stable_rank                           (members, layers, matrices)  plain: see `measures.MATRICES`
    probe/sign_diversity                        (members, layers, 2)         plain: of queries and keys
    weights/update_entropy, /drift_entropy      (members, layers, heads)     plain: since the point before, the start
    train_loss, diverged_at                     (members,)                   see `joma.training.train`

and once: kind, rate, warm_up, seed and open of every member, `plain/usual rings` (alarms, members), the step at which
each alarm of `joma.monitor` rings first, -1 if never, `plain/place`, (members,), which draws the random head, and
`work` of every remedy: what it adds to the multiplications of a step, as a share.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch

from joma.claims.contract import Above, Least, Progress, Values
from joma.data.text import Corpus
from joma.host.seeds import generator
from joma.models.decoder import Decoder
from joma.recipes.language import LanguageModelConfig, Recipe, corpus, ensemble, frequency_loss, recipe
from joma.recipes.language.text import remember_corpus
from joma.recipes.language.training import needs_its_device, validation_sequences
from joma.runs import Run
from joma.studies.stability.collapse.measures import attention_and_loss, everything, update_entropies
from joma.studies.stability.collapse.remedies import Tend, clipping, extra_work, restoring
from joma.studies.stability.collapse.rules import HISTORY, usual_rings
from joma.training import Ensemble, train_all

PLAIN, QK_NORM = "plain", "QK-norm"
QK_CLIP, RESTORED, CLIPPED, LOWER = REMEDIES = ("QK-clip", "restored rank", "clipped gradient", "lower rate")
HEALTHY, SUDDEN, WARMED, RISING = range(4)  # kinds of members, as they are recorded
OPEN = 5_000  # open seeds begin so far after the first seed that is judged


@dataclass(frozen=True)
class CollapseConfig(LanguageModelConfig):
    """Decoders with norms before, and their rates."""

    vocabulary: int = 80
    width: int = 16
    mlp: int = 32
    heads: int = 2
    dropout: float = 0.0
    streams: int = 4
    length: int = 16
    sequence: int = 5
    valid_sequences: int = 1
    steps: int = 200
    every: int = 4
    clip: float = 1.0
    renew_each_epoch: bool = False
    layers: Annotated[int, Least(1)] = 2
    healthy_rate: Annotated[float, Above(0)] = 3e-3
    """Of Adam."""
    high_rates: Annotated[tuple[float, ...], Values(1, rising=True), Above(0)] = (0.1, 0.3)
    """Too high from the first step."""
    top_rates: Annotated[tuple[float, ...], Values(1, rising=True), Above(0)] = (0.3, 1.0, 3.0)
    """What a rate that never stops rising has reached at the last step."""
    bench_high_rates: Annotated[tuple[float, ...], Values(1, rising=True), Above(0)] = (0.3,)
    """Those of `high_rates` at which remedies are compared."""
    bench_top_rates: Annotated[tuple[float, ...], Values(1, rising=True), Above(0)] = (1.0,)
    """The same of `top_rates`."""
    clip_at: Annotated[float, Above(0)] = 100.0
    """The largest logit that QK-clip leaves alone."""
    restore_every: Annotated[int, Least(1)] = 20
    """Steps from one restoring of ranks to the next."""
    lower: Annotated[float, Above(0)] = 0.25
    """The share of their twins' rate that members with a lower rate have."""
    warm_up: Annotated[int, Least(1)] = 20
    """Steps of the short warm-up."""
    seeds: int = 3
    """Seeds that are judged."""
    open_seeds: Annotated[int, Least(2, "to know how far healthy runs go")] = 5
    """Seeds whose healthy runs calibrate the rules."""
    seed: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 2 * HISTORY * self.every:
            least = 2 * HISTORY * self.every
            raise ValueError(f"steps must be at least {least}, twice the {HISTORY} points of history, got {self.steps}")
        for name in ("high_rates", "top_rates"):
            some, every = getattr(self, f"bench_{name}"), getattr(self, name)
            if not set(some) <= set(every):
                raise ValueError(f"bench_{name} must be among {name}, {every}, got {some}")


class Member(NamedTuple):
    """One network: its kind, its rate, the steps of its warm-up, its seed, and whether it calibrates the rules."""

    kind: int
    rate: float
    warm_up: int
    seed: int
    open: bool = False


def members_of(config: CollapseConfig, name: str) -> list[Member]:
    """All members of an ensemble, the seeds of one cell together."""
    judged = range(config.seed, config.seed + config.seeds)
    others = range(config.seed + OPEN, config.seed + OPEN + config.open_seeds)
    high, top = config.high_rates, config.top_rates
    if name in REMEDIES:
        high, top = config.bench_high_rates, config.bench_top_rates
    healthy = [(HEALTHY, config.healthy_rate, warm_up) for warm_up in (0, config.warm_up)]
    sudden, warmed = ([(kind, rate, w) for rate in high] for kind, w in ((SUDDEN, 0), (WARMED, config.warm_up)))
    rising = [(RISING, rate, config.steps) for rate in top]
    cells = [*healthy, *sudden, *warmed, *rising] if name == PLAIN else [*sudden, *rising]
    found = [Member(*cell, seed) for cell in cells for seed in judged]
    return found + ([Member(*cell, seed, open=True) for cell in healthy for seed in others] if name == PLAIN else [])


def plan(config: CollapseConfig, text: Corpus) -> dict[str, Recipe]:
    """All kinds of networks; who their members are, `members_of` says."""
    plain = recipe(config, text, layers=config.layers, rates=(config.healthy_rate,))
    plain = plain.with_decoder(norm="pre-layer", activation="gelu", copies=False)
    clipped = plain.with_optimizer(clip=config.clip / 10)
    found = {PLAIN: plain, QK_NORM: plain.with_decoder(qk_norm=True)}
    return found | {name: clipped if name == CLIPPED else plain for name in REMEDIES}


def tend(config: CollapseConfig, name: str, plain: Ensemble) -> Tend | None:
    """What is done to the weights of an ensemble before a step."""
    if name == QK_CLIP:
        return clipping(lambda step: plain.batch(step, [0])[0], config.clip_at)
    return restoring(config.restore_every) if name == RESTORED else None


def run(config: CollapseConfig, run: Run, progress: Progress) -> None:
    """Train all networks, then let the alarms of the monitor look at what was recorded."""
    text = corpus(config, progress)
    variants = plan(config, text)
    needs_its_device(variants[PLAIN])
    remember_corpus(text, run)
    run.keep("loss by frequency", lambda: frequency_loss(variants[PLAIN], text))
    for name in variants:
        for field, column in zip(Member._fields, zip(*members_of(config, name), strict=True), strict=True):
            run.keep(f"{name}/{field}", lambda column=column: np.array(column, dtype=np.float64))  # type: ignore[misc]
    run.keep(f"{PLAIN}/place", lambda: _places(config))
    ensembles = {name: built(config, name, variant, text) for name, variant in variants.items()}
    for name in REMEDIES:
        run.keep(f"{name}/work", lambda name=name: _work(config, name, variants[name], text))  # type: ignore[misc]
    train_all(ensembles, run, progress=lambda done, doing: progress(0.97 * done, doing))
    progress(0.97, "the alarms of the monitor")
    run.keep(f"{PLAIN}/usual rings", lambda: usual_rings(run, PLAIN, config.length))


def _work(config: CollapseConfig, name: str, variant: Recipe, text: Corpus) -> float:
    on_cpu = ensemble(variant.with_(device="cpu", precision="float32"), text)
    return extra_work(on_cpu, tend(config, name, on_cpu), range(1, config.restore_every + 1))


def _places(config: CollapseConfig) -> np.ndarray:
    """Where the random head of every member is, as a share of all places: the same for twins."""
    drawn = {
        one.seed: float(torch.rand((), generator=generator(one.seed, "random head"), dtype=torch.float64))
        for one in members_of(config, PLAIN)
    }
    return np.array([drawn[one.seed] for one in members_of(config, PLAIN)])


def built(config: CollapseConfig, name: str, variant: Recipe, text: Corpus) -> Ensemble:
    """The members of one kind of networks, and what is measured on them."""
    members, plain = members_of(config, name), ensemble(variant, text)
    tokens, targets = validation_sequences(variant, text)

    def networks(some: Sequence[int]) -> Decoder:
        return Decoder(variant.decoder, [members[member].seed for member in some])

    probe = (everything if name == PLAIN else attention_and_loss)(tokens, targets)
    heads: dict[str, Any] = dict.fromkeys(("probe/entropy", "probe/largest_logit"), ("layer", "head"))
    if name == PLAIN:
        heads |= dict.fromkeys(("weights/update_entropy", "weights/drift_entropy"), ("layer", "head"))
        heads |= dict.fromkeys(("probe/stable_rank", "probe/sign_diversity"), ("layer", "matrix"))
    rates, warm_ups = (tuple(getattr(one, field) for one in members) for field in ("rate", "warm_up"))
    rates = tuple(config.lower * rate for rate in rates) if name == LOWER else rates
    return replace(
        plain,
        members=len(members),
        networks=networks,
        optimizer=replace(plain.optimizer, rate=rates, warm_up=warm_ups),
        measures={"probe": probe},
        between={"weights": update_entropies(networks)} if name == PLAIN else {},
        tend=tend(config, name, plain),
        dims=heads,
    )
