"""The study `reversal`: its claims, its two sizes, and what it says of itself."""

from joma.claims.contract import Study
from joma.studies.reversal.reversal import judge
from joma.studies.reversal.reversal.figures import draw
from joma.studies.reversal.reversal.run import ReversalConfig, run

STUDY = Study(
    name="reversal",
    title="Reversal curse: what is never visited is never learned",
    version=1,
    claims={
        judge.TRAIN: judge.train_bound,
        judge.TEST: judge.reverse_is_a_guess,
        judge.LAW: judge.row_law,
        judge.EMPTY: judge.rows_stay_empty,
        judge.CURED: judge.learned_if_trained,
        judge.BILINEAR: judge.bilinear_bound,
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
