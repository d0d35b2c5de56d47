"""Theorem 3, eq. 5, 69, 72-74: how a ReLU node moves near a critical point."""

from joma.studies.isotropic.thm3.study import STUDY

__all__ = ["STUDY"]
