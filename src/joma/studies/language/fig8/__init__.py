"""Figure 8: attention entropy and validation loss under several learning rates."""

from joma.studies.language.fig8.study import STUDY

__all__ = ["STUDY"]
