"""Does the loss of language models fall with data by an exponent that two statistics of the text give?

Cagnetta, Raventós, Ganguli and Wyart (2602.07488) say that it does: with P tokens a network makes use of a context of
up to n(P) ~ P^(1/2β) tokens, where token correlations fall like n^-β, and the entropy of the next token given n tokens
falls like n^-γ; so the loss falls like P^-γ/(2β). The paper's abstract and Figure 1 with its caption were at hand. How
they fit the exponents was not: the ranges of the fits are ours.

- β: the largest singular value of P(a, then b n tokens later) - P(a) P(b), over lags n, of all the text
- γ: the loss by the length of the context, of networks that see the most data, where it is lowest
- measured: the lowest loss on held-out text over training, over seven sizes of data

The controls are the same tokens in random order, and a Markov text drawn from the text's own pairs of tokens: there γ
is 0 beyond one token by construction, and correlations fall exponentially. A further rival is a fit to the smaller half
of the sizes: it knows losses, and the theory does not.

Networks are limited by data only if they train until the loss on held-out text rises again. Where it does not, nothing
is decided. Quick scale is too short for its larger sizes. It leaves the law and γ to paper scale and measures the
correlations, over parts of the text in place of seeds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from joma.claims.contract import Above, Claim, Drawing, Finding, Least, Progress, Study, StudyConfig, Values, Within
from joma.claims.declare import Claims
from joma.claims.guards import at_paper_scale, hardest, needs_device, no_more
from joma.claims.verdicts import Test, below, by_effect, not_run, only_at_paper_scale
from joma.figures.bands import mean_and_band
from joma.figures.reading import number
from joma.figures.style import BLUE, CONTROL, GREEN, ORANGE, panels
from joma.host.seeds import generator
from joma.measure.intervals import compare
from joma.models.decoder import Decoder, DecoderConfig
from joma.recipes.grid import Grid, ensemble
from joma.recipes.language import PYTHON, LanguageModelConfig, corpus, same_text
from joma.recipes.language.text import remember_corpus
from joma.recipes.optimizers import make_optimizer
from joma.runs import Run
from joma.training import Ensemble, next_token_loss, train_all
from joma.training.ensemble import Precision

TEXT, SHUFFLED, MARKOV = "text", "shuffled", "Markov"
KINDS = (TEXT, SHUFFLED, MARKOV)
POWERS = 100  # of a matrix times its transpose: what is left of the second largest singular value is small


@dataclass(frozen=True)
class LanguageExponentConfig(StudyConfig):
    """Decoders that train on parts of a text. Quick scale: tiny ones, on Python source."""

    corpus: str = PYTHON
    """The text: sympy, wikitext-2 or wikitext-103, or a text file."""
    data: str = ""
    """The folder that holds the folder of the corpus; empty: JOMA_DATA."""
    tokens: int = 100_000
    """Tokens of the text to read at most."""
    vocabulary: int = 100
    """Words at most."""
    sizes: Annotated[tuple[int, ...], Values(4, "for a law and a fit to half of them", rising=True)] = (
        500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000,
    )  # fmt: skip
    """Tokens that networks train on."""
    layers: int = 1
    width: int = 24
    heads: int = 2
    mlp: int = 48
    length: Annotated[int, Least(8, "for a law over contexts")] = 16
    """Tokens per sequence: the longest context."""
    batch: Annotated[int, Least(1)] = 4
    steps: Annotated[int, Least(2)] = 100
    every: Annotated[int, Least(1)] = 20
    """Steps between two measuring points."""
    rate: Annotated[float, Above(0)] = 0.01
    valid: Annotated[int, Least(1)] = 100
    """Sequences that losses are measured on."""
    seeds: Annotated[int, Least(2, "for an interval")] = 5
    seed: int = 600
    device: str = "cpu"
    precision: Precision = "float32"
    unlimited: Annotated[float, Within(0, 1)] = 0.9
    """A size counts as limited by data if its loss is lowest before this share of training is over."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.text, self.shape(2)  # what cannot be read or built is refused now
        if self.sizes[0] <= self.length:
            raise ValueError(f"sizes must be above length, {self.length}, or no sequence is left, got {self.sizes[0]}")

    @property
    def text(self) -> LanguageModelConfig:
        return LanguageModelConfig(corpus=self.corpus, data=self.data, tokens=self.tokens, vocabulary=self.vocabulary)

    def shape(self, words: int) -> DecoderConfig:
        return DecoderConfig(
            words, layers=self.layers, width=self.width, heads=self.heads, mlp=self.mlp, context=self.length,
            norm="pre-layer", activation="gelu", positions="learned",
        )  # fmt: skip


