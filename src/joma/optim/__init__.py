"""Optimizers that train in the low-rank space of the gradient."""

from joma.optim.galore import GaLore
from joma.optim.memory import Memory, memory
from joma.optim.projector import Energy, Projector, find_projector

__all__ = ["Energy", "GaLore", "Memory", "Projector", "find_projector", "memory"]
