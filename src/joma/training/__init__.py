"""Training: many networks at once as one batched ensemble, and series of checkpoints."""

from joma.training.branch import branch
from joma.training.checkpoints import forget_kept
from joma.training.cross_entropy import cross_entropy
from joma.training.descent import descend
from joma.training.ensemble import Ensemble, Origin
from joma.training.losses import answer_loss, class_loss, next_token_loss
from joma.training.optimizers import Optimizer
from joma.training.series import SeriesConfig, checkpoint_steps, train_series
from joma.training.spread import train_spread
from joma.training.trainer import train, train_all

__all__ = [
    "Ensemble",
    "Optimizer",
    "Origin",
    "SeriesConfig",
    "answer_loss",
    "branch",
    "checkpoint_steps",
    "class_loss",
    "cross_entropy",
    "descend",
    "forget_kept",
    "next_token_loss",
    "train",
    "train_all",
    "train_series",
    "train_spread",
]
