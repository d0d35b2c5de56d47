"""Can JoMA foretell a training? Attention at step 2t from what is known at step t, beside forecasts without theory."""

from joma.studies.rebound.forecast.study import STUDY

__all__ = ["STUDY"]
