"""`joma scan` on checkpoints that are damaged, doubled, changed or missing: left out and named, never guessed at."""

import shutil
from pathlib import Path

import pytest
import torch
from checkpoint_series import LOWER, change, make_series, scan
from safetensors.torch import load_file

from joma.runs import Run


def left_out(found):
    return {fault["step"]: fault for fault in found["left_out"]}


def test_duplicates_jumps_nans_shapes_and_damage_are_left_out_and_named(neox, tmp_path, capsys):
    folder = make_series(neox, tmp_path / "series", (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512))
    shutil.copy(folder / "step0" / "model.safetensors", folder / "step1")  # a duplicate
    final = load_file(folder / "step512" / "model.safetensors")
    change(folder / "step8", lambda t: t.update({k: v + 1e-4 * torch.randn(v.shape) for k, v in final.items()}))
    change(folder / "step16", lambda t: t[LOWER.format(1)].view(-1)[5:6].fill_(float("nan")))
    change(folder / "step32", lambda t: t.update({LOWER.format(2): torch.ones(7, 32)}))
    change(folder / "step64", lambda t: t.pop(LOWER.format(0)))
    path = folder / "step128" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])  # truncated
    (folder / "step4" / "model.safetensors").unlink()  # missing
    status, found = scan(folder, out=tmp_path / "out")
    assert status == 3
    assert found["steps"] == [0, 1, 2, 16, 256, 512]  # of step 16 the other matrices can be measured
    other = scan(folder, "--steps", "0,1,2,16,256,512", out=tmp_path / "other")[1]
    assert found["curves"] == other["curves"]
    assert found["curves"]["stable_rank/mlp"]["values"][3] == [[None], [None], [None]]
    assert None not in [cell for row in found["curves"]["stable_rank/attention_o"]["values"][3] for cell in row]
    faults = left_out(found)
    assert faults.keys() == {4, 8, 16, 32, 64, 128}
    assert [fault["measure"] for fault in found["left_out"] if fault["step"] == 16] == ["stable_rank/mlp"]
    assert "equal weights, in all that was read: steps 0 (step0), 1 (step1)" in found["notes"]
    assert faults[8]["what"].startswith("final-era weights")
    for step, word in ((16, "NaN"), (32, "(7, 32)"), (64, "no file"), (128, "cut off"), (4, "no weights")):
        assert word in faults[step]["what"]
    for step, tensor in ((8, 0), (16, 1), (32, 2), (64, 0)):
        assert any(f["tensor"] == LOWER.format(tensor) for f in found["left_out"] if f["step"] == step)
    for step in (8, 16, 32, 128):
        assert faults[step]["file"].endswith("model.safetensors")
    shown = capsys.readouterr().out
    assert all(f"left out: step {step} " in shown for step in faults)
    assert "6 of 11 steps usable" in shown


def test_a_shard_that_is_missing_truncated_or_stale(neox, tmp_path):
    folder = make_series(neox, tmp_path / "series", (0, 1, 2, 3, 4, 5), max_shard_size="40KB")
    shards = sorted(path.name for path in (folder / "step0").glob("*.safetensors"))
    (folder / "step1" / shards[0]).unlink()
    cut = folder / "step2" / shards[-1]
    cut.write_bytes(cut.read_bytes()[:50])
    shutil.copy(folder / "step5" / shards[1], folder / "step3" / shards[1])
    status, found = scan(folder, out=tmp_path / "out")
    assert status == 3
    assert found["steps"] == [0, 4, 5]
    faults = left_out(found)
    assert faults[1]["file"] == shards[0]
    assert "missing" in faults[1]["what"]
    assert shards[-1] in faults[2]["file"]
    assert faults[3]["file"] == shards[1]
    assert faults[3]["what"] == "identical to step 5, the last one"


@pytest.mark.parametrize("listed", [False, True])
def test_a_folder_that_may_not_be_read_is_left_out(series, tmp_path, monkeypatch, listed):
    closed = series / "step2"  # modes mean nothing to root, so what they do is imitated

    def guarded(call):
        def guard(path):
            if closed in path.parents or (path == closed and call is iterdir and not listed):
                raise PermissionError(13, "Permission denied", str(path))
            return call(path)

        return guard

    iterdir = Path.iterdir
    monkeypatch.setattr(Path, "is_file", guarded(Path.is_file))
    monkeypatch.setattr(Path, "iterdir", guarded(iterdir))
    status, found = scan(series, out=tmp_path / "out")
    assert status == 3
    assert found["steps"] == [0, 1, 10, 100]
    assert "Permission denied" in left_out(found)[2]["what"]


def test_a_step_with_two_claimants_is_left_out(series, tmp_path, capsys):
    shutil.copytree(series / "step10", series / "checkpoint-10 (copy)")
    assert scan(series, "--steps", "0:2", out=tmp_path / "out")[0] == 0
    status, found = scan(series, out=tmp_path / "out")
    assert status == 3
    assert found["steps"] == [0, 1, 2, 100]
    assert left_out(found)[10]["what"].startswith("checkpoint-10 (copy) and step10 claim the same step")
    capsys.readouterr()
    assert scan(series, "--steps", "10", out=tmp_path / "out") == (1, None)
    assert "left out: step 10 (checkpoint-10 (copy) and step10)" in capsys.readouterr().out


@pytest.mark.parametrize("steps", ["0,100", "0,1,100", ":"])
def test_a_checkpoint_without_config_is_no_other_architecture(series, tmp_path, steps):
    whole = scan(series, "--steps", steps, out=tmp_path / "whole")[1]["curves"]
    (series / "step0" / "config.json").unlink()
    status, found = scan(series, "--steps", steps, out=tmp_path / "out")
    assert status == 0
    assert found["curves"] == whole
    with Run.open(found["run"]) as run:
        assert run.config["model_type"] == "gpt_neox"


def test_a_mended_checkpoint_is_measured_by_the_next_scan(series, tmp_path):
    path = series / "step2" / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert scan(series, out=tmp_path / "out")[0] == 3
    path.write_bytes(whole)
    assert scan(series, out=tmp_path / "out")[0] == 0


def test_none_usable(series, tmp_path, capsys):
    for path in series.glob("*/model.safetensors"):
        path.write_bytes(b"123")
    status, found = scan(series, out=tmp_path / "out")
    assert (status, found) == (1, None)
    captured = capsys.readouterr()
    assert captured.out.count("left out: step") == 5
    assert "no usable checkpoint" in captured.err
    assert list((tmp_path / "out").iterdir()) == []
