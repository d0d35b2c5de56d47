"""Words that many messages share: counts with their noun, and objects in one short line."""

from collections.abc import Iterable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar

T = TypeVar("T")
LONGEST = 120  # characters of a repr
FEW = 4  # numbers of an array that are shown
_ALIKE, _LESS_ALIKE = 0.6, 0.15  # how alike a name must be to be suggested, and how much less so than the best one
_MOST_NAMES = 3


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun, in the singular where there is one.

    >>> counted(1, "checkpoint"), counted(1200, "checkpoint"), counted(2, "series", "series")
    ('1 checkpoint', '1,200 checkpoints', '2 series')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """A question with at most three known names that are near; `otherwise` where none is.

    Names that are spelt alike come first, then those that the name is a part of.

    >>> did_you_mean("thm22", ["thm1", "thm2", "thm2-rank"]), did_you_mean("rank", ["thm1", "thm2-rank"])
    ("did you mean 'thm2'?", "did you mean 'thm2-rank'?")
    >>> did_you_mean("zebra", ["thm1"], "`joma list` has the names")
    '`joma list` has the names'
    """
    from difflib import SequenceMatcher  # nobody pays for it who spells well

    names, asked = list(known), name.lower()
    ratios = {one: SequenceMatcher(None, asked, one).ratio() for one in names}
    least = max(_ALIKE, max(ratios.values(), default=0.0) - _LESS_ALIKE)
    alike = sorted((one for one in names if ratios[one] >= least), key=ratios.__getitem__, reverse=True)
    parts = (one for one in names if len(asked) > 2 and asked in one)
    near = list(dict.fromkeys([*alike, *parts]))[:_MOST_NAMES]
    if not near:
        return otherwise
    return f"did you mean {' or '.join(', '.join(map(repr, near)).rsplit(', ', 1))}?"


def brief(thing: Any) -> str:
    """A dataclass or a named tuple in one short line, for its `__repr__`: see `brief_repr`.

    Arrays and tensors of more than a few numbers are shown by type and shape, long values by their size. Fields that
    have their default are left out. What does not fit into 120 characters is cut.
    """
    if is_dataclass(thing):
        names = [field.name for field in fields(thing) if field.repr]
        defaults = {field.name: field.default for field in fields(thing)}
    else:
        names, defaults = thing._fields, thing._field_defaults

    def default(name: str) -> bool:
        value, usual = getattr(thing, name), defaults.get(name, MISSING)
        if hasattr(value, "shape"):  # arrays are never compared
            return False
        return value is usual or bool(type(value) is type(usual) and value == usual)

    shown = [f"{name}={short(getattr(thing, name))}" for name in names if not default(name)]
    line = f"{type(thing).__name__}({', '.join(shown)})"
    return line if len(line) <= LONGEST else line[: LONGEST - 4] + "...)"


def brief_repr(cls: type[T]) -> type[T]:
    """A class whose objects show themselves as `brief` does.

    >>> from dataclasses import dataclass
    >>> @brief_repr
    ... @dataclass(frozen=True)
    ... class Found:
    ...     ranks: list
    >>> Found([0.5] * 100)
    Found(ranks=100 entries)
    """
    cls.__repr__ = brief  # type: ignore[method-assign]
    return cls


def short(value: Any, longest: int = 40) -> str:
    """A value in a few characters."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _array(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    if isinstance(value, str):
        return repr(value) if len(value) <= longest else repr(value[: longest - 4] + "...")
    if isinstance(value, list | tuple | dict | set | frozenset) and not hasattr(value, "_fields"):
        return _container(value, longest)
    text = repr(value)
    return text if len(text) <= longest and "\n" not in text else type(value).__name__


def _container(value: Any, longest: int) -> str:
    """As it is where that is short and holds no arrays, else by its size."""
    inside = [*value, *value.values()] if isinstance(value, dict) else value
    plain = len(value) <= longest and all(isinstance(one, int | float | str | None) for one in inside)
    if plain and len(text := repr(value)) <= longest:
        return text
    return f"{len(value)} entries" if len(value) != 1 else "1 entry"


def _array(value: Any) -> str:
    shape = tuple(value.shape)
    if str(getattr(value, "device", "cpu")) == "cpu" and (shape == () or (len(shape) == 1 and shape[0] <= FEW)):
        try:
            found = value.tolist()
        except RuntimeError:  # inside vmap there are no numbers to show
            found = None
        if isinstance(found, list):
            return f"[{', '.join(map(short, found))}]"
        if found is not None:
            return short(found)
    return f"{str(value.dtype).removeprefix('torch.')}{list(shape)}"
