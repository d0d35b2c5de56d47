"""Attention in the lowest layer of decoders that are trained with SGD: does it become sparse, and does it freeze?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Claim, Drawing, Finding, Least, Progress, Study, Values
from joma.claims.declare import Claims
from joma.claims.guards import at_paper_scale, clears, hardest, needs_device
from joma.claims.sentences import show
from joma.claims.verdicts import at_most, by_effect, not_run
from joma.data.text import Corpus, streams, windows
from joma.figures.bands import mean_and_band
from joma.figures.reading import listing, number
from joma.figures.style import BLUE, CONTROL, INK, Axes, panels, step_axis
from joma.host.words import counted
from joma.measure.intervals import Comparison, compare
from joma.models.decoder import Decoder
from joma.recipes import language
from joma.recipes.language import LanguageModelConfig, Recipe, called, corpus, ensemble, recipe
from joma.recipes.language import curves as recorded
from joma.recipes.language.curves import alive, layer_curves, learned_nothing, mean_over_seeds, steps_of
from joma.recipes.language.text import remember_corpus
from joma.recipes.optimizers import make_optimizer
from joma.runs import Run
from joma.training import Ensemble, train_all

STILL = 0.1  # of what attention moved while it became sparse: what moves by less is frozen

CLAIMS = Claims(unit="%", ceiling=1.0)


TEXT, SHUFFLED = 0, 1  # where the two stand in what is recorded


@dataclass(frozen=True)
class ScanSnapDecoderConfig(LanguageModelConfig):
    """Decoders of several depths trained with SGD at one rate, and twins that read the words in random order."""

    depths: Annotated[tuple[int, ...], Least(1)] = (1, 3)
    rate: float = 5.0
    maps_at: Annotated[tuple[int, ...], Values(rising=True)] = (500, 1000, 1500)
    """Steps at which the slide shows attention, besides 0; the last one is where sparseness is judged."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < (least := 2 * self.maps_at[-1]):
            why = "twice the last of maps_at, to tell whether attention freezes"
            raise ValueError(f"steps must be at least {least}, {why}, got {self.steps}")


def layers_of(depth: int) -> str:
    """A depth in words, and the name under which its networks are recorded."""
    return counted(depth, "layer")


def depths(config: Mapping[str, object]) -> Sequence[int]:
    """The depths of a recorded config."""
    found = config["depths"]
    assert isinstance(found, list | tuple)
    return [int(depth) for depth in found]


def run(config: ScanSnapDecoderConfig, run: Run, progress: Progress) -> None:
    """Train all depths on the text and on its words in random order, with attention maps."""
    text = corpus(config, progress)
    needs_device(config.device, device="cpu")
    remember_corpus(text, run)
    for name, read in (("text", text), ("shuffled", shuffled(text, config.seed))):
        if f"{name}/co-occurrence" not in run:
            found = factors(read.tokens["train"], config.length)
            run.record(0, {f"{name}/{what}": value for what, value in found.items()})
    ensembles = {}
    for depth in config.depths:
        base, name = recipe(config, text, layers=depth, rates=(config.rate, config.rate)), layers_of(depth)
        made = base.with_(optimizer=make_optimizer("sgd", rate=config.rate, clip=config.clip))
        run.keep(f"{name}/rates", lambda made=made: np.array(made.rates))  # type: ignore[misc]
        run.keep(f"{name}/seeds", lambda made=made: np.array(made.seeds))  # type: ignore[misc]
        run.keep(f"{name}/loss by frequency", lambda made=made: language.frequency_loss(made, text))  # type: ignore[misc]
        ensembles[name] = _ensemble(config, made, text)
    train_all(ensembles, run, progress=lambda done, doing: progress(0.98 * done, doing))


def shuffled(text: Corpus, seed: int) -> Corpus:
    """The same corpus with the words of its training text in random order: frequencies stay, all else is lost."""
    train = text.tokens["train"]
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    return replace(text, tokens=text.tokens | {"train": train[order]})


