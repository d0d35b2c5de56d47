"""What a good call is: a function, its arguments, and the rule for the shapes of its answer.

A rule gets the shapes of all arguments that are arrays, by name, and returns the shape of the answer, or a list of
shapes if the answer has several parts. It raises where the shapes do not fit together (see `Misfit`).
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

Shape = tuple[int, ...]


class Misfit(Exception):
    """These shapes do not belong together: the call must be refused."""


@dataclass(frozen=True)
class Call:
    function: Callable[..., Any]
    arrays: Mapping[str, Any]
    """Arguments that may be numbers, lists or tensors."""
    shape: Callable[..., Shape | list[Shape]]
    others: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that choose: a law, a kind, a count."""
    name: str = ""
    infinite: frozenset[str] = frozenset()
    """Arguments for which infinity is an answer's limit and allowed."""
    may_be: str = ""
    """'inf' and 'nan' where the docstring says that the answer can be."""
    quick: bool = False
    """Called at every step of a flow or of training: looks at shapes and types, not at values."""
    slow: bool = False
    """Searches for its answer: a hundred calls of it take a second or more."""
    choices: Mapping[str, Any] = field(default_factory=dict)
    """Other values that an argument of `others` may have."""

    @cached_property
    def optional(self):
        """Arrays that have a number as their default."""
        parameters = inspect.signature(self.function).parameters
        return {name for name in self.arrays if isinstance(parameters[name].default, float)}

    def __call__(self, **changed):
        return self.function(**{**self.arrays, **self.others, **changed})

    def __str__(self):
        return self.name or self.function.__name__


def fit(*shapes):
    try:
        return np.broadcast_shapes(*shapes)  # that of torch takes milliseconds
    except ValueError:
        raise Misfit from None


def need(condition):
    if not condition:
        raise Misfit


def count(t):
    need(len(t) <= 1)
    return t[0] if t else 1


def stepped(shape, t, dims=1):
    """Steps go before the last `dims` dimensions."""
    at = len(shape) - dims
    return (*shape[:at], count(t), *shape[at:])


def draw(seed, *shape, low=-1.0, high=1.0):
    u = torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return low + (high - low) * u


def of_all(rule):
    """A rule for which it does not matter which argument is which."""
    return lambda **given: rule(*given.values())


def listed(*shapes):
    return list(shapes)


def shapes(words):
    """A rule in words, as `...k, t, 3K -> ...tk; ...`: one for each array, then one for each part of the answer.

    ... are dimensions that broadcast, t alone are steps, a digit is a size, and a letter stands for one size, a capital
    for one that is not 0.
    """
    asked, _, given_back = words.partition("->")
    inputs, outputs = ([one.strip() for one in part.split(mark)] for part, mark in ((asked, ","), (given_back, ";")))

    def rule(**given):
        leads, sizes = [()], {digit: int(digit) for digit in "0123456789"}
        for word, shape in zip(inputs if asked.strip() else [], given.values(), strict=True):
            own = word.removeprefix("...")
            at = len(shape) - len(own)
            if word == "t":
                shape, at = (count(shape),), 0
            need(at >= 0 if word.startswith("...") else at == 0)
            leads.append(shape[:at])
            for letter, size in zip(own, shape[at:], strict=True):
                need(sizes.setdefault(letter, size) == size and not (letter.isupper() and size == 0))
        lead = fit(*leads)
        found = [
            (*(lead if word.startswith("...") else ()), *(sizes[letter] for letter in word.removeprefix("...")))
            for word in outputs
        ]
        return found if len(found) > 1 else found[0]

    return rule
