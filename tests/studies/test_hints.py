"""What a finding tells the reader to run can be pasted: every place that tells something, found in the source."""

import ast
import importlib
import re
import shlex
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest

import joma
from joma.claims.contract import NotRun
from joma.claims.execute import not_run_at_all, plain_config
from joma.cli import verify
from joma.cli.options import parse
from joma.cli.parser import Parser
from joma.studies import load, names, room

SOURCE = Path(joma.__file__).parent
TELLING = {"not_run": 3, "NotRun": 1, "of_learned": 99, "needs_device": 1, "cannot_tell": 99, "shows": 99,
           "only_at_paper_scale": 3, "at_other_sizes": 3}  # fmt: skip
"""By function the place of the argument that is a command. What else it is given by name are options of the study."""
NO_OPTIONS = {"command", "changes", "claim", "expected", "reason", "what", "details", "size", "of", "twin", "variant",
              "may_be_idle", "corrected", "controls", "fewest", "over", "corrected_size"}  # fmt: skip
HANDED_ON = ("claims/execute.py", "studies/stored.py")  # Files that tell what others gave them, or what repeats a run


TELLS = re.compile(rf"\b({'|'.join(TELLING)})\(")  # Files without this tell nothing, and need not be parsed


def files():
    for path in sorted({*SOURCE.glob("**/*.py")} - {SOURCE / name for name in HANDED_ON}):
        if TELLS.search(path.read_text(encoding="utf-8")):
            yield pytest.param(path, id=path.relative_to(SOURCE).as_posix())


def places(path):
    for outer in (one for one in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(one, ast.FunctionDef)):
        for call in (one for one in ast.walk(outer) if isinstance(one, ast.Call)):
            name = getattr(call.func, "id", getattr(call.func, "attr", ""))
            if name in TELLING:
                yield outer, name, call


def studies_of(path):
    _, *parts = path.relative_to(SOURCE).with_suffix("").parts
    own = [name for name in names() if name.replace("-", "_") in parts]
    return own or [name for name in names() if room(name) in parts] or names()


def parsed(command):
    """What the command line makes of it; it ends the test where an option is unknown or has a wrong value."""
    words = shlex.split(command.rpartition(" && ")[2])
    if "=" in words[0]:
        assert words.pop(0) == "JOMA_DATA=FOLDER"
    assert words.pop(0) == "joma"
    if words.pop(0) == "run":
        return parse(load(words[0]), words[1:])
    commands = (parser := Parser(prog="joma")).add_subparsers(parser_class=Parser)
    verify.add_parser(commands)
    found = parser.parse_args(["verify", *words])
    assert [load(name).name for name in found.study] == found.study != []
    return found


def commands(node, path, outer, study):
    """What an expression gives: one command, or several where a name in it is assigned more than once."""
    module = importlib.import_module(".".join(("joma", *path.relative_to(SOURCE).with_suffix("").parts)))
    run = SimpleNamespace(study=study.name, config=plain_config(study.quick))
    space = {**vars(module), "run": run, "self": SimpleNamespace(run=run), "study": study.name, "name": "wikitext-103"}
    local = [one for one in ast.walk(outer) if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "command"]
    given = [eval(ast.unparse(one.value), space) for one in local] or [""]
    return [eval(ast.unparse(node), {**space, "command": one}) for one in given]


@pytest.mark.parametrize("path", [*files()])
def test_what_a_finding_tells_to_run_can_be_pasted(path):
    for outer, name, call in places(path):
        told = [*call.args[TELLING[name] :][:1], *(word.value for word in call.keywords if word.arg == "command")]
        changes = {word.arg for word in call.keywords if word.arg} - NO_OPTIONS
        able = [one for one in map(load, studies_of(path)) if changes <= {field.name for field in fields(one.quick)}]
        assert able, (call.lineno, changes)
        told = [node for node in told if not isinstance(node, ast.Starred)]
        for command in (one for node in told for one in commands(node, path, outer, able[0])):
            if command:  # else it is what a caller gave, who is one of these places, too
                parsed(command)


@pytest.mark.parametrize("name", names())
def test_a_change_of_a_preset_can_be_pasted(name):
    study = load(name)
    config = plain_config(study.paper)
    changes = {option: value + 1 for option, value in config.items() if option in ("seed", "seeds")}
    finding = not_run_at_all(study, config, NotRun("no machine", **changes)).findings[0]
    assert plain_config(parsed(finding.command).config) == config | changes if changes else not finding.command


def test_an_option_that_a_study_does_not_have_is_no_hint():
    with pytest.raises(TypeError, match="study 'thm2' has no option layers"):
        not_run_at_all(load("thm2"), plain_config(load("thm2").quick), NotRun("no machine", layers=3))
