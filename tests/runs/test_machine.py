"""What a run says about its machine, and what it does not say."""

from __future__ import annotations

import getpass
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import joma
from joma.runs.machine import machine, versions


def test_versions_are_those_that_run() -> None:
    found = versions()
    assert found["python"] == platform.python_version()
    assert found["torch"] == torch.__version__


def test_the_machine_is_described_without_names() -> None:
    described = machine()
    assert isinstance(described["cores"], int)
    assert described["cores"] >= 1
    assert described["cpu"]
    words = " ".join(map(str, described.values())).split()
    assert platform.node() not in words
    assert getpass.getuser() not in words


def test_the_gpu_is_named_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "H9000")
    assert machine()["gpu"] == "H9000"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert machine()["gpu"] is None


def test_the_commit_is_that_of_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git, one, other = tmp_path / ".git", "1" * 40, "2" * 40
    (git / "refs" / "heads").mkdir(parents=True)
    monkeypatch.setattr(joma, "__file__", str(tmp_path / "src" / "joma" / "__init__.py"))
    assert versions()["commit"] == ""
    (git / "HEAD").write_text(f"{one}\n")
    assert versions()["commit"] == one
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    assert versions()["commit"] == ""
    packed = f"# pack-refs with: peeled\n{one} refs/heads/not-main\n{other} refs/heads/main\n{one} refs/heads/main-2\n"
    (git / "packed-refs").write_text(packed)
    assert versions()["commit"] == other
    (git / "refs" / "heads" / "main").write_text(f"{one}\n")  # newer than what is packed
    assert versions()["commit"] == one
    (git / "HEAD").write_text("ref: refs/heads/gone\n")
    assert versions()["commit"] == ""


def test_recording_does_not_load_torch() -> None:
    code = "import sys, joma.runs.machine as m, joma.runs; m.versions(); m.machine(); print('torch' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "False"
