"""Whether what was read from a file is of the kinds that its dataclass declares: Python itself checks no annotation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def misfit(value: Any, kind: Any) -> str:
    """The first part of a value that is not of its declared kind, such as `claim.says`; empty if all are.

    - value: what was read
    - kind: a dataclass, a plain type, or what `typing` makes of these: unions, tuples, mappings, literals

    >>> misfit([1, 2], tuple[int, ...]), misfit((1, 2.5), tuple[float, float]), misfit(True, int)
    ('value', '', 'value')
    """
    return _misfit(value, kind, "value")


def _misfit(value: Any, kind: Any, where: str) -> str:
    outer, inner = get_origin(kind), get_args(kind)
    if outer in (Union, UnionType):
        found = [_misfit(value, one, where) for one in inner]
        return "" if "" in found else found[0]
    if outer is Literal:
        return "" if value in inner else where
    if outer is tuple and isinstance(value, tuple):
        each = [inner[0]] * len(value) if inner[1:] == (Ellipsis,) else inner
        if len(each) != len(value):
            return where
        return _first(_misfit(one, wanted, where) for one, wanted in zip(value, each, strict=True))
    if outer is not None and issubclass(outer, Mapping) and isinstance(value, Mapping):
        pairs = ((key, inner[0]) for key in value), ((one, inner[1]) for one in value.values())
        return _first(_misfit(one, wanted, where) for several in pairs for one, wanted in several)
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(value, kind):
        name = "" if where == "value" else f"{where}."
        kinds = _kinds(kind)
        return _first(_misfit(getattr(value, one.name), kinds[one.name], f"{name}{one.name}") for one in fields(kind))
    return "" if outer is None and _is_plainly(value, kind) else where


def _is_plainly(value: Any, kind: Any) -> bool:
    """A bool is no number here, and a whole number may stand where any number may."""
    if kind in (None, NoneType):
        return value is None
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    return kind in (bool, str) and isinstance(value, kind)


def _first(found: Any) -> str:
    return next(filter(None, found), "")


@cache
def _kinds(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
