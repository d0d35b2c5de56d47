"""What the study `sinks` claims, and how it judges: mass on the first key over seeds, beside its controls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from joma.claims.claim import Claim
from joma.claims.evidence import Effect, Test, at_least, at_most
from joma.claims.finding import Finding
from joma.claims.guards import hardest
from joma.claims.rules import of_effect
from joma.claims.verdicts import Numbers, by_effect, not_run
from joma.measure.intervals import Comparison, compare
from joma.runs import Run
from joma.studies.sparsity._readings import COPY, TEXT
from joma.studies.sparsity._sinks_networks import Config, called, guessing, uniform

MATTERS = 0.05  # of all attention, mean over layers and heads: five keys' worth and more where a query sees a hundred
FALLEN = 0.1  # of the loss of guessing: networks that read the text and end less below it have not learned
FETCHED = 0.5  # of the loss after a trigger without attention: networks that keep more have not learned to attend
STRONG = 0.3  # of a head's attention: a head that gives the first key more is counted as a sink
COMMAND = "joma verify sinks --scale paper"
NO_SINK = "no network with softmax formed a sink, so nothing could vanish"
READINGS = {COPY: "made language", TEXT: "text"}
"""As findings and figures call them."""

SINKS = Claim(
    "first-token-draws-attention",
    "StreamingLLM Sec. 3",
    "Trained networks give the first token a large share of their attention, though it says little of what follows.",
    matters=MATTERS,
    unit="%",
    ceiling=1.0,
)
PLACE = Claim(
    "place-not-word",
    "StreamingLLM Sec. 3",
    "The first token draws attention by its place: another word in the first place draws as much.",
    matters=MATTERS,
    unit="%",
    ceiling=1.0,
    uses=("sinks/first-token-draws-attention",),
)
SOFTMAX = Claim(
    "sinks-need-softmax",
    "StreamingLLM Sec. 3",
    "Sinks arise because softmax must sum to one: where weights need not, there are none.",
    matters=MATTERS,
    unit="%",
    ceiling=1.0,
    uses=("sinks/first-token-draws-attention",),
)
LEARNED = Claim(
    "learned-sink-takes-over",
    "StreamingLLM Sec. 3",
    "A learned sink takes the attention that has nowhere else to go, and the first token is no sink any more.",
    matters=MATTERS,
    unit="%",
    ceiling=1.0,
    uses=("sinks/first-token-draws-attention",),
)
ZERO = Claim(
    "zero-sink-is-not-enough",
    "StreamingLLM Sec. 3",
    "With one more key of logit 0 and value 0 the first token draws less attention, but it remains a sink.",
    matters=MATTERS,
    unit="%",
    ceiling=1.0,
    uses=("sinks/first-token-draws-attention",),
)
CLAIMS = (SINKS, PLACE, SOFTMAX, LEARNED, ZERO)


def known_mean(values: Any) -> float:
    """Of what is known; NaN where nothing is."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else float("nan")


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class Sinks:
    """What a run recorded. Every number is a row over seeds; networks that diverged or did not learn are NaN."""

    def __init__(self, run: Run) -> None:
        self.run = run
        names = Config.__dataclass_fields__.keys() & run.config.keys()
        given: dict[str, Any] = {name: _frozen(run.config[name]) for name in names}
        self.config = Config(**given)
        self.uniform = uniform(self.config.length)

    def steps(self, reading: str, kind: str) -> Any:
        return self.run.steps(f"{called(reading, kind)}/attention/mass")

    def over_steps(self, reading: str, kind: str, what: str = "mass", first: str = "fixed") -> Any:
        """(steps, seeds, ...) of what is recorded, of networks whose first token is fixed or free."""
        found = self.run.array(f"{called(reading, kind)}/attention/{what}")
        start = self.config.firsts.index(first) * self.config.seeds
        return found[:, start : start + self.config.seeds]

    def learned(self, reading: str, kind: str, first: str = "fixed") -> Any:
        """(seeds,) bool. In the made language, whether it attends where it must: one that never does needs no sink."""
        if reading == COPY:
            fetched = self.over_steps(reading, kind, "fetched", first)[-1]
            return fetched <= FETCHED * float(self.run.value("unfetched"))
        loss = self.over_steps(reading, kind, "loss", first)[-1]
        return loss <= (1 - FALLEN) * guessing(int(self.run.value(f"{reading}/words")))

    def mean(self, reading: str, kind: str, what: str = "mass", first: str = "fixed", step: int = -1) -> Any:
        """(seeds, ...), mean over layers and heads, of the networks that learned."""
        found = self.over_steps(reading, kind, what, first)[step].mean((1, 2))
        kept = self.learned(reading, kind, first)
        return np.where(kept.reshape(-1, *(1,) * (found.ndim - 1)), found, np.nan)

    def first_key(self, reading: str, kind: str, first: str = "fixed", step: int = -1) -> Any:
        """(seeds,)."""
        return self.mean(reading, kind, "mass", first, step)[:, 0]

    def beside_controls(self, reading: str, first: str = "fixed", what: Any = None) -> Mapping[str, Comparison]:
        """Softmax's mass on the first key beside all of its controls."""
        mass = self.first_key(reading, "softmax", first) if what is None else what
        return {
            "uniform attention": compare(mass, self.uniform),
            "untrained": compare(mass, self.first_key(reading, "softmax", first, step=0)),
            "the second key": compare(mass, self.mean(reading, "softmax", "mass", first)[:, 1]),
        }

    def has_sink(self, reading: str) -> bool:
        """Whether softmax has one, beyond all controls."""
        (found,) = hardest(SINKS, self.beside_controls(reading)).values()
        return of_effect(Effect.of(found, matters=MATTERS, ceiling=1.0)) == "holds"

    def with_sink(self, kind: str = "softmax") -> list[str]:
        """Readings on which softmax has a sink and this kind was trained."""
        return [reading for reading in READINGS if kind in self.config.kinds(reading) and self.has_sink(reading)]

    def excess(self, reading: str, kind: str) -> float:
        """Over uniform attention, mean over seeds; NaN where seeds leave open whether it matters.

        The second half was added after the first run at paper scale: one network of four had the whole excess.
        """
        found = compare(self.first_key(reading, kind), self.uniform)
        low, high = found.low - found.control, found.high - found.control
        return found.difference if low > MATTERS or high < MATTERS else float("nan")

    def strong(self, reading: str, kind: str) -> float:
        """Networks with a head that gives the first key more than `STRONG`."""
        heads = self.over_steps(reading, kind)[-1][..., 0].max((1, 2))
        return float((heads[self.learned(reading, kind)] > STRONG).sum())

    @property
    def lost(self) -> Numbers:
        """How many networks do not count, for the reader; empty where all do."""
        count = sum(
            int((~self.learned(reading, kind, first)).sum())
            for reading, kind in self.config.variants
            for first in self.config.firsts
        )
        return {"left out because they did not learn": {"networks": float(count)}} if count else {}


