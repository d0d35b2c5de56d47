"""Where torch is a CPU build, no CUDA package may have come along with anything."""

from importlib.metadata import distributions

import pytest
import torch


def test_no_cuda_wheels_beside_a_cpu_build():
    if "+cpu" not in torch.__version__:
        pytest.skip(f"torch {torch.__version__} is not a CPU build")
    names = {d.metadata["Name"].lower() for d in distributions()}
    assert not [name for name in names if name.startswith("nvidia-")]
