"""Checkpoints measured in other processes: the record is the same, bit for bit, whatever the order they come in."""

import json
import shutil

import numpy as np
import pytest
import torch
from checkpoint_series import scan
from safetensors.torch import save_file

from joma.host.errors import BadInput
from joma.runs import Run
from joma.scale.task import Done, Going, Lost
from joma.scan import scan as scan_library
from joma.scan.errors import CheckpointError, Fault
from joma.scan.sweep import elsewhere as worker
from joma.scan.sweep import pairs, sweeping
from joma.scan.sweep.elsewhere import fingerprint, memory_of
from joma.scan.sweep.reading import Step


class Backwards:
    """An executor in this process: the last task comes first. Everything passes through JSON, as between machines."""

    def __init__(self, *, lost=(), stops_after=None):
        self.lost, self.stops_after, self.tasks, self.function = lost, stops_after, [], None

    def events(self, function, tasks):
        self.function, self.tasks = function, list(tasks)
        for number, one in enumerate(reversed(self.tasks)):
            if number == self.stops_after:
                raise KeyboardInterrupt
            yield Going(one, 0.5, "reading")
            if one.name in self.lost:
                yield Lost(one, "its process died, 4 times")
            else:
                arguments = json.loads(json.dumps(one.arguments))
                value = worker.measure_checkpoint(arguments, lambda share, doing: None)
                yield Done(one, json.loads(json.dumps(value)), 1)


def series(path):
    with Run.open(path) as run:
        names = [name for name in run.names() if name != "about"]
        steps = {name: run.steps(name).tolist() for name in names}
        arrays = {name: [run.at(name, step) for step in steps[name]] for name in names}
        return {name: (steps[name], [(each.dtype, each.tobytes()) for each in arrays[name]]) for name in names}


@pytest.fixture
def folder(tmp_path):
    where = tmp_path / "checkpoints"
    where.mkdir()
    for step in range(6):
        generator = torch.Generator().manual_seed(step)
        tensors = {f"h.{n}.mlp.c_fc.weight": torch.randn(8, 12, generator=generator) + step for n in range(3)}
        save_file(tensors, where / f"step{step * 10}.safetensors")
    return where


def both(folder, tmp_path, executor=None, **options):
    here = scan_library(folder, out=tmp_path / "here", **options)
    there = scan_library(folder, out=tmp_path / "there", on=executor or Backwards(), **options)
    return here, there


def test_the_record_is_that_of_a_scan_in_one_process(folder, tmp_path):
    here, there = both(folder, tmp_path, measures="stable_rank,alpha")
    assert series(here.run) == series(there.run)
    assert here.run.name == there.run.name
    with Run.open(here.run) as one, Run.open(there.run) as other:
        assert [one.dims(name) for name in one.names()] == [other.dims(name) for name in one.names()]
    assert here.as_json() == there.as_json()


def test_what_a_running_model_gives_is_the_same_too(pristine, tmp_path):
    np.save(tmp_path / "ids.npy", np.arange(40) % 64)
    here, there = both(pristine, tmp_path, measures="entropy,stable_rank", text=tmp_path / "ids.npy", seq_len=8)
    assert series(here.run) == series(there.run)
    assert here.as_json() == there.as_json()
    assert any(curve.heads for curve in there.curves.values())


