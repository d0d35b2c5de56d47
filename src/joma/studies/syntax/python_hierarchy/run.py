"""Small decoders that read Python source as it is written and shuffled, measured on held-out files as they learn.

Every label that is frequent enough is a latent: 1 where a token stands in that kind of syntax, else 0. Three versions
of it are scored. "labels": the latent itself. "rotated": the latent of another place of the same file, which keeps how
often and how long it is on, and nothing else. "beyond": the latent less its mean given the current token, so that what
merely recognises the token scores 0.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Least, Progress, StudyConfig, Within
from joma.claims.guards import at_paper_scale, beats_guessing, needs_device
from joma.claims.text_source import remember_source
from joma.data.ahead import Ahead, sent
from joma.data.errors import CorpusError
from joma.data.python_source import PythonTokens, python_tokens
from joma.measure.alignment import held_out_correlation, linear_probe
from joma.measure.correlation import pearson
from joma.measure.intervals import Comparison, compare
from joma.models import Decoder, DecoderConfig
from joma.recipes.optimizers import make_optimizer
from joma.runs import Run
from joma.training import Ensemble, next_token_loss, train

LEVELS = ("expression", "statement", "block", "definition")  # from close to the tokens to far above them
VERSIONS = ("labels", "rotated", "beyond")
FREQUENT = 0.02  # of the training tokens: the rarest label that is a latent
RIDGE = 1e-3  # of the linear probes, in the units of `linear_probe`
SMOOTHING = 1.0  # tokens of the mean latent, added to what was counted of each token


class Sizes(Protocol):
    """What is needed of the study's config."""

    @property
    def context(self) -> int: ...
    @property
    def windows(self) -> int: ...
    @property
    def held_out(self) -> float: ...


class Latents(NamedTuple):
    """The labels that are frequent enough."""

    level: Tensor  # (latents,) index into LEVELS
    label: Tensor  # (latents,) index into the names of the level
    share: Tensor  # (latents,) of the training tokens
    given_token: Tensor  # (vocabulary, latents) mean of the latent where the token is this one, in the training files


class Half(NamedTuple):
    """Windows on held-out files, and the latents at the later half of their positions, where there is context."""

    windows: Tensor  # (members, windows, context + 1)
    latents: Tensor  # (members, samples, versions * latents)
    table: Tensor  # (members, samples, latents) what the current token alone says of the latents


class Material(NamedTuple):
    """All that is read: the training text, and for every seed its two halves of the held-out files."""

    train: Tensor  # (tokens,)
    latents: Latents
    chosen: Half
    scored: Half
    files: tuple[int, int]  # to train on, held out


def prepare(code: PythonTokens, sizes: Sizes, seeds: Sequence[int]) -> Material:
    """Split the files, find the latents, and draw for every seed its own halves and windows of the held-out files."""
    starts = code.starts
    first = int((starts - (1 - sizes.held_out) * len(code.tokens)).abs().argmin())
    held = len(code.files) - first
    cut = int(starts[first])
    if held < 4 or first < 4:
        raise CorpusError(
            f"{len(code.tokens):,} tokens are {len(code.files)} files, of which held_out leaves {first} to train on "
            f"and {held} to hold out: at least 4 of each are needed"
        )
    latents = find_latents(code, cut)
    halves = [_halves(code, latents, first, sizes, seed) for seed in seeds]
    chosen, scored = (Half(*map(torch.stack, zip(*half, strict=True))) for half in zip(*halves, strict=True))
    return Material(code.tokens[:cut].long(), latents, chosen, scored, (first, held))


def find_latents(code: PythonTokens, count: int) -> Latents:
    """The frequent labels of the first `count` tokens, and what each token says of them. "none" is no syntax."""
    level, label = [], []
    for number, name in enumerate(LEVELS):
        shares = torch.bincount(code.labels[name][:count].long(), minlength=len(code.names[name])) / count
        for kind, share in zip(code.names[name], shares.tolist(), strict=True):
            if kind != "none" and FREQUENT <= share <= 1 - FREQUENT:
                level.append(number)
                label.append(code.names[name].index(kind))
    found = Latents(torch.tensor(level), torch.tensor(label), torch.empty(0), torch.empty(0))
    values = _on(code, found, slice(0, count))
    share = values.mean(0)
    tokens = code.tokens[:count].long()
    sums = torch.zeros(len(code.vocabulary), len(level), dtype=torch.float64).index_add_(0, tokens, values)
    counts = torch.bincount(tokens, minlength=len(code.vocabulary))[:, None]
    return found._replace(share=share, given_token=(sums + SMOOTHING * share) / (counts + SMOOTHING))


