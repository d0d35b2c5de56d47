"""The study `reversal`: its claims, and the verdicts from recorded numbers."""

from __future__ import annotations

import numpy as np

from joma.claims.contract import Claim, Finding, Study
from joma.claims.evidence import above, at_least, at_most
from joma.claims.verdicts import by_residual, by_tests
from joma.runs import Run
from joma.studies.reversal._rows import ROUNDING, at_end, cases, largest, least_untrained, powers_found
from joma.studies.reversal.reversal.bilinear import TRAINED
from joma.studies.reversal.reversal.figures import draw
from joma.studies.reversal.reversal.run import ReversalConfig, run

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


def _train_bound(run: Run) -> Finding:
    """The corrected form is about model A only. This was decided after runs in which three forms for model B failed.

    With the c of model A, 1 - p in model B was up to 1.56 times what is allowed. With the gap of half the rate, since a
    row of model B takes half of each step, it was 1.04 times from ηs = ln M on; from 2 ln M on it was 0.91 times at
    quick scale, but 1.07 times at paper scale. The largest c that held in model B is reported with the details.
    """
    what = "largest (1 − p)/allowed in model"
    return by_tests(
        TRAIN,
        expected="From ηs = ln M on, 1 − p is at most (M − 1)/(2qᶜ).",
        printed=[at_most(f"{what} {model}", largest(run, "missing, c = 1", model), 1.0) for model in "AB"],
        corrected=[at_most(f"{what} A", largest(run, "missing, c of the law", "A"), 1.0)],
        controls=[above("the same of a sequence without training", least_untrained(run), 1.0)],
        details={
            f"at the end, {name}": {f"model {m}": at_end(run, f"missing, {series}", m, np.max) for m in "AB"}
            for name, series in (("c = 1", "c = 1"), ("c = 1, q from t/N", "c = 1, by steps"))
        }
        | powers_found(run),
    )


def _reverse_is_a_guess(run: Run) -> Finding:
    """Reverses of trained sequences beside the same sequences where they are trained."""
    return by_tests(
        TEST,
        expected="M p is at most 1 for the reverses of trained sequences.",
        printed=[
            at_most(f"largest M p of a reverse in model {m}", largest(run, "largest reverse M p", m), 1 + ROUNDING)
            for m in "AB"
        ],
        controls=[
            above("smallest M p of the same sequences if trained", at_end(run, "least cured M p", pick=np.min), 1.0)
        ],
        details={
            f"at the end, model {m}": {
                "smallest M p": at_end(run, "least reverse M p", m, np.min),
                "largest M p": at_end(run, "largest reverse M p", m, np.max),
                "mean M p of unseen pairs": at_end(run, "unseen M p", m),
                "mean M p of shuffled answers": at_end(run, "shuffled M p", m),
            }
            for m in "AB"
        },
    )


def _row_law(run: Run) -> Finding:
    """Gaps of model A beside the law; what the law of the gradient flow misses is told beside it."""
    of_flow: dict[str, list[float]] = {}
    for case in cases(run, "A"):
        of_flow.setdefault(case.split("/")[1], []).append(float(run.value(f"{case}/off the flow").max()))
    return by_residual(
        LAW,
        printed=largest(run, "off the law", "A"),
        tolerance=GAP,
        what="largest distance of a gap in nats",
        expected="e^g + (M − 1)g = Mη(s + ln((e^g + M − 1)/M)/2) + 1 in model A, at all rates.",
        control={"a gap that grows as ηs": largest(run, "off a straight line", "A")},
        details={
            f"largest distance of the flow's law, η = {rate}": {"nats": float(np.max(off))}
            for rate, off in of_flow.items()
        },
    )


def _rows_stay_empty(run: Run) -> Finding:
    """Rows of B in the tested pairs, which no sequence visits, beside the rows of A."""
    return by_tests(
        EMPTY,
        expected="Rows of tokens that begin no training sequence stay exactly 0.",
        printed=[
            at_most(f"largest |Y[B]| of the tested pairs in model {m}", largest(run, "rows of B", m), 0.0) for m in "AB"
        ],
        controls=[
            above("smallest of the largest |Y[A]| of the same pairs", at_end(run, "rows of A", pick=np.min), 1.0)
        ],
    )


def _learned_if_trained(run: Run) -> Finding:
    """The twins, which also train the reverses."""
    return by_residual(
        CURED,
        printed=largest(run, "cured off the law", "A"),
        tolerance=GAP,
        what="largest distance of a gap in nats",
        expected="With all reverses in training, every row of model A follows the row law.",
        control={"the reverses if they are not trained": at_end(run, "not cured off the law", "A", np.min)},
        details={
            "mean p of the reverses at the end": {
                f"model {m}, {kind}": at_end(run, name, m)
                for m in "AB"
                for kind, name in (("trained", "cured p"), ("not trained", "reverse p"))
            }
        },
    )


def _bilinear_bound(run: Run) -> Finding:
    """The smallest exponents, over widths and beside controls that learn reverses."""
    widths, power = run.value("bilinear/widths"), run.value("bilinear/power")  # (widths, draws)
    controls = dict(zip(TRAINED, run.value("bilinear/control power"), strict=True))  # (draws,) each
    # of a straight line in logarithms; an exponent of 0 counts as the smallest that could be seen
    slope = np.polyfit(np.log(widths), np.log(np.maximum(power.mean(1), 1e-16)), 1)[0]
    return by_tests(
        BILINEAR,
        expected="The smallest ε is 0 with orthonormal embeddings. With Gaussian ones it falls with the width.",
        printed=[
            at_most("smallest ε with orthonormal embeddings", run.value("bilinear/orthonormal")[0].max(), ROUNDING),
            at_most("slope of ln ε over ln width", slope, FALLS),
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


STUDY = Study(
    name="reversal",
    title="Reversal curse: what is never visited is never learned",
    version=1,
    claims={
        TRAIN: _train_bound,
        TEST: _reverse_is_a_guess,
        LAW: _row_law,
        EMPTY: _rows_stay_empty,
        CURED: _learned_if_trained,
        BILINEAR: _bilinear_bound,
    },
    quick=ReversalConfig(),
    paper=ReversalConfig(
        pairs=(25, 50, 200),
        rates=(0.1, 0.3, 1.0),
        horizon=10.0,
        moments=12,
        widths=(16, 32, 64, 128, 256, 512),
        draws=60,
        steps=200,
    ),
    run=run,
    draw=draw,
    about=(
        "Facts A → B and reverses B ← A over M tokens. 70 % of the pairs train in both directions. Of the others one "
        "direction trains and the other is tested. Model A predicts from the row Y[x₁] of a matrix of logits, model B "
        "from (Y[x₁] + Y[x₂])/√2, where x₂ is the relation. SGD takes one sequence per step and starts from zero. A "
        "twin of each run also trains the tested reverses, as a control. The constant c of the corrected bound comes "
        "from the row law of model A in closed form, not from these runs. In model B all sequences of a relation share "
        "its row. No such law is known there, so the largest c that held is reported. In the bilinear model the logits "
        "are xᵀΘy with fixed embeddings. Gradient descent starts from Θ = 0 and trains A → B alone. Controls are a "
        "symmetric Θ and training in both directions. The theorem starts from small random weights; this start is "
        "exactly zero."
    ),
)
