"""The groups of the inner optimizer, each of which follows the options of a group of ours."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from joma.optim._arguments import Decay, Role
from joma.optim._inner import only
from joma.optim._matrix import Pack, one_number

ORIGIN = "galore"  # in a new group of the inner optimizer: the number of ours and the role of its parameters
Place = tuple[int, Role]
"""The number of a group of ours, and the role of some of its parameters: what a group of the inner optimizer has."""


class Follower(NamedTuple):
    """A group of the inner optimizer, and ours whose options it follows."""

    ours: dict[str, Any]
    theirs: dict[str, Any]
    role: Role


def decays_apart_from_gradients(group: dict[str, Any]) -> bool:
    """Whether the inner optimizer's own decay is decoupled, as AdamW's: it then shrinks by rate times weight_decay."""
    return bool(group.get("decoupled_weight_decay"))


class Following:
    """The inner optimizer as we see it: a group for each role of the parameters in each of our groups."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        """Nothing follows before `link`."""
        self.inner = inner
        self.followers: dict[Place, Follower] = {}

    def link(self, groups: list[dict[str, Any]], new: list[dict[str, Any]]) -> None:
        """Let new groups of the inner optimizer follow ours, and give ours the options that they lack."""
        for one in new:
            number, role = one.pop(ORIGIN)
            for key, value in one.items():
                groups[number].setdefault(key, value)
                one[key] = value.clone() if isinstance(value, Tensor) else value  # several groups may share a tensor
            self.followers[number, role] = Follower(groups[number], one, role)

    def link_again(self) -> None:
        """Loading gives the inner optimizer new group dictionaries, in the old order."""
        pairs = zip(self.followers.items(), self.inner.param_groups, strict=True)
        self.followers = {place: one._replace(theirs=theirs) for (place, one), theirs in pairs}

    def list_packs(self, packs: list[Pack]) -> None:
        """Let the inner optimizer have the compact parameters of these packs and no others."""
        for (number, role), one in self.followers.items():
            if role == "compact":
                one.theirs["params"] = [pack.compact for pack in packs if pack.group == number]

    def hand_over_options(self, decay: Decay) -> None:
        """Hand on what a scheduler may have changed; decay of matrices is not the inner optimizer's matter."""
        for ours, theirs, role in self.followers.values():
            for key in theirs:
                if key in ("params", "param_names"):
                    continue
                value = ours[key]
                if role == "scaled" and key == "lr":
                    value = value * ours["scale"]
                if isinstance(theirs[key], Tensor) and theirs[key] is not value:
                    theirs[key].fill_(one_number(value))  # a rate that torchao keeps in a tensor stays in that tensor
                else:
                    theirs[key] = value
            if "weight_decay" in theirs and (role == "compact" or (role == "scaled" and decay == "decoupled")):
                own = role == "scaled" and decays_apart_from_gradients(ours)
                theirs["weight_decay"] = ours["weight_decay"] / ours["scale"] if own else 0.0

    def step(self, members: dict[Place, list[Tensor]]) -> None:
        """One step of the inner optimizer for some parameters and no others."""
        with only(self.inner, [(self.followers[place].theirs, some) for place, some in members.items()]):
            self.inner.step()
