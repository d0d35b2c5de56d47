"""Are the gradients of real decoders of low rank, do they become so, and does their subspace stay?"""

from __future__ import annotations

from joma.claims.contract import Progress, Study, each_claim
from joma.recipes.language import PAPER, corpus, same_text
from joma.runs import Run
from joma.studies.galore._lowrank_claims import CLAIMS
from joma.studies.galore._lowrank_config import Config
from joma.studies.galore._lowrank_figures import draw
from joma.studies.galore._lowrank_findings import judge_captures, judge_falls, judge_low, judge_slow
from joma.studies.galore._lowrank_networks import train
from joma.studies.galore._lowrank_node_findings import judge_nodes_below, judge_nodes_fall, judge_rows


def run(config: Config, run: Run, progress: Progress) -> None:
    """Train all decoders and their twins, and look at their gradients on the way."""
    train(config, corpus(config, progress), run, progress)


STUDY = Study(
    name="galore-lowrank",
    title="GaLore: the rank of gradients over the training of decoders",
    version=1,
    claims=CLAIMS,
    quick=Config(
        vocabulary=200, width=32, mlp=32, dropout=0.0, streams=4, valid_sequences=3, steps=60, every=30, refresh=20,
        pairs=2, seeds=5, batches=2, layers=(1,), series_layers=2, series_width=32, series_heads=2, series_length=35,
        series_streams=4, series_batches=2, series_vocabulary=200, series_steps=60,
    ),
    paper=Config(
        **PAPER | {"steps": 5_800, "every": 2_900, "valid_sequences": 40},
        layers=(1, 5), rate=1e-4, seeds=5, pairs=4, batches=8, series_layers=6, series_width=512, series_heads=8,
        series_length=512, series_streams=8, series_batches=4, series_vocabulary=16_384, series_steps=1_000,
        series_rate=3e-4,
    ),
    run=run,
    judge=each_claim(
        judge_low, judge_falls, judge_captures, judge_slow, judge_nodes_fall, judge_nodes_below, judge_rows
    ),
    draw=draw,
    check=same_text,
    about=(
        "Decoders of Figure 6 and one of the size of Figure 7's series train on a text. Twins read the same text but "
        "are told to predict words from a shuffled copy: they can learn how frequent words are and nothing else. On "
        "the way, the gradient of a large fixed batch is taken by every weight matrix. Its stable rank, the energy in "
        "its first directions and the overlap of these directions over one refresh of GaLore's projector are recorded. "
        "The same is recorded for Gaussian matrices with the same norms of rows and columns, for a second batch, and "
        "for one training batch. V of the talk is read from the lowest layer. Numbers are means over layers. A network "
        "that learns no more than how frequent words are does not count."
    ),
)  # fmt: skip
