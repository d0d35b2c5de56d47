"""Contextual sparsity: which heads and neurons each token needs, and whether the layer before tells.

The sizes of the quick scale were tuned until it decided something.
"""

from __future__ import annotations

from joma.claims.contract import NotRun, Progress, Study, each_claim
from joma.host.devices import lacking
from joma.recipes.language import corpus as find_text
from joma.recipes.language.text import remember_corpus
from joma.runs import Run
from joma.studies.sparsity import _active_findings as findings
from joma.studies.sparsity._active_figures import draw
from joma.studies.sparsity._active_networks import Config, Members
from joma.studies.sparsity._readings import of_text, same_words, text_config
from joma.training import train_all


def run(config: Config, run: Run, progress: Progress) -> None:
    """Train networks of every activation, and look on the way which heads and neurons tokens need."""
    if lacks := lacking(config.device):
        raise NotRun(str(lacks), findings.COMMAND)
    text = find_text(text_config(config), progress)
    remember_corpus(text, run)
    reading = of_text(text, config.length, 2 * config.sequences)
    run.keep("words", lambda: reading.words)
    train_all(
        {one: Members(config, one, reading).ensemble() for one in config.activations},  # type: ignore[arg-type]
        run,
        progress=lambda share, doing: progress(0.02 + 0.97 * share, doing),
    )


STUDY = Study(
    name="deja-vu",
    title="Deja Vu: can the heads and neurons that a token needs be told beforehand?",
    version=1,
    claims=findings.CLAIMS,
    quick=Config(),
    paper=Config(
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
    judge=each_claim(*findings.JUDGES),
    draw=draw,
    check=same_words,
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
