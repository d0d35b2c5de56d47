"""The wheel carries every file of the package, and works where nothing but what it asks for is installed.

`make dist` installs both with pip, which takes minutes (tests/check_dist.py). Here the wheel is unpacked, and what it
asks for is linked from the environment of the tests.
"""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
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
        "assert 'render' in module('live_host.js') and 'showPanels' in charts() and '.joma-view' in style();"
        "from joma.host.extras import how_to_install; assert how_to_install('viz') == \"pip install 'joma[viz]'\""
    )
    subprocess.run([sys.executable, "-P", "-c", code, str(wheel)], cwd=tmp_path, check=True)


def needed(names):
    """What these packages ask for, and what that asks for, without extras: by name, what is installed of it."""
    found, asked = {}, list(names)
    while asked:
        name = re.sub(r"[-_.]+", "-", asked.pop()).lower()
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:  # for another system or another Python
            continue
        asked += [re.match(r"[\w.-]+", line)[0] for line in found[name].requires or () if "extra ==" not in line]
    return found


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    """`joma ARGUMENTS` where the wheel is, what its metadata asks for, and nothing else; run from an empty folder."""
    folder = tmp_path_factory.mktemp("bare")
    (packages := folder / "packages").mkdir()
    zipfile.ZipFile(wheel).extractall(packages)
    metadata = next(packages.glob("*.dist-info/METADATA")).read_text()
    listed = [line.partition(": ")[2] for line in metadata.splitlines() if line.startswith("Requires-Dist: ")]
    for each in needed(re.match(r"[\w.-]+", line)[0] for line in listed if "extra ==" not in line).values():
        for top in {path.parts[0] for path in each.files or () if not path.parts[0].startswith((".", "__pycache__"))}:
            if not (packages / top).exists():
                (packages / top).symlink_to(each.locate_file(top))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "JOMA"))}

    def joma(*arguments):
        code = f"import sys; sys.path.append({str(packages)!r}); from joma.cli.main import main; sys.exit(main())"
        # -S leaves out the packages of the tests' own environment, -P the folder that this runs in.
        command = [sys.executable, "-S", "-P", "-c", code, *map(str, arguments)]
        return subprocess.run(command, cwd=folder, env=kept, capture_output=True, text=True)

    return joma, folder


def test_numbers_of_others_are_judged_by_the_wheel(bare):
    joma, folder = bare
    table = ROOT / "examples/judge/fp8.csv"
    done = joma("judge", table, "--claims", table.with_suffix(".toml"), "--json", folder / "judged.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert "faster" in done.stdout
    assert (folder / "judged.json").is_file()


@pytest.mark.long
def test_a_theorem_is_verified_by_the_wheel_and_no_message_speaks_of_a_checkout(bare):
    """Without matplotlib: the report says how figures come, in words for somebody who has no checkout."""
    joma, folder = bare
    done = joma("verify", "thm2", "--out", "out")
    assert done.returncode == 0, done.stderr
    page = (folder / "out/report.html").read_text(encoding="utf-8")
    assert "pip install 'joma[viz]'" in done.stdout
    assert "pip install 'joma[viz]'" in page
    refused = joma("export", next((folder / "out/runs").glob("*.sqlite")), "--to", "parquet")
    assert refused.returncode == 2
    assert refused.stderr.endswith("pip install 'joma[export]'\n")
    assert not re.search("checkout|pip install -e", done.stdout + page.partition("<body")[2] + refused.stderr)


@pytest.mark.long
def test_checkpoints_are_scanned_by_the_wheel(bare):
    import torch
    from safetensors.torch import save_file

    joma, folder = bare
    for step in (1, 2):
        (there := folder / f"run/checkpoint-{step}").mkdir(parents=True)
        weights = torch.randn(8, 8, generator=torch.Generator().manual_seed(step))
        save_file({"model.layers.0.mlp.up_proj.weight": weights}, there / "model.safetensors")
    done = joma("scan", "run", "--out", "scans", "--csv", "curves.csv")
    assert done.returncode == 0, done.stderr
    assert "stable_rank" in (folder / "curves.csv").read_text()


def test_the_page_has_all_extras_and_the_oldest_versions():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    page = (ROOT / "docs/start/install.md").read_text(encoding="utf-8")
    assert {*re.findall(r"^\| `(\w+)` \|", page, re.M)} == {*project["optional-dependencies"]}
    oldest = [re.match(r"([\w-]+)>=([\d.]+)", line).groups() for line in project["dependencies"]]
    oldest += [("Python", project["requires-python"].removeprefix(">="))]
    shown = dict(re.findall(r"^\| (\w+) \| ([\d.]+) \|", page, re.M))
    assert shown == dict(oldest)
