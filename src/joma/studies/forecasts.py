"""The benchmark of forecasts, for those who make one: what `joma forecast` scores and on what."""

from joma.studies.rebound.forecast.board import Score, score
from joma.studies.rebound.forecast.history import History
from joma.studies.rebound.forecast.kept_runs import open_runs

__all__ = ["History", "Score", "open_runs", "score"]
