"""How a function takes a plain number: as `joma.host.arguments` takes tensors, and without torch."""

import math
import sys

import numpy as np


def integer(value: int, name: str, low: int) -> int:
    """An integer that is at least `low`: sizes, depths, counts."""
    try:
        good = not isinstance(value, bool) and int(value) == value and value >= low
    except (TypeError, ValueError, OverflowError, RuntimeError):
        good = False
    if not good:
        raise ValueError(f"{name} must be a whole number of at least {low}, got {shown(value)}")
    return int(value)


def at_most(value: int, name: str, most: int, meaning: str, *, low: int = 1) -> int:
    """A whole number from `low` to `most`, of which `meaning` says what it is."""
    if (found := integer(value, name, low)) > most:
        raise ValueError(f"{name} must be at most {meaning}, {most}, got {shown(value)}")
    return found


def number(
    value: object, name: str, *, above: float = -math.inf, least: float = -math.inf, finite: bool = True
) -> float:
    """One finite number, above `above` and not below `least`: scales, rates, powers. finite=False: any number."""
    try:
        got = None if isinstance(value, str | bytes) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        got = None
    if got is None or (finite and not (above < got < math.inf and got >= least)):
        limit = f" above {above:g}" if above > -math.inf else f" of at least {least:g}" if least > -math.inf else ""
        raise ValueError(f"{name} must be a {'finite ' if finite else ''}number{limit}, got {shown(value)}")
    return got


def shown(value: object) -> str:
    """A value in a sentence: short things as they are, others by their type."""
    if isinstance(value, np.ndarray) and value.dtype.kind not in "biuf":
        return f"an array of {value.dtype}"
    torch = sys.modules.get("torch")  # who has a tensor has loaded it
    if isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor)):
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else type(value).__name__