def _sinks(run: Run) -> Finding:
    seen = Sinks(run)
    expected = "more mass on the first key than uniform attention, the untrained network and the second key, by 5 %"
    cases = {}
    for reading, name in READINGS.items():
        ((control, found),) = hardest(SINKS, seen.beside_controls(reading)).items()
        cases[f"{name}, beside {control}"] = found
    cases = {name: found for name, found in cases.items() if found.seeds}
    if not cases:
        return not_run(SINKS, expected, "no network learned what it read", COMMAND)
    return by_effect(
        SINKS,
        cases,
        what="attention of late queries on the first key",
        expected=expected,
        details={name: _told(seen, reading) for reading, name in READINGS.items()} | dict(seen.lost),
    )


def _told(seen: Sinks, reading: str) -> dict[str, float]:
    """What else there is to say of softmax on a reading."""
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
        return float("nan")
    mass = seen.over_steps(reading, "softmax")[..., 0][:, kept].mean((1, 2, 3))
    gain = mass[-1] - mass[0]
    if gain < MATTERS:
        return float("nan")
    return float(seen.steps(reading, "softmax")[np.argmax(mass - mass[0] >= gain / 2)])


def _place(run: Run) -> Finding:
    seen = Sinks(run)
    expected = (
        "another word in the first place has 5 % more than uniform attention, the untrained network and the second "
        "key, and at least half of what the own word has"
    )
    if not (readings := seen.with_sink()):
        return not_run(PLACE, expected, NO_SINK, COMMAND)
    cases, size, beside = {}, [], {}
    for reading in readings:
        replaced = seen.mean(reading, "softmax", "replaced")
        ((control, found),) = hardest(PLACE, seen.beside_controls(reading, what=replaced)).items()
        own, moved = seen.first_key(reading, "softmax"), seen.mean(reading, "softmax", "moved")
        cases[f"{READINGS[reading]}, beside {control}"] = found
        share = known_mean(replaced) / known_mean(own)
        size.append(at_least(f"share of the own word's mass, {READINGS[reading]}", share, 0.5, "%"))
        beside[READINGS[reading]] = {
            "own first word": known_mean(own),
            "the same word at a quarter of the length": known_mean(moved[:, 0]),
            "the word that stands there": known_mean(moved[:, 1]),
        }
    what = "attention on the first key, another word standing there"
    return by_effect(PLACE, cases, what=what, expected=expected, size=size, details=beside | dict(seen.lost))


