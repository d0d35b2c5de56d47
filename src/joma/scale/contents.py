"""What a shard left, against the form that its command writes: a damaged part is one sentence that names its file.

A form is written as the thing that it describes: a type, or a union of types; `{"run": str}` for these keys and any
others; `{str: form}` for keys of any name; `[form]` for a list of any length; `(form, form)` for one of this length.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from joma.host.errors import BadInput
from joma.scale.parts import FILE, Part


@dataclass(frozen=True)
class Maybe:
    """A form that may be null."""

    form: Any


def content_of(part: Part, form: Mapping[str, Any]) -> Mapping[str, Any]:
    """The content of a part, if it has a form; else one sentence says which key of which file is damaged."""
    return _of_form(part, part.content, form, "content")


def options_of(part: Part, form: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of a part, checked in the same way."""
    return _of_form(part, part.options, form, "options")


def _of_form(part: Part, value: Mapping[str, Any], form: Mapping[str, Any], called: str) -> Mapping[str, Any]:
    for where in _misfits(value, form, called):
        is_damaged(part, f"{where} is not what a shard of joma {part.kind} leaves")
    return value


def is_damaged(part: Part, what: str) -> NoReturn:
    """Refuse a part. what: what is wrong with its file."""
    raise BadInput(f"{part.folder / FILE} is damaged: {what}; remove it and give the shard's command again")


def _misfits(value: Any, form: Any, where: str) -> Iterator[str]:
    """Where a value has another form than it should, such as `content.faults[0].step`."""
    if isinstance(form, Maybe):
        yield from () if value is None else _misfits(value, form.form, where)
    elif isinstance(form, Mapping) and isinstance(value, dict):
        forms = dict.fromkeys(value, form[str]) if str in form else form
        for key, each in forms.items():
            yield from _misfits(value[key], each, f"{where}.{key}") if key in value else (f"{where}.{key}",)
    elif isinstance(form, list) and isinstance(value, list):
        for at, each in enumerate(value):
            yield from _misfits(each, form[0], f"{where}[{at}]")
    elif isinstance(form, tuple) and isinstance(value, list) and len(form) == len(value):
        for at, each in enumerate(value):
            yield from _misfits(each, form[at], f"{where}[{at}]")
    elif isinstance(form, Mapping | list | tuple) or not isinstance(value, form):
        yield where
