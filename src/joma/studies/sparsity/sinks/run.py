"""The networks of the study `sinks`: who is in an ensemble, what each one reads, and where its attention goes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args

import numpy as np
import torch
from torch import Tensor

from joma.claims.config import Least, OneOf
from joma.claims.contract import Progress
from joma.claims.guards import at_paper_scale, beats_guessing, needs_device
from joma.claims.verdicts import Numbers
from joma.measure.intervals import Comparison, compare
from joma.models.decoder import Attention, Decoder, DecoderConfig
from joma.recipes.grid import Grid, ensemble
from joma.recipes.optimizers import make_optimizer
from joma.runs import Run
from joma.studies.sparsity import _readings as texts
from joma.studies.sparsity._readings import COPY, TEXT, Reading
from joma.training import Ensemble, next_token_loss, train_all
from joma.training.ensemble import Precision

COMMAND = at_paper_scale("sinks")
KINDS: tuple[Attention, ...] = get_args(Attention)
FIRSTS = ("fixed", "free")
"""Whether every sequence begins with the same token, or with whatever the text has there."""
KEYS = 4
"""The first keys whose mass is recorded one by one."""


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
        """Of a network that reads so many words and the fixed first one."""
        return DecoderConfig(
            words + 1, layers=layers, width=self.width, heads=self.heads, mlp=4 * self.width if self.mlp else 0,
            context=self.length, norm="pre-layer", activation="gelu" if self.mlp else "identity", attention=kind,
        )  # fmt: skip

    def kinds(self, reading: str) -> tuple[Attention, ...]:
        """Those that are trained on a reading."""
        return KINDS if reading == COPY else tuple(kind for kind in KINDS if kind in self.text_kinds)

    @property
    def variants(self) -> list[tuple[str, Attention]]:
        """(reading, kind) of all ensembles."""
        return [(reading, kind) for reading in (COPY, TEXT) for kind in self.kinds(reading)]


def run(config: SinksConfig, run: Run, progress: Progress) -> None:
    """Train every kind of attention on both readings, and look where attention goes."""
    needs_device(config.device, COMMAND)
    words, triggers, length, valid = config.words, config.triggers, config.length, config.valid
    readings = {
        COPY: texts.copying(words, triggers, length, train=config.pool, valid=valid, seed=config.seed),
        TEXT: texts.read_text(config, run, progress, length, valid),
    }
    for name, reading in readings.items():
        run.keep(f"{name}/words", lambda reading=reading: reading.words)  # type: ignore[misc]
    run.keep("unfetched", lambda: texts.without_fetching(readings[COPY]))
    train_all(
        {f"{name}/{kind}": Members(config, name, kind, readings[name]).ensemble() for name, kind in config.variants},
        run,
        progress=lambda share, doing: progress(0.02 + 0.97 * share, doing),
    )


class Members:
    """All networks of one kind on one reading: those whose first token is fixed, then those whose first token is free.

    Networks of all kinds begin with the same weights, seed by seed, and read the same sequences in the same order.
    """

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
        return self.begun(texts.sequences_of(self.train, step, self.config.batch), members)

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
    """Mean over late queries of the weight on each key, (members, layers, heads, keys), and on all, (..., heads).

    A query whose weights sum to more than 1, as a sigmoid's may, counts by their shares.
    """
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
READINGS = {COPY: "made language", TEXT: "text"}
"""As findings and figures call them."""


class Sinks:
    """What a run recorded. Every number is a row over seeds; networks that diverged or did not learn are NaN."""

    def __init__(self, run: Run) -> None:
        self.run, self.config = run, texts.recorded_config(SinksConfig, run)
        self.uniform = uniform(self.config.length)

    def steps(self, reading: str, kind: str) -> Any:
        return self.run.steps(f"{reading}/{kind}/attention/mass")

    def over_steps(self, reading: str, kind: str, what: str = "mass", first: str = "fixed") -> Any:
        """(steps, seeds, ...) of what is recorded, of networks whose first token is fixed or free."""
        start = self.config.firsts.index(first) * self.config.seeds
        return self.run.array(f"{reading}/{kind}/attention/{what}")[:, start : start + self.config.seeds]

    def learned(self, reading: str, kind: str, first: str = "fixed") -> Any:
        """(seeds,) bool. In the made language, whether it attends where it must: one that never does needs no sink."""
        if reading == COPY:
            return self.over_steps(reading, kind, "fetched", first)[-1] <= FETCHED * float(self.run.value("unfetched"))
        words = int(self.run.value(f"{reading}/words")) + 1  # with the fixed first token
        return beats_guessing(self.over_steps(reading, kind, "loss", first)[-1], words)

    def mean(self, reading: str, kind: str, what: str = "mass", first: str = "fixed", step: int = -1) -> Any:
        """(seeds, ...), mean over layers and heads, of the networks that learned."""
        found = self.over_steps(reading, kind, what, first)[step].mean((1, 2))
        return np.where(self.learned(reading, kind, first).reshape(-1, *(1,) * (found.ndim - 1)), found, np.nan)

    def first_key(self, reading: str, kind: str, first: str = "fixed", step: int = -1) -> Any:
        """(seeds,)."""
        return self.mean(reading, kind, "mass", first, step)[:, 0]

    def controls(self, reading: str, mass: Any = None) -> Mapping[str, Comparison]:
        """Softmax's mass on the first key, or another mass, beside all of its controls."""
        mass = self.first_key(reading, "softmax") if mass is None else mass
        return {
            "uniform attention": compare(mass, self.uniform),
            "untrained": compare(mass, self.first_key(reading, "softmax", step=0)),
            "the second key": compare(mass, self.mean(reading, "softmax")[:, 1]),
        }

    @property
    def lost(self) -> Numbers:
        """How many networks do not count, for the reader; empty where all do."""
        count = sum(
            int((~self.learned(reading, kind, first)).sum())
            for reading, kind in self.config.variants
            for first in self.config.firsts
        )
        return {"left out because they did not learn": {"networks": float(count)}} if count else {}
