"""Theorem 1 outside gradient flow: finite steps, minibatches, momentum, Adam, weight decay."""

from joma.studies.invariant.thm1_sgd.study import STUDY

__all__ = ["STUDY"]
