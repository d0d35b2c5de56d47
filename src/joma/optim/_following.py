"""The groups of the inner optimizer, each of which follows the options of a group of ours."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from joma.optim._arguments import Decay, Role
from joma.optim._inner import only
from joma.optim._matrix import Pack

ORIGIN = "galore"  # in a new group of the inner optimizer: the number of ours and the role of its parameters


class Follower(NamedTuple):
    """A group of the inner optimizer, and ours whose options it follows."""

    ours: dict[str, Any]
    theirs: dict[str, Any]
    role: Role


class Following:
    """The inner optimizer as we see it: a group for each role of the parameters in each of our groups."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        """Nothing follows before `link`."""
        self.inner = inner
        self.followers: list[Follower] = []

    def link(self, groups: list[dict[str, Any]], new: list[dict[str, Any]]) -> None:
        """Let new groups of the inner optimizer follow ours, and give ours the options that they lack."""
        for one in new:
            number, role = one.pop(ORIGIN)
            for key, value in one.items():
                groups[number].setdefault(key, value)
                one[key] = value.clone() if isinstance(value, Tensor) else value  # several groups may share a tensor
            self.followers.append(Follower(groups[number], one, role))

    def link_again(self) -> None:
        """Loading gives the inner optimizer new group dictionaries, in the old order."""
        pairs = zip(self.followers, self.inner.param_groups, strict=True)
        self.followers = [one._replace(theirs=theirs) for one, theirs in pairs]

    def group_of(self, ours: dict[str, Any], role: Role) -> dict[str, Any]:
        """The inner optimizer's group for the parameters of this role in one of our groups; empty if it has none."""
        return next((one.theirs for one in self.followers if one.ours is ours and one.role == role), {})

    def list_packs(self, groups: list[dict[str, Any]], packs: list[Pack]) -> None:
        """Let the inner optimizer have the compact parameters of these packs and no others."""
        for number, group in enumerate(groups):
            if theirs := self.group_of(group, "compact"):
                theirs["params"] = [pack.compact for pack in packs if pack.group == number]

    def hand_over_options(self, decay: Decay) -> None:
        """Hand on what a scheduler may have changed; decay of matrices is not the inner optimizer's matter."""
        for ours, theirs, role in self.followers:
            for key in theirs:
                if key in ("params", "param_names"):
                    continue
                value = ours[key]
                if role == "scaled" and key == "lr":
                    value = value * ours["scale"]
                if isinstance(theirs[key], Tensor) and theirs[key] is not value:
                    theirs[key].fill_(value)  # a rate that torchao keeps in a tensor stays in that tensor
                else:
                    theirs[key] = value
            if "weight_decay" in theirs and (role == "compact" or (role == "scaled" and decay == "decoupled")):
                theirs["weight_decay"] = 0.0

    def step(self, members: Iterable[tuple[dict[str, Any], Role, Tensor]]) -> None:
        """One step of the inner optimizer for some parameters, each with our group and its role."""
        some: dict[int, tuple[dict[str, Any], list[Tensor]]] = {}
        for ours, role, parameter in members:
            theirs = self.group_of(ours, role)
            some.setdefault(id(theirs), (theirs, []))[1].append(parameter)
        with only(self.inner, list(some.values())):
            self.inner.step()
