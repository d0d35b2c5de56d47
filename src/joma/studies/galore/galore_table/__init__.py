"""GaLore's Table 2 on text at hand: eight methods, each at its own best rate, against a tuned full-rank baseline.

Full rank has two kinds: one rate for all weights, as in the paper, and "scaled", with GaLore's smaller rate in the
blocks. The second was added after runs at quick scale, in which GaLore was ahead of the first, and before any run at
paper scale. What matters was set before both.
"""

from joma.studies.galore.galore_table.study import STUDY

__all__ = ["STUDY"]
