"""One file a claim or figure. `names()` lists the studies, `load(name)` imports one, nothing loads before.

To add a study: write `joma/studies/your_file.py` with a module constant `STUDY`, and add its line to `_FILES`.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module

from joma.studies.contract import Claim, Drawing, Finding, NotRun, Study

__all__ = ["Claim", "Drawing", "Finding", "NotRun", "Study", "load", "names"]

# In the order of the report, which is the order of the paper.
_FILES = {
    "block": "block_equations",
    "thm1": "first_integral",
    "thm1-rates": "learning_rates",
    "thm1-queries": "several_queries",
    "thm1-sgd": "sgd_drift",
    "thm1-softmax": "softmax_integral",
    "thm1-coherence": "coherent_embeddings",
    "thm2": "winner_take_all",
    "thm2-rank": "many_nodes",
    "lemma1": "hyperplane_means",
    "lemma2": "mixture_dynamics",
    "lemma4": "critical_points",
    "thm3": "linearisation",
    "lemma6": "convergence_bounds",
    "thm4": "salient_first",
    "eq6": "entropy_rebound",
    "thm5": "cooccurrence",
    "table1": "latent_table",
    "hblt-alignment": "latent_alignment",
    "shallow-first": "shallow_first",
    "python-hierarchy": "python_hierarchy",
    "fig6": "entropy_over_training",
    "fig8": "learning_rate_sweep",
    "nonlinearity": "mlp_nonlinearity",
    "residual": "residual_branch",
    "embeddings": "frozen_embeddings",
    "optimizer": "optimizers_compared",
    "norm": "normalisation",
    "dropout": "dropout_off",
    "mlp-rank": "mlp_rank",
    "fig7": "checkpoint_series",
    "fig10": "pattern_superposition",
    "cdag-angles": "cdag_angles",
    "cdag": "cdag_training",
}


def names() -> tuple[str, ...]:
    """The names of all studies, in the order of the report.

    >>> names()[:3]
    ('block', 'thm1', 'thm1-rates')
    """
    return tuple(_FILES)


def load(name: str) -> Study:
    """The study called `name`.

    >>> load("thm2").title
    'Theorem 2: winner take all under a linear MLP'
    """
    if name not in _FILES:
        near = get_close_matches(name, _FILES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_FILES)}"
        raise ValueError(f"no study is called {name!r}; {hint}")
    study: Study = import_module(f"joma.studies.{_FILES[name]}").STUDY
    return study
