"""Lemma 4, eq. 54-59: where a ReLU node between a positive and a negative cluster stands still."""

from joma.studies.isotropic.lemma4.study import STUDY

__all__ = ["STUDY"]
