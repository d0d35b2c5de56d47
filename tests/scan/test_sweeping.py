"""Around the measuring: lines of progress, the time that is left, which fingerprints and which pairs go together."""

from contextlib import contextmanager
from threading import Event
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from joma.runs import Run
from joma.scan import scan as scan_library
from joma.scan.errors import CheckpointError, Fault
from joma.scan.model.allocation import Pair
from joma.scan.sweep import pairs, sweeping
from joma.scan.sweep.record import stored_scan


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(sweeping, "perf_counter", lambda: now[0])
    monkeypatch.setattr(pairs, "monotonic", lambda: now[0])
    return now


def rows(names):
    return [SimpleNamespace(curve=name) for name in names]


def test_a_line_has_the_mean_over_layers_of_heads_all_and_of_quantities_the_first():
    values = {
        "stable_rank/mlp": np.array([2.0, 4.0]),
        "coherence/embedding": np.array([[0.25, 0.5, 0.75]]),
        "entropy": torch.tensor([[1.0, 2.0], [3.0, torch.nan]]),
    }
    values |= {f"alpha/g{at}": np.array([float(at), at + 1.0]) for at in range(6)}
    plan = SimpleNamespace(curves=rows([*values, "alpha/not measured"]))
    faults = [Fault(0, "step0", None, None, "NaN", "sparsity")] * 2
    assert sweeping._line(plan, values, faults) == (
        "stable_rank, mean over layers: mlp 3; coherence: embedding 0.25; entropy, mean over layers: 2; "
        "alpha, mean over layers: g0 0.5, g1 1.5, g2 2.5, g3 3.5, 2 more; left out: sparsity"
    )
    assert sweeping._line(plan, {}, []) == "nothing new"


def test_silence_is_broken_once_it_is_too_long_and_then_counts_anew(clock):
    said, stop = [], Event()
    between = sweeping._between("step 7", stop, said.append)
    for at, doing in enumerate("abcdefg"):
        between(doing)
        clock[0] += sweeping._SILENCE * 0.4
        assert len(said) == at // 3
    assert said == ["step 7  d", "step 7  g"]
    stop.set()
    with pytest.raises(sweeping._Stopped):
        between("h")


def test_the_time_left_is_that_of_the_steps_that_took_work(clock):
    left = pairs.TimeLeft(6)
    assert left.after(False) == ""  # nothing is known of the pace
    clock[0] += 10
    assert left.after(True) == "; 40 s left"  # four are left
    assert left.after(False) == "; 30 s left"
    clock[0] += 20
    assert left.after(True) == "; 30 s left"  # 15 s each
    assert left.after(True) == "; 10 s left"
    assert left.after(True) == ""


def test_fingerprints_are_those_of_the_steps_that_are_used(tmp_path):
    """A group that lacks a step is compared apart from the others, by the steps that it has."""
    groups = {"mlp": ("a", "b"), "attention_o": ("c",), "embedding": ("d",)}
    prints = lambda kind: {group: SimpleNamespace(curve=f"{kind}/{group}", tensors=groups[group]) for group in groups}
    plan = SimpleNamespace(fingerprints=prints)
    with Run.create(tmp_path / "run.sqlite", study="scan", config={}) as run:
        for step in (0, 1, 2, 3):
            values = {}
            for at, (group, tensors) in enumerate(groups.items()):
                if (group, step) != ("embedding", 3):
                    place = np.arange(len(tensors)) + 10 * at + 100 * step
                    values |= {f"checksum/{group}": place, f"sketch/{group}": np.repeat(place[:, None], 2, 1) + 0.5}
            run.record(step, values)
        together, apart = sweeping._prints(plan, run, [1, 3])
    steps, sketches, checksums = together
    assert steps == [1, 3]
    assert {name: found.tolist() for name, found in checksums.items()} == {
        "a": [100, 300], "b": [101, 301], "c": [110, 310]
    }  # fmt: skip
    assert {name: found[:, 0].tolist() for name, found in sketches.items()} == {
        "a": [100.5, 300.5], "b": [101.5, 301.5], "c": [110.5, 310.5]
    }  # fmt: skip
    assert (apart[0], apart[2]["d"].tolist()) == ([1], [120])


