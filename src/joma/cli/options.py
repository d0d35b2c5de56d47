"""The options of `joma run STUDY`: the fields of its config, typed, plus where the results go."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import textwrap
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from joma.cli.outputs import DEFAULT_OUT, add_folder, add_json, checked
from joma.cli.parser import Parser
from joma.host.words import counted

if TYPE_CHECKING:
    from joma.claims.contract import Study


def parse(study: Study, arguments: list[str]) -> argparse.Namespace:
    """Read options for `study`. A misspelt or mistyped one ends the program with a sentence and the nearest name.

    Beside the options that every command has it gives `config`, and `outputs`: within that block what is written
    follows the rules of `joma.cli.outputs`.
    """
    first = Parser(prog=f"joma run {study.name}", add_help=False)  # the preset is what the options differ from
    first.add_argument("--scale", **_SCALE)
    preset = study.preset(first.parse_known_args(arguments)[0].scale)
    parser = Parser(prog=f"joma run {study.name}", description=study.title)
    parser.add_argument("--scale", **_SCALE)
    add_output(parser)
    hints, described = get_type_hints(type(preset)), _described(type(preset))
    group = parser.add_argument_group("configuration", (type(preset).__doc__ or "").partition("\n")[0])
    names = [entry.name for entry in dataclasses.fields(preset)]
    for name in names:
        _add(group, name, hints[name], getattr(preset, name), described.get(name, ""))
    options = parser.read(arguments)
    config = {name: _taken(name, getattr(options, name), hints[name]) for name in names}
    options.config, options.outputs = dataclasses.replace(preset, **config), checked(parser, options)
    return options


def add_output(parser: argparse.ArgumentParser) -> None:
    """The options that every command has that carries out studies."""
    add_folder(parser, f"folder for runs and report (default: {DEFAULT_OUT})", DEFAULT_OUT, sent=True)
    add_json(parser, "write the findings there as JSON, too")
    parser.add_argument("--fresh", action="store_true", help="run again, also where a finished run is recorded")
    parser.add_argument(
        "--threads", type=int, default=1, metavar="N",
        help="threads per study (default: 1; the last digits of a result can depend on it)",
    )  # fmt: skip


def add_study(parser: argparse.ArgumentParser) -> None:
    """The option that names studies which are not joma's own: a record may not."""
    words = "load this study, which is not joma's own, to judge and draw its runs; may be repeated"
    parser.add_argument("--study", action="append", default=[], metavar="NAME|FILE", help=words)


def load_named(options: argparse.Namespace) -> None:
    """Load what `--study` names; one that cannot be loaded is refused before any work is done."""
    from joma import studies

    for name in options.study:
        studies.load(studies.chosen(name))


_SCALE: dict[str, Any] = {"choices": ("quick", "paper"), "default": "quick",
                          "help": "sizes that the options below change: quick or paper (default: quick)"}  # fmt: skip


def _add(group: Any, name: str, kind: Any, default: Any, described: str) -> None:
    option = "--" + name.replace("_", "-")
    shown = " ".join(map(str, _flat(default))) if isinstance(default, tuple) else default
    words = f"{described} (default: {shown})".strip().replace("%", "%%")
    if kind is bool:
        group.add_argument(option, dest=name, action=argparse.BooleanOptionalAction, default=default, help=words)
    elif get_origin(kind) is Literal:
        group.add_argument(option, dest=name, choices=get_args(kind), default=default, help=words)
    else:
        one, inner = _innermost(kind), get_args(kind)
        many = None if get_origin(kind) is not tuple else "+" if Ellipsis in inner else len(inner)
        typed: dict[str, Any] = {"type": one, "metavar": one.__name__.upper(), "nargs": many}
        group.add_argument(option, dest=name, default=default, help=words, **typed)


def _innermost(kind: Any) -> type:
    return _innermost(get_args(kind)[0]) if get_origin(kind) is tuple else kind


def _flat(values: tuple[Any, ...]) -> list[Any]:
    return [one for value in values for one in (_flat(value) if isinstance(value, tuple) else [value])]


def _taken(name: str, value: Any, kind: Any) -> Any:
    """What argparse gives as a list, as the tuple that the config has; pairs are written one after another."""
    if not isinstance(value, list):
        return value
    inner = get_args(kind)[0]
    if get_origin(inner) is not tuple:
        return tuple(value)
    size = len(get_args(inner))
    if len(value) % size:
        option, got = f"--{name.replace('_', '-')}", counted(len(value), "value")
        raise ValueError(f"{option} takes values in groups of {size}, got {got}")
    return tuple(tuple(value[at : at + size]) for at in range(0, len(value), size))


def _described(config: type) -> dict[str, str]:
    lines: dict[str, str] = {}
    for owner in reversed(config.__mro__[:-1]):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            words = below.value if isinstance(below, ast.Expr) else None
            if isinstance(field, ast.AnnAssign) and isinstance(words, ast.Constant):
                lines[ast.unparse(field.target)] = " ".join(str(words.value).split())
    return lines
