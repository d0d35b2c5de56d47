"""The study `reading`: three claims on what attention reads, and the figure of the twins that hold it."""

from functools import partial

from joma.claims.contract import Study
from joma.figures.style import BLUE, GREEN, RED
from joma.recipes.language import PAPER, same_text
from joma.studies.rebound._twin_claims import draw_twins, judge_hold, twin_claim
from joma.studies.rebound._twins import Twins, TwinsConfig
from joma.studies.rebound.reading.holds import Mean, Moments, Words

WORDS, MEAN, MOMENTS = "words' logits", "input's mean", "input's mean and covariance"
TWINS = Twins({MOMENTS: Moments(), MEAN: Mean(), WORDS: Words()})
COLOURS = {MOMENTS: BLUE, MEAN: RED, WORDS: GREEN}

LOSE = twin_claim(
    "words-lose-their-logits",
    "because words lose the logits that the mean query gives them. With these held, it does not.",
)
INPUT = twin_claim(
    "input-loses-its-mean",
    "because the mean of what attention reads fades. With this mean held, it does not.",
)
SPREADS = twin_claim(
    "input-spreads",
    "because what attention reads spreads over other directions. With its mean and covariance held, it does not.",
)

STUDY = Study(
    name="reading",
    title="Whether the rebound comes from what attention reads: twins that hold its mean, its covariance, its words",
    version=1,
    claims={
        LOSE: partial(judge_hold, TWINS, LOSE, WORDS),
        INPUT: partial(judge_hold, TWINS, INPUT, MEAN),
        SPREADS: partial(judge_hold, TWINS, SPREADS, MOMENTS),
    },
    quick=TwinsConfig(),
    paper=TwinsConfig(
        **PAPER | {"valid_sequences": 40, "steps": 10_000, "every": 250, "seeds": 5, "seed": 65}, dropout=0.2,
        length=35, layers=(1, 2), rate=1e-4, valley=2_000, batches=10, refresh=10,
    ),
    run=TWINS.run,
    draw=lambda run: [draw_twins(TWINS, COLOURS, MOMENTS, run)],
    check=same_text,
    about=(
        "Figure 6's language models are trained. From the valley on, twins of them hold something in all layers as it "
        "was there: the mean of what attention reads; its mean and covariance; the logit that the mean query gives "
        "each word as key. Words and mean are held in every batch, with the gradient through what holds them, so "
        "nothing is learned against it. The covariance is measured on a fixed batch of training text every few steps. "
        "Controls are pushed as far elsewhere: inputs in a random direction, their map turned by a random rotation, "
        "words with the offsets of another sequence. Compared is the share of the rise of entropy, from the valley to "
        "the end, that a twin does not have, in one layer and in the second of two. Quick scale trains small models "
        "on Python source, which hardly come back."
    ),
)  # fmt: skip
