"""The study `fig7`: its claims with their judges, its sizes, its figure."""

from __future__ import annotations

from joma.claims.contract import Study
from joma.studies.checkpoints.fig7.figures import draw
from joma.studies.checkpoints.fig7.judge import CLAIMS
from joma.studies.checkpoints.fig7.run import Fig7Config, run

STUDY = Study(
    name="fig7",
    title="Figure 7: rank and entropy over a series of checkpoints",
    version=2,
    claims=CLAIMS,
    quick=Fig7Config(),
    paper=Fig7Config(
        device="cuda",
        layers=6,
        width=512,
        heads=8,
        vocabulary=16_384,
        context=512,
        batch=8,
        steps=5_000,
        rate=1e-3,
        every=500,
        characters=40_000_000,
        held_out=60_000,
        wikitext=True,
        seeds=5,
    ),
    run=run,
    draw=draw,
    about=(
        "A GPT-NeoX is trained from scratch for every seed, and its checkpoints are scanned. (A series of checkpoints "
        "can also be given with --series.) Drop and rebound of a seed are read at the step where the mean of the other "
        "seeds is lowest, so that a seed's own noise does not choose the step. A layer drops, or bounces back, if the "
        "99 % interval over seeds is above zero. A single network has no such interval, so its findings are undecided. "
        "The findings also show what a random walk as rough as the curve would do. Quick scale trains a tiny model on "
        "Python source. Paper scale trains 36 million parameters on WikiText-2 and Python source."
    ),
)