FACTORS = ("co-occurrence", "discriminancy")
PARTS, QUERIES, CONTEXT, NEXT, MOST = 5, 10, 100, 50, 10_000
"""Pieces of the text, each a repetition; how many frequent words are queries, are looked at before a query, and are
told from each other after it; and occurrences of a query that are read per piece."""


def factors(tokens: Tensor, length: int) -> dict[str, Tensor]:
    """The two factors of saliency, (parts, queries, words) each, where a block with one query m predicts what is next.

    co-occurrence: P(l|m), that word l is among the last `length` before m. discriminancy: |E[g|l, m]|², where g_k is
    1[k is next] - P(k|m), without the bias of few occurrences: the product of means over either half of the piece.
    """
    often = torch.bincount(tokens.long())
    often[0] = 0  # words outside the vocabulary
    words = often.argsort(descending=True, stable=True)[: max(QUERIES, CONTEXT, NEXT)]
    place = torch.full((len(often),), len(words)).scatter(0, words, torch.arange(len(words)))
    pieces = [_factors(part, length, len(words)) for part in place[tokens.long()].tensor_split(PARTS)]
    return {name: torch.stack([piece[k] for piece in pieces]) for k, name in enumerate(FACTORS)}


def _factors(places: Tensor, length: int, words: int) -> tuple[Tensor, Tensor]:
    """Of one piece, (queries, words): words are numbered by how frequent they are, all others are `words`."""
    found = []
    for query in range(min(QUERIES, words)):
        at = (places[:-1] == query).nonzero()[:, 0]
        at = at[at >= length][:MOST]
        before = places[at[:, None] - torch.arange(1, length + 1)]
        on = torch.zeros(len(at), words + 1, dtype=torch.float64).scatter_(1, before, 1.0)[:, : min(CONTEXT, words)]
        after = places[at + 1].clamp(max=min(NEXT, words))
        g = torch.nn.functional.one_hot(after, min(NEXT, words) + 1).double()
        g = g - g.mean(0)
        halves = zip(on.tensor_split(2), g.tensor_split(2), strict=True)  # neighbours share what was read before them
        first, second = (seen.mT @ then / seen.sum(0)[:, None].clamp(min=1) for seen, then in halves)
        found.append((on.mean(0), (first * second).sum(-1)))
    often, tells = zip(*found, strict=True)
    return torch.stack(often), torch.stack(tells)


