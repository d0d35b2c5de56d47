"""Inductive bias decides what is learned: a loss, or a perfect fit, does not say what a network has found."""

from joma.studies.inductive_bias.inductive_bias.study import STUDY

__all__ = ["STUDY"]
