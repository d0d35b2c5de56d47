"""The networks of `modern-block`: blocks of today beside the plain one, twins of the same seed, start and text.

Two families of language models, of one or two layers: Figure 6's, "1 layer, norms after", and the same with norms
before each branch, "1 layer, norms before". Their arms (`ARMS`) are members of one program, (arms, seeds). Beside it
stand "..., Muon", the plain block trained with Muon at several rates, and then "..., clipped", whose thresholds follow
from the plain twin of the same seed. "made language" has networks that read `joma.recipes.copying`, (arms, seeds).
Recorded under these names, beside valid/loss:

    block/entropy           (members, layers, heads)   of softmax of the logits: the key of value 0 does not count
    block/logit, /output    (members, layers, heads)   the largest logit; the largest number a head adds to the stream
    block/shared, /specific (members, layers, heads)   variance of the products q.k over keys
    block/sink              (members, layers, heads)   attention of late queries on the first key
    block/words             (members, words)           logits of frequent words, to the mean query of the first layer

and of the made language sink and second (members, layers, heads), on the first two keys, loss and fetched (members,).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Above, Least, OneOf, Progress, Within
from joma.claims.guards import at_paper_scale, needs_device
from joma.data.text import Corpus
from joma.models.decoder import Decoder, DecoderConfig
from joma.models.decoder_config import Norm
from joma.probes.decoder import layer_sums, spread_of_layers
from joma.recipes.copying import Reading, copying, sequences_of, without_fetching
from joma.recipes.grid import Grid
from joma.recipes.grid import ensemble as of_grid
from joma.recipes.language import LanguageModelConfig, Recipe, corpus, recipe, train_variants
from joma.recipes.language.text import remember_corpus
from joma.recipes.language.training import validation_sequences
from joma.recipes.optimizers import make_optimizer
from joma.runs import Run
from joma.studies.rebound._cases import base_name
from joma.studies.rebound._points import Measure, spread_points
from joma.studies.rebound.modern_block.clip import Clipped, added
from joma.training import Ensemble, next_token_loss, train_all

PLAIN = "plain"
POSITIONS = {
    "learned positions": {"positions": "learned"},
    "no positions": {"positions": "none"},
    "rotary": {"positions": "rotary"},
    "ALiBi": {"positions": "alibi"},
}
ARMS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "QK-norm": {"qk_norm": True},
    "VO-norm": {"vo_norm": True},
    "gate": {"gate": "attention"},
    "MLP gate": {"gate": "mlp"},
    "off-by-one": {"attention": "off-by-one"},
    "learned sink": {"attention": "learned-sink"},
    **POSITIONS,
}
"""What each arm has that the plain block lacks. VO-norm is the control of QK-norm, the MLP's gate that of the gate: as
many parameters elsewhere."""
CLIPS = ("QK-clip", "VO-clip")  # clipped are the weights of queries and keys; in the control those of values and output
MUON = "Muon"
MADE = "made language"
MADE_ARMS = (PLAIN, "gate", "MLP gate", "off-by-one", "learned sink")
FAMILIES: dict[str, Norm] = {"norms after": "post-layer", "norms before": "pre-layer"}
NO_FAMILY = "none"
OFTEN = 48  # frequent words whose logits are recorded, or as many as there are
LATE = 2  # queries from this part of the length on: they see half of it or more


@dataclass(frozen=True)
class ModernBlockConfig(LanguageModelConfig):
    """Small models whose blocks differ in one thing, and networks that read a made language."""

    families: Annotated[tuple[str, ...], OneOf(*FAMILIES, NO_FAMILY)] = ("norms after",)
    """Where LayerNorm stands: after each branch as in Figure 6, or before it; none: only the made language is read."""
    layers: tuple[int, ...] = (1,)
    arms: Annotated[tuple[str, ...], OneOf(*list(ARMS)[1:])] = tuple(list(ARMS)[1:])
    """Arms beside the plain block."""
    rate: float = 1e-2
    """Of Adam."""
    muon: bool = False
    """Whether there are networks trained with Muon."""
    muon_rates: Annotated[tuple[float, ...], Above(0)] = (1e-2,)
    """Of Muon, whose updates are as large as Adam's at the same rate; the first is judged."""
    clip_share: Annotated[float, Within(0, 1, open=True)] = 0.5
    """The threshold of QK-clip, as a share of the largest logit that the head has in the plain block of the same seed.
    That of the control is this share of the largest number that the head adds to the stream."""
    clip_every: Annotated[int, Least(1)] = 10
    """Steps between two clips."""
    clip_sequences: Annotated[int, Least(1)] = 32
    """Sequences of training text whose largest logit decides."""
    own_start: bool = False
    """Whether each seed begins the text at a place of its own, so that no bump of the text is shared."""
    window: Annotated[int, Least(1)] = 40
    """Steps over whose measuring points the end of a curve is averaged."""
    made_words: int = 24
    """Words of the made language."""
    made_triggers: int = 6
    """Words of it after which attention is needed."""
    made_pool: int = 2_048
    """Sequences of it to train on."""
    made_width: int = 32
    made_heads: int = 1
    made_length: Annotated[int, Least(8)] = 24
    made_batch: int = 12
    made_steps: int = 200
    made_every: int = 40
    made_valid: int = 24
    made_rate: Annotated[float, Above(0)] = 0.015

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window > self.steps:
            raise ValueError(f"window must be at most {self.steps}, the steps, got {self.window}")
        if self.made_triggers >= self.made_words:
            most = f"{self.made_words - 1}, all words but one"
            raise ValueError(f"made_triggers must be at most {most}, got {self.made_triggers}")
        make_optimizer("muon", rate=self.muon_rates, momentum=0.95)
        self.made_shape()

    def made_shape(self) -> DecoderConfig:
        return DecoderConfig(
            self.made_words + 1, width=self.made_width, heads=self.made_heads, mlp=4 * self.made_width,
            context=self.made_length, norm="pre-layer", activation="gelu",
        )  # fmt: skip

    @property
    def all_arms(self) -> tuple[str, ...]:
        return tuple(arm for arm in ARMS if arm == PLAIN or arm in self.arms)


