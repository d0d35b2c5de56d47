"""What the tests of `depth-width` share: a config that is trained in seconds, and the kinds of data in it."""

from joma.studies.depth_width.depth_width.networks import DepthWidthConfig
from joma.studies.depth_width.depth_width.run import SHUFFLED
from joma.studies.depth_width.depth_width.study import DEEP, FLAT

TINY = DepthWidthConfig(
    texts=("sympy", "wikitext-2"),
    tokens=30_000,
    vocabulary=40,
    layers=(1, 2),
    parameters=3_000,
    length=8,
    rates=(1e-2, 3e-2),
    steps=20,
    valid_sequences=6,
    ideal_samples=300,
    tree_layers=(1, 2),
    tree_parameters=3_000,
    tree_rates=(1e-2, 3e-2),
    tree_steps=20,
    valid_samples=20,
    points=2,
    timed=False,
    seed=1,
)
TEXTS, TREES = ("sympy", "wikitext-2", SHUFFLED), (DEEP, FLAT)
