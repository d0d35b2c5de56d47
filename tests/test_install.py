"""`requirements/install.py` on a real, empty environment: from a folder of wheels that only pip was told of."""

import hashlib
import os
import re
import runpy
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "requirements" / "install.py"
UV = shutil.which("uv") or shutil.which("uv", path=Path(sys.executable).parent)


def wheel(folder, version):
    """An empty package `tiny`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"tiny-{version}-py3-none-any.whl"
    info = f"tiny-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "".join(f"{info}/{name},,\n" for name in ("METADATA", "WHEEL", "RECORD")))
    return path


def index(folder, *wheels):
    """An index of packages that is a folder, as `file://` addresses name it."""
    page = folder / "tiny" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text("".join(f'<a href="{each.as_uri()}">{each.name}</a>' for each in wheels))
    return folder.as_uri()


@pytest.fixture
def machine(tmp_path):
    """An environment with pip, a machine without any configuration but that of pip, and its index of packages."""
    venv.create(tmp_path / "env", symlinks=True)
    shared = tmp_path / "shared"
    shared.mkdir()
    # Found without importing it: pip in a process takes setuptools' own distutils from all that runs there later.
    (shared / "pip").symlink_to(distribution("pip").locate_file("pip"))
    address = index(tmp_path / "simple", wheel(tmp_path / "built", "1.0"))
    config = tmp_path / "pip.conf"
    config.write_text(f"[global]\nindex-url = {address}\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "PYTHON"))}
    cache = {"UV_CACHE_DIR": str(tmp_path / "cache"), "PIP_NO_CACHE_DIR": "1"}
    return kept | cache | {"PIP_CONFIG_FILE": str(config), "PYTHONPATH": str(shared)}


def install(tmp_path, environ, *installations, by):
    """What was said, what is installed, and the exit status; `by` uv, or by pip where there is none."""
    commands = tmp_path / "env" / "bin"
    (commands / "uv").unlink(missing_ok=True)
    if by == "uv":
        (commands / "uv").symlink_to(UV)
    environ = environ | {"PATH": str(tmp_path / "nothing")}
    done = subprocess.run([commands / "python", SCRIPT, *installations], env=environ, capture_output=True, text=True)
    there = {path.name.removesuffix(".dist-info") for path in (tmp_path / "env").rglob("*.dist-info")}
    return done.stdout + done.stderr, there, done.returncode


needs_uv = pytest.mark.skipif(UV is None, reason="uv is not installed here")
both = pytest.mark.parametrize("by", [pytest.param("uv", marks=needs_uv), "pip"])


@both
@pytest.mark.parametrize("place", ["find-links in a file", "find-links in a variable", "a second index"])
def test_a_build_that_pip_is_told_of_is_taken(tmp_path, machine, by, place):
    """As a torch for the CPU: the version that is asked for, built otherwise than the one of the index."""
    built = wheel(tmp_path / "wheels", "1.0+cpu")
    if place == "find-links in a variable":
        machine["PIP_FIND_LINKS"] = f"{tmp_path / 'built'}\n {built.parent}"
    else:
        option = f"find-links = {built.parent}"
        if place == "a second index":
            option = f"extra-index-url = {index(tmp_path / 'second', built)}"
        with open(machine["PIP_CONFIG_FILE"], "a") as config:
            config.write(option + "\n")
    said, there, status = install(tmp_path, machine, "tiny==1.0", by=by)
    assert (there, status) == ({"tiny-1.0+cpu"}, 0), said
    assert "tiny==1.0 (" in said
    assert ("could not" in said, f"{by} installs (" in said) == (False, True)


@both
@pytest.mark.parametrize("right", [True, False])
def test_a_lock_is_kept_to(tmp_path, machine, by, right):
    """A wheel with another hash is installed by neither, and what comes after it is not begun."""
    content = (tmp_path / "built" / "tiny-1.0-py3-none-any.whl").read_bytes()
    lock = tmp_path / "lock.txt"
    lock.write_text(f"tiny==1.0 --hash=sha256:{hashlib.sha256(content if right else b'').hexdigest()}\n")
    said, there, status = install(tmp_path, machine, f"--no-deps --require-hashes -r {lock}", "tiny", by=by)
    assert (there, status == 0) == ({"tiny-1.0"} if right else set(), right), said
    assert right or "hash" in said.lower()


@both
def test_an_index_that_has_another_version_hides_nothing(tmp_path, machine, by):
    machine["PIP_EXTRA_INDEX_URL"] = index(tmp_path / "second", wheel(tmp_path / "old", "0.9"))
    said, there, status = install(tmp_path, machine, "tiny==1.0", by=by)
    assert (there, status, "could not" in said) == ({"tiny-1.0"}, 0, False), said


@needs_uv
def test_pip_does_what_uv_cannot(tmp_path, machine):
    """Where uv is sent to a place that is not there, the user still gets the package."""
    said, there, status = install(tmp_path, machine | {"UV_DEFAULT_INDEX": "file:///nowhere"}, "tiny", by="uv")
    assert (there, status) == ({"tiny-1.0"}, 0), said
    assert "uv could not; now with pip" in said


def test_options_of_pip_reach_uv_and_later_ones_decide(tmp_path, monkeypatch):
    config = tmp_path / "pip.conf"
    config.write_text(
        "[global]\ntimeout = 7\nproxy = http://a:1\ncert = /a.pem\n[install]\nproxy = http://b:2\n[list]\ncert = /no\n"
    )
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("PIP_TRUSTED_HOST", "one two:8080")
    script = runpy.run_path(str(SCRIPT))
    found = script["variables_for_uv"](script["pip_options"]())
    wanted = {
        "UV_HTTP_TIMEOUT": "7",
        "ALL_PROXY": "http://b:2",
        "SSL_CERT_FILE": "/a.pem",
        "UV_INSECURE_HOST": "one two:8080",
    }
    assert found.items() >= wanted.items()


def pins(lock):
    """Every line that names a version, with its marker."""
    text = (ROOT / "requirements" / f"{lock}.txt").read_text()
    return dict.fromkeys(re.findall(r"^([\w.-]+)==(\S+)(?: *; *([^\\\n]*?))? *\\?$", text, re.M))


def test_the_lock_of_the_tests_only_adds():
    """No package has two versions for one Python, and none that is big and that only tests need came into the first."""
    run, test = pins("run"), pins("test")
    assert not {name for name, *_ in run} & {name for name, *_ in test}
    assert not {name for name, *_ in run} & {
        "torch",
        "triton",
        "ray",
        "pyarrow",
        "playwright",
        "pandas",
        "wandb",
        "pytest",
    }
    asked = (ROOT / "pyproject.toml").read_text()
    builds = [
        name for name, *_ in [*run, *test] if name.startswith(("nvidia-", "torch-")) and f'"{name}>=' not in asked
    ]
    assert not builds  # of CUDA or of torch, that no one asked for
    assert {"numpy", "scipy", "transformers", "matplotlib"} <= {name for name, *_ in run}
