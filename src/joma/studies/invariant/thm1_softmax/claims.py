"""What the paper says of softmax attention: of eq. 17 and 18 themselves, and of how they meet trained logits."""

from __future__ import annotations

from joma.claims.contract import Claim
from joma.studies.invariant.thm1_softmax.run import KINDS

CLOSE = 0.2  # relative error of a prediction worth the name
HIGH, LOW = 0.9, 0.5  # Pearson correlations that count as high, and as none
MARGIN = 0.05  # by how much a correlation must exceed its control
CONCENTRATED = 0.1  # by how much a share of growth must exceed its control

SUM = "thm1-softmax/eq17-sum"
SUMS = Claim(
    "eq17-sum",
    "JoMA eq. 17",
    "If b is uncorrelated with g h′ b, then z′ = Σ v_k′∘v_k − b̄ v_k′·v_k. The sum sign stands only before the "
    "first term.",
    "The sum over nodes covers both terms.",
)
COVARIANCE = Claim(
    "eq17-covariance",
    "JoMA eq. 17",
    "In training, z′ = Σ(v_k′∘v_k − b̄ v_k′·v_k).",
    "z′ = Σ(v_k′∘v_k − b̄ v_k′·v_k) − Cov(s, b), times κ/T, with s = Σ g_k h_k′ b·v_k. It is exact at every step of "
    "SGD.",
    uses=(SUM,),
)
CONSTANT = Claim(
    "eq18-constant-mean",
    "JoMA eq. 18",
    "With constant b̄ the integral of eq. 17 is z = ½Σ(v² − ‖v‖² b̄) + c.",
    "b̄ moves whenever z moves. If Cov(s, b) = 0, then z = z(0) + ∫[Σ v_k∘v_k′ − b̄(t) Σ v_k·v_k′] dt.",
    uses=(SUM,),
)
CONDITION = Claim(
    "softmax-condition",
    "JoMA Thm 1",
    "The condition E[Σ g_k h_k′ b bᵀ] = b̄ E[Σ g_k h_k′ b]ᵀ is enough for the softmax case (with constant b̄).",
    "The condition must hold for each node, or contain v_k: Σ E[g_k h_k′ b bᵀ] v_k = b̄ Σ v_k′·v_k.",
    uses=(SUM,),
)
MEAN = Claim(
    "softmax-mean-logit",
    "JoMA eq. 17",
    "The right-hand side sums to zero over tokens, so the mean logit never moves.",
    uses=("thm1-softmax/eq17-covariance",),
)
CLOSED_FORM = ("thm1-softmax/eq18-constant-mean",)
PUBLISHED = Claim(
    "softmax-published",
    "JoMA Thm 1",
    "½Σ(v² − ‖v‖² b̄) + c with constant b̄ predicts the softmax logits fairly well, although its assumptions fail.",
    matters=MARGIN,
    ceiling=1.0,
    uses=CLOSED_FORM,
)
CORRELATES = {
    kind: Claim(
        f"fig2-{kind}",
        "JoMA Fig. 2",
        f"The estimate from V correlates highly with the true logits ({kind} classes).",
        matters=MARGIN,
        ceiling=1.0,
        uses=CLOSED_FORM,
    )
    for kind in KINDS
}
PARTS = Claim(
    "fig2-components",
    "JoMA Fig. 2",
    "Neither of the two terms, ½Σv² and −½Σ‖v‖² b̄, correlates with the logits alone.",
    "The second term does not. The first term, ½Σv², does at the end of training.",
    matters=HIGH - LOW,
    uses=CLOSED_FORM,
)
CURRENT = Claim(
    "eq18-current-mean",
    "JoMA eq. 18",
    "The closed form can be computed with b̄ as the theorem defines it: the mean attention at that time.",
    matters=MARGIN,
    ceiling=1.0,
    uses=CLOSED_FORM,
)
REBUILT = Claim(
    "softmax-rebuilt",
    "JoMA eq. 18",
    "A closed form gives the logits from V(t), so attention does not need training.",
    "The path of V and the inputs x give the logits: integrate eq. 17 with b̄ computed from the estimate itself.",
    matters=CLOSE,
    ceiling=1.0,
    uses=("thm1-softmax/eq17-sum",),
)
GROWTH = {
    kind: Claim(
        f"fig3-{kind}",
        "JoMA Fig. 3",
        f"Late in training only some components of v keep growing, and the others stop ({kind} classes).",
        matters=CONCENTRATED,
        unit="%",
        ceiling=1.0,
    )
    for kind in KINDS
}
