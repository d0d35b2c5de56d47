"""Which layers and matrices of a model are followed, to which layer a matrix belongs, and whether the model changed."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from operator import is_
from typing import Any

from torch import nn

from joma.host.arguments import shown
from joma.host.errors import BadInput

Patterns = str | Iterable[str] | None


def layer_of(name: str) -> str:
    """The layer that a matrix stands in: its name up to the first number; the whole name where there is none."""
    parts = name.split(".")
    numbered = [at for at, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbered[0] + 1]) if numbered else name


class Names:
    """Names that match one of `include`, if there are any, and none of `exclude`."""

    def __init__(self, include: Patterns, exclude: Patterns) -> None:
        """include, exclude: patterns with `*`, as in file names, or lists of them."""
        self.include, self.exclude = _listed(include, "include"), _listed(exclude, "exclude")

    def __contains__(self, name: object) -> bool:
        text = str(name)
        wanted = self.include is None or any(fnmatchcase(text, each) for each in self.include)
        return wanted and not any(fnmatchcase(text, each) for each in self.exclude or ())


def _listed(given: Patterns, argument: str) -> list[str] | None:
    if given is None:
        return None
    patterns = [given] if isinstance(given, str) else list(given)
    if not all(isinstance(each, str) for each in patterns):
        raise BadInput(f"{argument} must be patterns such as 'model.layers.0.*', got {shown(given)}", argument=argument)
    return patterns


class Structure:
    """The modules and parameters of a model as they are now: to walk through all their names takes milliseconds."""

    def __init__(self, model: nn.Module) -> None:
        """model: whose."""
        holders = [held for each in model.modules() for held in (each._modules, each._parameters)]
        self._held: list[tuple[dict[str, Any], dict[str, Any]]] = [(now, dict(now)) for now in holders]

    def is_the_same(self) -> bool:
        return all(
            now.keys() == before.keys() and all(map(is_, now.values(), before.values())) for now, before in self._held
        )
