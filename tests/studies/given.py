"""While a study runs under `nothing_left_to_defaults`, whoever looks at a default of another room stops the run.

A study gives what decides its numbers: in its config, or where it calls. Else another default would change numbers that
keep the hash of their config. So the defaults of our optimizers, recipes, trainer and probes are taken away while a
test carries a study out. What stands in for one raises at the first look at it.

Of an optimizer every default counts: its None can be a choice. Elsewhere one that adds nothing (None, 0, empty) stays,
and so do these, which decide no number:
"""

import dataclasses
import functools
import importlib
import inspect
import pkgutil
import re
from contextlib import contextmanager

from torch.optim import Optimizer as TorchOptimizer

from joma import optim, probes, recipes, training
from joma.claims.config import StudyConfig

PLAIN = (int, float, str, tuple, list, dict)
ROOMS = (optim, recipes, training, probes)
NO_NUMBER = {
    "progress": "hears how far it is",
    "share": "of the progress",
    "checkpoint_every": "seconds between two checkpoints",
    "adapt": "gives back what it is given",
    "others": "None: matrices alone; any other default would refuse weights without names",
}
"""Names of parameters whose defaults stay, and why."""


class Left:
    """In the place of a default."""

    def __init__(self, owner, seen):
        vars(self).update(owner=owner, seen=seen)

    def looked_at(self, *_, **__):
        self.seen.append(self.owner)
        raise AssertionError(f"a study gives what decides its numbers, and {self.owner} was left to its default")

    def __repr__(self):
        return f"<the default of {self.owner}>"

    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __getattr__ = __iter__ = __len__ = looked_at
    __getitem__ = __call__ = __float__ = __int__ = __index__ = __contains__ = __hash__ = __neg__ = looked_at
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __pow__ = looked_at
    __rpow__ = __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = looked_at


def counts(owner, parameter, default):
    """Whether a default of `owner`, a class or a function, can decide a number."""
    if parameter in NO_NUMBER or (inspect.isclass(owner) and issubclass(owner, StudyConfig)):
        return False
    adds_nothing = default is None or repr(default) == "<factory>" or (isinstance(default, PLAIN) and not default)
    return chooses(owner) or not adds_nothing


def chooses(owner):
    """Whether it is an optimizer, or holds options of one of ours."""
    if owner is training.Optimizer or (inspect.isclass(owner) and issubclass(owner, TorchOptimizer)):
        return True
    return dataclasses.is_dataclass(owner) and owner.__name__ in _words()


@functools.cache
def _words():
    """Of the types of what our optimizers take."""
    offered = [each for each in vars(optim).values() if inspect.isclass(each) and issubclass(each, TorchOptimizer)]
    types = [each.annotation for one in offered for each in inspect.signature(one.__init__).parameters.values()]
    return set(re.findall(r"\w+", " ".join(map(str, types))))


@functools.cache
def with_defaults():
    """What the rooms offer and has defaults that count: (owner, its function, their names)."""
    found = []
    for owner in {id(each): each for each in _offered()}.values():
        function = owner.__init__ if inspect.isclass(owner) else inspect.unwrap(owner)
        if inspect.isfunction(function):
            parameters = inspect.signature(function).parameters.values()
            given = [each for each in parameters if each.default is not each.empty]
            if names := [each.name for each in given if counts(owner, each.name, each.default)]:
                found.append((owner, function, names))
    return found


def _offered():
    for room in ROOMS:
        yield from (e for name, e in vars(room).items() if name in getattr(room, "__all__", ()) and callable(e))
        for module in [room.__name__, *(one.name for one in pkgutil.walk_packages(room.__path__, f"{room.__name__}."))]:
            if not module.rpartition(".")[2].startswith("_"):
                for name, each in vars(importlib.import_module(module)).items():
                    if callable(each) and not name.startswith("_") and getattr(each, "__module__", "") == module:
                        yield each


@contextmanager
def nothing_left_to_defaults():
    """Inside, the defaults that count raise when they are looked at."""
    seen, before = [], []
    for owner, function, names in with_defaults():
        before.append((function, function.__defaults__, function.__kwdefaults__))
        parameters = inspect.signature(function).parameters.values()
        put = {each.name: Left(f"{each.name} of {owner.__module__}.{owner.__qualname__}", seen) for each in parameters}
        placed = [each for each in parameters if each.default is not each.empty and each.kind is not each.KEYWORD_ONLY]
        function.__defaults__ = tuple(put[each.name] if each.name in names else each.default for each in placed) or None
        own = function.__kwdefaults__
        function.__kwdefaults__ = own and {name: put[name] if name in names else own[name] for name in own}
    try:
        yield
    finally:
        for function, placed, named in before:
            function.__defaults__, function.__kwdefaults__ = placed, named
    assert not seen, f"left to defaults, and nobody heard: {seen}"
