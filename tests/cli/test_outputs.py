"""One rule for all options that name an output: found in the parsers, tried against what may be there already."""

import argparse
import shutil
from functools import cache
from pathlib import Path

import pytest
from existing_files import OTHERS, Place
from in_process import joma

from joma.claims.claim import Claim
from joma.claims.exports import chain_draft, croissant
from joma.claims.verdicts import not_run
from joma.cli import main as command_line
from joma.cli.options import add_output
from joma.cli.outputs import Output
from joma.cli.parser import Parser
from joma.host.file_kinds import CHAIN, CRATE, CRATE_MARK, CROISSANT, JSON, PAGE, Kind
from joma.host.files import as_json
from joma.runs import Run, export

pytestmark = pytest.mark.usefixtures("drawn_once")
INPUTS = {
    "base",
    "forecaster",
    "model",
    "path",
    "run",
    "source",
    "stored",
    "study",
    "text",
    "tokenizer",
    "folder",
    "results",
    "claims",
    "pilot",
    "file",
    "files",
    "roles",
}
READ = {("show", "out")}
"""Options that name what is read."""


@cache
def parsers():
    _, commands = command_line._parser()
    add_output(own := Parser(prog="joma run STUDY"))
    return {**commands, "run": own}


OUTPUTS = [(name, each) for name, parser in parsers().items() for each in parser._actions if isinstance(each, Output)]
FILES = [pytest.param(name, each, id=f"{name} --{each.dest}") for name, each in OUTPUTS if each.kinds]
FOLDERS = [pytest.param(name, each, id=f"{name} --{each.dest}") for name, each in OUTPUTS if not each.kinds]


def test_every_option_that_names_a_place_is_read_or_follows_the_rule():
    places = {
        (name, each.dest)
        for name, parser in parsers().items()
        for each in parser._actions
        if each.type is Path or each.metavar in ("FILE", "DIR", "FOLDER", "PATH")
    }
    written = {(name, each.dest) for name, each in OUTPUTS}
    assert written <= places | READ
    assert {(name, dest) for name, dest in places - written - READ if dest not in INPUTS} == set()
    assert len(FILES) >= 12
    assert all("--force" in parsers()[name]._option_string_actions for name, _ in OUTPUTS)


@pytest.fixture
def reached(monkeypatch):
    """Whether a command began its work: instead of it, this list grows."""
    found, real = [], command_line._parser

    def work(options, _):
        found.append(options)
        return 0

    def instead(*only):
        parser, commands = real(*only)
        commands["run"] = parsers()["run"]
        for command in commands.values():
            command.set_defaults(call=work)
        return parser, commands

    monkeypatch.setattr(command_line, "_parser", instead)
    monkeypatch.setattr(command_line, "_carried_out", _with_own_options(command_line._carried_out))
    return found


def _with_own_options(real):
    def carried_out(options, rest, command):
        if options.command == "run":
            options = argparse.Namespace(**{**vars(options), **vars(command.read(rest))})
            rest = []
        return real(options, rest, command)

    return carried_out


def words(name, *given):
    needed = []
    for each in parsers()[name]._actions if name != "run" else []:
        if not each.option_strings:
            needed += [] if each.nargs == "*" else ["x"]
        elif each.required:
            needed += [each.option_strings[0], each.choices[0] if each.choices else "x"]
    return [name, *(["x"] if name == "run" else needed), *given]


def ours(kind: Kind, folder: Path) -> Path:
    """A file as joma writes it."""
    path = folder / "ours"
    if kind is JSON:
        path.write_text('{\n "schema": "joma-findings",\n "version": 2\n}\n')
    elif kind is PAGE:
        from joma.report import write_report

        shutil.move(write_report([], folder, scale="quick"), path)
    elif kind in (CROISSANT, CHAIN):
        path.write_text(
            as_json(
                croissant([])
                if kind is CROISSANT
                else chain_draft(not_run(Claim("a", "JoMA Thm 1", "It is."), "more", "no time"))
            )
        )
    else:
        with Run.create(folder / "run", study="demo", config={}) as run:
            run.append("x", 0, 1.0)
        to = {"a table": "csv", "a parquet file": "parquet", "an archive of arrays": "npz"}[kind.words]
        export(folder / "run", to, path)
    return path


@pytest.mark.parametrize(("name", "option"), FILES)
def test_a_file_of_somebody_else_is_refused_before_any_work(name, option, tmp_path, reached):
    for at, (target, put) in enumerate(OTHERS.items()):
        (folder := tmp_path / str(at)).mkdir()
        put(place := Place(folder, "target"))
        before, never = place.state(), target in ("folder", "pipe", "device")
        for force in ([], ["--force"]):
            reached.clear()
            done = joma(*words(name, option.option_strings[-1], place.path, *force), cwd=folder / "here")
            if force and not never:
                assert (done.returncode, len(reached)) == (0, 1), (target, done.stderr)
            else:
                assert (done.returncode, reached) == (2, []), target
                assert done.stderr.startswith("joma: ")
                assert done.stderr.count("\n") == 1
                assert ("--force" in done.stderr) == (not never), target
            assert place.state() == before, target
        assert not (folder / "here" / "joma-out").exists()