def _ensemble(config: ScanSnapDecoderConfig, made: Recipe, text: Corpus) -> Ensemble:
    own, twin = ensemble(made, text), ensemble(made, shuffled(text, config.seed))

    def batch(step: int, members: Sequence[int]) -> tuple[Tensor, ...]:
        parts = zip(own.batch(step, members), twin.batch(step, members), strict=True)
        which = [member // len(made.seeds) for member in members]
        return tuple(torch.stack(pair)[which] for pair in parts)  # (members, streams, length)

    spoken = streams(text.tokens["valid"], made.valid_streams).long().to(config.device)
    inputs, _ = windows(spoken, config.length)
    single = inputs[made.sequence, :1].contiguous()
    measures = {"valid": own.measures["valid"], "map": lambda decoder, members: lowest_attention(decoder, single)}
    points = {*range(0, config.steps + 1, config.every), *config.maps_at, config.steps - config.maps_at[-1]}
    return replace(own, batch=batch, measures=measures, measure_at=tuple(sorted(points)))


def lowest_attention(decoder: Decoder, tokens: Tensor) -> Tensor:
    """Attention of the lowest layer on one sequence, (members, queries, keys), averaged over heads."""
    seen: list[Tensor] = []

    def look(layer: int, name: str, value: Tensor) -> None:
        if layer == 0 and name == "attention":  # (members, batch, heads, queries, keys)
            seen.append(value[:, 0].float().mean(1))

    decoder.features(tokens, look=look)
    return seen[0]


def maps(run: Run, depth: int, step: int) -> np.ndarray:
    """The recorded attention maps of one step, (texts, seeds, queries, keys)."""
    found, name = np.asarray(run.at(f"{layers_of(depth)}/map", step)), layers_of(depth)
    return found.reshape(len(run.value(f"{name}/rates")), -1, *found.shape[1:])


def moved(run: Run, depth: int, start: int, end: int) -> np.ndarray:
    """Which share of attention lies elsewhere at `end` than at `start`, mean over queries: (texts, seeds), 0 to 1."""
    change = np.abs(maps(run, depth, end) - maps(run, depth, start)).sum(-1) / 2
    return np.asarray(change[..., 1:].mean(-1))  # the first query has nowhere else to look


def _unlearned(claim: Claim, expected: str, run: Run) -> Finding | None:
    for layers in depths(run.config):
        if reason := learned_nothing(run, layers_of(layers), rate=TEXT):
            return not_run(claim, expected, reason, steps=2 * run.config["steps"])
    return None


def _lost(run: Run, layers: int, text: int, step: int) -> np.ndarray:
    name = layers_of(layers)
    curves, kept = layer_curves(run, name, rate=text)[0], alive(run, name)[text]  # (seeds, points)
    at = int(np.flatnonzero(steps_of(run, name) == step)[0])
    found = np.full(len(kept), np.nan)
    found[kept] = 1 - curves[:, at] / curves[:, 0]
    return found


@CLAIMS.declare("attention-becomes-sparse", "JoMA talk slide WikiText2", matters=0.05)
def _sparse(run: Run, claim: Claim) -> Finding:
    """Attention in the lowest layer becomes sparse over the first 1500 steps of SGD at rate 5, in 1 and in 3 layers.

    What is lost of the untrained network's entropy, against what the twin loses that reads words in random order.
    """
    step = int(run.config["maps_at"][-1])
    expected = (
        f"At step {step:,} the lowest layer has lost at least {show(0.05, '%')} more of its untrained entropy than the "
        "untrained network (nothing) and than a twin that reads the same words in random order."
    )
    if untold := _unlearned(claim, expected, run):
        return untold
    cases: dict[str, Comparison] = {}
    details: dict[str, dict[str, float]] = {}
    for layers in depths(run.config):
        own, twin = (_lost(run, layers, text, step) for text in (TEXT, SHUFFLED))
        (cases[layers_of(layers)],) = hardest(claim, {"nothing": compare(own), "twin": compare(own, twin)}).values()
        details[f"share lost with {layers_of(layers)}"] = {
            f"at step {step:,}": mean_over_seeds(own),
            f"by the twin at step {step:,}": mean_over_seeds(twin),
            "at the end": mean_over_seeds(_lost(run, layers, TEXT, int(run.config["steps"]))),
        }
    return by_effect(
        claim, cases, expected=expected, what="share of the entropy that is lost", details=details | _context(run)
    )


@CLAIMS.declare("attention-freezes", "JoMA talk slide Frozen", matters=0.1, uses=("scan-snap/attention-frozen",))
def _frozen(run: Run, claim: Claim) -> Finding:
    """Once attention is sparse it is frozen: later training hardly moves it.

    How far the map moves in the first steps against as many of the last, on one held-out sequence.
    """
    step, end = int(run.config["maps_at"][-1]), int(run.config["steps"])
    expected = (
        f"The attention map moves far in the first {step:,} steps, and in the last {step:,} of {end:,} by at most "
        f"{show(STILL, '%')} of that."
    )
    if untold := _unlearned(claim, expected, run):
        return untold
    cases: dict[str, Comparison] = {}
    late_share, details = [], {}
    for layers in depths(run.config):
        kept, spans = alive(run, layers_of(layers))[TEXT], ((0, step), (end - step, end))
        early, late = (np.where(kept, moved(run, layers, *span)[TEXT], np.nan) for span in spans)
        cases[layers_of(layers)] = compare(early, late)
        late_share.append(mean_over_seeds(late) / mean_over_seeds(early))
        details[f"share of attention that moves with {layers_of(layers)}"] = {
            f"in the first {step:,} steps": mean_over_seeds(early),
            f"in the last {step:,}": mean_over_seeds(late),
        }
    what = "share of attention that moves"
    size = [at_most("largest late movement as a share of the early one", max(late_share), STILL, "%")]
    return by_effect(claim, cases, expected=expected, what=what, size=size, details=details | _context(run))


@CLAIMS.declare("common-words-tell-less", "JoMA Sec. 3.1", ceiling=None, matters=0.01, uses=("block/saliency",))
def _factors_of_saliency(run: Run, claim: Claim) -> Finding:
    """Saliency is discriminancy times co-occurrence; in a text the words that a query meets most tell least of what
    comes next.

    Expected: the discriminancy of all other words is at least 1 % above that of the fifth that a query meets most, and
    above what it is for words in random order.

    Discriminancy is the distance between P(next|l, m) and P(next|m), the root of its mean square over words.
    """
    if "text/co-occurrence" not in run:
        return not_run(claim, claim.expected, "this record lacks the factors of saliency", at_paper_scale(STUDY.name))
    fifths = by_fifth(run, "text")
    common, others = _root(fifths[:, 0]), _root(fifths[:, 1:].mean(1))
    random = _root(by_fifth(run, "shuffled")[:, 1:].mean(1))
    beyond = clears("discriminancy of other words beyond random order", compare(others, random), "%", matters=0.01)
    what = "discriminancy of words (control: the fifth that is met most)"
    return by_effect(claim, compare(others, common), what=what, over="pieces of the text", controls=[beyond])


def by_fifth(run: Run, name: str) -> np.ndarray:
    """Discriminancy squared, (parts, 5), of a fifth of the words each: first that which a query meets most."""
    often, tells = (run.value(f"{name}/{what}") for what in FACTORS)
    ordered = np.take_along_axis(tells, np.argsort(-often, axis=-1), -1)
    return np.stack([part.mean((1, 2)) for part in np.array_split(ordered, 5, axis=-1)], -1)


def _root(squares: np.ndarray) -> np.ndarray:
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)))  # without bias, so that chance may make it negative


