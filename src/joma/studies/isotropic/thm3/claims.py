"""What Theorem 3 and its equations say of a node near a critical point."""

from __future__ import annotations

from joma.claims.contract import Claim

EQ69 = Claim(
    "theta2-jacobian",
    "JoMA eq. 69",
    "∂(θ₂(r)v/‖v‖ᵖ)/∂vⱼ contains [θ₂′x̄ⱼ‖v‖² − p vⱼθ₂] times ‖v‖.",
    "The bracket is multiplied by the vector v, not by its length.",
)
BETA1 = Claim(
    "beta1",
    "JoMA eq. 73",
    "At right angles to μ the flow contracts at the rate β₁ = s a₊‖x̄₊‖θ₁(r₊)/‖μ‖².",
    "The rate is β₁ = s a₊‖x̄₊‖θ₁(ρ₊)/‖μ‖, with or without weight decay.",
    uses=("lemma2/mixture-weight", "lemma4/critical-points"),
)
BETA2 = Claim(
    "beta2",
    "JoMA eq. 74",
    "β₂ = s a₊‖x̄₊‖(ξθ₁′(r₊) − 2θ₁(r₊))/‖μ‖⁴.",
    "β₂‖μ‖² = λ − ρ₋²D/‖μ‖ − β₁, where D = a₊pₙ(ρ₊) − a₋pₙ(ρ₋) and λ is the weight decay.",
    uses=("lemma2/theta-slopes", "lemma4/critical-points", "thm3/theta2-jacobian"),
)
POSITIVE = Claim(
    "positive-definite",
    "JoMA Thm 3",
    "C(μ) can be positive definite if μ is parallel to x̄₊ and ξ < 0, the typical case.",
    "With the corrected β it is positive definite whenever s = +1. With the printed β it never is for ξ < 0.",
    uses=("thm3/beta1", "thm3/beta2"),
)
SIGN = Claim(
    "sign-once",
    "JoMA Thm 3",
    "C = s{β₁I + β₂μμᵀ}, and β₁ also contains the factor s.",
    "The factor s appears only once. A μ that points away from x̄₊ is unstable.",
    uses=("thm3/beta1",),
)
FACTOR = Claim(
    "remainder",
    "JoMA eq. 5",
    "v′ = C(μ)(1 + λ)(μ − v) with a small number λ.",
    "v′ = C(μ)(μ − v) plus a vector of order ‖v − μ‖². No number λ can replace this vector.",
    uses=("thm3/beta1", "thm3/beta2"),
)
FROZEN = Claim(
    "frozen-bias",
    "JoMA Thm 3",
    "Near μ the weight has its own equation, in which the bias stays at ξ*.",
    "v and ξ are coupled at first order by ∂v′/∂ξ = −ρ₋D v/‖v‖². This is not small compared with C.",
    uses=("lemma2/mixture-weight", "lemma2/theta-slopes"),
)
ISOLATED = Claim(
    "convergence",
    "JoMA Thm 3",
    "A stable μ attracts the weights near it.",
    "It attracts towards its ray and is neutral along the ray. With weight decay it is isolated and attracts.",
    uses=("thm3/positive-definite", "thm3/frozen-bias"),
)
PARALLEL = Claim("direction", "JoMA Thm 3", "Critical weights are parallel to x̄₊.", uses=("lemma4/critical-points",))
