"""The examples of loops run as they stand: in one process, and with torchrun in two."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE

from joma.runs import Run

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ["--steps", "4", "--every", "2", "--width", "16", "--length", "16"]


def check(record, printed):
    with Run.open(record) as run:
        assert run.steps("entropy").tolist() == [0, 2, 4]
        assert run.array("entropy").shape == (3, 2, 4)
        entropy = run.array("entropy").mean((1, 2))
    lines = printed.strip().splitlines()
    assert [line.partition(":")[0] for line in lines] == ["step 0", "step 2", "step 4"]
    assert all(f"mean entropy {each:.3f} nats" in line for each, line in zip(entropy, lines, strict=True))


def test_a_plain_loop(tmp_path, capsys):
    pytest.importorskip("transformers")
    spec = importlib.util.spec_from_file_location("monitor_plain_loop", EXAMPLES / "monitor_plain_loop.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    record = example.main([*SMALL, "--out", str(tmp_path / "run.joma")])
    check(record, capsys.readouterr().out)


@pytest.mark.long
def test_two_processes_by_torchrun(tmp_path):
    """With FSDP2; the page that has monitor_ddp.py, docs/how-to/monitor-several-processes.md, is run with its tests."""
    pytest.importorskip("transformers")
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = subprocess.run(
        [*start, str(EXAMPLES / "monitor_fsdp2.py"), *SMALL, "--out", str(tmp_path / "run.joma")],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    check(tmp_path / "run.joma", ended.stdout)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.joma"]
