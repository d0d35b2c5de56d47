"""What the tests of `depth-width` share: a config that is trained in seconds, and the kinds of data in it."""

from small_runs import small

from joma.studies.depth_width.depth_width.run import SHUFFLED
from joma.studies.depth_width.depth_width.study import DEEP, FLAT

TINY = small("depth-width")
TEXTS, TREES = ("sympy", "wikitext-2", SHUFFLED), (DEEP, FLAT)
