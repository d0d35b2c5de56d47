"""Theorem 1 under softmax attention, eq. 17, eq. 18, Figures 2 and 3."""

from joma.studies.invariant.thm1_softmax.study import STUDY

__all__ = ["STUDY"]
