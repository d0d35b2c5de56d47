"""What Theorem 1 and eq. 14 say of one block."""

from __future__ import annotations

from joma.claims.contract import Claim

BOTH = ("thm1/exp-invariant", "thm1/linear-invariant")
EXP = Claim(
    "exp-invariant",
    "JoMA Thm 1",
    "Under exp attention every token keeps z = ½Σv² + c during training by gradient flow.",
    uses=("thm1/pull-on-logits",),
)
LINEAR = Claim(
    "linear-invariant",
    "JoMA Thm 1",
    "Under linear attention every token keeps z² = Σv² + c during training by gradient flow.",
    uses=("thm1/pull-on-logits",),
)
PULL = Claim(
    "pull-on-logits",
    "JoMA eq. 14",
    "For any pointwise σ, the velocity of z times σ/σ′ equals Σ v v′.",
    uses=("block/projected-velocity",),
)
SIGMA = Claim(
    "any-sigma",
    "JoMA eq. 14",
    "The integral of eq. 14 is an invariant for every pointwise σ: ∫σ/σ′ dz = ½Σv² + c.",
    uses=("thm1/pull-on-logits",),
)
KINKS = Claim("relu", "JoMA Thm 1", "The invariants hold for any activation, also across the kinks of ReLU.", uses=BOTH)
STATIONARY = Claim(
    "stationary-gradient",
    "JoMA Assumption 1",
    "Expectations of the back-propagated gradient, such as E[g x], stay constant during training.",
    "They change, and the invariants still hold. They only need z and W to receive the same gradient.",
    uses=BOTH,
)
ANY_DATA = Claim(
    "any-data", "JoMA talk Thm 1", "The invariants hold for any distribution of the data.", uses=("thm1/exp-invariant",)
)
RESIDUAL = Claim(
    "residual",
    "JoMA App. A.2",
    "The residual connection does not change the invariants, because the query embedding is orthogonal to the tokens.",
    uses=(*BOTH, "block/projected-velocity"),
)
ZERO_EXP = Claim(
    "zero-start-exp",
    "JoMA Thm 1",
    "From w = z = 0 under exp attention the constant is zero: z = ½Σv².",
    uses=("thm1/exp-invariant",),
)
ZERO_LINEAR = Claim(
    "zero-start-linear",
    "JoMA Thm 1",
    "From w = z = 0 linear attention learns and keeps z² = Σv².",
    "From w = z = 0 linear attention never moves v or z. The statement is true, but says nothing.",
    uses=("thm1/linear-invariant",),
)
