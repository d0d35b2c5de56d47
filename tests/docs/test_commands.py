"""Every command in the manual is one that joma takes: a renamed option, study or script is found, run or not."""

import importlib
import re
import shlex

import pytest
from page_blocks import ROOT, blocks, commands, pages, text_of

from joma import studies
from joma.cli import main as command_line
from joma.cli.options import parse
from joma.studies import __main__ as bare

OTHERS = {
    "git",
    "pip",
    "source",
    "cd",
    "export",
    "mkdir",
    "cp",
    "ls",
    "head",
    "tail",
    "cat",
    "echo",
    "printf",
    "python",
    "pytest",
}
PLACE = re.compile(r"[A-Z][A-Z_/]+|path/to/\w+\.py")
"""What a reader fills in: FOLDER, FILE, STUDY/CLAIM, a study of their own."""


def said():
    """Every command in a console block, and every one in the running text that begins with joma or python."""
    for page in pages():
        yield from (
            (page, command) for block in blocks(page) if block.language == "console" for command in commands(block)
        )
        text = re.sub(r"^ *```.*?^ *```", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
        inline = re.findall(r"`((?:JOMA_DATA=\S+ )?(?:joma|python|make) [^`]+)`", text)
        yield from ((page, " ".join(command.split())) for command in inline)


def takes(command):
    """Read the command's words as the program would."""
    for part in re.split(r"\s*(?:&&|\|)\s*", re.sub(r"\s*>.*", "", command)):
        words = shlex.split(part, comments=True)
        while words and re.match(r"[A-Z_]+=", words[0]):
            words.pop(0)
        if words:
            _takes_words(words)


def _takes_words(words):
    program, *rest = words
    program = program.removeprefix(".venv/bin/")
    if program == "joma":
        _joma(rest)
    elif program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert next(word for word in rest if "=" not in word) in targets
    elif rest[:3] == ["-P", "-m", "joma.studies"]:
        _studies(rest[3:])
    elif program == "python" and rest[:1] == ["-m"]:
        assert not (rest[1].startswith("joma") and rest[2:]), "it would run files of the working directory: python -P"
    elif program == "python" and rest and rest[0].endswith(".py"):
        _script(*rest)
    elif program in ("srun", "ray"):  # what they run stands behind two dashes
        _takes_words(rest[rest.index("--") + 1 :])
    elif program == "torchrun":
        _script(*rest[next(at for at, word in enumerate(rest) if word.endswith(".py")) :])
    else:
        assert program in OTHERS or (ROOT / program).exists() or PLACE.fullmatch(program), words


def _joma(arguments):
    if PLACE.fullmatch(arguments[0]) or arguments[-1] in ("--help", "--version"):
        return
    if len(arguments) == 1:  # the name of a command, in a sentence
        assert arguments[0] in command_line._parser()[1], arguments
        return
    if arguments[0] == "run":
        if not PLACE.fullmatch(arguments[1]):
            parse(studies.load(arguments[1]), _filled(arguments[2:]))
        return
    if arguments[:1] == ["verify"]:
        for word in arguments[1 : next((i for i, word in enumerate(arguments) if word.startswith("-")), None)]:
            assert word in studies.names() or PLACE.fullmatch(word), word
    assert command_line.main(_filled(arguments)) == 0


def _studies(arguments):
    if not arguments:  # the name of the command, in a sentence
        return
    first_option = next((i for i, word in enumerate(arguments) if word.startswith("-")), None)
    for word in arguments[:first_option]:
        assert word in studies.names() or PLACE.fullmatch(word), word
    bare.main(arguments)


def _script(path, *arguments):
    source = (ROOT / path).read_text(encoding="utf-8")
    assert all(word in source for word in arguments if word.startswith("--")), (path, arguments)


def _filled(arguments):
    return ["1" if PLACE.fullmatch(word) else word for word in arguments]


@pytest.fixture
def nothing_happens(monkeypatch):
    monkeypatch.setattr(command_line, "answer", lambda call: 0)
    monkeypatch.setattr(bare, "answer", lambda call: 0)


@pytest.mark.usefixtures("nothing_happens")
def test_every_command_is_taken():
    wrong = []
    for page, command in said():
        try:
            takes(command)
        except (AssertionError, SystemExit, ValueError, OSError) as error:
            wrong.append(f"{page}: {command!r} ({type(error).__name__} {error})")
    assert not wrong, "\n".join(wrong)


@pytest.mark.usefixtures("nothing_happens")
def test_joma_alone_says_what_to_do_first(capsys):
    assert command_line.main([]) == 0
    shown = capsys.readouterr().out
    first = re.findall(r"^  (joma .+?)(?:  | (?=see))", shown.partition("\ncommands:")[0], re.MULTILINE)
    assert "start here:\n  joma verify thm2" in shown
    assert len(first) == 5
    for command in first:
        takes(command.replace("path/to/run", "FOLDER"))


def test_options_on_the_page_are_those_of_the_parsers(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    options = importlib.import_module("options")
    source = [text_of("docs/reference/command-line.md")]
    options._put(None, "reference/command-line", source)
    assert "{options}" not in source[0]
    every = command_line._parser()[1]
    assert all(name in command_line._parser(name)[1] for name in every)
    for name, parser in every.items():
        section = source[0].partition(f"## joma {name}\n")[2].partition("\n## ")[0]
        for action in parser._actions if name != "run" else ():
            assert action.dest == "help" or any(
                line.startswith(f"| `{', '.join(action.option_strings)}") and line.endswith(" |")
                for line in section.splitlines()
            ), (name, action.dest)
    for line in (
        "| `--once` | print the table once |",
        "| `-v, --verbose` | print every claim with its source |",
        "| `--to parquet,csv,npz,ro-crate,seeds,claims,croissant,forrt` | the format |",
        "| `FOLDER or RUN` | a folder with runs, or one run |",
    ):
        assert line in source[0].splitlines()
    assert r"stable_rank/mlp@3\<5" in source[0]


@pytest.mark.usefixtures("nothing_happens")
@pytest.mark.parametrize(
    "command",
    [
        "joma verify no-such-study",
        "joma verify thm2 --no-such-option",
        "joma run thm2 --no-such-option 3",
        "joma scna",
        "joma scan --jobs 2",
        "python -P -m joma.studies thm22",
        "python -m joma.studies thm2",
        "python docs/no_such_script.py",
        "python benchmarks/bench_scan.py --no-such-option",
        "make no-such-target",
        "no-such-program",
    ],
)
def test_a_wrong_command_is_found(command):
    with pytest.raises((AssertionError, SystemExit, ValueError, OSError)):
        takes(command)
