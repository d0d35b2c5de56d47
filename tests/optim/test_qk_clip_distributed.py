"""QKClip where a model lies on several processes, against the rule written out on the whole model."""

import os
import subprocess
import sys

import clipped_processes
import pytest
import torch
from clipped_processes import CASES, THRESHOLD, WORLD, steady
from patience import PATIENCE
from split_networks import HEADS, TEXT, WIDTH, slow_attention


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> list[dict]:
    """What each process computed; all cases in one start, because a start takes seconds."""
    folder = tmp_path_factory.mktemp("processes")
    command = [sys.executable, clipped_processes.__file__, str(folder)]
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # the network lies in another folder of tests
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=os.environ | paths)
    assert ended.returncode == 0, ended.stderr
    return [torch.load(folder / f"found{rank}.pt", weights_only=True) for rank in range(WORLD)]


@pytest.mark.parametrize("case", [*CASES, "fsdp, probe"])
def test_all_processes_scale_by_the_largest_of_all(found, case):
    rows = (0,) if case.endswith("probe") else sorted(set(CASES[case][1]))
    slow = slow_attention(steady(), torch.cat([TEXT[row] for row in rows]))
    model, width = steady(), WIDTH // HEADS
    with torch.no_grad():
        for at, block in enumerate(model.h):
            largest = slow[f"h.{at}.attn"]["largest_logit"]
            assert (largest > THRESHOLD).any()
            assert (largest < THRESHOLD).any()
            for head in range(HEADS):
                root = (THRESHOLD / max(THRESHOLD, float(largest[head]))) ** 0.5
                for part in (block.attn.q, block.attn.k):
                    part.weight[head * width : (head + 1) * width] *= root
                    part.bias[head * width : (head + 1) * width] *= root
    for each in found:
        for name, expected in model.named_parameters():
            torch.testing.assert_close(each[case]["weights"][name], expected.detach(), rtol=1e-5, atol=1e-6)
        for name, seen in each[case]["largest"].items():
            torch.testing.assert_close(seen, slow[name]["largest_logit"], rtol=1e-5, atol=1e-6)