def _context(run: Run) -> dict[str, dict[str, float]]:
    names = [layers_of(layers) for layers in depths(run.config)]
    losses = {
        f"{name}{', words in random order' * text}": mean_over_seeds(recorded.best_loss(run, name)[text])
        for name in names
        for text in (TEXT, SHUFFLED)
    }
    finite = {name: loss for name, loss in losses.items() if np.isfinite(loss)}
    return {"best validation loss": finite} | recorded.diverged(run, names)


def draw(run: Run) -> list[Drawing]:
    """Attention maps over training, and entropy against the twin's."""
    return [_draw_maps(run), _draw_entropy(run)]


def _draw_maps(run: Run) -> Drawing:
    steps = [0, *run.config["maps_at"], run.config["steps"]]
    rows = depths(run.config)
    figure, axes = panels(len(steps), len(rows), width=2.0, height=2.1)
    for layers, row in zip(rows, np.array(axes).reshape(len(rows), len(steps)), strict=True):
        for step, axis in zip(steps, row, strict=True):
            attention = maps(run, layers, step)[TEXT, 0]
            past = np.tril(np.ones_like(attention)) > 0  # the rest is the future, which no query sees
            shade = np.where(past, np.sqrt(attention), np.nan)
            axis.imshow(shade, cmap="Greys", vmin=0, vmax=float(np.sqrt(attention[1:]).max()))
            axis.tick_params(labelsize=7)
            axis.set_title(f"step {step:,}", fontsize=9)
            axis.set_xlabel("key" if layers == rows[-1] else " ", fontsize=8)
            axis.set_ylabel(f"{layers_of(layers)}: query" if step == 0 else " ", fontsize=8)
    # What queries give to their favourite key, a mean over those that have a choice.
    top = {n: [float(maps(run, n, step)[TEXT, 0][1:].max(-1).mean()) for step in steps] for n in rows}
    ends = listing(f"{number(top[n][0], '%')} to {number(top[n][-1], '%')} with {layers_of(n)}" for n in rows)
    last = int(run.config["maps_at"][-1])
    shares = {n: float(np.nanmean(moved(run, n, steps[-1] - last, steps[-1])[TEXT])) for n in rows}
    late = listing(f"{number(share, '%')} with {layers_of(n)}" for n, share in shares.items())
    caption = (
        f"What a query gives to its favourite key goes from {ends} (first seed). In the last {last:,} of "
        f"{steps[-1]:,} steps, part of attention still moves to another key: {late} (mean over seeds). Attention of "
        f"the lowest layer on one held-out sequence of {called(run.config['corpus'])}, SGD at rate "
        f"{run.config['rate']:g}; darker is more attention, each map on its own scale of square roots. Rows: depth. "
        "Columns: training step."
    )
    return Drawing("attention-maps", caption, figure)