def test_lines_come_in_the_order_of_the_series(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(pairs, "monotonic", lambda: 0.0)  # which tells the time that is left
    lines = {"here": [], "there": []}
    for name, on in (("here", None), ("there", Backwards())):
        scan_library(folder, out=tmp_path / name, on=on, progress=lines[name].append)
    told = [line for line in lines["there"] if not line.startswith("(")]
    assert told == lines["here"]
    assert len([line for line in told if line.startswith("[")]) == 6


def test_a_word_breaks_a_long_silence(folder, tmp_path, monkeypatch):
    clock = iter(range(0, 10_000, 11))
    monkeypatch.setattr(sweeping, "perf_counter", lambda: next(clock))
    lines = []
    scan_library(folder, out=tmp_path / "out", on=Backwards(), progress=lines.append)
    assert "(elsewhere  0 of 6 measured; step 50: reading)" in lines
    assert "(elsewhere  5 of 6 measured; step 0: reading)" in lines


def test_a_damaged_checkpoint_and_a_lost_task_cost_only_themselves(folder, tmp_path):
    (folder / "step20.safetensors").write_bytes(b"no weights")
    here, there = both(folder, tmp_path, Backwards(lost=["step 40"]))
    assert there.steps == [0, 10, 30, 50]
    assert [str(fault) for fault in there.faults if fault.step == 20] == [str(fault) for fault in here.faults]
    (lost,) = [fault for fault in there.faults if fault.step == 40]
    assert str(lost) == "step 40 (step40.safetensors): its process died, 4 times"
    again = scan_library(folder, out=tmp_path / "there", on=(executor := Backwards()))
    assert [one.name for one in executor.tasks] == ["step 20", "step 40"]
    assert again.steps == here.steps
    assert series(again.run) == series(here.run)


def test_what_is_measured_when_the_driver_dies_is_recorded(folder, tmp_path):
    """Also what came before the steps ahead of it."""
    with pytest.raises(KeyboardInterrupt):
        scan_library(folder, out=tmp_path / "there", on=Backwards(stops_after=4))
    here, there = both(folder, tmp_path, executor := Backwards())
    assert [one.name for one in executor.tasks] == ["step 0", "step 10"]
    assert series(here.run) == series(there.run)


def test_an_executor_that_has_nothing_to_do_is_not_asked(folder, tmp_path):
    scan_library(folder, out=tmp_path / "out")

    class Never:
        def events(self, function, tasks):
            pytest.fail("it was asked")

    assert scan_library(folder, out=tmp_path / "out", on=Never()).steps == [0, 10, 20, 30, 40, 50]


def test_a_measure_that_is_missing_is_added_and_files_that_changed_are_noticed(folder, tmp_path):
    scan_library(folder, out=tmp_path / "out")
    (folder / "step30.safetensors").write_bytes((folder / "step0.safetensors").read_bytes())
    found = scan_library(folder, out=tmp_path / "out", measures="stable_rank,spectral_norm", on=Backwards())
    assert found.faults == []
    assert any("step30.safetensors was measured again" in note for note in found.notes)
    assert set(found.curves) == {"stable_rank/mlp", "spectral_norm/mlp"}


def test_a_process_that_finds_other_files_refuses(folder, tmp_path):
    """Another machine may have another folder under the same name."""
    executor = Backwards()
    scan_library(folder, out=tmp_path / "out", on=executor)
    arguments = executor.tasks[0].arguments
    for step in range(6):
        save_file({"h.0.mlp.c_fc.weight": torch.randn(8, 12)}, folder / f"step{step * 10}.safetensors")
    worker._settled.cache_clear()
    with pytest.raises(CheckpointError, match="is not the same here as where the scan was begun"):
        worker.measure_checkpoint(arguments, lambda share, doing: None)
    shutil.rmtree(folder)


def test_a_task_says_what_it_needs(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    executor = Backwards(stops_after=0)
    with pytest.raises(KeyboardInterrupt):
        scan_library("checkpoints", out="out", on=executor, device="cuda", steps="10:30", budget=3.0)
    first = executor.tasks[0]
    assert executor.function == "joma.scan.sweep.elsewhere:measure_checkpoint"
    assert (first.name, first.gpus, first.memory) == ("step 10", 1, (1 << 30) + 16 * 8 * 12)
    asked = first.arguments["asked"]
    assert (asked["source"], asked["out"]) == (str(folder), str(tmp_path / "out"))
    which = asked["which"]
    assert (which["steps"], asked["device"], which["budget"]) == ([10, 20, 30], "cuda", 3.0)
    json.dumps(first.arguments)


def test_what_decides_the_numbers_decides_the_fingerprint(folder, tmp_path):
    from dataclasses import replace

    from joma.scan import open_series, plan

    settled = plan(open_series(folder, downloads=tmp_path))
    others = [
        replace(settled, groups={"mlp": settled.groups["mlp"][:2]}),
        replace(settled, shapes={**settled.shapes, "h.0.mlp.c_fc.weight": (12, 8)}),
        replace(settled, model_type="llama"),
        replace(settled, tokens=torch.arange(4)),
        replace(settled, tokens=torch.arange(1, 5)),
        replace(settled, seq_len=4),
        plan(open_series(folder, downloads=tmp_path), measures=["spectral_norm"]),
    ]
    assert len({fingerprint(one) for one in (settled, *others)}) == 8
    assert fingerprint(plan(open_series(folder, downloads=tmp_path))) == fingerprint(settled)
    assert memory_of(others[3]) == 0


def test_a_step_travels_without_losing_a_bit():
    values = {
        "a": np.array([[0.1, np.nan], [-0.0, np.inf]]),
        "b": np.array([2**63 + 1, 3], np.uint64),
        "c": torch.tensor([[1e-40, 2.0]]),
        "identity": -(2**62) - 1,
    }
    fault = Fault(10, "step10", "file", None, "what", "entropy")
    step = Step.from_json(json.loads(json.dumps(Step(values, (fault,), ("note",), "why", False).as_json())))
    assert (step.faults, step.notes, step.left_out, step.worked) == ((fault,), ("note",), "why", False)
    for name, value in values.items():
        assert isinstance(step.values[name], torch.Tensor) == isinstance(value, torch.Tensor)
        sent, found = np.asarray(value), np.asarray(step.values[name])
        assert (sent.dtype, sent.shape, sent.tobytes()) == (found.dtype, found.shape, found.tobytes())


@pytest.mark.parametrize(("options", "sentence"), [
    ({"on": "slurm"}, "on must be local, ray, ray:ADDRESS or ray://HOST:PORT, got 'slurm'"),
    ({"on": "local", "device": "cuda:1"}, "device cuda:1 names one GPU, and `on` chooses one itself; say cuda"),
    ({"on": "local", "device": "tpu"}, "device must be cpu, cuda or cuda:NUMBER, got 'tpu'"),
    ({"on": "local", "jobs": 0}, "jobs must be at least 1, got 0"),
])  # fmt: skip
def test_what_cannot_be_is_refused_before_anything_is_read(tmp_path, options, sentence):
    with pytest.raises(BadInput) as error:
        scan_library(tmp_path / "nowhere", **options)
    assert str(error.value) == sentence


def test_processes_of_this_machine_give_the_same_record(folder, tmp_path):
    status_here, here = scan(folder, out=tmp_path / "here")
    status, there = scan(folder, "--on", "local", "--jobs", 2, out=tmp_path / "there")
    assert status == status_here == 0
    assert {**here, "run": ""} == {**there, "run": ""}
    assert series(next((tmp_path / "here/runs").iterdir())) == series(next((tmp_path / "there/runs").iterdir()))
