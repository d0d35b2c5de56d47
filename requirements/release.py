"""Check what `make dist` built, and write what goes with a release: a list of packages, notes, checksums.

    python requirements/release.py dist      # a folder with one wheel and one source archive

Nothing is tagged or sent. Ends with status 1 if what was built is wrong. What is still to do before a tag is printed.
Needs the standard library and hatchling.
"""

from __future__ import annotations

import argparse
import email
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import uuid
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PIN = re.compile(r"^([a-z0-9._-]+)==([^\s;\\]+)(?: *; *([^\\\n]*?))? *\\?$", re.M)
NEEDED = ("Name", "Version", "Summary", "Author", "License-Expression", "Requires-Python", "Description-Content-Type")
NEXT = "Unreleased"


class Wrong(Exception):
    """What was built cannot be released."""


def read(name: str) -> str:
    """A text file of the checkout."""
    return (ROOT / name).read_text(encoding="utf-8")


def bill(version: str, lock: str, torch: str) -> dict[str, object]:
    """The packages that `make run` installs, as CycloneDX 1.6; the same bytes for the same lock.

    - lock: the text of requirements/run.txt
    - torch: its version, which the Makefile pins
    """
    parts = [_part("torch", torch, "", [])]
    starts = [*PIN.finditer(lock)]
    for this, after in zip(starts, [*starts[1:], None], strict=True):
        entry = lock[this.start() : after.start() if after else len(lock)]
        parts.append(_part(this[1], this[2], this[3] or "", re.findall(r"--hash=sha256:([0-9a-f]{64})", entry)))
    parts.sort(key=lambda part: str(part["bom-ref"]))
    own = f"pkg:pypi/joma@{version}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([own, parts]))}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library", "bom-ref": own, "name": "joma", "version": version, "purl": own,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
        },
        "components": parts,
        "dependencies": [{"ref": own, "dependsOn": [part["bom-ref"] for part in parts]}],
    }  # fmt: skip


def _part(name: str, version: str, marker: str, hashes: list[str]) -> dict[str, object]:
    """One package. Which of its files is installed depends on the machine, so hashes of all of them are properties."""
    there = [{"name": "joma:sha256-of-a-file", "value": each} for each in hashes]
    where = [{"name": "joma:only-where", "value": marker}] if marker else []
    purl = f"pkg:pypi/{name}@{version}"
    kind = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    return {**kind, "scope": "optional" if marker else "required", "properties": [*where, *there]}


def notes(changelog: str, version: str) -> str:
    """The first part of the changelog, which must be about this version or about the next one."""
    parts = re.split(r"^## (\S+).*\n", changelog, flags=re.M)
    head, text = parts[1], parts[2]
    if head not in (version, NEXT) or not text.strip():
        raise Wrong(f"CHANGELOG.md begins with {head!r}, which is neither {version!r} nor {NEXT!r}, or says nothing")
    return f"# joma {version if head == version else 'next version'}\n\n{text.strip()}\n"


def to_do(version: str) -> list[str]:
    """What must be done before this version can be tagged."""
    found = []
    if re.search(rf"^## {NEXT}", read("CHANGELOG.md"), re.M):
        found.append(f"CHANGELOG.md: the part {NEXT!r} has no version yet; pyproject.toml has {version}")
    for name in ("CITATION.cff", "codemeta.json"):
        if version not in re.findall(r'^ *"?version"?: "?([^",\s]+)', read(name), re.M):
            found.append(f"{name} has another version than pyproject.toml")
    readme = re.findall(r"\]\((?!https://|#)([^)\s]+)\)", read("README.md"))
    if readme and "urls" not in tomllib.loads(read("pyproject.toml"))["project"]:
        found.append(f"README.md has {len(readme)} links within the checkout, which lead nowhere on a package index")
    if subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True).stdout.strip():
        found.append("the checkout has changes that are not committed")
    return found


def check_metadata(wheel: Path, version: str) -> None:
    """What a package index asks for is there, and the page of the project is the README."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        said = email.message_from_string(archive.read(name).decode())
    lacks = [field for field in NEEDED if not said[field]]
    if lacks:
        raise Wrong(f"the metadata of {wheel.name} lacks {', '.join(lacks)}")
    if (said["Version"], said["Description-Content-Type"]) != (version, "text/markdown"):
        raise Wrong(f"{wheel.name} has version {said['Version']} and a page of {said['Description-Content-Type']}")
    if str(said.get_payload()).strip() != read("README.md").strip():
        raise Wrong(f"the page of {wheel.name} is not README.md")


def check_source(archive: Path, wheel: Path) -> None:
    """The source archive holds no link and no strange path, and the wheel that it gives is the wheel."""
    with tempfile.TemporaryDirectory(prefix="joma-source-") as folder:
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        (source,) = Path(folder).iterdir()
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
        built = subprocess.run(command, cwd=source, capture_output=True, text=True)
        if built.returncode:
            raise Wrong(f"{archive.name} cannot be built: {built.stderr.strip()}")
        if contents(next(Path(folder).glob("*.whl"))) != contents(wheel):
            raise Wrong(f"the wheel that {archive.name} gives is not {wheel.name}")


def contents(wheel: Path) -> dict[str, str]:
    """The checksum of each of its files."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


def release(folder: Path) -> list[Path]:
    """Check the wheel and the source archive of a folder, and write what goes with them."""
    version = tomllib.loads(read("pyproject.toml"))["project"]["version"]
    wheel, archive = folder / f"joma-{version}-py3-none-any.whl", folder / f"joma-{version}.tar.gz"
    for path in (wheel, archive):
        if not path.is_file():
            raise Wrong(f"{path} is not there; `make dist` builds it")
    check_metadata(wheel, version)
    check_source(archive, wheel)
    torch = re.search(r"^TORCH +:= torch==(\S+)$", read("Makefile"), re.M)
    if torch is None:
        raise Wrong("the Makefile pins no version of torch")
    packages, text = folder / f"joma-{version}.cdx.json", folder / "RELEASE_NOTES.md"
    packages.write_text(json.dumps(bill(version, read("requirements/run.txt"), torch[1]), indent=1) + "\n")
    text.write_text(notes(read("CHANGELOG.md"), version), encoding="utf-8")
    made = [wheel, archive, packages, text]
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made]
    (folder / "SHA256SUMS").write_text("".join(sums))
    return [*made, folder / "SHA256SUMS"]


def main() -> int:
    """Print what was made and what is still to do."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "dist", help="what was built (default: dist)")
    try:
        for path in release(parser.parse_args().folder):
            print(path)
    except Wrong as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    rest = to_do(tomllib.loads(read("pyproject.toml"))["project"]["version"])
    print("\n".join(["before a tag:", *(f"- {one}" for one in rest)]) if rest else "ready to be tagged")
    return 0


if __name__ == "__main__":
    sys.exit(main())
