"""Which devices there are: one place that asks, one sentence for what is not there."""

from pathlib import Path

import pytest
import torch

import joma
from joma.host import devices


@pytest.mark.parametrize("name", ["tpu", "cuda:", "cuda:x", "CPU", "", None, 3])
def test_what_is_no_device_is_refused(name):
    with pytest.raises(ValueError, match="device must be cpu, cuda or cuda:NUMBER, got"):
        devices.lacking(name)


@pytest.mark.parametrize(("seen", "name", "there"), [(0, "cuda", False), (1, "cuda", True), (1, "cuda:1", False)])
def test_a_gpu_is_there_or_lacking(monkeypatch, seen, name, there):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: seen > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
    missing = devices.lacking(name)
    assert (missing is None) == there
    if missing:
        assert str(missing) == f"device {name} needs a CUDA GPU, and torch sees {seen or 'none'} here"


def test_the_processor_is_always_there():
    assert devices.lacking("cpu") is None


def test_nobody_else_asks_for_gpus():
    house = Path(joma.__file__).parent
    asking = {
        path.relative_to(house).as_posix()
        for path in house.rglob("*.py")
        if "cuda.is_available" in path.read_text(encoding="utf-8")
    }
    assert asking <= {"host/devices.py", "runs/machine.py"}  # the second must not load torch to ask


@pytest.mark.parametrize(
    ("seen", "said", "found"),
    [
        (0, None, []),
        (2, None, ["0", "1"]),
        (2, "3, GPU-5f", ["3", "GPU-5f"]),
        (1, "3,9", ["3"]),  # CUDA ends the list at the first that is not there
        (0, "", []),
    ],
)
def test_gpus_are_named_as_the_environment_names_them(monkeypatch, seen, said, found):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: seen > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
    if said is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", said)
    assert devices.visible_gpus() == found
