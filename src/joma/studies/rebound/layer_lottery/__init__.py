"""Is it a coin toss which layer drops deepest, which comes back and which stays sparse, or is it set by position?

The blocks of a network start as copies of one. Many seeds are trained, and twins of some of them that differ in one
thing: rounding, dropout, the order of the data, or the initial weights (see `run`).

What was fixed when: the inner layers are judged by themselves because in Figure 6's five seeds of ten layers the two
topmost layers ended high with every seed; those runs had been seen. What matters was decided before any run of this
study at paper scale.
"""

from joma.studies.rebound.layer_lottery.study import STUDY

__all__ = ["STUDY"]