def correlations(tokens: Tensor, words: int, lags: Sequence[int]) -> Tensor:
    """(lags,): the largest singular value of P(a, then b so many tokens later) - P(a) P(b), for a text (tokens,).

    Found by powers of the matrix times its transpose, neither of which is written out: words may be many.
    """
    found = []
    for lag in lags:
        first, second = tokens[:-lag].long().numpy(), tokens[lag:].long().numpy()
        left, right = (np.bincount(part, minlength=words) / len(first) for part in (first, second))
        seen = csr_array((np.full(len(first), 1 / len(first)), (first, second)), shape=(words, words))
        v = np.random.default_rng(0).standard_normal(words)
        for _ in range(POWERS):
            u = seen @ v - left * (right @ v)
            v = seen.T @ u - right * (left @ u)
            v = v / max(float(np.linalg.norm(v)), 1e-300)
        found.append(np.linalg.norm(seen @ v - left * (right @ v)))
    return torch.tensor(found, dtype=torch.float64)


def in_parts(tokens: Tensor, words: int, lags: Sequence[int], parts: int) -> Tensor:
    """(parts, lags): `correlations` of as many equal parts of the text, one after the other."""
    return torch.stack([correlations(part, words, lags) for part in tokens.chunk(parts)])


def markov(tokens: Tensor, words: int, count: int, seed: int) -> Tensor:
    """A text (count,) in which each word follows from the one before, as often as in `tokens`."""
    first = tokens[:-1].long()
    seen = torch.bincount(first, minlength=words)
    followers = tokens[1:].long()[first.argsort(stable=True)].tolist()  # of each word in turn
    begins, counts = (seen.cumsum(0) - seen).tolist(), seen.tolist()
    luck = torch.rand(count, generator=generator(seed, "Markov text"), dtype=torch.float64).tolist()
    made, start = [], int(tokens[0])
    word = start
    for share in luck:  # the last word of the text may be followed by none
        word = followers[begins[word] + int(share * counts[word])] if counts[word] else start
        made.append(word)
    return torch.tensor(made)


