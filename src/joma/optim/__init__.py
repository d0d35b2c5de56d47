"""Optimizers that train in the low-rank space of the gradient."""

from joma.optim.galore import GaLore
from joma.optim.memory import Memory, memory
from joma.optim.projector import Projector, find_projector
from joma.optim.ranks import Energy

__all__ = ["Energy", "GaLore", "Memory", "Projector", "find_projector", "memory"]
