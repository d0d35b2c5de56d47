"""Optimizers: GaLore, in the low-rank space of the gradient, with APOLLO and Fira; Muon, by orthogonal updates."""

from joma.optim._groups import Projected, Refresh
from joma.optim._state import StateError
from joma.optim.apollo import APOLLO, Fira
from joma.optim.galore import GaLore
from joma.optim.memory import Memory, memory
from joma.optim.muon import Muon
from joma.optim.projector import Energy, Projector, find_projector

__all__ = [
    "APOLLO",
    "Energy",
    "Fira",
    "GaLore",
    "Memory",
    "Muon",
    "Projected",
    "Projector",
    "Refresh",
    "StateError",
    "find_projector",
    "memory",
]