def _against(claim: Claim, kind: str, expected: str, size: Callable[[str, float], Test]) -> Callable[[Run], Finding]:
    """Softmax's mass on the first key beside that of another kind, where softmax has a sink."""

    def judge(run: Run) -> Finding:
        seen = Sinks(run)
        if not (readings := seen.with_sink(kind)):
            return not_run(claim, expected, NO_SINK, COMMAND)
        cases = {
            READINGS[reading]: compare(seen.first_key(reading, "softmax"), seen.first_key(reading, kind))
            for reading in readings
        }
        if not all(found.seeds for found in cases.values()):
            return not_run(claim, expected, f"no network with attention of the kind {kind} learned", COMMAND)
        left = [size(f"beyond uniform with {kind}, {READINGS[r]}", seen.excess(r, kind)) for r in readings]
        return by_effect(
            claim,
            cases,
            what=f"attention on the first key with softmax (control: {kind})",
            expected=expected,
            size=left,
            details={READINGS[r]: _costs(seen, r, kind) for r in readings} | dict(seen.lost),
        )

    return judge


def _costs(seen: Sinks, reading: str, kind: str) -> dict[str, float]:
    """How much attention goes to keys at all, and what the kind's loss is beside softmax's."""
    losses = [
        known_mean(np.where(seen.learned(reading, one), seen.over_steps(reading, one, "loss")[-1], np.nan))
        for one in (kind, "softmax")
    ]
    return {
        "networks with a head above 30 %": seen.strong(reading, kind),
        "attention on all keys": known_mean(seen.mean(reading, kind, "total")),
        "loss minus that of softmax, in nats": float(losses[0] - losses[1]),
    }


def _little(what: str, value: float) -> Test:
    return at_most(what, value, MATTERS, "%")


def _much(what: str, value: float) -> Test:
    return at_least(what, value, MATTERS, "%")


_VANISHES = "softmax has 5 % more on the first key; with {} less than 5 % beyond uniform attention is left"
JUDGES: tuple[Callable[[Run], Finding], ...] = (
    _sinks,
    _place,
    _against(SOFTMAX, "sigmoid", _VANISHES.format("a sigmoid"), _little),
    _against(LEARNED, "learned-sink", _VANISHES.format("a learned sink"), _little),
    _against(
        ZERO,
        "off-by-one",
        "softmax has 5 % more on the first key; off-by-one still has 5 % more than uniform attention",
        _much,
    ),
)
