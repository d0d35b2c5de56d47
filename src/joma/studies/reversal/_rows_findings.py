"""Claims and findings of the study `reversal`: from recorded numbers to verdicts."""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.claims.contract import Claim, Finding, each_claim
from joma.claims.evidence import above, at_least, at_most
from joma.claims.verdicts import by_residual, by_tests
from joma.runs import Run
from joma.studies.reversal._theory_bilinear import TRAINED

ROUNDING = 1e-12  # relative, of a softmax in float64
GAP = 0.04  # nats of logit: 4 % in the odds of the answer
FALLS = -0.5  # a power of the width: the theorem asks for some polynomial, measured is about -1
LEARNED = 0.5  # of the exponent: a control that learns reverses about as fast as facts has 1

TRAIN = Claim(
    "train-bound",
    "Reversal Thm 3",
    "From t = N ln M / η on, p ≥ 1 − (M − 1)/(2qᶜ) for every training sequence, q = Mηt/N. "
    "The constant c is not given; 1 would be the natural one.",
    "In model A this holds with c = ln((e^g + M − 1)/2)/ln(M ln M) and q = Mηs, s the visits of the sequence. "
    "g is the gap of the row law at ηs = ln M. Any c < 1 holds late enough.",
    uses=("reversal/row-law",),
)
TEST = Claim(
    "reverse-is-a-guess",
    "Reversal Thm 3",
    "A sequence that was never trained has p ≤ 1/M, also if it is the reverse of a trained one.",
)
LAW = Claim(
    "row-law",
    "Reversal Thm 3",
    "A training sequence is learned by its own row of logits, and only its number of visits counts.",
)
EMPTY = Claim(
    "rows-never-visited",
    "Reversal Thm 3",
    "The reverse is not learned because SGD never changes the weights that it would need.",
    uses=("reversal/reverse-is-a-guess",),
)
CURED = Claim(
    "learned-if-trained",
    "Reversal Thm 3",
    "A reverse that is in the training set is learned like any other sequence.",
    uses=("reversal/row-law",),
)
BILINEAR = Claim(
    "bilinear-bound",
    "Reversal Thm 1",
    "In a bilinear model with random embeddings L_rev(t)/L_rev(0) ≥ (L(t)/L(0))^ε at all times. "
    "ε can be as small as one likes if the width is large enough.",
)
CLAIMS = (TRAIN, TEST, LAW, EMPTY, CURED, BILINEAR)


def cases(run: Run, models: str = "AB") -> list[str]:
    """The recorded cases, 'tokens/rate/model'."""
    found = [name.removesuffix("/moments") for name in run.names() if name.endswith("/moments")]
    return [case for case in found if case[-1] in models]


def largest(run: Run, name: str, models: str = "AB") -> float:
    """Over all cases, moments and seeds. A bound is not judged, and is NaN, at moments before it begins."""
    top = _late_top if name.startswith("missing") else np.max
    return float(np.max([top(run.value(f"{case}/{name}")) for case in cases(run, models)]))


def least(run: Run, name: str, models: str = "AB", *, at_end: bool = False) -> float:
    """The same for the smallest; `at_end` looks at the last moment only."""
    values = [run.value(f"{case}/{name}") for case in cases(run, models)]
    return float(np.min([np.min(value[-1] if at_end else value) for value in values]))


def _late_top(values: Any) -> float:
    return float("nan") if np.isnan(values[-1]).any() else float(np.nanmax(values))


def _train(run: Run) -> Finding:
    """The corrected form is about model A only. This was decided after runs in which three forms for model B failed.

    With the c of model A, 1 - p in model B was up to 1.56 times what is allowed. With the gap of half the rate, since a
    row of model B takes half of each step, it was 1.04 times from ηs = ln M on; from 2 ln M on it was 0.91 times at
    quick scale, but 1.07 times at paper scale. The largest c that held in model B is reported beside.
    """
    return by_tests(
        TRAIN,
        expected="From ηs = ln M on, 1 − p is at most (M − 1)/(2qᶜ).",
        printed=[at_most(_missing(model), largest(run, "missing, c = 1", model), 1.0) for model in "AB"],
        corrected=[at_most(_missing("A"), largest(run, "missing, c of the law", "A"), 1.0)],
        controls=[above("the same of a sequence without training", least(run, "missing untrained"), 1.0)],
        details={
            "at the end, c = 1": {f"model {m}": _end(run, "missing, c = 1", m) for m in "AB"},
            "at the end, c = 1, q from t/N": {f"model {m}": _end(run, "missing, c = 1, by steps", m) for m in "AB"},
            **powers_beside(run),
        },
    )


def powers_beside(run: Run) -> dict[str, dict[str, float]]:
    """The constant of the row law per size, and the largest that held for all sequences of each model."""
    return {
        "c of the row law": {f"M = {tokens:g}": power for tokens, power in run.value("powers").T.tolist()},
        "largest c that holds": {
            f"model {m}": float(np.min([np.nanmin(run.value(f"{case}/largest c")) for case in cases(run, m)]))
            for m in "AB"
        },
        "largest c that holds at the end": {
            f"model {m}": float(np.min([run.value(f"{case}/largest c")[-1].min() for case in cases(run, m)]))
            for m in "AB"
        },
    }


