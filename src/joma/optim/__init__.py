"""Optimizers: GaLore in the gradient's low-rank space, APOLLO, Fira; Muon; and QK-clip, which bounds logits."""

from joma.optim._groups import Projected
from joma.optim._state import StateError
from joma.optim.apollo import APOLLO, Fira
from joma.optim.galore import FromModel, GaLore, galore_for, reduce_compact, same_subspaces
from joma.optim.memory import Memory, memory
from joma.optim.muon import Muon
from joma.optim.projector import Projector, find_projector
from joma.optim.qk_clip import QKClip

__all__ = [
    "APOLLO",
    "Fira",
    "FromModel",
    "GaLore",
    "Memory",
    "Muon",
    "Projected",
    "Projector",
    "QKClip",
    "StateError",
    "find_projector",
    "galore_for",
    "memory",
    "reduce_compact",
    "same_subspaces",
]
