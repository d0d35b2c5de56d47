"""What a run says about its machine, and what it does not say."""

from __future__ import annotations

import getpass
import platform
import subprocess
import sys

import pytest
import torch

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


def test_recording_does_not_load_torch() -> None:
    code = "import sys, joma.runs.machine as m, joma.runs; m.versions(); m.machine(); print('torch' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "False"
