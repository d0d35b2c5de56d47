"""What `make dist` builds installs into a clean environment with its declared dependencies alone, and runs there."""

import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]


def run(*command, cwd):
    return subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    target = tmp_path_factory.mktemp("dist")
    built = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", target, cwd=ROOT)
    assert built.returncode == 0, built.stderr
    return next(target.glob("*.whl"))


def test_the_wheel_carries_what_the_page_needs_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "joma/py.typed" in names
    assert any(name.startswith("joma/report/template/") for name in names)
    assert {"joma/report/claims/kept.json", "joma/report/claims/panels.json"} <= set(names)
    assert wheel.stat().st_size < 2_000_000
    assert all(name.startswith("joma/") or ".dist-info/" in name for name in names)


def test_it_runs_in_a_clean_environment(wheel, tmp_path):
    """Core dependencies only: no matplotlib, so a report without figures, and an export that says what it lacks."""
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    # The lock's versions without its hashes: constraints choose versions, they do not install anything.
    pins = re.findall(r"^[\w.-]+==[^\s\\;]+(?: *;[^\\\n]*)?", (ROOT / "requirements/lock.txt").read_text(), re.M)
    (tmp_path / "pins.txt").write_text("\n".join(pins))
    pinned_torch = f"torch=={torch.__version__.split('+')[0]}"
    pip = (python, "-m", "pip", "install", "-q", "--disable-pip-version-check")
    installed = run(*pip, pinned_torch, wheel, "-c", tmp_path / "pins.txt", cwd=tmp_path)
    if "No matching distribution found for torch" in installed.stderr or "onnection" in installed.stderr:
        pytest.skip("no package index can be reached from here")
    assert installed.returncode == 0, installed.stderr
    joma = tmp_path / "env" / "bin" / "joma"
    judged = run(joma, "verify", "thm5", "--out", "out", cwd=tmp_path)
    assert judged.returncode == 0, judged.stderr
    assert judged.stdout.rstrip().endswith("report: out/report.html")
    assert (tmp_path / "out" / "report.html").stat().st_size > 5_000
    stored = next((tmp_path / "out" / "runs").glob("*.sqlite"))
    refused = run(joma, "export", stored, "--to", "parquet", cwd=tmp_path)
    assert refused.returncode == 2
    assert "'.[export]'" in refused.stderr
    freeze = run(python, "-m", "pip", "list", "--format=freeze", cwd=tmp_path).stdout
    if "+cpu" in freeze:  # where pip finds a CPU build of torch, nothing may pull CUDA in
        assert "nvidia-" not in freeze
