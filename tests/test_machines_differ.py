"""What tests/as_other_machines.py sets does something: a machine that is like this one would prove nothing."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import as_other_machines as others
import pytest

PROBE = """
import json, time
from pathlib import Path

import numpy as np
import torch

def test_how_this_machine_behaves():
    wall = time.clock_gettime(time.CLOCK_MONOTONIC)  # nobody hurries this one; it is read outside of the other
    shown = time.monotonic()
    time.sleep(0.2)
    shown = time.monotonic() - shown
    wall = time.clock_gettime(time.CLOCK_MONOTONIC) - wall
    told = {
        "begins": sorted({np.empty(size).ctypes.data % 64 for size in range(1, 50)}),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "hurry": shown / wall,
    }
    Path(__file__).with_suffix(".json").write_text(json.dumps(told))
"""


def probed(machine: others.Machine, folder: Path) -> dict:
    """What a test sees there."""
    probe = folder / "test_probe.py"
    probe.write_text(PROBE)
    there = replace(machine, paths=(str(probe),))
    done = subprocess.run(
        there.command(), env=there.settings(), cwd=others.TESTS.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(probe.with_suffix(".json").read_text())


def named(machine: others.Machine) -> str:
    return machine.name


@pytest.mark.parametrize("machine", others.quick_machines(), ids=named)
def test_a_quick_machine_is_what_its_name_says(machine, tmp_path):
    seen = probed(machine, tmp_path)
    if "odd memory" in machine.name:
        assert set(seen["begins"]) == {16, 32, 48}
        assert (seen["threads"], seen["instructions"]) == (4, "DEFAULT")
        assert seen["hurry"] <= 1
    else:
        assert "20 times slower" in machine.name
        assert 2 < seen["hurry"] <= 20  # 20, less what another process takes between two looks
        assert seen["threads"] == 1


def test_the_long_list_has_the_same_differences_one_at_a_time():
    long = {machine.name: machine.environment for machine in others.machines(["no-such-python"])}
    for name in ("few instructions", "4 threads", "odd memory", "20 times slower"):
        assert long[name], name
    quick = {**others.quick_machines()[0].environment, **others.quick_machines()[1].environment}
    assert {key: value for name in long for key, value in long[name].items() if name != "AVX2"} == quick


def test_a_test_that_fails_there_is_told(tmp_path):
    """Odd memory ends the process at once, and the status must not be lost with it."""
    (tmp_path / "test_wrong.py").write_text("def test_wrong():\n    assert 1 == 2\n")
    found = others.tested(others.Machine("odd", others.ODD, (str(tmp_path / "test_wrong.py"),)))
    assert (found.failed, found.words) == (True, "1 failed")
