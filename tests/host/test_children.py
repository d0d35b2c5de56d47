"""Processes that joma starts: they run the same joma, and no file of the working directory."""

import ast
import json
import os
import re
import subprocess
import sys

import pytest
from patience import PATIENCE
from planted_files import HOME, Planted, plain_environment

from joma.host.children import child_command, child_environment, safe_children

REPORT = "import json, os, sys, {modules}\nprint(json.dumps([sys.path, sys.argv, os.environ.get('PYTHONPATH')]))\n"
STARTS_OTHERS = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import json, numpy"], check=True)
subprocess.run([sys.executable, "-m", "json.tool", "--help"], check=True, stdout=subprocess.DEVNULL)
"""


def run(command, *, cwd, env):
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=PATIENCE)


def reporting(folder, *, modules="numpy"):
    """A folder with a module that says where it looks for others."""
    folder.mkdir()
    (folder / "reporting.py").write_text(REPORT.format(modules=modules))
    return folder


@pytest.fixture
def planted(tmp_path):
    return Planted(tmp_path / "here", tmp_path / "marks")


def test_the_command_alone_keeps_away_from_the_working_directory(planted, tmp_path):
    """Without the help of the environment: what -P is for."""
    elsewhere = reporting(tmp_path / "elsewhere", modules="numpy, safetensors, joma.host.limits")
    env = plain_environment(PYTHONPATH=f"{HOME}{os.pathsep}{elsewhere}")
    done = run(child_command("reporting", "one", "two"), cwd=planted.folder, env=env)
    assert done.returncode == 0, done.stderr
    path, arguments, given = json.loads(done.stdout)
    assert str(planted.folder) not in path
    assert "" not in path
    assert path[:2] == [str(HOME), str(elsewhere)] == given.split(os.pathsep)
    assert arguments[1:] == ["one", "two"]
    assert planted.run == []


def test_the_environment_keeps_the_processes_of_a_process_away(planted, tmp_path, monkeypatch):
    """torch starts `python -c` of its own."""
    (tmp_path / "starts_others.py").write_text(STARTS_OTHERS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = run(child_command("starts_others"), cwd=planted.folder, env=child_environment())
    assert done.returncode == 0, done.stderr
    assert planted.run == []


def test_a_command_of_joma_keeps_whatever_it_starts_away(planted, monkeypatch):
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    with safe_children():
        done = run([sys.executable, "-c", STARTS_OTHERS], cwd=planted.folder, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert planted.run == []
    assert "PYTHONSAFEPATH" not in os.environ


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("a:b", "a:b"),
        (":a", "a"),
        ("a:", "a"),
        ("a::b", "a:b"),
        (".:a", ".:a"),
        (":", None),
        ("", None),
    ],
)
def test_empty_entries_of_pythonpath_go_and_all_others_stay(monkeypatch, given, kept):
    monkeypatch.setenv("PYTHONPATH", given.replace(":", os.pathsep))
    assert child_environment().get("PYTHONPATH") == (None if kept is None else kept.replace(":", os.pathsep))


def test_a_process_runs_the_joma_of_its_parent_wherever_that_stands(tmp_path):
    """Two checkouts: one is named in PYTHONPATH, the parent runs the other."""
    for name in ("mine", "other"):
        (tmp_path / name / "joma").mkdir(parents=True)
        (tmp_path / name / "joma" / "__init__.py").write_text(f"WHICH = {name!r}\n")
        (tmp_path / name / "joma" / "which.py").write_text("import sys, joma\nprint(joma.WHICH, sys.path[0])\n")
    command = child_command("joma.which")
    command[command.index(str(HOME))] = str(tmp_path / "mine")
    done = run(command, cwd=tmp_path, env=plain_environment(PYTHONPATH=str(tmp_path / "other")))
    assert done.stdout.split() == ["mine", str(tmp_path / "other")], done.stderr


@pytest.mark.parametrize(("given", "flags"), [([], ["-P"]), (["-E", "-s"], ["-P", "-E", "-s"]), (["-I"], ["-I"])])
def test_a_process_is_never_less_shielded_than_its_parent(tmp_path, given, flags):
    script = (
        f"import sys; sys.path.insert(0, {str(HOME)!r})\n"
        "from joma.host.children import child_command\nprint(*child_command('a')[1:-4])\n"
    )
    env = {name: value for name, value in plain_environment().items() if name != "PYTHONNOUSERSITE"}
    done = run([sys.executable, *given, "-c", script], cwd=tmp_path, env=env)
    assert done.stdout.split() == flags, done.stderr


STARTING = {"system", "popen", "fork", "forkpty", "posix_spawn", "posix_spawnp", "startfile"}
FOREIGN = {"multiprocessing", "pty", "runpy", "code", "codeop", "webbrowser", "imp"}
MADE_OF_TEXT = {"exec", "eval", "compile", "__import__", "execfile"}


WORDS = {"executable", "subprocess", "os", "concurrent", "importlib", "ProcessPoolExecutor", "create_subprocess_exec",
         "create_subprocess_shell", *STARTING, *FOREIGN, *MADE_OF_TEXT}  # fmt: skip
SUSPECT = re.compile(rf"\b({'|'.join(sorted(WORDS))})\b")
"""Without one of these words no file has a fault: most need not be parsed."""


def faults(code):
    """What starts a process, or runs code that is not in the source, other than by `child_command`."""
    for node in ast.walk(ast.parse(code)) if SUSPECT.search(code) else ():
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner, name = node.value.id, node.attr
            if (owner, name) == ("sys", "executable"):
                yield "sys.executable"
            if owner == "os" and (name in STARTING or name.startswith(("exec", "spawn"))):
                yield f"os.{name}"
            if name in {"ProcessPoolExecutor", "create_subprocess_exec", "create_subprocess_shell"}:
                yield name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from _imported(node)
        elif isinstance(node, ast.Call):
            yield from _called(node)


def _imported(node):
    names = [each.name for each in node.names]
    module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
    modules = [module] if module else names
    yield from (name for name in modules if name.partition(".")[0] in FOREIGN)
    if module in {"subprocess", "os", "sys", "concurrent.futures", "importlib.machinery"}:
        wanted = {"executable", "Popen", "run", "call", "check_call", "check_output", "ProcessPoolExecutor"} | STARTING
        yield from (f"{module}.{name}" for name in names if name in wanted)


def _called(node):
    function = node.func
    if isinstance(function, ast.Name) and function.id in MADE_OF_TEXT:
        yield f"{function.id}()"
    if (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id == "subprocess"
    ):
        first = node.args[0] if node.args else None
        by = getattr(getattr(first, "func", None), "id", "")
        environment = next((ast.unparse(word.value) for word in node.keywords if word.arg == "env"), "")
        if by != "child_command" or "child_environment()" not in environment:
            yield f"subprocess.{function.attr} without child_command and child_environment"


def test_processes_are_started_in_one_way_only():
    found = {}
    for path in sorted((HOME / "joma").rglob("*.py")):
        if wrong := sorted(set(faults(path.read_text(encoding="utf-8")))):
            found[path.relative_to(HOME).as_posix()] = wrong
    assert found == {"joma/host/children.py": ["sys.executable"]}


@pytest.mark.parametrize(
    "code",
    [
        "import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'joma'])",
        "import subprocess\nsubprocess.run(['git', 'log'])",
        "import subprocess\nsubprocess.Popen(child_command('a'))",
        "from subprocess import Popen",
        "from sys import executable",
        "import os\nos.execv('a', [])",
        "import multiprocessing.pool",
        "from multiprocessing import Pool",
        "import concurrent.futures as f\nf.ProcessPoolExecutor()",
        "exec('1')",
        "import runpy",
    ],
)
def test_another_way_would_be_noticed(code):
    assert list(faults(code))
