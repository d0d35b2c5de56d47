"""The examples run as they stand: loops in one process and with torchrun in two, and other people's trainers."""

import importlib.util
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from patience import PATIENCE

from joma.runs import Run

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ["--steps", "4", "--every", "2", "--width", "16", "--length", "16"]


def example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    record = example("monitor_plain_loop").main([*SMALL, "--out", str(tmp_path / "run.joma")])
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


TINY = ["--layers", "1", "--heads", "2", "--width", "16", "--length", "32", "--batch", "4", "--every", "3"]


def run(name, *arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the trainers' own parts
        return example(name).main([*TINY, *map(str, arguments)])


def test_the_example_of_transformers_trainer(tmp_path, capsys):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    record = run("monitor_trainer", "--steps", 6, "--out", tmp_path / "a")
    with Run.open(record) as found:
        assert found.steps("entropy").tolist() == [0, 3, 6]
        assert {"spread/variance", "spread/growth", "stable_rank"} <= set(found.names())
        assert (found.array("norm")[0] != found.array("norm")[-1]).all()
    lines = (tmp_path / "a" / "summary.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 3, 6]
    assert "step 6: mean entropy " in capsys.readouterr().out


def test_the_example_of_lightning_resumes(tmp_path, capsys):
    pytest.importorskip("lightning.pytorch")
    out = tmp_path / "a"
    run("monitor_lightning", "--steps", 4, "--out", out)
    record = run("monitor_lightning", "--steps", 8, "--out", out, "--resume", out / "last.ckpt")
    with Run.open(record) as found:
        assert found.steps("entropy").tolist() == [0, 3, 6]
    assert capsys.readouterr().out.count("step 3: mean entropy ") == 2
