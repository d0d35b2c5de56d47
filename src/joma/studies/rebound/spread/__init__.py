"""Does one number, the variance of logits, carry the entropy of attention, and which part of it is the rebound?

Figure 6's networks are trained. At each measuring point the variance s2 of a query's logits over its keys is split into
what all queries share, what is specific to a query, and their cross term; and into growth of weights, alignment with
the input, and context (`joma.measure.spread`). Six claims: entropy follows s2; to the valley logits align before they
grow, and what grows first is shared; on the way back logits fade though weights grow, and the shared part fades more;
and bringing the two sizes of the end back to those of the valley, nothing else, undoes the rebound.

The claims come from a sketch on seeds 0 to 7. What matters, the controls and the step of the valley were decided before
any run at paper scale, which uses other seeds.
"""

from joma.studies.rebound.spread.study import STUDY

__all__ = ["STUDY"]
