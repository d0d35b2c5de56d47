"""What keeps the first layer sparse, the optimizer or the rate? SGD and Adam at several rates, read at equal loss."""

from joma.studies.rebound.optimizer_or_rate.study import STUDY

__all__ = ["STUDY"]
