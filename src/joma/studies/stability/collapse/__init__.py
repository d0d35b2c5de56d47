"""Which alarm rings before the loss of a network that diverges, and how often does it ring where nothing is wrong?

Decoders with norms before attention and MLP are trained at rates that are too high, beside healthy twins with the same
seed and the same text. At each measuring point the alarms of `joma.monitor` look at them, and so do two rules from
recent work, the gradient norm, the loss itself, and each rule on one random head. Every rule gets the threshold that
lets it ring in 5 % of the healthy runs of other seeds. What is compared is how long before the loss it rings.

Rules, thresholds, the event and what matters were decided after a pilot on seeds 1,000 and 1,001 at a width of 32,
which are not judged, and before any other run.
"""

from joma.studies.stability.collapse.study import STUDY

__all__ = ["STUDY"]
