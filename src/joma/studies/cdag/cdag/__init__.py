"""The correlations of CDAG Theorem 1 in networks that learn the classes of a latent tree."""

from joma.studies.cdag.cdag.study import STUDY

__all__ = ["STUDY"]
