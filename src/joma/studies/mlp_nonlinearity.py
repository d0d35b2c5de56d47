"""Is it the MLP's nonlinearity that makes attention rebound? ReLU against GELU, the identity, and no MLP at all."""

from __future__ import annotations

from joma.runs import Run
from joma.studies._ablation import (
    AT_PAPER_SCALE,
    AblationConfig,
    as_it_is,
    learned,
    lost,
    needs,
    said,
    shape_of,
    shows,
    trains,
    unknown,
)
from joma.studies._ablation_figures import draws
from joma.studies._language_models import same_text
from joma.studies.contract import Claim, Finding, Study
from joma.studies.verdicts import by_effect, by_test

VARIANTS = {
    "ReLU": as_it_is,
    "GELU": lambda base: base.with_decoder(activation="gelu"),
    "identity": lambda base: base.with_decoder(activation="identity"),
    "no MLP": lambda base: base.with_decoder(mlp=0, activation="identity"),
}

REBOUND = Claim(
    "rebound-needs-nonlinearity",
    "JoMA Sec. 5",
    "Attention entropy bounces back because the MLP is nonlinear; with a linear MLP it would not.",
    empirical=True,
)
LINEAR = Claim(
    "linear-mlp-stays-sparse",
    "JoMA Thm 2",
    "With a linear MLP attention becomes sparse over training, and no denser again.",
    empirical=True,
)
GELU = Claim(
    "rebound-with-gelu",
    "JoMA Sec. 4",
    "With a nonlinear activation attention becomes sparse and then dense; asked here of one that is not homogeneous.",
    empirical=True,
)
DROP_OF_MLP = Claim(
    "drop-needs-mlp",
    "JoMA Thm 1",
    "Attention's logits follow from the weights of the MLP above it; asked here: does the drop of its entropy need it?",
    empirical=True,
)
REBOUND_OF_MLP = Claim(
    "rebound-needs-mlp",
    "JoMA eq. 6",
    "Attention entropy rebounds when the less salient weights of the MLP above it catch up.",
    empirical=True,
)


def judge(run: Run) -> list[Finding]:
    """ReLU against what lacks the nonlinearity or the MLP; GELU against ReLU."""
    return [
        needs(REBOUND, run, part="rebound", whole="ReLU", without="identity"),
        _stays_sparse(run),
        shows(GELU, run, variant="GELU", twin="ReLU"),
        needs(DROP_OF_MLP, run, part="drop", whole="ReLU", without="no MLP"),
        needs(REBOUND_OF_MLP, run, part="rebound", whole="ReLU", without="no MLP"),
    ]


def _stays_sparse(run: Run) -> Finding:
    """The share of layers that drop and do not come back, against that of the ReLU network.

    No such layer: fails. Not more of them than with ReLU, or a network that did not learn: not above its control. All,
    and none with ReLU: holds.
    """
    expected = "entropy of every layer drops by more than seeds differ by chance (99 %), and of none comes back"
    if reason := lost(run, "identity", "ReLU"):
        return unknown(LINEAR, run, expected, reason)
    shapes = {name: shape_of(run, name) for name in ("identity", "ReLU")}
    stays = {name: float((shape.drops & ~shape.rebounds).mean()) for name, shape in shapes.items()}
    both = all(learned(run, name) for name in shapes)
    if stays["identity"] == 0 and learned(run, "identity"):
        return by_test(
            LINEAR, measured=said(run, "identity"), expected=expected, as_printed=False, control=said(run, "ReLU")
        )
    return by_effect(
        LINEAR,
        measured=stays["identity"] if both else 0.0,
        control=stays["ReLU"] if both else 0.0,
        margin=0.0,
        expected=expected,
        quantitative=stays["identity"] == 1 and stays["ReLU"] == 0,
        shown=said(run, "identity"),
        control_shown=said(run, "ReLU"),
    )


STUDY = Study(
    name="nonlinearity",
    title="Ablation: is it the nonlinearity that makes attention rebound?",
    version=2,
    claims=(REBOUND, LINEAR, GELU, DROP_OF_MLP, REBOUND_OF_MLP),
    quick=AblationConfig(width=32, mlp=32, streams=8, layers=2, steps=300, every=20),
    paper=AblationConfig(**AT_PAPER_SCALE),
    run=trains(VARIANTS),
    judge=judge,
    draw=draws(VARIANTS, "nonlinearity"),
    check=same_text,
    about=(
        "Figure 6's language model with ReLU, with GELU, with the identity in place of an activation, and without "
        "MLPs, on one text with the same seeds. The rebound needs the nonlinearity only if it exceeds, seed by seed "
        "and in every layer, that of the identity, and the identity has none."
    ),
)
