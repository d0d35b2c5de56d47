"""Attention sinks: when the first token comes to draw attention, and whether that needs softmax.

The sizes of the quick scale were tuned until it decided something. The made language was chosen after trials
(`joma.recipes.copying`). For the text at paper scale, depth, rate and length were changed once, after a trial without a
sink.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import nan
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Claim, Drawing, Finding, Least, OneOf, Progress, Study
from joma.claims.declare import Claims
from joma.claims.guards import at_paper_scale, beats_guessing, hardest, needs_device
from joma.claims.rules import of_effect
from joma.claims.verdicts import Effect, Numbers, Test, at_least, at_most, by_effect, not_run
from joma.figures.bands import mean_and_band
from joma.figures.reading import listing, number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, PURPLE, panels, step_axis
from joma.measure.intervals import Comparison, compare
from joma.models.decoder import Decoder
from joma.models.decoder_config import Attention, DecoderConfig
from joma.recipes.copying import Reading, copying, sequences_of, without_fetching
from joma.recipes.grid import Grid, ensemble
from joma.recipes.optimizers import make_optimizer
from joma.runs import Run
from joma.studies.sparsity import _readings as texts
from joma.studies.sparsity._readings import COPY, TEXT, check_text, known_mean
from joma.training import Ensemble, next_token_loss, train_all
from joma.training.ensemble import Precision

COMMAND = at_paper_scale("sinks")
KINDS: tuple[Attention, ...] = ("softmax", "off-by-one", "learned-sink", "sigmoid")
FIRSTS = ("fixed", "free")  # whether every sequence begins with the same token, or with whatever the text has there
KEYS = 4  # the first keys whose mass is recorded one by one


@dataclass(frozen=True)
class SinksConfig(texts.TextConfig):
    """Decoders with four kinds of attention. Quick scale: small ones, on Python source."""

    words: int = 24
    """Of the made language."""
    triggers: int = 6
    """Words of the made language after which attention is needed."""
    pool: int = 2_048
    """Sequences of the made language to train on."""
    text_kinds: Annotated[tuple[str, ...], OneOf(*KINDS)] = ("softmax",)
    """Kinds of attention that read the text; all of them read the made language."""
    firsts: Annotated[tuple[str, ...], OneOf(*FIRSTS)] = ("fixed",)
    """fixed: every sequence begins with the same token; free: with whatever stands there."""
    layers: int = 1
    """Of the networks that read the made language."""
    text_layers: int = 1
    """Of those that read the text."""
    width: int = 32
    heads: int = 1
    mlp: bool = False
    """Whether there is an MLP, four times as wide; without one, only attention itself can stop disturbing."""
    length: Annotated[int, Least(4 * KEYS, "for queries that see many keys")] = 24
    """Tokens per sequence."""
    batch: int = 12
    steps: int = 200
    text_steps: int = 40
    """Steps on the text."""
    every: int = 40
    """Steps between two measuring points."""
    rate: float = 0.015
    text_rate: float = 0.01
    valid: int = 24
    """Sequences that attention is measured on."""
    seeds: Annotated[int, Least(2, "for an interval")] = 4
    seed: int = 0
    device: str = "cpu"
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        if "softmax" not in self.text_kinds:
            raise ValueError(f"text_kinds must hold softmax, which the others are compared with, got {self.text_kinds}")
        if not self.triggers < self.words:
            raise ValueError(
                f"triggers must lie between 1 and {self.words - 1}, all words but one, got {self.triggers}"
            )
        for layers in (self.layers, self.text_layers):
            self.shape(2, "softmax", layers)  # what cannot be built is refused now

    def shape(self, words: int, kind: Attention, layers: int) -> DecoderConfig:
        return DecoderConfig(
            words + 1, layers=layers, width=self.width, heads=self.heads, mlp=4 * self.width if self.mlp else 0,
            context=self.length, norm="pre-layer", activation="gelu" if self.mlp else "identity", attention=kind,
        )  # fmt: skip

    def kinds(self, reading: str) -> tuple[Attention, ...]:
        return KINDS if reading == COPY else tuple(kind for kind in KINDS if kind in self.text_kinds)

    @property
    def variants(self) -> list[tuple[str, Attention]]:
        return [(reading, kind) for reading in (COPY, TEXT) for kind in self.kinds(reading)]


def run(config: SinksConfig, run: Run, progress: Progress) -> None:
    """Train every kind of attention on both readings, and look where attention goes."""
    needs_device(config.device, COMMAND)
    words, triggers, length, valid = config.words, config.triggers, config.length, config.valid
    readings = {
        COPY: copying(words, triggers, length, train=config.pool, valid=valid, seed=config.seed),
        TEXT: texts.read_text(config, run, progress, length, valid),
    }
    for name, reading in readings.items():
        run.keep(f"{name}/words", lambda reading=reading: reading.words)  # type: ignore[misc]
    run.keep("unfetched", lambda: without_fetching(readings[COPY]))
    train_all(
        {f"{name}/{kind}": Members(config, name, kind, readings[name]).ensemble() for name, kind in config.variants},
        run,
        progress=lambda share, doing: progress(0.02 + 0.97 * share, doing),
    )


class Members:
    """All networks of one kind on one reading: those whose first token is fixed, then those where it is free."""

    def __init__(self, config: SinksConfig, name: str, kind: Attention, reading: Reading) -> None:
        self.config, self.reading, self.kind = config, reading, kind
        self.grid = Grid(config.firsts, config.seeds, config.seed)
        made = name == COPY
        self.layers = config.layers if made else config.text_layers
        self.rate, self.steps = (config.rate, config.steps) if made else (config.text_rate, config.text_steps)
        self.train, self.valid = (part.to(config.device) for part in (reading.train, reading.valid))
        self.begins = torch.tensor([first == "fixed" for first in self.grid.cell], device=config.device)

    def ensemble(self) -> Ensemble:
        return ensemble(
            self.config,
            len(self.grid),
            networks=self.networks,
            batch=self.batch,
            loss=next_token_loss,
            optimizer=make_optimizer("adam", rate=self.rate, betas=(0.9, 0.95), clip=1.0),
            steps=self.steps,
            measures={"attention": self.attention},
            measure_at=tuple(range(0, self.steps + 1, self.config.every)),
        )

    def networks(self, members: Sequence[int]) -> Decoder:
        shape = self.config.shape(self.reading.words, self.kind, self.layers)
        return Decoder(shape, [self.grid.seed_of[m] for m in members])

    def batch(self, step: int, members: Sequence[int]) -> tuple[Tensor, Tensor]:
        """(members, batch, length) of what is read and of what follows; which sequences depends on the step alone."""
        return self.begun(sequences_of(self.train, step, self.config.batch), members)

    def begun(self, text: Tensor, members: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Sequences as each member reads them: with its fixed first token, and one token less, or as they are."""
        fixed = torch.cat((text.new_full((len(text), 1), self.reading.first), text[:, :-1]), 1)
        each = torch.where(self.begins[list(members)][:, None, None], fixed, text)
        return each[..., :-1].contiguous(), each[..., 1:].contiguous()

    def attention(self, decoder: Decoder, members: Sequence[int]) -> dict[str, Tensor]:
        """What is recorded, of late queries, which see half of the length or more.

        loss (members,). fetched (members,): the loss after a trigger, where attention is needed; NaN in a text.
        mass (members, layers, heads, KEYS): on each of the first keys. total (members, layers, heads): on all keys.
        replaced: on the first key where another word stands there. moved (members, layers, heads, 2): on the key at a
        quarter of the length where the first word stands instead, and there, as it was.
        """
        read, following = self.begun(self.valid, members)
        place = self.config.length // 4
        other, again = read.clone(), read.clone()
        other[..., 0] = read[..., place].roll(1, -1)  # a word of another sequence
        again[..., place] = read[..., 0]
        as_is, total = _mass(decoder, read)
        asked = read < self.reading.triggers
        asked[..., :2] = False  # nothing to fetch yet, or the fixed first token
        losses: Tensor = -decoder(read).log_softmax(-1).gather(-1, following[..., None])[..., 0]
        return {
            "loss": next_token_loss(decoder, (read, following)),
            "fetched": (losses * asked).sum((1, 2)) / asked.sum((1, 2)),
            "mass": as_is[..., :KEYS],
            "total": total,
            "replaced": _mass(decoder, other)[0][..., 0],
            "moved": torch.stack([_mass(decoder, again)[0][..., place], as_is[..., place]], -1),
        }


