"""What is claimed of depth and width, and how the record answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from joma.claims.contract import Claim, Finding
from joma.claims.guards import clears
from joma.claims.verdicts import Numbers, by_effect, not_run
from joma.measure.intervals import compare
from joma.recipes.language import PYTHON, called
from joma.runs import Run
from joma.studies.depth_width.depth_width.record import DEEP, FLAT, LEARNED, Sweep, kinds_of
from joma.studies.depth_width.depth_width.texts import SHUFFLED

WIKITEXT = "wikitext-2"
PAPER = "JOMA_DATA=FOLDER joma verify depth-width --scale paper"
MATTERS = 0.02
"""Nats: losses nearer than that count as the same, as in Figures 6 and 8. Fixed before any run."""


def _deeper(name: str, data: str) -> Claim:
    return Claim(
        name,
        "MobileLLM Sec. 2",
        f"At equal parameter count, the deepest and thinnest network has a lower loss than the shallowest on {data}.",
        matters=MATTERS,
        unit="nats",
    )


DEEPER = {
    PYTHON: _deeper("deeper-on-python", "Python source"),
    WIKITEXT: _deeper("deeper-on-wikitext", "WikiText-2"),
    DEEP: _deeper("deeper-on-trees", "HBLT trees"),
}
BEST = Claim(
    "best-shape-is-deeper",
    "MobileLLM Sec. 2",
    "At equal parameter count, the best shape has more layers than the shallowest.",
    matters=MATTERS,
    unit="nats",
)
SHAPE = Claim(
    "shape-matters-more-than-rate",
    "MobileLLM Sec. 1",
    "In small models the shape matters: it changes the loss more than the next-best learning rate does.",
    matters=MATTERS,
    unit="nats",
)
HIERARCHY = Claim(
    "deep-trees-favour-depth",
    "JoMA talk slide MobileLLM",
    "Depth helps because data are hierarchical: it gains more on a deep tree than on a flat one that says as much.",
    matters=MATTERS,
    unit="nats",
)
ORDER = Claim(
    "order-favours-depth",
    "JoMA talk slide MobileLLM",
    "Depth helps because text is structured: it gains more on text than on the same text with its words shuffled.",
    matters=MATTERS,
    unit="nats",
)
WORDS = {DEEP: "deep trees", FLAT: "flat trees", SHUFFLED: "shuffled text"}


def words(kind: str) -> str:
    """A kind of data as a sentence calls it.

    >>> words("sympy"), words("deep tree")
    ('Python source', 'deep trees')
    """
    return WORDS.get(kind) or called(kind)


def _deeper_on(kind: str, run: Run) -> Finding:
    """The deepest shape against the shallowest, each at its own best rate."""
    claim = DEEPER[kind]
    expected = (
        f"the deepest shape has a loss at least {MATTERS} nats below that of the shallowest, beyond chance (95 %), and "
        "the gain exceeds what the next-best rate changes"
    )
    if kind not in kinds_of(run):
        reason = f"{called(kind)} was not part of this run: this scale does not read it, or it was not on the machine"
        return not_run(claim, expected, reason, PAPER)
    sweep = Sweep(run, kind)
    last = len(sweep.layers) - 1
    if reason := _idle(sweep, 0, last):
        return not_run(claim, expected, reason, PAPER)
    gain = compare(sweep.at_best(0) - sweep.at_best(last), sweep.rate_cost((0, last)))
    return by_effect(
        claim,
        compare(sweep.at_best(0), sweep.at_best(last)),
        expected=expected,
        what=f"loss with {layers_of(sweep, 0)} (control: with {layers_of(sweep, last)})",
        controls=[clears("the gain less what the next-best rate changes", gain, "nats", matters=MATTERS)],
        details={**_shapes(sweep), **_left_out(sweep)},
    )


def _best(run: Run) -> Finding:
    """The shallowest shape against the best deeper one, which other seeds chose, on every data set."""
    expected = f"on every data set a deeper shape has a loss at least {MATTERS} nats lower, beyond chance (95 %)"
    sweeps = [Sweep(run, kind) for kind in DEEPER if kind in kinds_of(run)]
    if reason := next(filter(None, (_idle(sweep, 0) or _none_deeper(sweep) for sweep in sweeps)), ""):
        return not_run(BEST, expected, reason, PAPER)
    return by_effect(
        BEST,
        {words(s.kind): compare(s.at_best(0), s.chosen(s.deeper)) for s in sweeps},
        expected=expected,
        what="loss of the shallowest shape (control: the best deeper shape)",
        details={"layers of the best shape": {words(sweep.kind): float(sweep.best_layers) for sweep in sweeps}},
    )


def _shape(run: Run) -> Finding:
    """The worst shape minus the best one, against what the next-best rate changes, on every data set."""
    expected = f"the worst and the best shape differ by at least {MATTERS} nats more than the two best rates do"
    sweeps = [Sweep(run, kind) for kind in DEEPER if kind in kinds_of(run)]
    if reason := next(filter(None, (_idle(sweep, 0) or _none_deeper(sweep) for sweep in sweeps)), ""):
        return not_run(SHAPE, expected, reason, PAPER)
    cases = {}
    for sweep in sweeps:
        shapes = [0, *sweep.deeper]
        spread = sweep.chosen(shapes, worst=True) - sweep.chosen(shapes)
        cases[words(sweep.kind)] = compare(spread, sweep.rate_cost(shapes))
    return by_effect(
        SHAPE,
        cases,
        expected=expected,
        what="loss of the worst shape minus that of the best (control: of the next-best rate minus the best)",
    )


def _hierarchy(run: Run) -> Finding:
    """The gain by depth on the deep tree against that on the flat tree."""
    ideal = run.value("tree/ideal")
    room = ideal[:, 1] - ideal[:, 0]
    details = {
        "lowest possible loss": dict(zip((words(DEEP), words(FLAT)), map(float, ideal[:, 0]), strict=True)),
        "what a reader that adds up tokens lacks": dict(zip((words(DEEP), words(FLAT)), map(float, room), strict=True)),
    }
    return _more(HIERARCHY, Sweep(run, DEEP), Sweep(run, FLAT), control_learns=True, details=details)


def _order(run: Run) -> Finding:
    """The gain by depth on the first text against that on the same text shuffled. That one has little to learn."""
    first = next(iter(kinds_of(run)))
    return _more(ORDER, Sweep(run, first), Sweep(run, SHUFFLED), control_learns=False, details={})


def _more(claim: Claim, one: Sweep, other: Sweep, *, control_learns: bool, details: Numbers) -> Finding:
    expected = (
        f"a deeper shape gains at least {MATTERS} nats more on {words(one.kind)} than on {words(other.kind)}, beyond "
        "chance (95 %)"
    )
    asked = (one, other) if control_learns else (one,)
    if reason := next(filter(None, (_idle(sweep, 0) or _none_deeper(sweep) for sweep in asked)), ""):
        return not_run(claim, expected, reason, PAPER)
    best = {f"layers of the best shape on {words(s.kind)}": float(s.best_layers) for s in (one, other)}
    return by_effect(
        claim,
        compare(one.gain(), other.gain()),
        expected=expected,
        what=f"gain of the best deeper shape on {words(one.kind)} (control: on {words(other.kind)})",
        details={**details, "depth": best, **_left_out(one), **_left_out(other)},
    )


def layers_of(sweep: Sweep, shape: int) -> str:
    """'1 layer', '4 layers'."""
    count = sweep.layers[shape]
    return f"{count} layer{'s' * (count > 1)}"


def _idle(sweep: Sweep, *shapes: int) -> str:
    """Why shapes cannot be compared: one of them learned nothing at its best rate. Empty if all did."""
    for shape in shapes:
        if not sweep.learned(shape):
            loss = float(np.nanmean(sweep.at_best(shape))) if np.isfinite(sweep.at_best(shape)).any() else np.nan
            return (
                f"on {words(sweep.kind)} the networks of {layers_of(sweep, shape)} learned nothing: their loss is "
                f"{loss:.3f} nats and must be {LEARNED} nats below {sweep.known_without:.3f}"
            )
    return ""


def _none_deeper(sweep: Sweep) -> str:
    return "" if sweep.deeper else f"on {words(sweep.kind)} no deeper shape learned anything"


def _shapes(sweep: Sweep) -> Numbers:
    """Losses, costs and embeddings of every shape, for the reader of a finding."""
    places = range(len(sweep.layers))
    facts = [sweep.facts(shape) for shape in places]
    names = [layers_of(sweep, shape) for shape in places]

    def row(values: list[float]) -> dict[str, float]:
        return {name: value for name, value in zip(names, values, strict=True) if np.isfinite(value)}

    shown = {
        "loss at the best rate": row([compare(sweep.at_best(shape)).value for shape in places]),
        "what the next-best rate adds": row([compare(sweep.rate_cost((shape,))).value for shape in places]),
        "best rate": row([sweep.rates[sweep.best_rate(shape)] for shape in places]),
        "million operations per token": row([fact["operations per token"] / 1e6 for fact in facts]),
        "milliseconds per network and step": row([1e3 * fact["seconds per step"] for fact in facts]),
        "share of parameters in embeddings": row([fact["embedding share"] for fact in facts]),
    }
    return {name: values for name, values in shown.items() if values}


def _left_out(sweep: Sweep) -> Numbers:
    return {"networks left out": {f"diverged on {words(sweep.kind)}": float(sweep.diverged)}} if sweep.diverged else {}


CLAIMS: dict[Claim, Callable[[Run], Finding]] = {
    **{claim: partial(_deeper_on, kind) for kind, claim in DEEPER.items()},
    BEST: _best,
    SHAPE: _shape,
    HIERARCHY: _hierarchy,
    ORDER: _order,
}
