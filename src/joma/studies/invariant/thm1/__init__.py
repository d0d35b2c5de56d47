"""Theorem 1 for linear, exp and any other pointwise attention: eq. 14 and what follows from it along the flow."""

from joma.studies.invariant.thm1.study import STUDY

__all__ = ["STUDY"]
