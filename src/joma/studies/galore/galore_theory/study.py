"""The study of GaLore's theory: its sizes, its claims, and what it is about."""

from joma.claims.contract import Study
from joma.studies.galore.galore_theory import claims, judge
from joma.studies.galore.galore_theory.figures import draw
from joma.studies.galore.galore_theory.run import GaloreTheoryConfig, run

STUDY = Study(
    name="galore-theory",
    title="GaLore's theory: which gradients become low rank, and what the printed bounds leave out",
    version=1,
    claims={
        claims.REVERSIBLE: judge.judge_reversible,
        claims.POLYNOMIAL: judge.judge_polynomial,
        claims.REMAINDER: judge.judge_remainder,
        claims.LOGITS: judge.judge_logits,
        claims.BOUND: judge.judge_bound,
        claims.HALF: judge.judge_half,
        claims.RANK_ONE: judge.judge_rank_one,
        claims.CONTRACTS: judge.judge_contracts,
        claims.CONSTANT: judge.judge_constant,
        claims.CONVERGES: judge.judge_converges,
        claims.DYNAMICS: judge.judge_dynamics,
        claims.GROWTH: judge.judge_growth,
        claims.STATES: judge.judge_states,
        claims.TOTAL: judge.judge_total,
    },
    quick=GaloreTheoryConfig(),
    paper=GaloreTheoryConfig(
        height=5, width=6, draws=200, steps=100, inputs=24, networks=30, classes=(10, 100, 1000, 10_000, 100_000),
        searches=40_000, settled=200, tokens=10, nodes=8, blocks=3,
    ),
    run=run,
    draw=draw,
    about=(
        "Every statement is computed on small problems in float64 and compared with autograd, with the exact path of "
        "gradient descent, or with the flow of a real block. Lemma 3.3 is followed in four families: one pair (B, C) "
        "at a small rate, and then with several pairs, with a high rate, or with a G_0 that is not the gradient at t₀. "
        "The families say which premise each part of the printed bound needs. Corollary 3.4 is followed with n − 1 "
        "inputs in n dimensions. Theorem 3.8 is searched over random problems and over two problems with one number in "
        "place of matrices, where its terms can be seen. Memory is computed from the configurations of the models. "
        "This study says nothing about trained networks: there A, B and C move at every step."
    ),
)  # fmt: skip
