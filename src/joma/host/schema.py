"""JSON Schemas of the files that joma writes, shipped in `schemas/`, and whether a value is as one of them says.

Files are named NAME-VERSION.json and written in JSON Schema 2020-12, so that other people's tools read them too. Of
its keywords those in `KEYWORDS` are known here: what joma's own schemas need, without a further package.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from operator import ge, gt, le, lt
from pathlib import Path
from typing import Any

from joma.host import limits
from joma.host.limits import depth_of
from joma.host.words import did_you_mean, short

Schema = Mapping[str, Any]
KEYWORDS = (
    "$schema", "$id", "$defs", "$ref", "title", "description", "type", "const", "enum", "anyOf", "required",
    "properties", "patternProperties", "additionalProperties", "items", "minItems", "maxItems", "minLength", "pattern",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
)  # fmt: skip
_TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
_BOUNDS: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "minimum": ("at least", ge), "maximum": ("at most", le), "exclusiveMinimum": ("above", gt),
    "exclusiveMaximum": ("below", lt),
}  # fmt: skip
_SIZES: dict[str, tuple[type[list[Any]] | type[str], str, int]] = {
    "minItems": (list, "entries", 1),
    "maxItems": (list, "entries", -1),
    "minLength": (str, "characters", 1),
}


@cache
def names() -> dict[str, int]:
    """The newest version of every schema."""
    found = [Path(file.name).stem.rpartition("-") for file in _folder().iterdir() if file.name.endswith(".json")]
    return {name: int(version) for name, _, version in sorted(found, key=lambda one: int(one[2]))}


@cache
def load(name: str) -> Schema:
    """The newest schema of a name.

    >>> load("run")["$id"]
    'urn:joma:schema:run:1'
    """
    text = (_folder() / f"{name}-{names()[name]}.json").read_text(encoding="utf-8")
    schema: Schema = json.loads(text)
    return schema


def _folder() -> Any:
    return files("joma.host").joinpath("schemas")


def read_json(path: Path) -> Any:
    """What a file holds, nested no deeper than is believed; else a `ValueError` or an `OSError`.

    >>> read_json(Path("nothing is here"))
    Traceback (most recent call last):
        ...
    FileNotFoundError: [Errno 2] No such file or directory: 'nothing is here'
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError(str(error)) from error
    if depth_of(content, limits.JSON_DEPTH) > limits.JSON_DEPTH:
        raise ValueError(f"its lists and mappings lie more than {limits.JSON_DEPTH} deep")
    return content


def faults(value: Any, schema: Schema, *, place: str = "", whole: Schema | None = None) -> Iterator[str]:
    """One sentence for each part of a value that is not as the schema says; none where all is right."""
    whole = schema if whole is None else whole
    if "$ref" in schema:
        yield from faults(value, _target(schema["$ref"], whole), place=place, whole=whole)
    if _wrong_kind(value, schema):
        yield f"{place or 'the whole'} must be {_expected(schema, whole)}, got {short(value)}"
        return
    if "anyOf" in schema:
        yield from _of_any(value, schema, place, whole)
    yield from _of_size(value, schema, place or "the whole")
    if isinstance(value, dict):
        yield from _of_object(value, schema, place, whole)
    if isinstance(value, list) and "items" in schema:
        for at, each in enumerate(value):
            yield from faults(each, schema["items"], place=f"{place}/{at}", whole=whole)


def _target(reference: str, whole: Schema) -> Schema:
    found: Any = whole
    for word in reference.removeprefix("#/").split("/"):
        found = found[word]
    return found  # type: ignore[no-any-return]


def _wrong_kind(value: Any, schema: Schema) -> bool:
    types = schema.get("type", ())
    types = [types] if isinstance(types, str) else types
    if types and not any(_is(value, each) for each in types):
        return True
    among = [schema["const"]] if "const" in schema else schema.get("enum")
    return among is not None and not any(
        value == one and isinstance(value, bool) == isinstance(one, bool) for one in among
    )


def _is(value: Any, kind: str) -> bool:
    """Whether a value is of a type of JSON: a truth is no number, and 2.0 is an integer."""
    if kind in ("number", "integer"):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and (kind == "number" or isinstance(value, int) or value.is_integer())
    return isinstance(value, _TYPES[kind])


def _expected(schema: Schema, whole: Schema) -> str:
    if "$ref" in schema:
        return _expected(_target(schema["$ref"], whole), whole)
    if "anyOf" in schema:
        return " or ".join(_expected(one, whole) for one in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        among = [schema["const"]] if "const" in schema else schema["enum"]
        return ("one of " if len(among) > 1 else "") + ", ".join(map(repr, among))
    types = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    return " or ".join(one if one == "null" else f"a{'n' * (one[0] in 'aio')} {one}" for one in types)


def _of_any(value: Any, schema: Schema, place: str, whole: Schema) -> Iterator[str]:
    """Of several forms none fits: the faults of the one that fits best, which are furthest inside."""
    found = [list(faults(value, one, place=place, whole=whole)) for one in schema["anyOf"]]
    if not all(found):
        return
    inside = [one for one in found if not any(fault.startswith(f"{place or 'the whole'} must be ") for fault in one)]
    if inside:
        yield from min(inside, key=len)
    else:
        yield f"{place or 'the whole'} must be {_expected(schema, whole)}, got {short(value)}"


def _of_size(value: Any, schema: Schema, place: str) -> Iterator[str]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        for key, (words, keeps) in _BOUNDS.items():
            if key in schema and not keeps(value, schema[key]):
                yield f"{place} must be {words} {schema[key]}, got {value}"
    for key, (kind, words, sign) in _SIZES.items():
        if key in schema and isinstance(value, kind) and sign * (len(value) - schema[key]) < 0:
            yield f"{place} must have {'at least' if sign > 0 else 'at most'} {schema[key]} {words}, got {len(value)}"
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        yield f"{place} must match {schema['pattern']}, got {short(value)}"


def _of_object(value: dict[str, Any], schema: Schema, place: str, whole: Schema) -> Iterator[str]:
    here = place or "the whole"
    yield from (f"{here} lacks the key {key!r}" for key in schema.get("required", ()) if key not in value)
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for key, each in value.items():
        forms = [known[key]] if key in known else []
        forms += [form for pattern, form in patterns.items() if re.search(pattern, key)]
        others = schema.get("additionalProperties", True)
        if not forms and others is False:
            yield f"{here} has no key {key!r}; {did_you_mean(key, known, f'there are {len(known)} others')}"
        elif not forms and others is not True:
            forms = [others]
        for form in forms:
            yield from faults(each, form, place=f"{place}/{key}", whole=whole)
