"""The examples run as they stand: a loop in one process, and other people's trainers. Of loops in several processes,
test_distributed.py runs monitor_fsdp2.py, and docs/how-to/monitor-several-processes.md monitor_ddp.py with torchrun."""

import json
import warnings

import pytest
from several_processes import SMALL, example, is_what_it_printed

from joma.runs import Run


def test_a_plain_loop(tmp_path, capsys):
    pytest.importorskip("transformers")
    record = example("monitor_plain_loop").main([*SMALL, "--out", str(tmp_path / "run.joma")])
    is_what_it_printed(record, capsys.readouterr().out)


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
