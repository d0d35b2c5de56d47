"""How dynamics are produced: many runs trained at once as one batched ensemble; a series of checkpoints of our own."""

from joma.training.cross_entropy import cross_entropy
from joma.training.ensemble import Ensemble
from joma.training.losses import answer_loss, class_loss, next_token_loss
from joma.training.optimizers import Optimizer
from joma.training.series import SeriesConfig, checkpoint_steps, train_series
from joma.training.trainer import train, train_all

__all__ = [
    "Ensemble",
    "Optimizer",
    "SeriesConfig",
    "answer_loss",
    "checkpoint_steps",
    "class_loss",
    "cross_entropy",
    "next_token_loss",
    "train",
    "train_all",
    "train_series",
]
