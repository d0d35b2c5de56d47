"""Which alarm rings before the loss of a network that diverges, and how often does it ring where nothing is wrong?

Decoders with norms before attention and MLP are trained at rates that are too high, beside healthy twins with the same
seed and the same text. At each measuring point the alarms of `joma.monitor` look at them, and so do two rules from
recent work, the gradient norm, the loss itself, and each rule on one random head. Every rule gets the threshold that
lets it ring in 5 % of the healthy runs of other seeds. What is compared is how long before the loss it rings.

What was fixed when: rules, thresholds, the event and what matters, after a pilot on seeds 1,000 and 1,001 at widths of
16 to 64, and before any other run. The claim `alarms-tell-divergence` and the rates at paper scale came after a run at
quick scale had been seen. No run at paper scale had been seen; its seeds are 300 to 307, and 5,300 to 5,311 for the
thresholds.
"""

from joma.studies.stability.collapse.study import STUDY

__all__ = ["STUDY"]
