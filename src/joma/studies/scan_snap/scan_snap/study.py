"""The study `scan-snap`: its claims with their judges, its sizes, its figures."""

from __future__ import annotations

import numpy as np

from joma.claims.contract import Study
from joma.studies.scan_snap.scan_snap import signs, theorems
from joma.studies.scan_snap.scan_snap.figures import draw
from joma.studies.scan_snap.scan_snap.run import ScanSnapConfig, run

LENIENT = np.errstate(divide="ignore", invalid="ignore", over="ignore")
"""A record that is not as it should be may divide by zero: what is not a number then keeps no bound."""

STUDY = Study(
    name="scan-snap",
    title="Scan and Snap: attention finds distinct tokens",
    version=1,
    claims={claim: LENIENT(judge) for claim, judge in (signs.JUDGES | theorems.JUDGES).items()},
    quick=ScanSnapConfig(),
    paper=ScanSnapConfig(draws=24, grid=9, sgd_steps=5_000, seeds=12, late=1e8),
    run=run,
    draw=draw,
    about=(
        "Two classes of sequences have ten distinct tokens each and share ten common ones. An adaptive solver follows "
        "decoder logits Y and attention logits Z under the expected gradient, from zero. SGD trains the same model "
        "with one sequence of 64 tokens per step. Constants that the slides print are measured and reported, never "
        "assumed. Controls: classes without common tokens, shuffled labels, a wrong exponent, the decoder's speed."
    ),
)
