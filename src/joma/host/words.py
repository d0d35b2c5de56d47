"""Words that many messages share: counts with their noun, and objects in one short line."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from typing import Any

LONGEST = 120
"""Characters of a repr."""


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun, in the singular where there is one.

    >>> counted(1, "checkpoint"), counted(1200, "checkpoint"), counted(2, "series", "series")
    ('1 checkpoint', '1,200 checkpoints', '2 series')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def brief(thing: Any) -> str:
    """A dataclass or a named tuple in one short line: for `__repr__ = brief` in its body.

    Arrays and tensors are shown by type and shape, long values by their size. Fields that have their default are left
    out. What does not fit into 120 characters is cut.

    >>> from typing import NamedTuple
    >>> class Found(NamedTuple):
    ...     ranks: list
    ...     steps: int = 10
    ...     __repr__ = brief
    >>> Found([0.5] * 100, 20), Found([1, 2])
    (Found(ranks=100 entries, steps=20), Found(ranks=[1, 2]))
    """
    names, defaults = _fields(thing)
    shown = [f"{name}={short(getattr(thing, name))}" for name in names if not _is(getattr(thing, name), defaults, name)]
    line = f"{type(thing).__name__}({', '.join(shown)})"
    return line if len(line) <= LONGEST else line[: LONGEST - 4] + "...)"


def short(value: Any, longest: int = 40) -> str:
    """A value in a few characters.

    >>> short(0.123456789), short("x" * 50), short({"a": 1}), short(print)
    ('0.1235', "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...'", "{'a': 1}", 'print')
    """
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _array(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    if isinstance(value, str):
        return repr(value) if len(value) <= longest else repr(value[: longest - 4] + "...")
    if isinstance(value, list | tuple | dict | set | frozenset) and type(value).__repr__ is not brief:
        return _container(value, longest)
    text = repr(value)
    return text if len(text) <= longest and "\n" not in text else type(value).__name__


def _container(value: Any, longest: int) -> str:
    """As it is where that is short and holds no arrays, else by its size."""
    inside = [*value, *value.values()] if isinstance(value, dict) else value
    if len(value) <= longest and all(isinstance(one, int | float | str | None) for one in inside):
        text = repr(value)
        if len(text) <= longest:
            return text
    return f"{len(value)} entries" if len(value) != 1 else "1 entry"


def _array(value: Any) -> str:
    """One number as it is, more of them by type and shape."""
    kind = str(value.dtype).removeprefix("torch.")
    if not tuple(value.shape) and getattr(value.device, "type", "cpu") == "cpu":
        try:
            return f"{value.item():.4g}"
        except (RuntimeError, TypeError, ValueError):  # inside vmap, or a number that is none
            pass
    return f"{kind}{list(value.shape)}"


def _fields(thing: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Names, and the defaults of those that have one."""
    if is_dataclass(thing):
        found = [field for field in fields(thing) if field.repr]
        return tuple(field.name for field in found), {f.name: f.default for f in found if f.default is not MISSING}
    return thing._fields, thing._field_defaults


def _is(value: Any, defaults: dict[str, Any], name: str) -> bool:
    """Whether a field has its default; arrays are never compared."""
    if name not in defaults or hasattr(value, "shape"):
        return False
    default = defaults[name]
    return value is default or bool(type(value) is type(default) and value == default)
