"""Whether a model still has the modules and parameters it had: to walk through all their names takes milliseconds."""

from __future__ import annotations

from operator import is_
from typing import Any

from torch import nn


class Structure:
    """The modules of a model and their parameters, as they are when this is made.

    >>> model = nn.Sequential(nn.Linear(2, 2))
    >>> structure = Structure(model)
    >>> structure.is_the_same()
    True
    >>> model[0].weight = nn.Parameter(model[0].weight.detach().clone())  # as load_state_dict(..., assign=True) does
    >>> structure.is_the_same()
    False
    """

    def __init__(self, model: nn.Module) -> None:
        """model: whose."""
        holders = [held for each in model.modules() for held in (each._modules, each._parameters)]
        self._held: list[tuple[dict[str, Any], dict[str, Any]]] = [(now, dict(now)) for now in holders]

    def is_the_same(self) -> bool:
        """Whether every name still stands for the same module or parameter."""
        return all(
            now.keys() == before.keys() and all(map(is_, now.values(), before.values())) for now, before in self._held
        )
