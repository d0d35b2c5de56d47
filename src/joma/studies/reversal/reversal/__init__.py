"""Theorems 1 and 3 of Zhu et al.: the reversal curse in the row models and in the bilinear model."""

from joma.studies.reversal.reversal.study import STUDY

__all__ = ["STUDY"]
