"""How dynamics are produced."""

from joma.training.series import SeriesConfig, checkpoint_steps, train_series

__all__ = ["SeriesConfig", "checkpoint_steps", "train_series"]
