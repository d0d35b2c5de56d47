"""The kernel as a package of its own: a copy of joma's that is not old, and its tests pass where there is no joma."""

import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "kernels" / "attention-entropy"
PACKAGE = FOLDER / "torch-ext" / "attention_entropy"
SCRIPT = runpy.run_path(str(FOLDER / "copy_from_joma.py"))
ALONE = "import sys, pytest; sys.modules['joma'] = None; sys.exit(pytest.main(sys.argv[1:]))"


@pytest.mark.parametrize("source", SCRIPT["COPIES"])
def test_a_copy_is_not_old(source):
    there = (PACKAGE / SCRIPT["COPIES"][source]).read_text(encoding="utf-8")
    assert there == SCRIPT["copied"](source), "run python kernels/attention-entropy/copy_from_joma.py"


def test_nothing_of_joma_is_imported_and_imports_are_relative():
    for path in PACKAGE.glob("*.py"):
        imported = re.findall(r"^\s*(?:from|import) ([\w.]+)", path.read_text(encoding="utf-8"), re.M)
        own = {each for each in imported if not each.startswith(".")}
        known = {"__future__", "collections.abc", "contextlib", "dataclasses", "math", "typing"}
        assert own <= known | {"torch", "triton", "triton.language"}, path.name


def test_the_description_names_the_package():
    said = tomllib.loads((FOLDER / "build.toml").read_text(encoding="utf-8"))
    general = {"name": PACKAGE.name.replace("_", "-"), "version": 1, "license": "apache-2.0", "backends": ["cuda"]}
    assert said == {"general": general, "torch-noarch": {}}


@pytest.mark.long
def test_its_own_tests_pass_without_joma(tmp_path):
    pytest.importorskip("triton", reason="Triton is not installed here")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "JOMA"))}
    command = [sys.executable, "-P", "-c", ALONE, "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    command += [f"--rootdir={FOLDER}", str(FOLDER / "tests")]
    environment = kept | {"PYTHONPATH": str(PACKAGE.parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    if "InterpreterError" in done.stdout and "only 0-dimensional arrays" in done.stdout:
        pytest.skip("this Triton's interpreter does not work with this numpy")
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
