"""The wheel carries every file of the package, and pages can be made of it; `make dist` also installs it, which takes
minutes (tests/check_dist.py)."""

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
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("view.js", "uPlot.iife.min.js", "uPlot-LICENSE.txt", "style.css", "page.html", "titles.json"):
        assert f"joma/view/static/{name}" in names
    assert "joma/report/template/playground/forms.js" in names


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


def test_pages_are_made_from_the_wheel_alone(wheel, tmp_path):
    """Its viewer and its charts are read from inside the archive: no file of the checkout is asked for."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import joma; assert sys.argv[1] in joma.__file__;"
        "from joma.view.module import charts, module, style;"
        "assert 'render' in module('live_host.js') and 'showPanels' in charts() and '.joma-view' in style()"
    )
    subprocess.run([sys.executable, "-P", "-c", code, str(wheel)], cwd=tmp_path, check=True)
