"""What stands before a verdict: is the machine fit, did networks learn, is the hardest control exceeded?

A device or a library that is missing makes a study not run. Networks that learned nothing make a claim not run.

Cases (layers, depths, rates) are things that a claim speaks of; some of them may be missed, and a part of the claim is
left. Controls are not: a number that one of its controls reaches as well says nothing.
"""

from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from math import inf, isfinite, log, nan
from typing import Any

import numpy as np

from joma.claims.claim import Claim
from joma.claims.contract import NotRun
from joma.claims.evidence import Effect, Test, above, at_least, at_most
from joma.claims.finding import Finding
from joma.claims.rules import Verdict, of_effect
from joma.claims.verdicts import Compared, by_effect, not_run
from joma.host.devices import lacking
from joma.host.extras import install_command
from joma.measure.intervals import Comparison, seeds_to_decide


def at_paper_scale(study: str) -> str:
    """The command for a run that is long and large enough.

    >>> at_paper_scale("fig6")
    'joma verify fig6 --scale paper'
    """
    return f"joma verify {study} --scale paper"


def needs_device(device: str, command: str = "", /, **changes: Any) -> None:
    """Raise `NotRun` where this machine lacks the device.

    command: what would run the study elsewhere. changes: options with which it runs here.

    >>> needs_device("cpu", device="cpu")
    """
    if missing := lacking(device):
        raise NotRun(missing, command, **changes)


def needs_transformers(study: str) -> None:
    """Raise `NotRun` where transformers is not installed."""
    if find_spec("transformers") is None:
        raise NotRun("transformers is not installed (the extra hf)", f"{install_command('hf')} && joma verify {study}")


def beats_guessing(loss: Any, choices: int) -> Any:
    """Whether a network learned, where its record has no other loss to compare with: a tenth below that of guessing.

    >>> beats_guessing(0.6, 2), beats_guessing(0.69, 2)
    (True, False)
    """
    return loss <= 0.9 * log(choices)


def of_learned(
    claim: Claim, found: Compared, *, reason: str, command: str, expected: str = "", corrected: Compared | None = None,
    fewest: int = 1, **evidence: Any,
) -> Finding:  # fmt: skip
    """`by_effect` of networks that learned; not run where a case has fewer of them than `fewest`.

    found, corrected: comparisons of those networks alone. reason: why nothing can be said then. command: what would
    measure it. evidence: whatever else `by_effect` takes.

    >>> from joma.measure.intervals import compare
    >>> claim = Claim("taught", "CDAG Thm 1", "Gradients teach.", matters=0.05)
    >>> of_learned(claim, compare([]), expected="more", reason="no network learned", command="joma verify cdag").verdict
    'not run'
    """
    forms = [form for form in (found, corrected) if form is not None]
    cases = [one for form in forms for one in (form.values() if isinstance(form, Mapping) else [form])]
    if not cases or any(one.seeds < fewest for one in cases):
        return not_run(claim, expected or claim.expected, reason, command)
    return by_effect(claim, found, expected=expected, corrected=corrected, **evidence)


STILL = 0.01
"""Of its fall so far: a curve that loses more between its last two points still falls."""


def still_falls(curves: Any) -> Any:
    """(..., seeds, points) -> (...): whether every seed still falls when the run ends, so that no turn can be seen.

    Such a run says nothing about whether or how far a curve comes back: not "no", and not a size of 0. Every seed then
    loses more than `STILL` of its fall between its last two points, and the mean of the others, at whose valley it is
    read, is lowest at the last.

    >>> falls, flat = [[9.0, 5.0, 3.0], [9.0, 6.0, 2.0]], [[9.0, 3.0, 2.99], [9.0, 6.0, 2.0]]
    >>> still_falls([falls, flat])
    array([ True, False])
    """
    every = np.asarray(curves, dtype=float)
    others = every.sum(-2, keepdims=True) - every if every.shape[-2] > 1 else every
    lowest_last = (others.argmin(-1) == every.shape[-1] - 1).all(-1)
    last = every[..., -2] - every[..., -1] if every.shape[-1] > 1 else np.zeros(every.shape[:-1])
    return lowest_last & (last > STILL * (every[..., 0] - every[..., -1])).all(-1)


