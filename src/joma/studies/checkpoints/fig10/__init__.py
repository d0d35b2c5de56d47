"""Figure 10: one MLP neuron fires on unrelated combinations of tokens."""

from joma.studies.checkpoints.fig10.study import STUDY

__all__ = ["STUDY"]