def texts(train: Tensor, valid: Tensor, words: int, seed: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Each kind of text: to train on, and held out."""

    def mixed(part: Tensor, name: str) -> Tensor:
        return part[torch.randperm(len(part), generator=generator(seed, "order", name))]

    made = markov(train, words, len(train) + len(valid), seed)
    return {
        TEXT: (train, valid),
        SHUFFLED: (mixed(train, "train"), mixed(valid, "valid")),
        MARKOV: (made[: len(train)], made[len(train) :]),
    }


class Members:
    """All networks on one kind of text: size after size, each with its seeds."""

    def __init__(self, config: LanguageExponentConfig, parts: tuple[Tensor, Tensor], words: int) -> None:
        self.config, self.words = config, words
        self.grid = Grid(config.sizes, config.seeds, config.seed)
        train, valid = (part.long() for part in parts)
        if len(train) < config.sizes[-1] or len(valid) < config.valid * (config.length + 1):
            raise ValueError(f"the text has {len(train):,} tokens to train on and {len(valid):,} others, too few")
        self.train = train
        self.valid = valid[: config.valid * (config.length + 1)].view(config.valid, -1).to(config.device)
        room = len(train) - config.sizes[-1] + 1
        self.starts = [int(torch.randint(room, (), generator=generator(seed, "stretch"))) for seed in self.grid.seed_of]

    def ensemble(self) -> Ensemble:
        return ensemble(
            self.config,
            len(self.grid),
            networks=lambda members: Decoder(self.config.shape(self.words), [self.grid.seed_of[m] for m in members]),
            batch=self.batch,
            loss=next_token_loss,
            optimizer=make_optimizer("adam", rate=self.config.rate, betas=(0.9, 0.95), clip=1.0),
            measures={"held out": self.losses},
            measure_at=tuple(range(0, self.config.steps + 1, self.config.every)),
        )

    def batch(self, step: int, members: Sequence[int]) -> tuple[Tensor, Tensor]:
        share = torch.stack([
            torch.rand(self.config.batch, generator=generator(self.grid.seed_of[m], "places", step)) for m in members
        ])  # fmt: skip
        rooms = torch.tensor([self.grid.cell[m] - self.config.length for m in members])
        starts = torch.tensor([self.starts[m] for m in members])
        places = starts[:, None] + (share * rooms[:, None]).long()
        read = self.train[places[..., None] + torch.arange(self.config.length + 1)].to(self.config.device)
        return read[..., :-1].contiguous(), read[..., 1:].contiguous()

    def losses(self, decoder: Decoder, members: Sequence[int]) -> Tensor:
        """(members, length): on held-out text, by the number of tokens in the context."""
        found = []
        for piece in self.valid.split(16):
            logs = decoder(piece[:, :-1]).float().log_softmax(-1)
            target = piece[:, 1:, None].expand(len(members), -1, -1, -1)
            found.append(-logs.gather(-1, target)[..., 0].sum(1))
        return torch.stack(found).sum(0) / len(self.valid)


def run(config: LanguageExponentConfig, run: Run, progress: Progress) -> None:
    """Measure the correlations of all texts, and train on parts of each."""
    needs_device(config.device, at_paper_scale("language-exponent"))
    text = corpus(config.text, progress)
    remember_corpus(text, run)
    words = len(text.vocabulary)
    kinds = texts(text.tokens["train"], text.tokens["valid"], words, config.seed)
    lags = lags_of(config.length)
    for kind, (train, _) in kinds.items():
        progress(0.01, f"correlations of the {kind} tokens")
        run.keep(f"{kind}/correlations", lambda train=train: in_parts(train, words, lags, config.seeds))  # type: ignore[misc]
    train_all(
        {kind: Members(config, parts, words).ensemble() for kind, parts in kinds.items()},
        run,
        progress=lambda share, doing: progress(0.02 + 0.98 * share, doing),
    )


def lags_of(length: int) -> list[int]:
    """Powers of two up to the longest context."""
    return [2**power for power in range(length.bit_length()) if 2**power <= length]


# ---- what is read from the record

CLOSE = 0.25  # by which share a measured exponent may be off the predicted one
FLOOR = 2.0  # times the correlations of shuffled tokens: smaller ones are counted as noise
LAGS = 4  # fewest lags at which a power law and an exponential can be told apart
FIRST = 2  # the shortest context of the fit of γ: one token is the Markov text's


def slope(x: Any, y: Any) -> Any:
    """Minus the exponent of a power law y(x) over the last dimension, by least squares of the logarithms."""
    x, y = np.log(np.asarray(x, float)), np.log(np.asarray(y, float))
    away = x - x.mean()
    return -((y - y.mean(-1, keepdims=True)) * away).sum(-1) / (away**2).sum()


class Record:
    """What a run recorded of one kind of text."""

    def __init__(self, run: Run, kind: str = TEXT) -> None:
        self.run, self.kind, self.sizes = run, kind, np.array(run.config["sizes"])
        found = run.array(f"{kind}/held out")  # (points, members, length)
        by_cell = Grid(tuple(self.sizes), int(run.config["seeds"])).fold(found, axis=1)
        self.curves = by_cell.mean(-1)  # (points, sizes, seeds)
        self.lowest = self.curves.min(0)
        at = self.curves[:, -1].argmin(0)
        self.by_context = np.stack([by_cell[point, -1, seed] for seed, point in enumerate(at)])  # (seeds, length)

    @property
    def exponents(self) -> Any:
        return slope(self.sizes, self.lowest.T)

    @property
    def gamma(self) -> Any:
        contexts = np.arange(1, self.by_context.shape[1] + 1)
        return slope(contexts[FIRST - 1 :], self.by_context[:, FIRST - 1 :])

    @property
    def lags(self) -> Any:
        lags = np.array(lags_of(int(self.run.config["length"])))
        own, noise = (self.run.value(f"{kind}/correlations").mean(0) for kind in (self.kind, SHUFFLED))
        low = np.flatnonzero(own <= FLOOR * noise)
        return lags[: low[0] if len(low) else len(lags)]

    @property
    def correlations(self) -> Any:
        return self.run.value(f"{self.kind}/correlations")[:, : len(self.lags)]

    @property
    def beta(self) -> Any:
        """(parts of the text,); NaN where fewer than two lags are above noise."""
        return slope(self.lags, self.correlations) if len(self.lags) > 1 else np.full(len(self.correlations), np.nan)

    @property
    def predicted(self) -> Any:
        return self.gamma / (2 * self.beta.mean())

    def limited(self, name: str) -> Test:
        """That the loss of the largest size is lowest before the end, in every seed."""
        steps = self.run.steps(f"{self.kind}/held out")
        last = steps[self.curves.argmin(0).max()] / steps[-1]  # of all sizes and seeds
        return Test(f"{name}, share of training at the lowest loss", float(last), "<=",
                    float(self.run.config["unlimited"]), "%")  # fmt: skip


COMMAND = at_paper_scale("language-exponent")
CLAIMS = Claims(source="Cagnetta et al. 2026 p. 1")


def _data_limits(run: Run, claim: Claim) -> Finding | None:
    """At quick scale networks are not limited by data: the law cannot be seen."""
    if Record(run).limited(TEXT).passes or run.config["device"] != "cpu":
        return None
    reason = "the loss of networks with the most data still falls when training ends, so that data does not limit them"
    return only_at_paper_scale(claim, claim.expected, reason, COMMAND)


@CLAIMS.declare("exponent-from-statistics", matters=0.02)
def _law(run: Run, claim: Claim) -> Finding:
    """The loss falls with data like P^-γ/(2β), with γ from the entropy by context and β from correlations of tokens.

    Expected: the exponent is at least 0.02 above that on the same tokens in random order and on a Markov text, and
    within {CLOSE:.0%} of γ/(2β).
    """
    if (later := _data_limits(run, claim)) is not None:
        return later
    text, shuffled, chain = (Record(run, kind) for kind in KINDS)
    controls = {other.kind: compare(text.exponents, other.exponents) for other in (shuffled, chain)}
    ((control, found),) = hardest(claim, controls).items()
    off = np.abs(text.exponents / text.predicted - 1)
    details = {"text": {"exponent": text.exponents.mean(), "predicted": text.predicted.mean(),
                        "gamma": text.gamma.mean(), "beta": text.beta.mean()}}  # fmt: skip
    details |= {other.kind: {"exponent": other.exponents.mean(), "gamma": other.gamma.mean()}
                for other in (shuffled, chain)}  # fmt: skip
    return by_effect(
        claim, {f"beside the {control} tokens": found}, what="exponent of the loss",
        size=[no_more("share by which it is off γ/(2β)", compare(off), CLOSE, "%")], horizon=[text.limited(TEXT)],
        details=details,
    )  # fmt: skip


@CLAIMS.declare("better-than-a-fit", unit="nats", matters=0.02)
def _rival(run: Run, claim: Claim) -> Finding:
    """The predicted exponent says more about larger data than an exponent that is fitted to smaller data.

    Expected: from the loss at the middle size, γ/(2β) predicts the losses of larger sizes by at least 0.02 nats better
    than the exponent fitted to the sizes up to the middle one.
    """
    if (later := _data_limits(run, claim)) is not None:
        return later
    text = Record(run)
    middle = len(text.sizes) // 2
    fitted = slope(text.sizes[: middle + 1], text.lowest[: middle + 1].T)
    off = [_off(text, middle, exponent) for exponent in (fitted, text.predicted)]
    what = "error on larger sizes of a fit (control: of γ/(2β))"
    return by_effect(claim, compare(*off), what=what, horizon=[text.limited(TEXT)],
                     details={"exponents": {"fit": fitted.mean(), "predicted": text.predicted.mean()}})  # fmt: skip


def _off(text: Record, middle: int, exponent: Any) -> Any:
    """(seeds,): mean distance of larger sizes' losses from a power law through the middle one's."""
    larger = (text.sizes[middle + 1 :] / text.sizes[middle])[:, None] ** -exponent * text.lowest[middle]
    return np.abs(larger - text.lowest[middle + 1 :]).mean(0)


@CLAIMS.declare("longer-contexts-tell-more", matters=0.02)
def _entropy(run: Run, claim: Claim) -> Finding:
    """The entropy of the next token falls like a power of the length of the context.

    Expected: γ is at least 0.02 above that of the same tokens in random order and of a Markov text.
    """
    if (later := _data_limits(run, claim)) is not None:
        return later
    text, shuffled, chain = (Record(run, kind) for kind in KINDS)
    controls = {other.kind: compare(text.gamma, other.gamma) for other in (shuffled, chain)}
    ((control, found),) = hardest(claim, controls).items()
    return by_effect(claim, {f"beside the {control} tokens": found}, what="gamma", horizon=[text.limited(TEXT)])


@CLAIMS.declare("correlations-fall-like-a-power", unit="nats", matters=0.05)
def _correlations(run: Run, claim: Claim) -> Finding:
    """Correlations of tokens fall with their distance like a power law, and not exponentially.

    Expected: over lags that are powers of two, with correlations above {FLOOR:g} times those of shuffled tokens, their
    logarithms are nearer to the best power law than to the best exponential, by at least 0.05 nats; there are at least
    {LAGS} such lags in the text, and fewer in a Markov text.
    """
    text, chain = Record(run), Record(run, MARKOV)
    if len(text.lags) < LAGS:
        return not_run(claim, claim.expected, f"correlations are above noise at {len(text.lags)} lags only", COMMAND)
    logs = np.log(text.correlations)
    found = compare(*(_misfit(axis, logs) for axis in (text.lags, np.log(text.lags))))
    fewer = [below("lags above noise in a Markov text", len(chain.lags), len(text.lags))]
    details = {"text": {"lags above noise": float(len(text.lags)), "beta": text.beta.mean()}}
    what = "distance from an exponential (control: from a power law)"
    return by_effect(claim, found, what=what, over="parts of the text", size=fewer, details=details)


def _misfit(x: Any, y: Any) -> Any:
    """(...): root of the mean squared distance of y (..., points) from the best straight line over x."""
    line = np.polynomial.polynomial.polyfit(x, y.T, 1)
    return np.sqrt(((y - (line[0][:, None] + line[1][:, None] * x)) ** 2).mean(-1))


def draw(run: Run) -> list[Drawing]:
    """Both statistics with their laws, and losses over data with the prediction."""
    records = {kind: Record(run, kind) for kind in KINDS}
    figure, (entropy, correlation, losses) = panels(3)
    for (kind, record), colour in zip(records.items(), (BLUE, CONTROL, ORANGE), strict=True):
        contexts = np.arange(1, record.by_context.shape[1] + 1)
        mean_and_band(entropy, contexts, record.by_context.T, color=colour, label=kind)
        lags = lags_of(int(run.config["length"]))
        mean_and_band(
            correlation, lags, run.value(f"{kind}/correlations").T, color=colour, label=kind, marker="o", ms=3
        )
        mean_and_band(losses, record.sizes, record.lowest, color=colour, label=kind)
    text = records[TEXT]
    law = text.lowest[0].mean() * (text.sizes / text.sizes[0]) ** -text.predicted.mean()
    losses.plot(text.sizes, law, color=GREEN, ls="--", label="predicted slope")
    for axis, title, x, y in (
        (entropy, "Entropy by context", "tokens in the context", "loss of the next token (nats)"),
        (correlation, "Correlations by lag", "lag (tokens)", "largest singular value"),
        (losses, "Loss by data", "tokens to train on", "lowest loss (nats)"),
    ):
        axis.set(title=title, xlabel=x, ylabel=y, xscale="log", yscale="log")
        axis.legend(fontsize=7.5)
    exponent, predicted, gamma, beta = (
        float(values.mean()) for values in (text.exponents, text.predicted, text.gamma, text.beta)
    )
    caption = (
        f"The loss falls with an exponent of {number(exponent)}, and γ/(2β) is {number(predicted)}. "
        if text.limited(TEXT).passes
        else "Networks with the most data still learn when training ends: only the correlations are decided. "
    )
    caption += (
        f"Left: loss by length of the context, of networks with the most data (γ = {number(gamma)}). Middle: "
        f"correlations of tokens (β = {number(beta)}). Right: the lowest loss over training by size of the data; the "
        "dashed line has the predicted slope and begins at the smallest size. Bands go from the lowest of "
        f"{run.config['seeds']} seeds, or parts of the text, to the highest. Controls: tokens in random order, and a "
        "Markov text."
    )
    return [Drawing("loss-by-data", caption, figure, labels=False)]


def check(config: LanguageExponentConfig, run: Run) -> None:
    """The text of a finished run is still the one that is found."""
    same_text(config.text, run)


STUDY = Study(
    name="language-exponent",
    title="Scaling with data: an exponent from two statistics of the text",
    version=1,
    claims=CLAIMS,
    quick=LanguageExponentConfig(),
    paper=LanguageExponentConfig(
        corpus="wikitext-2", tokens=1_000_000_000, vocabulary=1_000, layers=3, width=128, heads=4, mlp=512, length=64,
        sizes=(8_192, 16_384, 32_768, 65_536, 131_072, 262_144, 524_288), batch=16, steps=4_000, every=100,
        rate=1e-3, valid=256, seed=610, device="cuda", precision="tf32",
    ),
    run=run,
    draw=draw,
    check=check,
    about=(
        "Networks train on seven sizes of the same text until the loss on held-out text rises again. Two statistics of "
        "the text predict how that loss falls with data: how much longer contexts tell about the next token, and how "
        "far correlations of tokens reach. Controls are the same tokens in random order, a Markov text, and a fit to "
        "the smaller sizes."
    ),
)  # fmt: skip
