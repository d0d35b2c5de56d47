"""What Theorem 1 says of training by finite steps."""

from __future__ import annotations

from joma.claims.contract import Claim

HALF = 0.5  # of the movement of z: a relation that leaves more than half of it open does not describe it
INVARIANTS = ("thm1/exp-invariant", "thm1/linear-invariant")
IDENTITY_EXP = Claim(
    "sgd-identity-exp",
    "JoMA Thm 1",
    "Under exp attention z − κΣv²/(2T) does not change in training (κ, T printed as 1).",
    "Under SGD it changes by exactly −κ/(2T) ΣΣ(Δv)², summed over steps and nodes, for any batches. So z lags behind.",
    uses=("thm1/exp-invariant",),
)
IDENTITY_LINEAR = Claim(
    "sgd-identity-linear",
    "JoMA Thm 1",
    "Under linear attention z² − κΣv² does not change in training (κ printed as 1).",
    "Under SGD it changes by exactly Σ[(Δz)² − κΣ(Δv)²], summed over steps and nodes, for any batches.",
    uses=("thm1/linear-invariant",),
)
LIMIT = Claim(
    "sgd-limit",
    "JoMA Thm 1",
    "The relation is derived for gradient flow. It also describes SGD with small steps.",
    uses=INVARIANTS,
)
BATCHES = Claim(
    "sgd-minibatch",
    "JoMA Thm 1",
    "The relation holds for any data, so it also describes minibatch training with small steps.",
    uses=INVARIANTS,
)
MOMENTUM = Claim(
    "sgd-momentum",
    "JoMA Thm 1",
    "The relation holds in training. Momentum is not mentioned.",
    "With momentum β the drift is still O(η). It is (1 + β)/(1 − β) times the drift of SGD at the same effective rate.",
    uses=("thm1-sgd/sgd-limit",),
)
ADAM = Claim(
    "adam",
    "JoMA Thm 1",
    "The relation is derived for gradient flow and stated for training in general. So it covers Adam with small steps.",
    matters=HALF,
    unit="%",
    ceiling=1.0,
    uses=INVARIANTS,
)
DECAY_EXP = Claim(
    "weight-decay-exp",
    "JoMA Thm 1",
    "The relation for exp attention holds in training. Weight decay is not mentioned.",
    "Weight decay adds exactly −η_z(λ_z z − λ_w Σv²/T) per step to the drift of SGD. No small rate removes it.",
    uses=("thm1-sgd/sgd-identity-exp",),
)
DECAY_LINEAR = Claim(
    "weight-decay-linear",
    "JoMA Thm 1",
    "The relation for linear attention holds in training. Weight decay is not mentioned.",
    "Weight decay adds exactly −2η_z(λ_z z² − λ_w Σv²) per step. At equal rates and decay z² − Σv² falls as exp(−2λt).",
    uses=("thm1-sgd/sgd-identity-linear",),
)