def test_of_recorded_pairs_each_step_has_the_nearest_one_before_it(tmp_path):
    """Steps 0, 2, 4 and 8; that from 0 to 4 was measured before step 2 appeared, and step 8 is left out."""
    columns = ("change", "error", "embeddings")
    config = {"source": "a", "groups": {}}
    with Run.create(tmp_path / "run.sqlite", study="scan", config=config) as run:
        for since, step in ((0, 4), (4, 8), (0, 2), (2, 4)):
            numbers = np.array([[10.0 * since + step, 0.5, 7.0], [-1.0, 0.25, 8.0]])
            dims = {"layer": None, "quantity": columns}
            run.record(step, {f"allocation/entropy/from-{since}": numbers}, dims={
                f"allocation/entropy/from-{since}": dims})  # fmt: skip
        names = [name for name in run.names() if pairs.is_pair(name)]
        assert pairs.finest(run, names, ()) == {"allocation/entropy": [(0, 2), (2, 4), (4, 8)]}
        assert pairs.finest(run, names, {8}) == {"allocation/entropy": [(0, 2), (2, 4)]}
        assert pairs.finest(run, names, {2}) == {"allocation/entropy": [(0, 4), (4, 8)]}
        assert pairs.finest(run, names, {0, 2, 4}) == {}
        curve = stored_scan(run).curves["allocation/entropy"]
    assert curve.columns == ("change", "error", "since", "embeddings")
    assert [row.layer for row in curve.rows] == [0, 1]
    assert np.isnan(curve.cells[0]).all()
    assert curve.cells[1:, 0].tolist() == [[2, 0.5, 0, 7], [24, 0.5, 2, 7], [48, 0.5, 4, 7]]
    assert curve.cells[1:, 1].tolist() == [[-1, 0.25, 0, 8], [-1, 0.25, 2, 8], [-1, 0.25, 4, 8]]


class Along:
    """Steps, some of which cannot be loaded, and a measure of pairs: 100 times the earlier, plus the later."""

    def __init__(self, steps, broken=()):
        self.places = [
            SimpleNamespace(step=step, name=f"step{step}", folder=lambda at=step: at_hand(at)) for step in steps
        ]
        self.broken, self.loaded, self.called, self.said = broken, [], [], []
        self.series, self.device, self.tokens, self.seq_len = SimpleNamespace(axis="step"), None, torch.arange(4), None
        self.measures = {"demo": SimpleNamespace(curves=("demo/all",))}

    def load(self, step, device, between):
        self.loaded.append(step)
        if step in self.broken:
            raise CheckpointError(f"step {step} is damaged")
        return step

    def call(self, earlier, later, tokens, between, seq_len):
        self.called.append((earlier, later))
        return Pair({"demo/all": np.array([[100.0 * earlier + later, 0.0]])}, ("change", "error"), (), "well")

    def swept(self, run):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pairs, "loaded_whole", self.load)
            patch.setattr(pairs, "allocated", self.call)
            return pairs.Chain(self, run, "demo", lambda doing: None).sweep(self.places, self.said.append)


@contextmanager
def at_hand(step):
    yield step


@pytest.fixture
def run(tmp_path):
    with Run.create(tmp_path / "run.sqlite", study="scan", config={}) as run:
        yield run


def numbers(run):
    names = [name for name in run.names() if pairs.is_pair(name) and name.startswith("demo/")]
    return {
        (name.rpartition("-")[2], step): run.at(name, step)[0, 0] for name in names for step in run.steps(name).tolist()
    }


def test_neighbours_are_measured_with_each_checkpoint_loaded_once(run):
    series = Along([0, 2, 4])
    chain = series.swept(run)
    assert (chain.pairs, chain.faults, series.loaded) == ([(0, 2), (2, 4)], [], [0, 2, 4])
    assert numbers(run) == {("0", 2): 2.0, ("2", 4): 204.0}
    assert [line.partition("; ")[0] for line in series.said] == ["[1/2] step 0 to 2  demo: well",
                                                                 "[2/2] step 2 to 4  demo: well"]  # fmt: skip


def test_after_a_pair_that_is_recorded_the_next_begins_with_its_own_checkpoint(run):
    Along([2, 4]).swept(run)
    run.record(8, {"other/all/from-4": np.ones((1, 2))})  # of another measure: it says nothing of this one
    series = Along([0, 2, 4, 8])
    assert series.swept(run).pairs == [(0, 2), (2, 4), (4, 8)]
    assert series.called == [(0, 2), (4, 8)]
    assert numbers(run) == {("2", 4): 204.0, ("0", 2): 2.0, ("4", 8): 408.0}
    assert Along([0, 2, 4, 8], broken=(0, 2, 4, 8)).swept(run).faults == []  # all is there: nothing is loaded


