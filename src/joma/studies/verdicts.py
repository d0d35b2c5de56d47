"""How numbers become verdicts. Every verdict in the ledger comes out of one of these rules."""

from __future__ import annotations

from math import isfinite

from joma.studies.contract import Claim, Finding, Verdict


def by_residual(
    claim: Claim,
    *,
    tolerance: float,
    expected: str,
    printed: float | None = None,
    corrected: float | None = None,
    control: float | str | None = None,
) -> Finding:
    """Exact statements: how far is the printed form from the truth, how far the corrected one?

    The printed form within tolerance holds; failing that, the corrected one within tolerance holds as corrected;
    failing both, the claim fails. A claim that was never corrected has only `printed`.

    >>> claim = Claim("growth", "JoMA Thm 2", "erf(v/2) grows linearly.", corrected="erf(v/√2) grows linearly.")
    >>> by_residual(claim, printed=0.36, corrected=4e-14, tolerance=1e-9, expected="a straight line").verdict
    'holds as corrected'
    """
    if (corrected is None) != (claim.corrected is None):
        raise ValueError(f"{claim.name}: a corrected residual and a corrected form come together")
    if printed is None and corrected is None:
        raise ValueError(f"{claim.name}: no residual was given")
    verdict: Verdict = "fails"
    if printed is not None and abs(printed) <= tolerance:
        verdict = "holds"
    elif corrected is not None and abs(corrected) <= tolerance:
        verdict = "holds as corrected"
    residuals = {k: float(v) for k, v in (("printed", printed), ("corrected", corrected)) if v is not None}
    measured: float | str
    measured = (
        ", ".join(f"{k} off by {show(v)}" for k, v in residuals.items())
        if corrected is not None
        else float(printed or 0.0)
    )
    return Finding(claim, expected, measured, tolerance, verdict, control, residuals)


def by_test(
    claim: Claim,
    *,
    measured: float | str,
    expected: str,
    as_printed: bool,
    as_corrected: bool | None = None,
    in_direction: bool = False,
    tolerance: float | None = None,
    control: float | str | None = None,
    residuals: dict[str, float] | None = None,
) -> Finding:
    """Statements that are no residual (an ordering, a sign, an existence): did each form pass its test?

    The tests are computed from recorded numbers by the caller; `measured` shows those numbers. A claim whose
    quantity is missed but whose direction is seen (`in_direction`) is only qualitative.

    >>> claim = Claim("order", "JoMA Thm 4", "Salient components converge first.")
    >>> by_test(claim, measured="4 of 4 in order", expected="all in order", as_printed=True).verdict
    'holds'
    """
    if (as_corrected is None) != (claim.corrected is None):
        raise ValueError(f"{claim.name}: a corrected form and its test come together")
    verdict: Verdict = "only qualitative" if in_direction else "fails"
    if as_printed:
        verdict = "holds"
    elif as_corrected:
        verdict = "holds as corrected"
    return Finding(claim, expected, measured, tolerance, verdict, control, residuals or {})


def by_effect(
    claim: Claim,
    *,
    measured: float,
    control: float,
    margin: float,
    expected: str,
    quantitative: bool = True,
    shown: str | None = None,
    control_shown: str | None = None,
) -> Finding:
    """Empirical effects: does the effect exceed its control by `margin`?

    If not, it is not above its control. If so, but the source's quantity is missed (`quantitative` is false),
    it is only qualitative. `shown` and `control_shown` replace the bare numbers where a reader wants intervals.

    >>> claim = Claim("rebound", "JoMA Fig. 6", "Attention entropy bounces back.", empirical=True)
    >>> by_effect(claim, measured=0.3, control=0.28, margin=0.05, expected="a rebound").verdict
    'not above its control'
    """
    verdict: Verdict
    if not isfinite(measured - control) or measured <= control + margin:
        verdict = "not above its control"
    else:
        verdict = "holds" if quantitative else "only qualitative"
    return Finding(
        claim,
        expected,
        float(measured) if shown is None else shown,
        margin,
        verdict,
        float(control) if control_shown is None else control_shown,
    )


def show(number: float) -> str:
    """A number as a reader wants it: four digits, or two and the power of ten.

    >>> show(0.36), show(4e-14), show(12.6)
    ('0.36', '4.0e-14', '12.6')
    """
    if number == 0 or 1e-3 <= abs(number) < 1e5:
        return f"{number:.4g}"
    return f"{number:.1e}".replace("e-0", "e-").replace("e+0", "e+")