def _on(code: PythonTokens, latents: Latents, where: slice) -> Tensor:
    labels = torch.stack([code.labels[level][where] for level in LEVELS], 1)
    return (labels[:, latents.level] == latents.label).double()


def _halves(code: PythonTokens, latents: Latents, first: int, sizes: Sizes, seed: int) -> tuple[Half, Half]:
    generator = torch.Generator().manual_seed(seed)
    order = first + torch.randperm(len(code.files) - first, generator=generator)
    length = code.starts.diff()[order]
    middle = int((length.cumsum(0) - length.sum() / 2).abs().argmin()) + 1
    one, other = (_half(code, latents, part, sizes, generator) for part in (order[:middle], order[middle:]))
    return one, other


def _half(code: PythonTokens, latents: Latents, files: Tensor, sizes: Sizes, generator: torch.Generator) -> Half:
    tokens, on, rotated = [], [], []
    for file in files.tolist():
        where = slice(int(code.starts[file]), int(code.starts[file + 1]))
        tokens.append(code.tokens[where].long())
        on.append(_on(code, latents, where))
        length = len(tokens[-1])
        by = length // 4 + int(torch.randint(length // 2 + 1, (), generator=generator))
        rotated.append(on[-1].roll(by, 0))
    text, value, elsewhere = torch.cat(tokens), torch.cat(on), torch.cat(rotated)
    if len(text) <= sizes.context:
        raise CorpusError(f"a window of {sizes.context} tokens is longer than half of the held-out files ({len(text)})")
    begin = torch.randint(len(text) - sizes.context, (sizes.windows, 1), generator=generator)
    late = (begin + torch.arange(sizes.context // 2, sizes.context)).flatten()
    table = latents.given_token[text[late]]
    versions = torch.cat([value[late], elsewhere[late], value[late] - table], 1)
    return Half(text[begin + torch.arange(sizes.context + 1)], versions.float(), table.float())


def places(layers: int) -> list[str]:
    """Where alignment is measured, in the order of the rows that `alignment` gives."""
    blocks = range(1, layers + 1)
    return ["neuron", *(f"neuron {block}" for block in blocks), "hidden", *(f"stream {block}" for block in blocks)]


def alignment(decoder: Decoder, chosen: Half, scored: Half) -> Tensor:
    """Correlations with the latents on the scored half, (members, places, versions, latents); NaN: not to be had.

    Rows: the best hidden neuron of all blocks, of each block; a linear probe on the hidden neurons of each block, on
    the stream behind each block. Neurons are chosen and probes fitted on the other half. A member whose activity is
    not finite scores NaN throughout.
    """
    one, other = _activity(decoder, chosen), _activity(decoder, scored)
    sound = torch.ones(decoder.members, dtype=torch.bool, device=chosen.windows.device)
    for activity in (*one, *other):
        finite = activity.isfinite().flatten(1).all(1)
        activity[~finite] = 0.0
        sound &= finite
    layers = decoder.config.layers
    hidden, stream = (list(zip(one[part], other[part], strict=True)) for part in (slice(layers), slice(layers, None)))
    whole = (torch.cat(one[:layers], -1), torch.cat(other[:layers], -1))
    rows = [
        held_out_correlation(a, chosen.latents, fresh_activity=b, fresh_latents=scored.latents).per_latent
        for a, b in (whole, *hidden)
    ]
    rows += [
        linear_probe(a, chosen.latents, fresh_activity=b, fresh_latents=scored.latents, ridge=RIDGE).per_latent
        for a, b in (whole, *stream)
    ]
    found = torch.stack(rows, 1).unflatten(-1, (len(VERSIONS), -1))
    return torch.where(sound[:, None, None, None], found, torch.nan)


def _activity(decoder: Decoder, half: Half) -> list[Tensor]:
    seen: dict[tuple[str, int], Tensor] = {}
    late = decoder.config.context // 2

    def look(layer: int, name: str, value: Tensor) -> None:
        if name in ("hidden", "stream"):
            seen[name, layer] = value[:, :, late:].flatten(1, 2)

    decoder.features(half.windows[..., :-1], look=look)
    return [seen[name, layer] for name in ("hidden", "stream") for layer in range(decoder.config.layers)]


def token_score(scored: Half, latents: int) -> Tensor:
    """Correlation of each latent with what the current token alone says of it, (members, latents)."""
    found: Tensor = pearson(scored.latents[..., :latents].double().mT, scored.table.double().mT)
    return found


FEWEST = 3  # levels that must have been learned (interval above 0) before an order can be spoken of


class Scores:
    """What a run recorded, by level: seeds that diverged left out, means over the latents of a level."""

    def __init__(self, run: Run) -> None:
        self.level: Any = run.value("level")
        self.names: list[list[str]] = json.loads(run.value("latents").tobytes())
        self.layers: int = run.config["layers"]
        self.row = {place: i for i, place in enumerate(places(self.layers))}
        self.steps: Any = run.steps("alignment")
        every, seeds = run.array("alignment"), run.config["seeds"]
        sound = (run.array("diverged_at")[-1] < 0) & np.isfinite(every[-1]).any((1, 2, 3))
        self.diverged = int((~sound).sum())
        self.alone = not sound[:seeds].any()
        """Whether no network on the text as written is left."""
        self.written, self.shuffled = every[:, :seeds][:, sound[:seeds]], every[:, seeds:][:, sound[seeds:]]
        if self.alone:
            self.written = np.full_like(every[:, :1], np.nan)  # so that there is a picture
        self.token: Any = self.by_level(run.value("token")[sound[:seeds] | self.alone])
        self.loss = float(np.mean(run.array("train_loss")[-1][:seeds][sound[:seeds]])) if not self.alone else np.nan
        self.vocabulary = int(run.config["vocabulary"])

    @property
    def unlearned(self) -> str | None:
        if self.alone:
            return "all networks on the text as written diverged"
        if not beats_guessing(self.loss, self.vocabulary):
            return "the networks did not learn to predict the next token"
        return None

    def by_level(self, values: Any) -> Any:
        return np.stack([mean(values[..., self.level == level]) for level in range(len(LEVELS))], -1)

    def of(self, place: str, version: str, *, shuffled: bool = False) -> Any:
        networks = self.shuffled if shuffled else self.written
        return self.by_level(networks[:, :, self.row[place], VERSIONS.index(version)])

    def against_controls(self, place: str, version: str) -> dict[str, Comparison]:
        trained = self.of(place, version)[-1].mean(-1)
        found = {"beside the untrained network": compare(trained, self.of(place, version)[0].mean(-1))}
        if version == "labels":
            found["beside rotated labels"] = compare(trained, self.of(place, "rotated")[-1].mean(-1))
        shuffled = self.of(place, version, shuffled=True)[-1].mean(-1)
        found["beside networks on shuffled text"] = compare(trained, shuffled, paired=False)
        return found

    @cached_property
    def learned(self) -> Any:
        """(steps, seeds, levels) what all hidden nodes together have come to tell beyond the token."""
        found = self.of("hidden", "beyond")
        return found - found[:1]

    def rise(self) -> Any:
        learned = np.array([compare(gained).low > 0 for gained in self.learned[-1].T])
        return np.where(learned, octave(self.steps, self.learned.mean(1)), np.nan)

    def order(self) -> Any:
        """(seeds,) by how many octaves a level higher ones rise later: pseudo-values of a jackknife over seeds.

        The octave of one seed is a ratio of two noisy numbers; that of the mean over seeds is much less so. Leaving out
        each seed in turn says how far it may be off. NaN where fewer than `FEWEST` levels were learned.
        """
        count = self.learned.shape[1]
        there = np.isfinite(self.rise())
        if count < 2 or there.sum() < FEWEST:
            return np.full(count, np.nan)

        def of(seeds: Any) -> float:
            rise = octave(self.steps, self.learned[:, seeds].mean(1))
            return float(slope(rise[there], np.flatnonzero(there)))

        everyone = np.arange(count)
        left_out = np.array([of(everyone != seed) for seed in everyone])
        return count * of(everyone) - (count - 1) * left_out

    def deepening(self, step: int) -> Any:
        last, first = (self.of(f"neuron {block}", "beyond")[step] for block in (self.layers, 1))
        return last - first


def mean(values: Any) -> Any:
    """Over the last axis, what is NaN left out; NaN where nothing is left."""
    kept = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.where(kept, values, 0.0).sum(-1) / np.where(kept.any(-1), kept.sum(-1), np.nan)


def octave(steps: Any, gain: Any) -> Any:
    """log2 of the step at which a gain (steps, ...) was made, averaged over the gain.

    Each part counts in the middle, in octaves, of the steps between which it was made. Where a gain rises evenly in log
    time this is the step of half of it; unlike a first crossing of the half, noise does not make it early.
    """
    made = np.log2(steps[1:])
    middle = np.concatenate([made[:1], (made[1:] + made[:-1]) / 2])
    with np.errstate(invalid="ignore", divide="ignore"):  # where nothing was gained there is no such step
        return np.tensordot(middle, np.diff(gain, axis=0), 1) / gain[-1]


def slope(values: Any, rank: Any) -> Any:
    """The least-squares slope of values (..., levels) over the ranks of the levels."""
    centred = rank - np.mean(rank)
    return values @ centred / (centred @ centred)


@dataclass(frozen=True)
class PythonHierarchyConfig(StudyConfig):
    """Small decoders on Python source; the same ones on its tokens in random order are a control."""

    tokens: int = 300_000
    """Of source to read."""
    held_out: Annotated[float, Within(0, 1, open=True)] = 0.4
    """The share of it, in whole files, that is never trained on."""
    vocabulary: int = 256
    layers: Annotated[int, Least(2, "to compare the last block with the first")] = 2
    width: int = 32
    heads: int = 2
    mlp: int = 64
    context: Annotated[int, Least(4)] = 48
    dropout: float = 0.0
    batch: int = 3
    steps: int = 320
    rate: float = 0.007
    points: int = 6
    """How often to measure; each time after 1.4 times as many steps as the time before, and before the first step."""
    seeds: Annotated[int, Least(2, "for an interval")] = 4
    """Networks trained on the text as it is written."""
    shuffled: int = 2
    """Of them, how many are also trained on shuffled tokens; with fewer than 2 that control has no interval."""
    windows: int = 64
    """Pieces of held-out text to choose neurons on, and as many to score them on."""
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shuffled > self.seeds:
            raise ValueError(f"shuffled must be at most seeds ({self.seeds}), got {self.shuffled}")
        self.shape(self.vocabulary)  # refuses what cannot be a decoder

    def shape(self, vocabulary: int) -> DecoderConfig:
        names = ("layers", "width", "heads", "mlp", "context", "dropout")
        return DecoderConfig(vocabulary, **{name: getattr(self, name) for name in names})


def run(config: PythonHierarchyConfig, run: Run, progress: Progress) -> None:
    """Train on text and on shuffled text, at once, and measure on held-out files over training."""
    needs_device(config.device, at_paper_scale("python-hierarchy"))
    code = python_tokens(config.vocabulary, tokens=config.tokens, progress=lambda s, doing: progress(0.1 * s, doing))
    remember_source(run, code.source)
    # Which seed a member has: those on shuffled text repeat the first ones.
    seeds = [config.seed + i for i in (*range(config.seeds), *range(config.shuffled))]
    material = prepare(code, config, seeds)
    latents = material.latents
    names = [[LEVELS[level], code.names[LEVELS[level]][label]] for level, label in zip(*latents[:2], strict=True)]
    run.keep("latents", lambda: np.frombuffer(json.dumps(names).encode(), np.uint8))
    run.keep("level", lambda: latents.level)
    run.keep("share", lambda: latents.share)
    run.keep("token", lambda: token_score(material.scored, len(latents.level))[: config.seeds])
    run.keep("corpus", lambda: torch.tensor([len(material.train), *material.files, code.skipped]))
    ensemble = make_ensemble(config, len(code.vocabulary), material, seeds)
    train(ensemble, run, progress=lambda share, doing: progress(0.1 + 0.9 * share, doing))


def make_ensemble(config: PythonHierarchyConfig, vocabulary: int, material: Material, seeds: Sequence[int]) -> Ensemble:
    """Networks on the text as it is written, then those on shuffled text."""
    shape = config.shape(vocabulary)
    order = torch.randperm(len(material.train), generator=torch.Generator().manual_seed(config.seed))
    texts = torch.stack([material.train, material.train[order]]).to(config.device)  # as written, shuffled
    halves = [Half(*(part.to(config.device) for part in half)) for half in (material.chosen, material.scored)]
    offsets = torch.arange(config.context + 1, device=config.device)

    def draw(steps: range, members: Sequence[int]) -> tuple[Tensor, ...]:
        most = texts.shape[1] - config.context
        places = torch.stack([_places(seeds[m] * 1_000_003 + s, most, config.batch) for s in steps for m in members])
        where = sent(places.unflatten(0, (len(steps), len(members))), config.device)
        text = sent([int(member >= config.seeds) for member in members], config.device)
        windows = texts[text[:, None, None], where[..., None] + offsets]
        return windows[..., :-1], windows[..., 1:]

    def measure(decoder: Decoder, members: Sequence[int]) -> Tensor:
        chosen, scored = (Half(*(part[list(members)] for part in half)) for half in halves)
        return alignment(decoder, chosen, scored)

    return Ensemble(
        members=len(seeds),
        networks=lambda members: Decoder(shape, [seeds[member] for member in members]),
        batch=Ahead(draw, steps=config.steps, device=config.device),
        loss=next_token_loss,
        optimizer=make_optimizer("adam", rate=config.rate, clip=1.0),
        steps=config.steps,
        measures={"alignment": measure},
        measure_at=sorted({0, *(round(config.steps / 2 ** (i / 2)) for i in range(config.points))}),
        device=config.device,
        precision="tf32" if config.device.startswith("cuda") else "float32",
    )


def _places(seed: int, most: int, count: int) -> Tensor:
    return torch.randint(most, (count,), generator=torch.Generator().manual_seed(seed))
