"""What is built from this checkout carries every file of the package, and the viewer's pages can be made of it."""

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
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out], cwd=ROOT, check=True)
    (built,) = out.glob("*.whl")
    return built


def test_a_wheel_has_every_file_of_the_package(wheel):
    check_content(wheel)
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("view.js", "uPlot.iife.min.js", "uPlot-LICENSE.txt", "style.css", "page.html", "titles.json"):
        assert f"joma/view/static/{name}" in names
    assert "joma/report/template/playground/forms.js" in names


def test_a_file_that_is_missing_is_told(wheel, tmp_path):
    less = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(less, "w") as part:
        for name in whole.namelist():
            if name != "joma/view/static/chart.js":
                part.writestr(name, whole.read(name))
    with pytest.raises(Wrong, match=r"lacks joma/view/static/chart\.js"):
        check_content(less)


def test_pages_are_made_from_the_wheel_alone(wheel, tmp_path):
    """Its viewer and its charts are read from inside the archive: no file of the checkout is asked for."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import joma; assert sys.argv[1] in joma.__file__;"
        "from joma.view.module import charts, module, style;"
        "assert 'render' in module('live_host.js') and 'showPanels' in charts() and '.joma-view' in style()"
    )
    subprocess.run([sys.executable, "-P", "-c", code, str(wheel)], cwd=tmp_path, check=True)
