"""The study `sinks`: its claims with their judges, its sizes."""

from collections.abc import Callable
from functools import partial
from math import nan
from typing import Any

import numpy as np

from joma.claims.claim import Claim
from joma.claims.contract import Drawing, Study
from joma.claims.evidence import Effect, Test, at_least, at_most
from joma.claims.finding import Finding
from joma.claims.guards import hardest
from joma.claims.rules import of_effect
from joma.claims.verdicts import by_effect, not_run
from joma.figures.bands import mean_and_band
from joma.figures.labels import label_lines
from joma.figures.reading import listing, number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, PURPLE, panels, step_axis
from joma.measure.intervals import Comparison, compare
from joma.runs import Run
from joma.studies.sparsity._readings import check_text, known_mean
from joma.studies.sparsity.sinks.run import COMMAND, KINDS, READINGS, Sinks, SinksConfig, run

MATTERS = 0.05  # of all attention, mean over layers and heads: five keys' worth and more where a query sees a hundred
STRONG = 0.3  # of a head's attention: a head that gives the first key more is counted as a sink
NO_SINK = "no network with softmax formed a sink, so nothing could vanish"


def _claim(name: str, says: str, *uses: str) -> Claim:
    return Claim(name, "StreamingLLM Sec. 3", says, matters=MATTERS, unit="%", ceiling=1.0, uses=uses)


SINKS = _claim(
    "first-token-draws-attention",
    "Trained networks give the first token a large share of their attention, though it says little of what follows.",
)
PLACE = _claim(
    "place-not-word",
    "The first token draws attention by its place: another word in the first place draws as much.",
    "sinks/first-token-draws-attention",
)
SOFTMAX = _claim(
    "sinks-need-softmax",
    "Sinks arise because softmax must sum to one: where weights need not, there are none.",
    "sinks/first-token-draws-attention",
)
LEARNED = _claim(
    "learned-sink-takes-over",
    "A learned sink takes the attention that has nowhere else to go, and the first token is no sink any more.",
    "sinks/first-token-draws-attention",
)
ZERO = _claim(
    "zero-sink-is-not-enough",
    "With one more key of logit 0 and value 0 the first token draws less attention, but it remains a sink.",
    "sinks/first-token-draws-attention",
)


def _with_sink(seen: Sinks, kind: str = "softmax") -> list[str]:
    """Readings on which softmax has a sink, beyond all controls, and this kind was trained."""
    found = []
    for reading in READINGS:
        (control,) = hardest(SINKS, seen.controls(reading)).values()
        holds = of_effect(Effect.of(control, matters=MATTERS, ceiling=1.0)) == "holds"
        found += [reading] * (holds and kind in seen.config.kinds(reading))
    return found


def _sinks(run: Run) -> Finding:
    seen = Sinks(run)
    expected = "more mass on the first key than uniform attention, the untrained network and the second key, by 5 %"
    cases = {}
    for reading, name in READINGS.items():
        ((control, found),) = hardest(SINKS, seen.controls(reading)).items()
        if found.seeds:
            cases[f"{name}, beside {control}"] = found
    if not cases:
        return not_run(SINKS, expected, "no network learned what it read", COMMAND)
    details = {name: _of_softmax(seen, reading) for reading, name in READINGS.items()} | dict(seen.lost)
    return by_effect(
        SINKS, cases, what="attention of late queries on the first key", expected=expected, details=details
    )


def _of_softmax(seen: Sinks, reading: str) -> dict[str, float]:
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
        return nan
    mass = seen.over_steps(reading, "softmax")[..., 0][:, kept].mean((1, 2, 3))
    gain = mass[-1] - mass[0]
    return nan if gain < MATTERS else float(seen.steps(reading, "softmax")[np.argmax(mass - mass[0] >= gain / 2)])


def _place(run: Run) -> Finding:
    seen = Sinks(run)
    expected = (
        "another word in the first place has 5 % more than uniform attention, the untrained network and the second "
        "key, and at least half of what the own word has"
    )
    cases, size, details = {}, [], {}
    for reading in _with_sink(seen):
        name, replaced = READINGS[reading], seen.mean(reading, "softmax", "replaced")
        ((control, found),) = hardest(PLACE, seen.controls(reading, replaced)).items()
        own, moved = seen.first_key(reading, "softmax"), seen.mean(reading, "softmax", "moved")
        cases[f"{name}, beside {control}"] = found
        size.append(at_least(f"share of the own word's mass, {name}", known_mean(replaced) / known_mean(own), 0.5, "%"))
        details[name] = {
            "own first word": known_mean(own),
            "the same word at a quarter of the length": known_mean(moved[:, 0]),
            "the word that stands there": known_mean(moved[:, 1]),
        }
    if not cases:
        return not_run(PLACE, expected, NO_SINK, COMMAND)
    what = "attention on the first key, another word standing there"
    return by_effect(PLACE, cases, what=what, expected=expected, size=size, details=details | dict(seen.lost))


def _against(
    claim: Claim, kind: str, expected: str, bound: Callable[[str, float, float, str], Test], run: Run
) -> Finding:
    """Softmax's mass on the first key beside that of another kind, where softmax has a sink."""
    seen = Sinks(run)
    if not (readings := _with_sink(seen, kind)):
        return not_run(claim, expected, NO_SINK, COMMAND)
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
        return not_run(claim, expected, f"no network with attention of the kind {kind} learned", COMMAND)
    what = f"attention on the first key with softmax (control: {kind})"
    return by_effect(claim, cases, what=what, expected=expected, size=size, details=details | dict(seen.lost))


def _excess(found: Comparison) -> float:
    """Over uniform attention, mean over seeds; NaN where seeds leave open whether it matters.

    The second half was added after the first run at paper scale: one network of four had the whole excess.
    """
    low, high = found.low - found.control, found.high - found.control
    return found.difference if low > MATTERS or high < MATTERS else nan


_VANISHES = "softmax has 5 % more on the first key; with {} less than 5 % beyond uniform attention is left"
_REMAINS = "softmax has 5 % more on the first key; off-by-one still has 5 % more than uniform attention"
CLAIMS: dict[Claim, Callable[[Run], Finding]] = {
    SINKS: _sinks,
    PLACE: _place,
    SOFTMAX: partial(_against, SOFTMAX, "sigmoid", _VANISHES.format("a sigmoid"), at_most),
    LEARNED: partial(_against, LEARNED, "learned-sink", _VANISHES.format("a learned sink"), at_most),
    ZERO: partial(_against, ZERO, "off-by-one", _REMAINS, at_least),
}


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
        label_lines(axis)
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
    """(PLACES, seeds)."""
    mass, replaced, moved = (
        seen.over_steps(reading, kind, what)[-1].mean((1, 2)) for what in ("mass", "replaced", "moved")
    )
    return np.stack([mass[:, 0], replaced, moved[:, 0], moved[:, 1]])


STUDY = Study(
    name="sinks",
    title="Attention sinks: do they need softmax?",
    version=1,
    claims=CLAIMS,
    quick=SinksConfig(),
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