def test_one_that_cannot_be_loaded_is_passed_over_wherever_it_stands(run):
    first = Along([0, 2, 4], broken=(0,))
    chain = first.swept(run)
    assert (chain.pairs, [fault.step for fault in chain.faults]) == ([(2, 4)], [0])
    middle = Along([5, 6, 7], broken=(6,))
    chain = middle.swept(run)
    assert (chain.pairs, [fault.step for fault in chain.faults]) == ([(5, 7)], [6])
    assert (middle.loaded, middle.called) == ([5, 6, 7], [(5, 7)])
    last = Along([8, 9], broken=(9,)).swept(run)
    assert (last.pairs, [fault.step for fault in last.faults], last.faults[0].measure) == ([], [9], "demo")


def test_what_was_found_is_over_the_steps_that_are_left(run):
    """Of step 0 only the damaged group was read, step 2 is left out, and step 4 lacks a group."""
    for step, values in {
        0: {"rank/a": np.array([0.5])},
        2: {"rank/b": np.array([2.5]), "rank/c": np.array([2.25])},
        4: {"rank/a": np.array([4.5])},
        8: {"rank/a": np.array([8.5]), "rank/b": np.array([8.25])},
    }.items():
        run.record(step, values)
    places = [SimpleNamespace(step=step, name=f"step{step}", epoch=step // 4 or None) for step in (0, 2, 4, 6, 8)]
    plan = SimpleNamespace(
        series=SimpleNamespace(source="here", places=places, axis="date"),
        curves=rows(f"rank/{name}" for name in "abcd"),
        refused={"entropy": "no model"}, coverage={"a": (1, 2)}, model_type="llama", warnings=("long",), seq_len=9,
        not_taken=("h.*.wild",),
    )  # fmt: skip
    faults = [Fault(2, "step2", None, None, "damaged"), Fault(0, "step0", None, None, "NaN", "rank/b")]
    found = sweeping.found_in(plan, run, faults, ("a note",), [])
    assert (found.source, found.steps, found.faults, found.looked_at) == ("here", [0, 4, 8], faults, 5)
    assert {name: curve.values[:, 0].tolist() for name, curve in found.curves.items() if name == "rank/a"} == {
        "rank/a": [0.5, 4.5, 8.5]
    }
    assert list(found.curves) == ["rank/a", "rank/b"]  # c was read at a step that is left out, and d nowhere
    assert np.isnan(found.curves["rank/b"].values[:2]).all()
    assert found.curves["rank/b"].values[2].tolist() == [8.25]
    assert (found.epochs, found.refused, found.notes) == ({4: 1, 6: 1, 8: 2}, {"entropy": "no model"}, ("a note",))
    assert (found.coverage, found.model_type, found.warnings, found.seq_len) == ({"a": (1, 2)}, "llama", ("long",), 9)
    assert (found.not_taken, found.axis) == (("h.*.wild",), "date")


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_weights_that_were_replaced_under_the_same_size_and_time_are_others(tmp_path, kind):
    import os

    from joma.scan.sources.folder import LocalFile, LocalFolder

    path = tmp_path / "model.safetensors"
    place = LocalFile(path, 0) if kind == "file" else LocalFolder(tmp_path, 0)
    seen = set()
    for place_of_change in (None, 0, 50_000, 99_999):
        numbers = torch.zeros(100_000)
        if place_of_change is not None:
            numbers[place_of_change] = 1
        save_file({"w": numbers}, path)
        os.utime(path, ns=(10**18, 10**18))
        seen.add(place.identity())
        assert place.identity() in seen
    assert len(seen) == 4


def _left(folder, **how):
    found = scan_library(folder, out=folder.parent / "out", **how)
    return [fault.what for fault in found.faults]


@pytest.mark.parametrize(
    "named", ["README.md", "train.log", "optimizer.pt", "trainer_state.json", "tokenizer.json", "touch", "moved"]
)
def test_what_says_nothing_of_the_numbers_takes_no_checkpoint_away(tmp_path, named):
    """Training goes on, people write notes, and copies have dates of their own."""
    import os
    import shutil

    step = tmp_path / "run" / "checkpoint-10"
    step.mkdir(parents=True)
    save_file({"h.0.mlp.c_fc.weight": torch.eye(8), "h.0.ln.weight": torch.ones(8)}, step / "model.safetensors")
    (step / "config.json").write_text('{"model_type": "gpt2"}')
    assert _left(tmp_path / "run") == []
    if named == "touch":
        os.utime(step / "model.safetensors", ns=(10**18, 10**18))
        os.utime(step / "config.json", ns=(10**18, 10**18))
    elif named == "moved":
        shutil.copytree(step, tmp_path / "copy")
        shutil.rmtree(step)
        shutil.copytree(tmp_path / "copy", step, copy_function=shutil.copyfile)
    else:
        (step / named).write_bytes(b"{}")
    assert _left(tmp_path / "run") == []
    assert _left(tmp_path / "run", measures="stable_rank,spectral_norm") == []


@pytest.mark.parametrize("place", [40_000, 99_999])
def test_weights_that_differ_between_the_pieces_are_others_where_their_date_moved(tmp_path, place):
    """The pieces that are looked at are a quarter of this file; all of a tensor counts when its date has moved."""
    import os

    path = tmp_path / "run" / "step10.safetensors"
    path.parent.mkdir()
    numbers = torch.arange(2.0**20).reshape(1024, 1024)
    save_file({"h.0.mlp.c_fc.weight": numbers}, path)
    assert _left(path.parent) == []
    numbers.view(-1)[place] = 7
    save_file({"h.0.mlp.c_fc.weight": numbers}, path)
    os.utime(path, ns=(10**18, 10**18))
    found = scan_library(path.parent, out=tmp_path / "out")
    assert found.faults == []
    changed = "step10.safetensors was measured again: step10.safetensors has changed since it was measured"
    assert changed in found.notes
    true = float(torch.linalg.matrix_norm(numbers) ** 2 / torch.linalg.matrix_norm(numbers, 2) ** 2)
    assert found.curves["stable_rank/mlp"].values[0, 0] == pytest.approx(true, rel=1e-3)
    assert not any("measured again" in note for note in scan_library(path.parent, out=tmp_path / "out").notes)


def test_a_file_that_is_read_and_is_another_is_named(tmp_path):
    step = tmp_path / "run" / "step10"
    step.mkdir(parents=True)
    for name in ("h.0.mlp.c_fc.weight", "h.1.mlp.c_fc.weight"):
        save_file({name: torch.eye(8)}, step / f"model-0000{int(name[2]) + 1}-of-00002.safetensors")
    (step / "config.json").write_text('{"model_type": "gpt2", "n_layer": 2}')
    assert _left(step) == []
    (step / "config.json").write_text('{"model_type": "gpt2", "n_layer": 3}')
    found = scan_library(step, out=step.parent / "out")
    assert found.faults == []
    assert "step10 was measured again: config.json has changed since it was measured" in found.notes


def test_one_rewritten_checkpoint_is_measured_again_alone(tmp_path, monkeypatch):
    """The others are not opened. Numbers of before are gone, and those of pairs with it too."""
    from joma.scan import open_series, plan
    from joma.scan.sources.folder import LocalFile

    weights = {step: torch.randn(8, 8, generator=torch.Generator().manual_seed(step)) for step in range(0, 50, 10)}
    folder = tmp_path / "run"
    folder.mkdir()
    for step, w in weights.items():
        save_file({"h.0.mlp.c_fc.weight": w}, folder / f"step{step}.safetensors")
    first = scan_library(folder, out=tmp_path / "out")
    with Run.open(first.run, write=True) as run:
        for since, step in ((10, 20), (20, 30), (30, 40)):
            run.append(f"allocation/loss/from-{since}", step, [[1.0, 0.0, 2.0]])
    weights[20] = torch.eye(8) * 3
    save_file({"h.0.mlp.c_fc.weight": weights[20]}, folder / "step20.safetensors")
    opened, was = [], LocalFile.open
    settled = plan(open_series(folder, downloads=tmp_path))  # looks at some
    monkeypatch.setattr("joma.scan.scanning.plan", lambda *_, **__: settled)
    monkeypatch.setattr(LocalFile, "open", lambda place: opened.append(place.step) or was(place))
    again = scan_library(folder, out=tmp_path / "out")
    assert opened == [20]
    assert again.steps == [0, 10, 20, 30, 40]
    values = dict(zip(again.steps, again.curves["stable_rank/mlp"].values[:, 0], strict=True))
    for step, w in weights.items():
        squares = torch.linalg.svdvals(w.double()).square()
        assert values[step] == pytest.approx(float(squares.sum() / squares[0]), rel=1e-5)
    with Run.open(again.run) as run:
        assert [name for name in run.names() if name.startswith("allocation")] == ["allocation/loss/from-30"]
        assert run.created == Run.open(first.run).created


def test_a_rewritten_checkpoint_that_is_damaged_leaves_no_old_numbers(tmp_path):
    for step in (0, 10):
        save_file({"h.0.mlp.c_fc.weight": torch.eye(8) + step}, tmp_path / f"step{step}.safetensors")
    out = tmp_path / "out"
    scan_library(tmp_path, out=out)
    (tmp_path / "step10.safetensors").write_bytes(b"cut")
    found = scan_library(tmp_path, out=out)
    assert found.steps == [0]
    assert [fault.step for fault in found.faults] == [10]
    assert "has changed" not in found.faults[0].what
