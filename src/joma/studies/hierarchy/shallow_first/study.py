"""The study `shallow-first`: its claims, its two sizes, and what it says of itself."""

from functools import partial

from joma.claims.contract import Study
from joma.studies.hierarchy.shallow_first import claims as c
from joma.studies.hierarchy.shallow_first import judge
from joma.studies.hierarchy.shallow_first.figures import draw
from joma.studies.hierarchy.shallow_first.record import ALONE, by_height, column
from joma.studies.hierarchy.shallow_first.run import ShallowFirstConfig, run

STUDY = Study(
    name="shallow-first",
    title="Section 5: are tokens with a low common ancestor learned first?",
    version=2,
    claims={
        c.TOKEN_PULL: judge.token_pull,
        c.CLASS_PULL: judge.class_pull,
        c.FIRST: partial(judge.first_in_blocks, c.FIRST, "attention"),
        c.WEIGHTS: partial(judge.first_in_blocks, c.WEIGHTS, "weights"),
        c.REACH: judge.reaches_out,
        c.EVENTUALLY: partial(
            judge.in_the_end,
            c.EVENTUALLY,
            f"attention at H = {c.DEPTH - 1} in the end, in even shares",
            lambda values: [heights[..., c.FAR] for heights in by_height(values)],
        ),
        c.PICKED: partial(
            judge.in_the_end,
            c.PICKED,
            "attention on far tokens without a sibling minus that on equally far tokens with one, in even shares",
            lambda values: column(values, ALONE),
        ),
        c.TOGETHER: partial(judge.first_in, c.TOGETHER, c.SHARED, "attention"),
        c.TRANSFORMER: partial(judge.first_in, c.TRANSFORMER, c.DECODER, "attention"),
        c.NODES: partial(judge.first_in, c.NODES, c.DECODER, "weights"),
        c.BOTTOM_UP: judge.bottom_up,
    },
    quick=ShallowFirstConfig(),
    paper=ShallowFirstConfig(
        classes=10,
        members=20,
        samples=40_000,
        block_steps=3_000,
        block_batch=32,
        block_rate=1.0,
        decoder_steps=10_000,
        decoder_batch=256,
        decoder_rate=3e-4,
        context=12,
        layers=2,
        width=256,
        points=60,
        device="cuda",
    ),
    run=run,
    draw=draw,
    about=(
        "Sequences are drawn from a hierarchical binary latent tree. Three kinds of network read them: the block of "
        "eq. 1 with one copy per query, as eq. 2 trains it (with and without its residual), one block for all queries, "
        "and a small decoder. They predict a token that was left out, or the class. Over training, attention and MLP "
        "weights between two tokens are sorted by the height of their lowest common ancestor. A verdict comes from the "
        "interval over seeds: the number in the true tree minus the same number in a tree with permuted leaves. The "
        "first point of every curve is the untrained network. A network whose loss ends as high as that of even "
        "guesses did not learn and does not count."
    ),
)
