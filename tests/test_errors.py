"""Errors that a user can mend: all of one kind, and none that speaks of options of the command line."""

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import joma
from joma.host.errors import JomaError

HOUSE = Path(joma.__file__).parent
NO_ERRORS = {
    "joma.claims.contract.NotRun": "a study is not run here: no error but an outcome, with its own verdict",
    "joma.claims.contract.OnlyAtPaperScale": "the same, of a claim that no run of the quick scale can tell",
    "joma.data._syntax.NotParsed": "one file among many, which is left out; always caught",
    "joma.theory._dormand_prince.TooStiff": "becomes the ValueError of whoever called the solver; always caught",
    "joma.scan.sweep.sweeping._Stopped": "ends the threads of a sweep; always caught",
    "joma.scan.formats.pickles.Refused": "becomes a CheckpointError that names the file; always caught",
}
OPTION = re.compile(r"(?<![\w-])--[a-z]")
ERRORS = ("Error", "BadInput")
WITH_COMMANDS = {"claims", "recipes", "studies", "report"}
"""They also say which command to give next: there only the messages of errors are read."""


def classes() -> Iterator[type]:
    for found in pkgutil.walk_packages(joma.__path__, "joma."):
        if found.name.endswith(("__main__", "_triton")):
            continue
        for each in vars(importlib.import_module(found.name)).values():
            if isinstance(each, type) and each.__module__ == found.name and issubclass(each, Exception):
                yield each


def test_every_error_is_a_joma_error():
    pytest.importorskip("transformers")
    pytest.importorskip("matplotlib")
    others = {f"{each.__module__}.{each.__qualname__}" for each in classes() if not issubclass(each, JomaError)}
    assert others <= set(NO_ERRORS), others - set(NO_ERRORS)


def strings(code: str, *, of_errors: bool) -> Iterator[str]:
    """The strings of a file but for docstrings; with `of_errors` only those in the call of an error."""
    tree = ast.parse(code)
    nodes = list(ast.walk(tree))
    docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
    if of_errors:
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        nodes = [each for call in calls if ast.unparse(call.func).endswith(ERRORS) for each in ast.walk(call)]
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            yield node.value


@pytest.mark.parametrize("room", sorted({path.name for path in HOUSE.iterdir() if path.is_dir()} - {"cli"}))
def test_messages_of_the_library_do_not_speak_of_options(room):
    for path in sorted((HOUSE / room).rglob("*.py")):
        code = path.read_text(encoding="utf-8")
        for text in strings(code, of_errors=room in WITH_COMMANDS) if "--" in code else ():
            assert not OPTION.search(text), f"{path.relative_to(HOUSE)}: {text}"


def test_an_option_in_a_message_would_be_seen():
    code = 'def f():\n    """With --a."""\n    raise JomaError(f"{x}: use --fresh")\nCOMMAND = "joma verify --json"\n'
    assert [bool(OPTION.search(text)) for text in strings(code, of_errors=True)] == [True]
    assert sum(bool(OPTION.search(text)) for text in strings(code, of_errors=False)) == 2
