"""What sets the step at which attention stops falling and begins to come back?

One base, and levels of it that differ in one factor: the rate, the number of words, how flat their frequencies are, the
size of the initial embeddings. The step of the valley is fitted by a power of the factor, seed by seed, and so is the
step of the fall before it: what moves both alike says nothing of the rebound. Queries of frequent and of rare words are
also measured separately, in the base.

The paper says none of this in so many words. Equation 6 has a time of its own, so the dull expectation for the rate is
that steps x rate is constant, a slope of -1. Section 4 ties the speed of a component to how often its words co-occur.
Section 7 says that embeddings reduce the vocabulary and may speed attention up.
What matters and the slope that counts as -1 were decided before any run at paper scale.
"""

from joma.studies.rebound.rebound_onset.study import STUDY

__all__ = ["STUDY"]
