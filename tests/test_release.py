"""What `make release` checks and writes: metadata, the source archive, the list of packages, notes."""

import json
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "requirements" / "release.py"
RELEASE = runpy.run_path(str(SCRIPT))
Wrong = RELEASE["Wrong"]
LOCK = """\
b-c==2.0 ; sys_platform == 'win32' \\
    --hash=sha256:{} \\
    --hash=sha256:{}
    # via a
a==1.5 \\
    --hash=sha256:{}
""".format(*(digit * 64 for digit in "012"))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture
def dist(built, tmp_path):
    return Path(shutil.copytree(built, tmp_path / "dist"))


def run(folder):
    return subprocess.run([sys.executable, SCRIPT, folder], capture_output=True, text=True)


def spoil(wheel, change):
    """Every file of a wheel, changed."""
    held = {name: zipfile.ZipFile(wheel).read(name) for name in zipfile.ZipFile(wheel).namelist()}
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in held.items():
            archive.writestr(name, change(name, content))


def test_a_release_is_checked_and_nothing_is_tagged(dist):
    tags = subprocess.run(["git", "tag"], cwd=ROOT, capture_output=True, text=True).stdout
    assert run(dist).returncode == 0
    assert {"RELEASE_NOTES.md", "SHA256SUMS"} <= {path.name for path in dist.iterdir()}
    packages = json.loads(next(dist.glob("*.cdx.json")).read_text())
    pinned = set(re.findall(r"^([\w.-]+)==([^\s\\;]+)", (ROOT / "requirements/run.txt").read_text(), re.M))
    torch = re.search(r"torch==(\S+)", (ROOT / "Makefile").read_text())[1]
    assert {(one["name"], one["version"]) for one in packages["components"]} == pinned | {("torch", torch)}
    sums = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=dist, capture_output=True, text=True)
    assert (sums.returncode, sums.stdout.count(": OK")) == (0, 4)
    assert subprocess.run(["git", "tag"], cwd=ROOT, capture_output=True, text=True).stdout == tags


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda name, text: text.replace(b"License-Expression: Apache-2.0\n", b""), "lacks License-Expression"),
        (lambda name, text: text.replace(b"\nVersion: ", b"\nVersion: 9."), "has version 9."),
        (lambda name, text: text.replace(b"# joma", b"# other"), "is not README.md"),
    ],
)
def test_wrong_metadata_is_refused(dist, change, sentence):
    spoil(next(dist.glob("*.whl")), lambda name, text: change(name, text) if name.endswith("METADATA") else text)
    done = run(dist)
    assert (done.returncode, done.stdout) == (1, "")
    assert sentence in done.stderr
    assert not (dist / "SHA256SUMS").exists()


def test_a_source_archive_that_gives_another_wheel_is_refused(dist):
    spoil(next(dist.glob("*.whl")), lambda name, text: text + b"\n" if name == "joma/py.typed" else text)
    assert "is not joma-" in run(dist).stderr


def test_a_source_archive_that_does_not_build_is_refused(dist):
    packed = next(dist.glob("*.tar.gz"))
    with tarfile.open(packed) as archive:
        names = archive.getnames()
    with tarfile.open(packed, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo(f"{names[0].partition('/')[0]}/README.md"))
    assert "cannot be built" in run(dist).stderr


def test_a_folder_without_a_wheel_is_refused(tmp_path):
    assert "is not there; `make dist` builds it" in run(tmp_path).stderr


def test_packages_are_listed_with_their_versions_hashes_and_markers():
    found = RELEASE["bill"]("1.0", LOCK, "2.13.0")
    first, second, torch = found["components"]
    assert (first["purl"], first["scope"]) == ("pkg:pypi/a@1.5", "required")
    assert (second["purl"], second["scope"]) == ("pkg:pypi/b-c@2.0", "optional")
    assert (torch["purl"], torch["properties"]) == ("pkg:pypi/torch@2.13.0", [])
    assert [one["value"] for one in first["properties"]] == ["2" * 64]
    assert [one["value"] for one in second["properties"]] == ["sys_platform == 'win32'", "0" * 64, "1" * 64]
    assert found["dependencies"][0]["dependsOn"] == [one["bom-ref"] for one in found["components"]]
    assert (found["bomFormat"], found["metadata"]["component"]["version"]) == ("CycloneDX", "1.0")
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", found["serialNumber"])
    assert found == RELEASE["bill"]("1.0", LOCK, "2.13.0")
    assert found["serialNumber"] != RELEASE["bill"]("1.0", LOCK, "2.14.0")["serialNumber"]


def test_notes_are_of_the_version_or_of_the_next_one():
    notes = RELEASE["notes"]
    assert notes("# C\n\nHead.\n\n## 1.1\n\n- b\n\n## 1.0\n\n- a\n", "1.1") == "# joma 1.1\n\n- b\n"
    assert notes("# C\n\n## Unreleased\n\n- c\n\n## 1.0\n\n- a\n", "1.0") == "# joma next version\n\n- c\n"
    for changelog in ("# C\n\n## 1.0\n\n- a\n", "# C\n\n## 1.1\n\n## 1.0\n\n- a\n"):
        with pytest.raises(Wrong, match=r"CHANGELOG\.md begins with"):
            notes(changelog, "1.1")


@pytest.mark.parametrize(
    ("name", "old", "new", "sentence"),
    [
        ("CITATION.cff", "version: 1.0", "version: 0.9", "CITATION.cff has another version"),
        ("codemeta.json", '"version": "1.0"', '"version": "0.9"', "codemeta.json has another version"),
        ("CHANGELOG.md", "## 1.0", "## Unreleased", "has no version yet"),
        ("README.md", "https://a.example", "docs/page.md", "1 links within the checkout"),
        (None, "", "", None),
    ],
)
def test_what_is_to_do_before_a_tag(tmp_path, monkeypatch, name, old, new, sentence):
    texts = {
        "CITATION.cff": "cff-version: 1.2.0\nversion: 1.0\n",
        "codemeta.json": '{\n  "version": "1.0"\n}\n',
        "CHANGELOG.md": "# C\n\n## 1.0\n\n- a\n",
        "README.md": "[a](https://a.example)\n",
        "pyproject.toml": '[project]\nversion = "1.0"\n',
    }
    for each, text in texts.items():
        (tmp_path / each).write_text(text.replace(old, new) if each == name else text)
    monkeypatch.setitem(RELEASE["to_do"].__globals__, "ROOT", tmp_path)
    found = RELEASE["to_do"]("1.0")
    assert len(found) == bool(sentence)
    assert not sentence or sentence in found[0]