@pytest.mark.parametrize(("name", "option"), FILES)
def test_what_is_ours_new_or_empty_is_taken(name, option, tmp_path, reached):
    kinds = option.kinds if option.by else {"": option.kinds[""]}
    for value, kind in kinds.items():
        if kind.words == "a parquet file":
            pytest.importorskip("pyarrow", reason="parquet needs pyarrow")
        (folder := tmp_path / (value or "one")).mkdir()
        (folder / "empty").touch()
        found = [folder / "empty", folder / "new"] + ([] if kind is CRATE else [ours(kind, folder)])
        for path in found:
            by = [f"--{option.by}", value] if option.by else []
            assert joma(*words(name, option.option_strings[-1], path, *by), cwd=tmp_path).returncode == 0
        if kind is not CRATE:
            (folder / "ours").chmod(0o444)
            done = joma(*words(name, option.option_strings[-1], folder / "ours", *by, "--force"), cwd=tmp_path)
            assert "is read-only" in done.stderr
        assert len(reached) >= len(found)
        assert not (folder / "new").exists()


@pytest.mark.parametrize(("name", "option"), [*FILES, *FOLDERS])
def test_an_empty_word_is_no_name(name, option, tmp_path, reached):
    done = joma(*words(name, option.option_strings[-1], ""), cwd=tmp_path)
    assert (done.returncode, reached, list(tmp_path.iterdir())) == (2, [], [])
    assert f"{option.option_strings[-1]} takes the name of a {option.what}, got an empty word" in done.stderr


@pytest.mark.parametrize(("name", "option"), FILES)
def test_the_folder_of_a_file_must_be_there_and_nothing_is_made(name, option, tmp_path, reached):
    given = option.option_strings[-1]
    done = joma(*words(name, given, tmp_path / "nodir" / "x.json"), cwd=tmp_path)
    assert (done.returncode, reached, list(tmp_path.iterdir())) == (2, [], [])
    assert f"there is no folder {tmp_path / 'nodir'} ({given} FILE)" in done.stderr
    if given != "--out" and "--out" in parsers()[name]._option_string_actions:  # made by the command itself
        assert joma(*words(name, "--out", "new", given, "new/x"), cwd=tmp_path).returncode == 0
    assert joma(*words(name, given, "-"), cwd=tmp_path).returncode == (0 if given == "--json" else 2)


@pytest.mark.parametrize(("name", "option"), FOLDERS)
def test_a_folder_is_made_by_the_work_and_a_file_is_none(name, option, tmp_path, reached):
    (tmp_path / "file").write_text("mine")
    assert joma(*words(name, "--out", tmp_path / "file"), cwd=tmp_path).returncode == 2
    assert reached == []
    assert joma(*words(name, "--out", tmp_path / "a" / "b"), cwd=tmp_path).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.fixture(scope="module")
def verified(tmp_path_factory, drawn_once):
    folder = tmp_path_factory.mktemp("verified")
    assert joma("verify", "lemma1", "--out", folder / "out", "--json", folder / "out/own.json").returncode == 0
    return folder / "out"


def test_the_same_command_over_its_own_output_needs_no_force(verified, tmp_path):
    run = next((verified / "runs").glob("*.sqlite"))
    commands = [
        ["verify", "lemma1", "--out", verified, "--json", verified / "own.json"],
        ["report", verified],
        ["view", verified, "--export", tmp_path / "page.html"],
        *(["export", run, "--to", to, "--out", tmp_path / to] for to in ("csv", "npz", "ro-crate")),
    ]
    for command in commands * 2:
        done = joma(*command, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "ro-crate").read_bytes().endswith(CRATE_MARK)


@pytest.mark.parametrize("name", ["report.html", "findings.json"])
@pytest.mark.parametrize("module", ["joma verify", "joma report", "joma.studies"])
def test_what_somebody_has_in_the_folder_stays(module, name, verified, tmp_path):
    from joma.studies.__main__ import main

    out = shutil.copytree(verified, tmp_path / "out")
    (out / name).write_text("mine")
    if module == "joma.studies":
        assert main(["lemma1", "--out", str(out)]) == (2 if name == "findings.json" else 0)
    else:
        command = ["verify", "lemma1", "--out"] if module == "joma verify" else ["report"]
        done = joma(*command, out, cwd=tmp_path)
        assert done.returncode == 2
        assert f"{name} is there already, and is not" in done.stderr
        assert (out / name).read_text() == "mine"
        assert joma(*command, out, "--force", cwd=tmp_path).returncode == 0
        assert (out / name).read_text() != "mine"


def test_a_run_is_never_replaced_by_a_page(verified, tmp_path):
    run = shutil.copy(next((verified / "runs").glob("*.sqlite")), tmp_path / "a.sqlite")
    before = Path(run).read_bytes()
    done = joma("view", tmp_path, "--export", run)
    assert done.returncode == 2
    assert done.stderr == (
        f"joma: {run} is there already, and is not a page that joma wrote; name another file, or remove this one "
        "first (--force)\n"
    )
    assert Path(run).read_bytes() == before


def test_a_folder_that_is_read_must_be_there(tmp_path):
    done = joma("show", "thm2", "--out", tmp_path / "nofolder")
    assert done.returncode == 2
    assert f"there is no {tmp_path / 'nofolder'}; joma show reads one that joma verify wrote" in done.stderr
