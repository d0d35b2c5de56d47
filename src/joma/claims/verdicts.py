"""How a study says what it found: numbers go in, a Finding comes out, and its verdict follows by `joma.claims.rules`.

by_residual   an exact statement: how far is each form from the truth?
by_tests      an ordering, a sign, an existence: which numbers must keep which bounds?
by_effect     an empirical statement: a number over seeds beside its control
not_run      nothing was measured, or nothing was learned
only_at_paper_scale  the claim is about paper scale, and this run is smaller
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from joma.claims.claim import Claim
from joma.claims.evidence import Effect as Effect
from joma.claims.evidence import Evidence
from joma.claims.evidence import Test as Test
from joma.claims.evidence import above as above
from joma.claims.evidence import at_least as at_least
from joma.claims.evidence import at_most as at_most
from joma.claims.evidence import below as below
from joma.claims.finding import Finding
from joma.measure.intervals import Comparison

Numbers = Mapping[str, Mapping[str, float]]
Compared = Comparison | Mapping[str, Comparison]


def by_residual(
    claim: Claim, *, tolerance: float, printed: float, corrected: float | None = None, expected: str = "",
    what: str = "off by", control: Mapping[str, float] | None = None, details: Numbers | None = None,
) -> Finding:  # fmt: skip
    """Exact statements: how far is the printed form from the truth, how far the corrected one?

    - claim, expected: what is judged, and what would be seen if it were true, unless the claim says it
    - printed, corrected: how far each form is off; tolerance: what counts as not at all; what: names that distance
    - control: the same distance where the statement must not be true, by name. One that is within the tolerance too
      shows that the measure sees nothing, and the claim is not above its control
    - details: further numbers for the reader

    >>> claim = Claim("growth", "JoMA Thm 2", "erf(v/2) grows linearly.", corrected="erf(v/√2) grows linearly.")
    >>> by_residual(claim, printed=0.36, corrected=4e-14, tolerance=1e-9, expected="a straight line").verdict
    'holds as corrected'
    """
    controls = tuple(above(f"{name}, {what}", abs(off), tolerance) for name, off in (control or {}).items())
    forms = [
        None if off is None else Evidence(tests=(at_most(what, abs(off), tolerance),), controls=controls)
        for off in (printed, corrected)
    ]
    return Finding(claim, expected or claim.expected, forms[0], forms[1], details or {})


def by_tests(
    claim: Claim, *, printed: Sequence[Test], corrected: Sequence[Test] | None = None, expected: str = "",
    direction: Sequence[Test] = (), controls: Sequence[Test] = (), details: Numbers | None = None,
) -> Finding:  # fmt: skip
    """Mathematical statements that are no residual: does every number of a form keep its bound?

    - claim, expected, details: as for `by_residual`
    - printed, corrected: the tests of each form
    - direction: what must be true for "only qualitative", where the printed form is missed
    - controls: what must be true for the tests to mean anything, of either form

    >>> from joma.claims.evidence import at_least
    >>> claim = Claim("order", "JoMA Thm 4", "Salient components converge first.")
    >>> by_tests(claim, expected="all in order", printed=[at_least("pairs in order", 1.0, 1.0, "%")]).verdict
    'holds'
    """
    first = Evidence(tests=tuple(printed), direction=tuple(direction), controls=tuple(controls))
    second = None if corrected is None else Evidence(tests=tuple(corrected), controls=tuple(controls))
    return Finding(claim, expected or claim.expected, first, second, details or {})


def by_effect(
    claim: Claim, found: Compared, *, what: str = "", over: str = "seeds", size: Sequence[Test] = (),
    corrected: Compared | None = None, corrected_size: Sequence[Test] = (), controls: Sequence[Test] = (),
    horizon: Sequence[Test] = (), expected: str = "", details: Numbers | None = None,
) -> Finding:  # fmt: skip
    """Empirical statements: is a number over seeds above its control, by what matters?

    - claim, expected, details: as for `by_residual`; what matters, the unit and the ceiling are the claim's
    - found: one comparison, or one for every case (a layer, a depth, a rate) that the claim needs
    - what: names the number; over: what was drawn several times, where that is not seeds
    - size: what makes size or form the source's; without it the claim is only qualitative
    - corrected, corrected_size: the same for the corrected form
    - controls: what else must be true, such as of a control; without it the claim is not above its control
    - horizon: what must be true for any verdict, such as that the curves no longer move; else it is undecided

    >>> from joma.measure.intervals import compare
    >>> claim = Claim("rebound", "JoMA Fig. 6", "Entropy comes back.", matters=0.05, unit="nats")
    >>> by_effect(claim, compare([0.31, 0.29, 0.30], [0.28, 0.29, 0.30]), expected="a rebound").verdict
    'undecided'
    """
    shared = {"controls": tuple(controls), "horizon": tuple(horizon)}
    first = Evidence(_effects(claim, found, what, over), tuple(size), **shared)
    second = None
    if corrected is not None:
        second = Evidence(_effects(claim, corrected, what, over), tuple(corrected_size), **shared)
    return Finding(claim, expected or claim.expected, first, second, details or {})


def not_run(claim: Claim, expected: str, reason: str, command: str = "", **changes: Any) -> Finding:
    """Nothing was measured, or nothing learned.

    - claim, expected: as for `by_residual`
    - reason: why nothing can be said; command: what would measure it
    - changes: options of the study, by name. The same command with these would measure it

    >>> claim = Claim("winner", "JoMA Thm 2", "One token takes all attention.")
    >>> not_run(claim, "a run", "torch sees no GPU", "joma verify thm2 --scale paper").verdict
    'not run'
    """
    return Finding(claim, expected, None, reason=reason, command=command, changes=changes)


def only_at_paper_scale(claim: Claim, expected: str, reason: str, command: str) -> Finding:
    """The claim is about paper scale (printed losses, ten layers, WikiText), and no smaller run can decide it.

    It does not count among the claims of such a run: the verdict to read is the one that is kept from paper scale.

    - claim, expected: as for `by_residual`
    - reason: what is smaller here; command: what runs it at paper scale

    >>> claim = Claim("loss", "JoMA Fig. 6", "The loss is 5.357.", matters=0.01, unit="nats")
    >>> only_at_paper_scale(claim, "5.357", "the text is not WikiText-2", "joma verify fig6 --scale paper").verdict
    'at paper scale'
    """
    return Finding(claim, expected, None, reason=reason, command=command, about_paper_scale=True)


def _effects(claim: Claim, found: Compared, what: str, over: str) -> dict[str, Effect]:
    if claim.matters is None:
        raise ValueError(f"{claim.name}: an effect speaks for empirical claims, which say what matters")
    cases = {"": found} if isinstance(found, Comparison) else found
    of = partial(Effect.of, matters=claim.matters, ceiling=claim.ceiling, unit=claim.unit, what=what, over=over)
    return {case: of(one) for case, one in cases.items()}