def uniform(length: int) -> float:
    """The mass on the first key where late queries attend to all keys alike."""
    return float((1 / torch.arange(length // 2 + 1, length + 1).double()).mean())


def _mass(decoder: Decoder, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over late queries of the weight on each key, (members, layers, heads, keys), and on all, (..., heads)."""
    late = tokens.shape[-1] // 2
    masses, totals = [], []

    def look(layer: int, name: str, value: Tensor) -> None:
        if name == "attention":  # (members, batch, heads, queries, keys)
            weights = value[..., late:, :]
            total = weights.sum(-1)
            masses.append((weights / total.clamp(min=1.0)[..., None]).mean((1, 3)))
            totals.append(total.mean((1, 3)))

    decoder.features(tokens, look=look)
    return torch.stack(masses, 1), torch.stack(totals, 1)


FETCHED = 0.5  # of the loss after a trigger without attention: networks that keep more have not learned to attend
READINGS = {COPY: "made language", TEXT: "text"}  # as findings and figures call them


class Sinks:
    """What a run recorded. Every number is a row over seeds; networks that diverged or did not learn are NaN."""

    def __init__(self, run: Run) -> None:
        self.run, self.config = run, texts.recorded_config(SinksConfig, run)
        self.uniform = uniform(self.config.length)

    def steps(self, reading: str, kind: str) -> Any:
        return self.run.steps(f"{reading}/{kind}/attention/mass")

    def over_steps(self, reading: str, kind: str, what: str = "mass", first: str = "fixed") -> Any:
        start = self.config.firsts.index(first) * self.config.seeds
        return self.run.array(f"{reading}/{kind}/attention/{what}")[:, start : start + self.config.seeds]

    def learned(self, reading: str, kind: str, first: str = "fixed") -> Any:
        """(seeds,) bool. In the made language, whether it attends where it must: one that never does needs no sink."""
        if reading == COPY:
            return self.over_steps(reading, kind, "fetched", first)[-1] <= FETCHED * float(self.run.value("unfetched"))
        words = int(self.run.value(f"{reading}/words")) + 1  # with the fixed first token
        return beats_guessing(self.over_steps(reading, kind, "loss", first)[-1], words)

    def mean(self, reading: str, kind: str, what: str = "mass", first: str = "fixed", step: int = -1) -> Any:
        found = self.over_steps(reading, kind, what, first)[step].mean((1, 2))
        return np.where(self.learned(reading, kind, first).reshape(-1, *(1,) * (found.ndim - 1)), found, np.nan)

    def first_key(self, reading: str, kind: str, first: str = "fixed", step: int = -1) -> Any:
        return self.mean(reading, kind, "mass", first, step)[:, 0]

    def controls(self, reading: str, mass: Any = None) -> Mapping[str, Comparison]:
        mass = self.first_key(reading, "softmax") if mass is None else mass
        return {
            "uniform attention": compare(mass, self.uniform),
            "untrained": compare(mass, self.first_key(reading, "softmax", step=0)),
            "the second key": compare(mass, self.mean(reading, "softmax")[:, 1]),
        }

    @property
    def lost(self) -> Numbers:
        count = sum(
            int((~self.learned(reading, kind, first)).sum())
            for reading, kind in self.config.variants
            for first in self.config.firsts
        )
        return {"left out because they did not learn": {"networks": float(count)}} if count else {}


MATTERS = 0.05  # of all attention, mean over layers and heads: five keys' worth and more where a query sees a hundred
STRONG = 0.3  # of a head's attention: a head that gives the first key more is counted as a sink
NO_SINK = "that softmax forms sinks beyond their controls is not shown here, so nothing could vanish"


CLAIMS = Claims(source="StreamingLLM Sec. 3", unit="%", matters=MATTERS, ceiling=1.0)
ON_SINKS = ("sinks/first-token-draws-attention",)


def _with_sink(claim: Claim, seen: Sinks, kind: str = "softmax") -> list[str]:
    found = []
    for reading in READINGS:
        (control,) = hardest(claim, seen.controls(reading)).values()
        holds = of_effect(Effect.of(control, matters=MATTERS, ceiling=1.0)) == "holds"
        found += [reading] * (holds and kind in seen.config.kinds(reading))
    return found


@CLAIMS.declare("first-token-draws-attention")
def _sinks(run: Run, claim: Claim) -> Finding:
    """Trained networks give the first token a large share of their attention, though it says little of what follows.

    Expected: more mass on the first key than uniform attention, the untrained network and the second key, by 5 %
    """
    seen = Sinks(run)
    cases = {}
    for reading, name in READINGS.items():
        ((control, found),) = hardest(claim, seen.controls(reading)).items()
        if found.seeds:
            cases[f"{name}, beside {control}"] = found
    if not cases:
        return not_run(claim, claim.expected, "no network learned what it read", COMMAND)
    details = {name: _of_softmax(seen, reading) for reading, name in READINGS.items()} | dict(seen.lost)
    return by_effect(claim, cases, what="attention of late queries on the first key", details=details)


def _of_softmax(seen: Sinks, reading: str) -> dict[str, float]:
    heads = seen.over_steps(reading, "softmax")[-1][..., 0][seen.learned(reading, "softmax")]  # (seeds, layers, heads)
    numbers = {
        "uniform": seen.uniform,
        "untrained": known_mean(seen.first_key(reading, "softmax", step=0)),
        "second key": known_mean(seen.mean(reading, "softmax")[:, 1]),
        "strongest head": known_mean(heads.max((1, 2))),
        "share of heads above 30 %": known_mean((heads > STRONG).astype(float)),
        "step with half of the final mass": _half_way(seen, reading),
    }
    if "free" in seen.config.firsts:
        numbers["without a fixed first token"] = known_mean(seen.first_key(reading, "softmax", "free"))
    return {name: value for name, value in numbers.items() if np.isfinite(value)}


def _half_way(seen: Sinks, reading: str) -> float:
    """The first measuring point with half of what the first key gains in all; NaN where that does not matter."""
    kept = seen.learned(reading, "softmax")
    if not kept.any():
        return nan
    mass = seen.over_steps(reading, "softmax")[..., 0][:, kept].mean((1, 2, 3))
    gain = mass[-1] - mass[0]
    return nan if gain < MATTERS else float(seen.steps(reading, "softmax")[np.argmax(mass - mass[0] >= gain / 2)])


@CLAIMS.declare("place-not-word", uses=ON_SINKS)
def _place(run: Run, claim: Claim) -> Finding:
    """The first token draws attention by its place: another word in the first place draws as much.

    Expected: another word in the first place has 5 % more than uniform attention, the untrained network and the second
    key, and at least half of what the own word has
    """
    seen = Sinks(run)
    cases, size, details = {}, [], {}
    for reading in _with_sink(claim, seen):
        name, replaced = READINGS[reading], seen.mean(reading, "softmax", "replaced")
        ((control, found),) = hardest(claim, seen.controls(reading, replaced)).items()
        own, moved = seen.first_key(reading, "softmax"), seen.mean(reading, "softmax", "moved")
        cases[f"{name}, beside {control}"] = found
        size.append(at_least(f"share of the own word's mass, {name}", known_mean(replaced) / known_mean(own), 0.5, "%"))
        details[name] = {
            "own first word": known_mean(own),
            "the same word at a quarter of the length": known_mean(moved[:, 0]),
            "the word that stands there": known_mean(moved[:, 1]),
        }
    if not cases:
        return not_run(claim, claim.expected, NO_SINK, COMMAND)
    what = "attention on the first key, another word standing there"
    return by_effect(claim, cases, what=what, size=size, details=details | dict(seen.lost))


def _against(run: Run, claim: Claim, kind: str, bound: Callable[[str, float, float, str], Test]) -> Finding:
    seen = Sinks(run)
    if not (readings := _with_sink(claim, seen, kind)):
        return not_run(claim, claim.expected, NO_SINK, COMMAND)
    cases, size, details = {}, [], {}
    for reading in readings:
        name, mass = READINGS[reading], seen.first_key(reading, kind)
        cases[name] = compare(seen.first_key(reading, "softmax"), mass)
        size.append(bound(f"beyond uniform with {kind}, {name}", _excess(compare(mass, seen.uniform)), MATTERS, "%"))
        strongest = seen.over_steps(reading, kind)[-1][..., 0].max((1, 2))[seen.learned(reading, kind)]
        losses = [
            known_mean(np.where(seen.learned(reading, one), seen.over_steps(reading, one, "loss")[-1], np.nan))
            for one in (kind, "softmax")
        ]
        details[name] = {
            "networks with a head above 30 %": float((strongest > STRONG).sum()),
            "attention on all keys": known_mean(seen.mean(reading, kind, "total")),
            "loss minus that of softmax, in nats": float(losses[0] - losses[1]),
        }
    if not all(found.seeds for found in cases.values()):
        return not_run(claim, claim.expected, f"no network with attention of the kind {kind} learned", COMMAND)
    what = f"attention on the first key with softmax (control: {kind})"
    return by_effect(claim, cases, what=what, size=size, details=details | dict(seen.lost))


def _excess(found: Comparison) -> float:
    """Over uniform attention, mean over seeds; NaN where seeds leave open whether it matters."""
    told = found.difference_low > MATTERS or found.difference_high < MATTERS
    return found.difference if told else nan


CLAIMS.declare(
    "sinks-need-softmax",
    text="Sinks arise because softmax must sum to one: where weights need not, there are none.\n\n"
    "Expected: softmax has 5 % more on the first key; with a sigmoid less than 5 % beyond uniform attention is left",
    uses=ON_SINKS,
)(partial(_against, kind="sigmoid", bound=at_most))
CLAIMS.declare(
    "learned-sink-takes-over",
    text="A learned sink takes the attention that has nowhere else to go, and the first token is no sink any more.\n\n"
    "Expected: softmax has 5 % more on the first key; with a learned sink less than 5 % beyond uniform attention is "
    "left",
    uses=ON_SINKS,
)(partial(_against, kind="learned-sink", bound=at_most))
CLAIMS.declare(
    "zero-sink-is-not-enough",
    text="With one more key of logit 0 and value 0 the first token draws less attention, but it remains a sink.\n\n"
    "Expected: softmax has 5 % more on the first key; off-by-one still has 5 % more than uniform attention",
    uses=ON_SINKS,
)(partial(_against, kind="off-by-one", bound=at_least))


COLOURS = dict(zip(KINDS, (BLUE, ORANGE, GREEN, PURPLE), strict=True))
PLACES = (
    "first word,\nfirst place",
    "another word,\nfirst place",
    "first word,\nelsewhere",
    "another word,\nelsewhere",
)


def draw(run: Run) -> list[Drawing]:
    """Over training, and at the end by place and word."""
    seen = Sinks(run)
    return [_over_training(seen), _by_place(seen)]


def _over_training(seen: Sinks) -> Drawing:
    figure, axes = panels(len(READINGS), width=4.2)
    free, caption = "free" in seen.config.firsts, ""
    for axis, (reading, name) in zip(axes, READINGS.items(), strict=True):
        ends = {}
        for kind in seen.config.kinds(reading):
            rows = seen.over_steps(reading, kind)[..., 0].mean((2, 3))  # (steps, seeds)
            mean_and_band(axis, seen.steps(reading, kind), rows, color=COLOURS[kind], label=kind)
            ends[kind] = number(float(rows[-1].mean()), "%")
        if free:
            rows = seen.over_steps(reading, "softmax", first="free")[..., 0].mean((2, 3))
            steps = seen.steps(reading, "softmax")
            axis.plot(steps, rows.mean(1), color=COLOURS["softmax"], ls=":", label="softmax, free\nfirst token")
        axis.axhline(seen.uniform, color=CONTROL, ls="--", lw=1, label="uniform")
        axis.set(title=name.capitalize(), ylabel="attention on the first key", ylim=(0, None))
        step_axis(axis)
        others = [f"{end} with {kind}" for kind, end in ends.items() if kind != "softmax"]
        rest = f", {listing(others)}" if others else ""
        caption += f"On the {name}, the first key ends with {ends['softmax']} with softmax{rest}. "
    caption += (
        f"Uniform attention gives {number(seen.uniform, '%')}. Lines are means over {seen.config.seeds} networks, "
        "their layers, heads and late queries; bands go from the lowest network to the highest. Every sequence begins "
        f"with the same token{', but for the dotted line' if free else ''}."
    )
    return Drawing("sinks-over-training", caption, figure)


def _by_place(seen: Sinks) -> Drawing:
    figure, axes = panels(len(READINGS), width=4.6)
    caption = ""
    for axis, (reading, name) in zip(axes, READINGS.items(), strict=True):
        kinds = seen.config.kinds(reading)
        for count, kind in enumerate(kinds):
            for row, seeds in enumerate(_by_key(seen, reading, kind)):
                at = np.full(len(seeds), row + (count - (len(kinds) - 1) / 2) * 0.15)
                axis.plot(seeds, at, "o", ms=4.5, color=COLOURS[kind], alpha=0.8, label=kind if row == 0 else None)
        axis.axvline(seen.uniform, color=CONTROL, ls="--", lw=1)
        axis.set_yticks(range(len(PLACES)), PLACES)
        axis.set(title=name.capitalize(), xlabel="attention on that key", ylabel="key")
        axis.set(xlim=(0, None), ylim=(len(PLACES) - 0.5, -0.5))
        axis.legend(loc="lower right", fontsize=7.5, labelcolor=INK)
        own, other, copy, _ = (number(float(x), "%") for x in _by_key(seen, reading, "softmax").mean(1))
        caption += (
            f"On the {name}, with softmax, the first word has {own} in the first place and a copy of it {copy} "
            f"elsewhere; another word has {other} in the first place. "
        )
    caption += (
        f"Dots are networks at the end of training. Elsewhere is key {seen.config.length // 4} of "
        f"{seen.config.length}. The dashed line is uniform attention."
    )
    return Drawing("place-or-word", caption, figure)


def _by_key(seen: Sinks, reading: str, kind: str) -> Any:
    mass, replaced, moved = (
        seen.over_steps(reading, kind, what)[-1].mean((1, 2)) for what in ("mass", "replaced", "moved")
    )
    return np.stack([mass[:, 0], replaced, moved[:, 0], moved[:, 1]])


STUDY = Study(
    name="sinks",
    title="Attention sinks: do they need softmax?",
    version=1,
    claims=CLAIMS,
    # One of ten seeds from 3000 on learned nothing; sinks were six times what six seeds leave open.
    quick=SinksConfig(seeds=6),
    paper=SinksConfig(
        corpus="wikitext-2", tokens=1_000_000_000, vocabulary=4_000, words=64, triggers=8, pool=32_768,
        firsts=("fixed", "free"), layers=1, text_layers=4, width=128, heads=2, mlp=True, length=128, batch=16,
        steps=4_000, text_steps=5_000, every=250, rate=3e-3, text_rate=2e-3, valid=64, seeds=4, device="cuda",
        precision="tf32",
    ),
    run=run,
    draw=draw,
    check=check_text,
    about=(
        "Decoders with four kinds of attention are trained on a text and on a made language in which attention helps "
        "at few tokens only. The kinds are softmax, softmax with one more key of logit 0 and value 0 (off-by-one), the "
        "same with a learned logit (learned sink), and a sigmoid of each logit. All kinds begin with the same weights "
        "and read the same sequences. Measured is the attention of late queries, which see half of the sequence or "
        "more: how much of it goes to the first key. Uniform attention, the untrained network and the second key are "
        "the controls. The first word is also replaced by another one, and a copy of it is put elsewhere, to tell "
        "place from word. Kinds are compared only where softmax has a sink; a network that did not learn does not "
        "count."
    ),
)  # fmt: skip
