"""The examples of monitors in other people's trainers run, learn something, and leave a record."""

import importlib.util
import json
import warnings
from pathlib import Path

import pytest

from joma.runs import Run

pytest.importorskip("transformers")
EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ["--layers", "1", "--heads", "2", "--width", "16", "--length", "32", "--batch", "4", "--every", "3"]


def example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(name, *arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the trainers' own parts
        return example(name).main([*SMALL, *map(str, arguments)])


def test_the_example_of_transformers_trainer(tmp_path, capsys):
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
