"""What tests run on: no CUDA package beside a CPU build of torch, and no GPU where their device is the CPU."""

import ast
import os
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest
import torch


def test_no_cuda_wheels_beside_a_cpu_build():
    if "+cpu" not in torch.__version__:
        pytest.skip(f"torch {torch.__version__} is not a CPU build")
    names = {d.metadata["Name"].lower() for d in distributions()}
    assert not [name for name in names if name.startswith("nvidia-")]


ASKS = "import os, sys, conftest; print([os.environ.get(each) for each in sys.argv[1:]], 'torch' in sys.modules)"


@pytest.mark.parametrize(
    ("device", "seen"),
    [
        ({}, "['', '1'] False"),
        ({"JOMA_TEST_DEVICE": "cpu"}, "['', '1'] False"),
        ({"JOMA_TEST_DEVICE": "cuda"}, "['0', None] False"),
    ],
)
def test_a_gpu_is_seen_only_where_it_is_asked_for(device, seen):
    """Said before torch is loaded, and in the environment, so that started processes see none either."""
    hidden = ("JOMA_TEST_DEVICE", "TRITON_INTERPRET", "PYTEST_XDIST_WORKER")
    outside = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        [sys.executable, "-c", ASKS, "CUDA_VISIBLE_DEVICES", "TRITON_INTERPRET"],
        env=outside | {"CUDA_VISIBLE_DEVICES": "0", "PYTHONPATH": str(Path(__file__).parent)} | device,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == seen


def test_torch_finds_no_gpu_where_tests_run_on_the_cpu():
    if os.environ.get("JOMA_TEST_DEVICE", "cpu") != "cpu":
        pytest.skip("the tests run on a GPU")
    assert not torch.cuda.is_available()


ROOT = Path(__file__).parents[1]
SHARDING = [
    path for room in ("tests", "examples") for path in (ROOT / room).rglob("*.py") if "fully_shard" in path.read_text()
]


@pytest.mark.parametrize("path", SHARDING, ids=lambda path: path.name)
def test_fully_shard_is_told_its_devices(path):
    """Without a mesh it takes GPUs where torch was built for them, though processes train on the CPU."""
    calls = [each for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.Call)]
    sharded = [each for each in calls if ast.unparse(each.func).endswith("fully_shard")]
    assert not [each.lineno for each in sharded if "mesh" not in {given.arg for given in each.keywords}]
