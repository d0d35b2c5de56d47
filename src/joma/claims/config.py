"""Configs of studies, and the bounds that their fields keep. A bound stands where its field does.

    steps: Annotated[int, Least(2, "the start and a later moment")] = 21

What depends on two fields at once is checked by the config's own `__post_init__`, after `super().__post_init__()`.
"""

import dataclasses
import math
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Protocol, get_type_hints

from joma.host.devices import must_be_a_device

_FROM_ZERO = ("seed", "sequence")  # numbers that count from 0 and are no sizes
_SEED_LIMIT = 2**63 - 10**6  # what a record can hold, less what is added for further seeds


class Bound(Protocol):
    """What a field must keep: None where it does, else the rest of a sentence that begins with its name."""

    def broken_by(self, value: Any) -> str | None: ...


@dataclass(frozen=True)
class Least:
    """At least `low`; of a tuple, every entry. why: what would be missing below it.

    >>> Least(2, "the start and a later moment").broken_by(1)
    'must be at least 2, the start and a later moment, got 1'
    """

    low: float
    why: str = ""

    def broken_by(self, value: Any) -> str | None:
        wrong = min(_entries(value)) < self.low
        return f"must be at least {self.low:g}{', ' * bool(self.why)}{self.why}, got {value}" if wrong else None


@dataclass(frozen=True)
class Within:
    """From `low` to `high`; of a tuple, every entry. open: the ends themselves are not allowed.

    >>> Within(0, 1, open=True).broken_by(1.0)
    'must lie between 0 and 1, got 1.0'
    """

    low: float
    high: float
    why: str = ""
    open: bool = False

    def broken_by(self, value: Any) -> str | None:
        def fits(one: float) -> bool:
            return self.low < one < self.high if self.open else self.low <= one <= self.high

        ends = f"{'lie between' if self.open else 'be from'} {self.low:g} {'and' if self.open else 'to'} {self.high:g}"
        wrong = not all(map(fits, _entries(value)))
        return f"must {ends}{', ' * bool(self.why)}{self.why}, got {value}" if wrong else None


@dataclass(frozen=True)
class Above:
    """Greater than `low`; of a tuple, every entry.

    >>> Above(0).broken_by((0.5, 0.0))
    'must be above 0, got (0.5, 0.0)'
    """

    low: float
    why: str = ""

    def broken_by(self, value: Any) -> str | None:
        wrong = not all(one > self.low for one in _entries(value))
        return f"must be above {self.low:g}{', ' * bool(self.why)}{self.why}, got {value}" if wrong else None


@dataclass(frozen=True)
class Values:
    """A tuple of at least `count` entries, or of just as many, that may have to rise and must differ.

    >>> Values(2, "a coarse and a finer one", rising=True).broken_by((80, 20))
    'must be at least 2 values that rise, a coarse and a finer one, got (80, 20)'
    """

    count: int = 1
    why: str = ""
    exactly: bool = False
    rising: bool = False

    def broken_by(self, value: Any) -> str | None:
        fits = len(value) == self.count if self.exactly else len(value) >= self.count
        order = all(a < b for a, b in pairwise(value)) if self.rising else len(set(value)) == len(value)
        kind = "that rise" if self.rising else "that differ"
        count = "" if self.count == 1 else f"{'' if self.exactly else 'at least '}{self.count} "
        reason = f"{', ' * bool(self.why)}{self.why}"
        return None if fits and order else f"must be {count}values {kind}{reason}, got {value}"


@dataclass(frozen=True)
class OneOf:
    """One of some words; of a tuple, every entry.

    >>> OneOf("relu", "linear").broken_by("tanh")
    "must be one of relu, linear, got 'tanh'"
    """

    words: tuple[str, ...]

    def __init__(self, *words: str) -> None:
        object.__setattr__(self, "words", words)

    def broken_by(self, value: Any) -> str | None:
        wrong = [one for one in _entries(value) if one not in self.words]
        return f"must be one of {', '.join(self.words)}, got {wrong[0]!r}" if wrong else None


def _entries(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


@dataclass(frozen=True)
class StudyConfig:
    """What configs of studies are made from: it checks its fields by their bounds when it is made.

    >>> from typing import Annotated
    >>> @dataclass(frozen=True)
    ... class FlowConfig(StudyConfig):
    ...     horizon: Annotated[float, Above(0)] = 1.0
    >>> FlowConfig(horizon=0.0)
    Traceback (most recent call last):
        ...
    ValueError: horizon must be above 0, got 0.0
    """

    def __post_init__(self) -> None:
        check_config(self)


def check_config(config: Any) -> None:
    """Refuse, by name, what a field's bounds do not allow, and what no study can mean.

    That is: sizes below one, negative seeds and rates, numbers that are not finite, devices that are unknown, and a
    precision that the device does not have.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class FlowConfig:
    ...     every: int = 10
    >>> check_config(FlowConfig(every=0))
    Traceback (most recent call last):
        ...
    ValueError: every must be at least 1, got 0
    """
    kind: type = type(config)
    bounds = _bounds(kind)
    for entry in dataclasses.fields(config):
        value = getattr(config, entry.name)
        if value == ():
            raise ValueError(f"{entry.name} must not be empty")
        if entry.name == "device":
            must_be_a_device(value)
        for number in _entries(value):
            _check_number(entry.name, number)
        for bound in bounds.get(entry.name, ()):
            if broken := bound.broken_by(value):
                raise ValueError(f"{entry.name} {broken}")
    precision = getattr(config, "precision", "float32")
    if getattr(config, "device", "cpu") == "cpu" and precision != "float32":
        raise ValueError(f"precision {precision!r} is a choice for a GPU; on a CPU it is float32")


@cache
def _bounds(kind: type) -> dict[str, tuple[Bound, ...]]:
    try:
        hints = get_type_hints(kind, localns={"Annotated": Annotated}, include_extras=True)
    except NameError as error:  # a class made inside a function, whose names are not found again
        if any("Annotated" in str(each) for each in kind.__annotations__.values()):
            raise TypeError(f"the bounds of {kind.__name__} cannot be read: {error}") from None
        return {}
    return {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}


def _check_number(name: str, number: Any) -> None:
    least = 0 if name in _FROM_ZERO else 1
    if isinstance(number, int) and not isinstance(number, bool) and number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    if name == "seed" and number >= _SEED_LIMIT:
        raise ValueError(f"seed must be below 2^63 and leave room for those that follow, got {number}")
    if isinstance(number, float) and not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {number}")
    if isinstance(number, float) and number < 0 and name.endswith(("rate", "rates", "weight_decay")):
        raise ValueError(f"{name} must not be negative, got {number}")
