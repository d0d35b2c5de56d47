"""Figure 6: attention entropy while language models of several depths train from scratch."""

from joma.studies.language.fig6.study import STUDY

__all__ = ["STUDY"]
