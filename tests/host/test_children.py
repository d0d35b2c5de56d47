"""Processes that joma starts: they run the same joma, and no file of the working directory."""

import json
import os
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