def mean_known(values: Any) -> float:
    """The mean of what is a number; NaN where nothing is.

    >>> mean_known([1.0, float("nan"), 3.0])
    2.0
    """
    values = np.asarray(values, dtype=float)
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else nan


def clears(what: str, found: Comparison, unit: str = "", *, matters: float = inf) -> Test:
    """The test that a value is above its control: the lower end of the interval of their difference is above 0.

    matters: of a control, the smallest difference that would. An interval that holds both 0 and such a difference
    neither meets the control nor refutes it: the number is then unknown, so that the verdict is undecided. The same is
    true of two or three seeds that all give what the control gives.

    >>> from joma.measure.intervals import compare
    >>> unclear = compare([0.3, 0.2, 0.4], [0.2, 0.2, 0.2])
    >>> clears("gain", unclear).passes, clears("gain", unclear, matters=0.1).value
    (False, nan)
    """
    is_open = isfinite(matters) and of_effect(Effect.of(found, matters=matters)) == "undecided"
    test = above(f"lower end of {what}", found.difference_low, 0.0, unit)
    return _or_open(test, found, (0.0, matters), is_open)


def no_more(what: str, found: Comparison, most: float, unit: str = "") -> Test:
    """The test that value - control leaves no room for more than `most`.

    An interval that holds `most` neither meets the bound nor misses it: the number is then unknown, and the claim
    undecided.

    >>> from joma.measure.intervals import compare
    >>> no_more("gain", compare([0.1, 0.0, 0.4]), 0.2).passes, no_more("gain", compare([0.1, 0.0, 0.4]), 0.2).value
    (False, nan)
    """
    low, high = found.difference_low, found.difference_high
    return _or_open(at_most(f"upper end of {what}", high, most, unit), found, (most, most), low <= most < high)


def _or_open(test: Test, found: Comparison, between: tuple[float, float], is_open: bool) -> Test:
    if not is_open:
        return replace(test, half_width=found.half_width if isfinite(found.half_width) else 0.0)
    needed = seeds_to_decide(
        found.difference, found.half_width, found.seeds, between, level=found.level, freedom=found.freedom
    )
    return replace(test, value=nan, seeds_to_decide=needed)


_WORST_FIRST: tuple[Verdict, ...] = ("fails", "not above its control", "undecided", "only qualitative", "holds")


def hardest(claim: Claim, controls: Mapping[str, Comparison]) -> dict[str, Comparison]:
    """The comparison with the control that is hardest to exceed, under its name, as `by_effect` takes it.

    It is the one with the least favourable verdict; among equals, the one whose interval begins lowest. So a claim is
    above all of its controls if it is above this one.

    >>> from joma.measure.intervals import compare
    >>> claim = Claim("taught", "CDAG Thm 1", "Gradients teach.", matters=0.05, unit="%")
    >>> seen = [0.90, 0.91, 0.89]
    >>> list(hardest(claim, {"chance": compare(seen, 0.5), "untrained": compare(seen, [0.90, 0.90, 0.91])}))
    ['untrained']
    """
    if not controls:
        raise ValueError(f"{claim.name}: at least one control is needed, got none")

    def favour(name: str) -> tuple[int, float]:
        found = controls[name]
        low = found.difference_low
        return _WORST_FIRST.index(_verdict(claim, found)), low if isfinite(low) else -inf

    worst = min(controls, key=favour)
    return {worst: controls[worst]}


def beyond(claim: Claim, what: str, found: Comparison) -> Test:
    """The test that the comparison with a further control holds: value - control, by what matters to the claim.

    Where that is undecided the value is not a number, and the claim is undecided with it.

    >>> from joma.measure.intervals import compare
    >>> claim = Claim("closer", "CDAG Sec. 1.2", "It is closer.", matters=5.0, unit="°")
    >>> beyond(claim, "gap beyond the untrained network's", compare([44.0, 45.0, 43.0], [59.0, 60.0, 58.0])).value
    -15.0
    """
    matters = claim.matters or inf
    test = at_least(what, found.difference, matters, claim.unit)
    return _or_open(test, found, (0.0, matters), _verdict(claim, found) == "undecided")


def _verdict(claim: Claim, found: Comparison) -> Verdict:
    return of_effect(Effect.of(found, matters=claim.matters or inf, ceiling=claim.ceiling))
