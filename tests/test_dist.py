"""The wheel carries what it must; `make dist` also installs it, which takes minutes (tests/check_dist.py)."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from check_dist import Wrong, check_content

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("hatchling")
    target = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return next(target.glob("*.whl"))


def test_the_wheel_carries_what_the_page_needs_and_nothing_else(wheel):
    check_content(wheel)


@pytest.mark.parametrize(
    ("lost", "more", "sentence"),
    [
        ("joma/py.typed", "joma/a.py", "lacks joma/py.typed"),
        ("joma/report/claims/kept.json", "joma/a.py", "lacks joma/report/claims/kept.json"),
        ("joma/report/template/", "joma/a.py", "lacks joma/report/template/"),
        ("nothing", "tests/test_a.py", "holds"),
    ],
)
def test_a_wheel_that_lacks_something_or_holds_more_is_refused(wheel, tmp_path, lost, more, sentence):
    spoiled = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(spoiled, "w") as copy:
        for name in whole.namelist():
            if not name.startswith(lost):
                copy.writestr(name, b"")
        copy.writestr(more, b"")
    with pytest.raises(Wrong, match=sentence):
        check_content(spoiled)