def _missing(model: str) -> str:
    return f"largest (1 − p)/allowed in model {model}"


def _end(run: Run, name: str, model: str) -> float:
    return float(np.max([run.value(f"{case}/{name}")[-1].max() for case in cases(run, model)]))


def _test(run: Run) -> Finding:
    return by_tests(
        TEST,
        expected="M p is at most 1 for the reverses of trained sequences.",
        printed=[
            at_most(f"largest M p of a reverse in model {m}", largest(run, "largest reverse M p", m), 1 + ROUNDING)
            for m in "AB"
        ],
        controls=[
            above("smallest M p of the same sequences if trained", least(run, "least cured M p", at_end=True), 1.0)
        ],
        details={
            "at the end, model A": _spread_at_end(run, "A"),
            "at the end, model B": _spread_at_end(run, "B"),
        },
    )


def _spread_at_end(run: Run, model: str) -> dict[str, float]:
    return {
        "smallest M p": least(run, "least reverse M p", model, at_end=True),
        "largest M p": _end(run, "largest reverse M p", model),
        "mean M p of unseen pairs": float(
            np.mean([run.value(f"{c}/unseen M p")[-1].mean() for c in cases(run, model)])
        ),
        "mean M p of shuffled answers": float(
            np.mean([run.value(f"{c}/shuffled M p")[-1].mean() for c in cases(run, model)])
        ),
    }


def _law(run: Run) -> Finding:
    beside = {
        f"largest distance of the flow's law, η = {rate}": {"nats": float(np.max(off))}
        for rate, off in _by_rate(run, "off the flow").items()
    }
    return by_residual(
        LAW,
        printed=largest(run, "off the law", "A"),
        tolerance=GAP,
        what="largest distance of a gap in nats",
        expected="e^g + (M − 1)g = Mη(s + ln((e^g + M − 1)/M)/2) + 1 in model A, at all rates.",
        control={"a gap that grows as ηs": largest(run, "off a straight line", "A")},
        details=beside,
    )


def _by_rate(run: Run, name: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for case in cases(run, "A"):
        found.setdefault(case.split("/")[1], []).append(float(run.value(f"{case}/{name}").max()))
    return found


def _empty(run: Run) -> Finding:
    return by_tests(
        EMPTY,
        expected="Rows of tokens that begin no training sequence stay exactly 0.",
        printed=[
            at_most(f"largest |Y[B]| of the tested pairs in model {m}", largest(run, "rows of B", m), 0.0) for m in "AB"
        ],
        controls=[above("smallest of the largest |Y[A]| of the same pairs", least(run, "rows of A", at_end=True), 1.0)],
    )


def _cured(run: Run) -> Finding:
    return by_residual(
        CURED,
        printed=largest(run, "cured off the law", "A"),
        tolerance=GAP,
        what="largest distance of a gap in nats",
        expected="With all reverses in training, every row of model A follows the row law.",
        control={"the reverses if they are not trained": least(run, "not cured off the law", "A", at_end=True)},
        details={
            "mean p of the reverses at the end": {
                f"model {m}, {kind}": float(np.mean([run.value(f"{c}/{name}")[-1].mean() for c in cases(run, m)]))
                for m in "AB"
                for kind, name in (("trained", "cured p"), ("not trained", "reverse p"))
            }
        },
    )


def _bilinear(run: Run) -> Finding:
    widths, power = run.value("bilinear/widths"), run.value("bilinear/power")  # (widths, draws)
    controls = dict(zip(TRAINED, run.value("bilinear/control power"), strict=True))  # (draws,) each
    mean = power.mean(1)
    return by_tests(
        BILINEAR,
        expected="The smallest ε is 0 with orthonormal embeddings. With Gaussian ones it falls with the width.",
        printed=[
            at_most("smallest ε with orthonormal embeddings", run.value("bilinear/orthonormal")[0].max(), ROUNDING),
            at_most("slope of ln ε over ln width", _slope(widths, mean), FALLS),
        ],
        controls=[
            at_least(f"smallest ε, {words}", controls[kind].min(), LEARNED)
            for kind, words in (("symmetric", "symmetric Θ"), ("both", "reverses trained"))
        ],
        details={
            f"width {width:g}": {"mean ε": float(one.mean()), "largest ε": float(one.max())}
            for width, one in zip(widths, power, strict=True)
        },
    )


def _slope(widths: Any, power: Any) -> float:
    """Of a straight line in logarithms. An exponent of 0 counts as the smallest that could be seen."""
    return float(np.polyfit(np.log(widths), np.log(np.maximum(power, 1e-16)), 1)[0])


JUDGE = each_claim(_train, _test, _law, _empty, _cured, _bilinear)
