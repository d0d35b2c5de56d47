"""The claims of `galore-theory`, and the tolerances they are judged with."""

from joma.claims.contract import Claim

EXACT = 1e-10  # formulas against autograd or an ODE solver, in float64
KEPT = 1e-9  # a bound may be missed by rounding, as a share of it
ENDED = 1e-2  # how near to its limit a stable rank must come
GONE = 1e-6  # of a gradient that has vanished
LOGIT = 0.05  # how small a small logit is, beside 1 or beside sqrt(K)
HALF_DIGIT = 0.005001  # tables have two digits

REVERSIBLE = Claim(
    "reversible-gradient",
    "GaLore Thm 3.2",
    "In a network without biases whose activations are piecewise linear, G = (Jᵀy − JᵀJWf) fᵀ for the squared loss.",
)
POLYNOMIAL = Claim(
    "polynomial-activations",
    "GaLore App. B.1",
    "Polynomial activations are reversible too, so the same formula holds for them.",
    "With powers as activations J W f is the output times the product p of their degrees: G = (Jᵀy − JᵀJWf/p) fᵀ.",
    uses=("galore-theory/reversible-gradient",),
)
REMAINDER = Claim(
    "softmax-remainder",
    "GaLore Lemma B.2",
    "The gradient of the softmax loss by its logits is y − γ f/K without their means, up to a part of second order.",
)
LOGITS = Claim(
    "softmax-small-logits",
    "GaLore Thm 3.2",
    "G = (J P y − γ JᵀPJWf/K) fᵀ is near the gradient of the softmax loss if the logits are small beside √K.",
    "It is near, with Jᵀ in the place of the first J, if the logits are small beside 1.",
    uses=("galore-theory/softmax-remainder",),
)
BOUND = Claim(
    "stable-rank-bound",
    "GaLore Lemma 3.3",
    "The stable rank of G_t is at most that of its part P in the lowest eigenspace of S, plus "
    "((1 − ηλ₂)/(1 − ηλ₁))^2(t − t₀) |G_0 − P|²/|P|₂², at any rate η.",
    "With L the part of G_t₀ that lasts, R the rest and q the ratio of their largest |1 − ηλ| to the power t − t₀, it "
    "is at most (|L|² + q²|R|²)/(|L|₂ − q|R|)².",
)
HALF = Claim(
    "half-rank",
    "GaLore Cor. 3.4",
    "If the Bᵢ have full rank and the inputs fᵢ do not span all n dimensions, the stable rank of G_t is at most n/2 "
    "for large t.",
    "The part of G_t in the lowest eigenspace is zero, so the lemma says nothing. The rank is at most that of the "
    "inputs. The stable rank ends at that of the slowest part, which is 1 for generic inputs and one B.",
    uses=("galore-theory/stable-rank-bound",),
)
RANK_ONE = Claim(
    "rank-one",
    "GaLore Cor. 3.5",
    "If the lowest eigenspace of S is one product y ⊗ z, the stable rank of G_t goes to 1, at any rate η.",
    "It goes to 1 if also η(λ₁ + λ_max) < 2 and G has a part along y ⊗ z.",
    uses=("galore-theory/stable-rank-bound",),
)
CONTRACTS = Claim(
    "projection-contracts",
    "GaLore Thm 3.8",
    "With fixed projections |R_t| ≤ [1 − η(κ − L_A − L_B L_C D²)] |R_t−1|.",
    "|R_t| ≤ [max(|1 − ηκ|, |1 − ηλ_max|) + η(L_A + D(L_B |C| + L_C |B|))] |R_t−1|.",
)
CONSTANT = Claim(
    "projection-constant",
    "GaLore App. B.4",
    "Where B and C vanish at W = 0, as the proof assumes, the bound holds with 1 · L_B L_C D², as the theorem says.",
    "It needs 2 · L_B L_C D², as the proof says, and no less will do.",
    uses=("galore-theory/projection-contracts",),
)
CONVERGES = Claim(
    "projection-converges",
    "GaLore Thm 3.8",
    "If κ > L_A + L_B L_C D² at all times, then R_t → 0.",
    "R_t → 0 if the corrected factor stays below 1. Where B and C vanish at W = 0, κ is never above L_B L_C D².",
    uses=("galore-theory/projection-contracts",),
)
DYNAMICS = Claim(
    "project-up-dynamics",
    "GaLore Lemma B.6",
    "With several nodes V′ = diag(exp(V∘V/2) 1) Δ / A.",
    "V′ = diag(exp((V∘V) 1/2)) Δ / A: the nodes share attention, so their squares are summed before the exponential.",
    uses=("thm2-rank/nodes-dynamics",),
)
GROWTH = Claim(
    "row-growth",
    "GaLore eq. 53",
    "A row of V is α(t) times its row μ of Δ, with erf⁻¹(2μ̄t/(A√π))/μ̄ ≤ α ≤ erf⁻¹(2nμ̄t/(A√π))/μ̄ and μ̄ = max|μ_j|.",
    "α = √2 erf⁻¹(√(2/π) |μ| t/A)/|μ| exactly. The printed bounds rest on eq. 43 and drop its half.",
    uses=("galore-theory/project-up-dynamics", "thm2-rank/nodes-closed-form"),
)
STATES = Claim(
    "memory-states",
    "GaLore Table 6",
    "The memory of optimizer states is mr + 2nr numbers per matrix, with embeddings in full rank.",
    "The printed column is three quarters of LoRA's, embeddings included, which is right for square matrices only.",
)
TOTAL = Claim(
    "memory-total",
    "GaLore Table 2",
    "The memory of a model is mn + mr + 2nr numbers per matrix, with embeddings in full rank.",
    "The printed column is the parameters in round numbers plus three quarters of LoRA's states, rounded down.",
    uses=("galore-theory/memory-states",),
)