def name_of(layers: int, family: str, kind: str = "") -> str:
    """A network as it is recorded."""
    return f"{base_name(layers)}, {family}{', ' * bool(kind)}{kind}"


def measuring_points(config: ModernBlockConfig) -> tuple[int, ...]:
    """Evenly spread, and closer at the beginning: two in each doubling of the step."""
    first = max(1, config.every // 8)
    return tuple(sorted({*range(0, config.steps, config.every), *spread_points(first, config.steps)}))


def run(config: ModernBlockConfig, run: Run, progress: Progress) -> None:
    """Train the arms and Muon of a family, then its clipped twins; what is recorded is not trained again."""
    needs_device(config.device, at_paper_scale("modern-block"))
    text = corpus(config, progress)
    remember_corpus(text, run)
    families = [family for family in config.families if family in FAMILIES]
    turns = 2 * len(families) + 1
    for turn, family in enumerate(families):
        plain = {layers: _plain(config, text, layers, family) for layers in config.layers}
        _train(config, run, text, _first(config, plain, family), progress, (2 * turn / turns, 1 / turns))
        clipped = {name_of(layers, family, "clipped"): _of_arms(one, len(CLIPS)) for layers, one in plain.items()}
        _train(config, run, text, clipped, progress, ((2 * turn + 1) / turns, 1 / turns))
    reading = copying(
        config.made_words, config.made_triggers, config.made_length, train=config.made_pool, valid=config.made_valid,
        seed=config.seed,
    )  # fmt: skip
    run.keep("unfetched", lambda: without_fetching(reading))
    made = {MADE: MadeLanguage(config, reading).ensemble()}
    train_all(made, run, progress=lambda share, doing: progress(1 - (1 - share) / turns, doing))


def _plain(config: ModernBlockConfig, text: Corpus, layers: int, family: str) -> Recipe:
    plain = recipe(config, text, layers=layers, rates=(config.rate,))
    return plain.with_(own_start=config.own_start).with_decoder(norm=FAMILIES[family])


def _of_arms(plain: Recipe, arms: int) -> Recipe:
    return plain.with_(rates=plain.rates[:1] * arms)


def _first(config: ModernBlockConfig, plain: Mapping[int, Recipe], family: str) -> dict[str, Recipe]:
    found = {name_of(layers, family): _of_arms(one, len(config.all_arms)) for layers, one in plain.items()}
    if config.muon:
        for layers, one in plain.items():
            muon = one.with_(rates=config.muon_rates).with_optimizer(kind="muon", momentum=0.95)
            found[name_of(layers, family, MUON)] = muon
    return found


def _train(
    config: ModernBlockConfig,
    run: Run,
    text: Corpus,
    variants: Mapping[str, Recipe],
    progress: Progress,
    part: tuple[float, float],
) -> None:
    def adapted(name: str, plain: Ensemble) -> Ensemble:
        variant = variants[name]
        tokens = validation_sequences(variant, text)[0]
        measures: dict[str, Measure] = {"valid": plain.measures["valid"], "block": looks(tokens, often(text))}
        found = replace(plain, measures=measures, measure_at=measuring_points(config))
        if name.endswith("clipped"):
            return _clipped(config, run, name.removesuffix(", clipped"), variant, found)
        return found if name.endswith(MUON) else _mixed(config, variant, found)

    def in_part(share: float, doing: str) -> None:
        progress(part[0] + part[1] * share, doing)

    train_variants(variants, text, run, in_part, share=1.0, adapt=adapted)


def _mixed(config: ModernBlockConfig, variant: Recipe, plain: Ensemble) -> Ensemble:
    """All arms in one program; members are arms x seeds, as the recipe has rates x seeds."""
    kinds = [replace(variant.decoder, **ARMS[arm]) for arm in config.all_arms]

    def networks(members: Sequence[int]) -> Decoder:
        seeds = [variant.members[member][1] for member in members]
        return Decoder(variant.decoder, seeds, kinds=kinds, of=[member // config.seeds for member in members])

    return replace(plain, networks=networks)


def _clipped(config: ModernBlockConfig, run: Run, base: str, variant: Recipe, plain: Ensemble) -> Ensemble:
    """Both clips; thresholds from the record of the plain twins, whose members come first."""
    peaks = [run.array(f"{base}/block/{what}")[:, : config.seeds].max(0) for what in ("logit", "output")]
    bounds = torch.full((2, len(CLIPS), *peaks[0].shape), math.inf)  # (what, arms, seeds, layers, heads)
    for arm, peak in enumerate(peaks):
        bounds[arm, arm] = config.clip_share * torch.from_numpy(np.nan_to_num(peak, nan=np.inf))
    flat = bounds.flatten(1, 2)
    tokens = torch.cat([plain.batch(step, [0])[0].flatten(0, -2) for step in (0, 1, 2, 3)])[: config.clip_sequences]

    def networks(members: Sequence[int]) -> Clipped:
        seeds = [variant.members[member][1] for member in members]
        return Clipped(variant.decoder, seeds, tokens.cpu(), flat[:, list(members)], every=config.clip_every)

    return replace(plain, networks=networks, tend=Clipped.tend)


def often(text: Corpus) -> Tensor:
    """The most frequent words of the training text."""
    counts = torch.bincount(text.tokens["train"].long(), minlength=len(text.vocabulary))
    return counts.argsort(descending=True, stable=True)[:OFTEN]


def looks(tokens: Tensor, words: Tensor) -> Measure:
    """What is recorded of blocks. tokens: (sequences, length); words: those whose logits are recorded."""
    hits = (tokens.flatten()[:, None] == words.to(tokens.device)).double()  # (positions, words)
    share = hits / hits.sum(0).clamp(min=1)

    def measure(decoder: Any, members: Sequence[int]) -> dict[str, Tensor]:
        found: dict[str, list[Tensor]] = {name: [] for name in ("entropy", "logit", "output", "sink")}
        query: list[Tensor] = []
        logits_of_words: list[Tensor] = []

        def look(layer: int, name: str, value: Tensor) -> None:
            if name == "query" and layer == 0:
                query.append(value.double().mean((1, 3), keepdim=True))
            elif name == "key" and layer == 0:  # (members, batch, heads, length, width): heads are averaged
                logits = (query[0] * value).sum(-1).mean(2) / math.sqrt(value.shape[-1])
                logits_of_words.append(logits.flatten(1) @ share)
            elif name == "logits":
                found["entropy"].append(torch.special.entr(value.softmax(-1)).sum(-1, dtype=torch.float64).mean((1, 3)))
                found["logit"].append(value.amax((1, 3, 4)))
            elif name == "attention":
                found["sink"].append(value[..., value.shape[-1] // LATE :, 0].mean((1, 3)))
            elif name == "mixed":
                found["output"].append(added(decoder, layer, value))

        decoder.features(tokens, look=look)
        spread = spread_of_layers(decoder, layer_sums(decoder, tokens))
        parts = {name: torch.stack(layers, 1).float() for name, layers in found.items()}
        parts |= {name: getattr(spread, name).float() for name in ("shared", "specific")}
        return parts | {"words": logits_of_words[0].float()}

    return measure


class MadeLanguage:
    """Networks of several arms that read the made language; each sequence begins with the same word."""

    def __init__(self, config: ModernBlockConfig, reading: Reading) -> None:
        self.config = config
        self.grid = Grid(MADE_ARMS, config.seeds, config.seed)
        self.triggers = reading.triggers
        first = reading.train.new_full((1, 1), reading.first)
        self.train, self.valid = (
            torch.cat((first.expand(len(part), 1), part[:, :-1]), 1).to(config.device)
            for part in (reading.train, reading.valid)
        )

    def ensemble(self) -> Ensemble:
        config = self.config
        return of_grid(
            config,
            len(self.grid),
            networks=self.networks,
            batch=lambda step, members: _shifted(sequences_of(self.train, step, config.made_batch)),
            loss=next_token_loss,
            optimizer=make_optimizer("adam", rate=config.made_rate, betas=(0.9, 0.95), clip=1.0),
            steps=config.made_steps,
            precision="tf32" if config.device != "cpu" else "float32",
            measures={"made": self.look},
            measure_at=tuple(range(0, config.made_steps + 1, config.made_every)),
        )

    def networks(self, members: Sequence[int]) -> Decoder:
        shape = self.config.made_shape()
        kinds = [replace(shape, **ARMS[arm]) for arm in MADE_ARMS]
        of = [member // self.config.seeds for member in members]
        return Decoder(shape, [self.grid.seed_of[member] for member in members], kinds=kinds, of=of)

    def look(self, decoder: Decoder, members: Sequence[int]) -> dict[str, Tensor]:
        read, following = _shifted(self.valid)
        masses: list[Tensor] = []

        def look(layer: int, name: str, value: Tensor) -> None:
            if name == "attention":
                masses.append(value[..., value.shape[-1] // LATE :, :2].mean((1, 3)))

        logits = decoder(read, look=look)
        losses = -logits.log_softmax(-1).gather(-1, following.expand(len(logits), -1, -1)[..., None])[..., 0]
        asked = read < self.triggers
        asked[..., :2] = False  # nothing to fetch yet
        mass = torch.stack(masses, 1)  # (members, layers, heads, 2)
        return {
            "loss": losses.mean((1, 2)),
            "fetched": (losses * asked).sum((1, 2)) / asked.sum(),
            "sink": mass[..., 0],
            "second": mass[..., 1],
        }


def _shifted(text: Tensor) -> tuple[Tensor, Tensor]:
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()
