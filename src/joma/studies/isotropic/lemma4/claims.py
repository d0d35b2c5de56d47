"""What Lemma 4 says of critical points."""

from __future__ import annotations

from joma.claims.contract import Claim

NECESSARY = Claim(
    "stationary-sum",
    "JoMA eq. 54",
    "At every stationary point Σ aⱼF(rⱼ) = 0, with rⱼ = v·x̄ⱼ + ξ.",
    "Σ aⱼF(ρⱼ) = 0, with the distance ρⱼ = rⱼ/‖v‖ instead of rⱼ.",
    uses=("lemma2/growth",),
)
FREE = Claim(
    "critical-points",
    "JoMA eq. 56",
    "(v, ξ) is critical if and only if F(r₊)/F(r₋) = θ₁(r₊)/θ₁(r₋) = a₋/a₊. ‖v‖ can be chosen to satisfy this.",
    "The equations hold in ρ, and the data fix ρ₊ − ρ₋ = ±‖x̄₊‖. Critical rays (λv, λξ) exist on a curve in (‖x̄₊‖, "
    "a₋/a₊).",
    uses=("lemma2/mixture-weight", "lemma2/mixture-bias"),
)
EXISTENCE = Claim(
    "existence",
    "JoMA Lemma 4",
    "The ReLU dynamics has other critical points than v = 0.",
    "It has none if F/θ₁ increases, as for every log-concave marginal (Gaussian, ball). Laws with power tails have "
    "some.",
    uses=("lemma4/critical-points",),
)
CRITERION = Claim(
    "existence-criterion",
    "JoMA eq. 58",
    "If pₙ(0)θ₂(0) ≥ 1/4, then a critical point exists.",
    uses=("lemma4/active-shares", "lemma4/g-slope"),
)
BAND = Claim(
    "ratio-band",
    "JoMA eq. 59",
    "All ratios a₊/a₋ with critical points lie in (1/2, 1) or (1, 2).",
    "This is true only if both distances are ≥ 0. Otherwise the ratio has no bound.",
    uses=("lemma4/critical-points",),
)
LEVELS = Claim(
    "active-shares",
    "JoMA eq. 57",
    "With y± = θ₁⁻¹(r±), the points (y±, G(y±)) of G = F∘θ₁⁻¹ lie on one line through 0.",
    "This holds for y± = θ₁(ρ±), the active shares.",
    uses=("lemma4/critical-points",),
)
LIMIT = Claim(
    "g-limit",
    "JoMA eq. 57",
    "As y → 0, G(y) = F(r) tends to the limit of rθ₁(r) at r → −∞. The value of the limit is not given.",
)
SLOPE = Claim("g-slope", "JoMA eq. 57", "G′(y) = θ₁(x)/pₙ(x) at y = θ₁(x).", uses=("lemma2/f-derivative",))
