"""The study `deja-vu`: its claims with their judges, its sizes."""

from __future__ import annotations

from joma.claims.contract import Study
from joma.studies.sparsity._readings import check_text
from joma.studies.sparsity.deja_vu.figures import draw
from joma.studies.sparsity.deja_vu.judge import CLAIMS
from joma.studies.sparsity.deja_vu.run import DejaVuConfig, run

STUDY = Study(
    name="deja-vu",
    title="Deja Vu: can the heads and neurons that a token needs be told beforehand?",
    version=1,
    claims=CLAIMS,
    quick=DejaVuConfig(),
    paper=DejaVuConfig(
        corpus="wikitext-2",
        tokens=1_000_000_000,
        vocabulary=4_000,
        layers=6,
        width=512,
        heads=8,
        mlp=2048,
        length=128,
        batch=16,
        steps=1_500,
        measure_at=(50, 100, 200, 400, 800),
        rate=5e-4,
        sequences=32,
        device="cuda",
        precision="tf32",
    ),
    run=run,
    draw=draw,
    check=check_text,
    about=(
        "Decoders are trained on a text, with ReLU and with GELU. At several steps, every token is asked which neurons "
        "and which heads carry 90 % of what their layer adds to the stream. Sets of one size are then compared: the "
        "best for each token, those that a linear map predicts from the input of the layer before, and as controls one "
        "set for all tokens, sets predicted for another token, and random sets. The map is fitted on other text than "
        "it is asked about. A second map sees only the token and its place. At last the networks compute only the "
        "units of a set, in all layers but the first, and their loss says what that costs. A network that did not "
        "learn does not count."
    ),
)