def _draw_entropy(run: Run) -> Drawing:
    rows = depths(run.config)
    figure, axes = panels(len(rows) + 1, width=4.0)
    for layers, axis in zip(rows, axes, strict=False):
        for text, colour, name in ((TEXT, BLUE, "text"), (SHUFFLED, CONTROL, "random\norder")):
            steps, curves = steps_of(run, layers_of(layers)), layer_curves(run, layers_of(layers), rate=text)[0]
            if len(curves):
                mean_and_band(axis, steps, curves, over=0, color=colour, label=name)
        axis.axvline(run.config["maps_at"][-1], color=INK, lw=0.7, ls=":")
        axis.set(ylabel="attention entropy (nats)", ylim=(0, None))
        axis.set_title(f"{layers_of(layers)}")
        step_axis(axis)
    step, lost = int(run.config["maps_at"][-1]), []
    for layers in depths(run.config):
        name, shares = layers_of(layers), []
        for text in (TEXT, SHUFFLED):
            curve = layer_curves(run, name, rate=text)[0].mean(0)
            shares.append(1 - curve[steps_of(run, name) == step][0] / curve[0])
        lost.append(f"{number(shares[0], '%')} with {name} (shuffled: {number(shares[1], '%')})")
    caption = (
        f"At step {step:,} attention of the lowest layer has lost {listing(lost)} of its untrained entropy. Shuffled: "
        f"the same words in random order. Lines: mean of {run.config['seeds']} seeds on held-out text of "
        f"{called(run.config['corpus'])}; bands: their range. Dotted: step {step:,}, the slide's last map."
        + _draw_factors(axes[-1], run)
    )
    return Drawing("entropy-over-training", caption, figure)


def _draw_factors(axis: Axes, run: Run) -> str:
    """Discriminancy by co-occurrence; returns what the caption says of it."""
    ends = []
    for name, colour, label in (("text", BLUE, "text"), ("shuffled", CONTROL, "random order")):
        if f"{name}/co-occurrence" in run:
            values = 100 * _root(by_fifth(run, name))
            mean_and_band(axis, np.arange(1, 6), values, over=0, color=colour, label=label)
            ends.append(values.mean(0))
    axis.set(
        xlabel="fifth of words, met most to least", ylabel="discriminancy (%)", title="What words tell of the next"
    )
    if not ends:
        return ""
    return (
        f" Last panel: words that a query meets most tell {number(ends[0][0])} % of what comes next, the next fifth "
        f"{number(ends[0][1])} %."
    )


STUDY = Study(
    name="scan-snap-decoder",
    title="Attention maps of decoders trained with SGD: sparse, then frozen?",
    version=2,
    claims=CLAIMS,
    quick=ScanSnapDecoderConfig(
        vocabulary=200, width=16, mlp=16, dropout=0.0, streams=4, valid_sequences=3, sequence=5, steps=180, every=45,
        maps_at=(30, 60, 90),
        seeds=12,  # five of 1 on left one claim open that asked for ten; twelve of 500 on decided it
        seed=100,
    ),
    paper=ScanSnapDecoderConfig(**language.PAPER | {"steps": 10_000, "every": 500, "valid_sequences": 60}, seeds=10),
    run=run,
    draw=draw,
    check=language.same_text,
    about=(
        "Decoders of one and of three layers read a text with SGD at rate 5, the recipe of Figures 6 and 8 otherwise. "
        "The lowest layer's attention is recorded on one held-out sequence at the steps of the slide, and its mean "
        "entropy on held-out text. Others read the same words in random order: what they lose of their entropy needs "
        "no context. A network that learns no more than how frequent words are does not count."
    ),
)  # fmt: skip
