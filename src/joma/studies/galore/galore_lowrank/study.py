"""The study of gradients of real decoders: its sizes, its claims, and what it is about."""

from joma.claims.contract import Study
from joma.recipes.language import PAPER, same_text
from joma.studies.galore.galore_lowrank import claims, judge
from joma.studies.galore.galore_lowrank.figures import draw
from joma.studies.galore.galore_lowrank.run import GaloreLowrankConfig, run

STUDY = Study(
    name="galore-lowrank",
    title="GaLore: the rank of gradients over the training of decoders",
    version=1,
    claims={
        claims.LOW: judge.judge_low,
        claims.FALLS: judge.judge_falls,
        claims.CAPTURES: judge.judge_captures,
        claims.SLOW: judge.judge_slow,
        claims.NODES_FALL: judge.judge_nodes_fall,
        claims.NODES_BELOW: judge.judge_nodes_below,
        claims.ROWS: judge.judge_rows,
    },
    quick=GaloreLowrankConfig(
        vocabulary=200, width=32, mlp=32, dropout=0.0, streams=4, valid_sequences=3, steps=60, every=30, refresh=20,
        pairs=2, seeds=5, batches=2, layers=(1,), series_layers=2, series_width=32, series_heads=2, series_length=35,
        series_streams=4, series_batches=2, series_vocabulary=200, series_steps=60,
    ),
    paper=GaloreLowrankConfig(
        **PAPER | {"steps": 5_800, "every": 2_900, "valid_sequences": 40},
        layers=(1, 5), rate=1e-4, seeds=5, pairs=4, batches=8, series_layers=6, series_width=512, series_heads=8,
        series_length=512, series_streams=8, series_batches=4, series_vocabulary=16_384, series_steps=1_000,
        series_rate=3e-4,
    ),
    run=run,
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
