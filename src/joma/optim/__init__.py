"""Optimizers: GaLore, in the low-rank space of the gradient; Muon, by orthogonal updates."""

from joma.optim.galore import GaLore
from joma.optim.memory import Memory, memory
from joma.optim.muon import Muon
from joma.optim.projector import Energy, Projector, find_projector

__all__ = ["Energy", "GaLore", "Memory", "Muon", "Projector", "find_projector", "memory"]
