"""What eq. 6, Figure 4 and the remarks on rank say."""

from __future__ import annotations

from joma.claims.contract import Claim

REBOUND = 0.05  # nats: what counts as one
DROP = 0.2  # of stable rank, and nats of entropy below the control: what counts as a drop
MAJORITY = 0.5  # by how much a share of draws or pairs must exceed its control
CRITICAL = Claim("critical-point", "JoMA eq. 6", "The factor exp(v²/2) does not change the critical point v = μ.")
FACTOR = Claim(
    "speed-factor",
    "JoMA Sec. 4",
    "Attention multiplies the speed of each component by exp(v²).",
    "The factor is exp(v²/2), in agreement with eq. 6 and Theorem 1.",
    uses=("thm1/exp-invariant",),
)
ATTENTION = Claim(
    "entropy-exponent",
    "JoMA Fig. 4",
    "The entropy in the figure is that of the attention softmax(v²).",
    "The attention is softmax(v²/2). The figure was drawn with softmax(v²/3).",
    uses=("thm1/exp-invariant",),
)
ORDER = Claim(
    "salient-learned-first",
    "JoMA Fig. 4",
    "Components with large μ are learned first, the others later.",
    matters=MAJORITY,
    unit="%",
    ceiling=1.0,
    uses=("thm4/salient-first",),
)
FALL = Claim(
    "entropy-drops",
    "JoMA Fig. 4",
    "The entropy of attention drops while the salient components learn.",
    matters=DROP,
    unit="nats",
    uses=("eq6/salient-learned-first",),
)
RISE = Claim(
    "entropy-rebounds",
    "JoMA Fig. 4",
    "The entropy rises again when the other components catch up.",
    matters=REBOUND,
    unit="nats",
    uses=("eq6/entropy-drops",),
)
SAME_PATH = Claim(
    "figure-is-eq-6",
    "JoMA Fig. 4",
    "The figure shows eq. 6.",
    "It shows eq. 6 for μ√(2/3) with another clock. The softmax instead of exp changes the times, not the path.",
    uses=("eq6/speed-factor",),
)
RANK = Claim(
    "rank-rebounds",
    "JoMA Sec. 4",
    "The rank of the lower layer of the MLP first drops and later recovers.",
    "From a zero start its rank never changes. Its stable rank drops and recovers.",
    uses=("eq6/speed-factor",),
)
NONLINEAR = Claim(
    "only-nonlinear-rebounds",
    "JoMA Sec. 5",
    "With a nonlinear MLP the entropy rises again. With a linear MLP it does not.",
    uses=("eq6/entropy-exponent", "thm2/one-hot"),
)
