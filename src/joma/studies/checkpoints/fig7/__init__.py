"""Figure 7 and the talk's embedding figure: entropy, stable rank and coherence over a series of checkpoints."""

from joma.studies.checkpoints.fig7.study import STUDY

__all__ = ["STUDY"]
