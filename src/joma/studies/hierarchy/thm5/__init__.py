"""Theorem 5, eq. 8, Lemmas 8 and 9: which tokens of a hierarchical binary latent tree appear together."""

from joma.studies.hierarchy.thm5.study import STUDY

__all__ = ["STUDY"]
