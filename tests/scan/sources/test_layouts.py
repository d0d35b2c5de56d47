"""Layouts of checkpoints on disk, one row each: found right, or refused in a sentence that says what to do."""

import json
import os

import pytest
import torch
from safetensors.torch import save_file

from joma.scan import CheckpointError, open_series
from joma.scan.sources import places
from joma.scan.sources.series import moment_in

WEIGHTS = {f"h.{layer}.mlp.c_fc.weight": torch.eye(4) * (layer + 1) for layer in range(2)}
COMMITS = {name: character * 40 for name, character in (("main", "a"), ("step10", "b"), ("step1k", "c"))}


def write(path, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        save_file(WEIGHTS, path)
    else:
        torch.save({"model": WEIGHTS, **more} if more else WEIGHTS, path)
    return path


def files(*names):
    return lambda root: [write(root / name) for name in names] and root


def torch_files(**contents):
    return lambda root: [write(root / name, **more) for name, more in contents.items()] and root


def lightning(*versions):
    def build(root):
        for version in versions:
            for epoch, step in ((0, 100), (1, 200)):
                name = f"lightning_logs/version_{version}/checkpoints/epoch={epoch}-step={step}.ckpt"
                content = {"epoch": epoch, "global_step": step, "pytorch-lightning_version": "2.4.0", "loops": {}}
                write(root / name, **content)
            (root / f"lightning_logs/version_{version}/hparams.yaml").write_text("lr: 0.1\n")
        return root

    return build


def trainer_folder(root, *, state):
    write(root / "model" / "model.safetensors")
    (root / "model" / "config.json").write_text('{"model_type": "gpt2"}')
    (root / "model" / "trainer_state.json").write_text(json.dumps(state))
    return root / "model"


def cached(*names, weights=tuple(COMMITS), refs=True):
    """A folder of huggingface_hub's cache, as the library lays it out: blobs, links to them, refs."""

    def build(root):
        model = root / "hub" / "models--owner--tiny"
        (model / "blobs").mkdir(parents=True)
        (model / "refs").mkdir()
        for name in names:
            commit = COMMITS[name]
            snapshot = model / "snapshots" / commit
            snapshot.mkdir(parents=True)
            if refs:
                (model / "refs" / name).write_text(commit)
            if name in weights:
                blob = write(model / "blobs" / f"{name}.safetensors")
                blob = blob.rename(model / "blobs" / ("0" * 63 + commit[0]))
                os.symlink(os.path.relpath(blob, snapshot), snapshot / "model.safetensors")
        return model

    return build


def inside(build, *parts):
    return lambda root: build(root).joinpath(*parts)


# what it is, how it is made, steps, epochs (None: none known), words of its notes
FOUND = {
    "epoch_1.pt": (files("epoch_1.pt", "epoch_2.pt", "epoch_10.pt"), [1, 2, 10], [1, 2, 10], ()),
    "epoch=01.ckpt": (files("epoch=01.ckpt", "epoch=02.ckpt"), [1, 2], [1, 2], ()),
    "epoch=3-step=700.ckpt": (files("epoch=3-step=700.ckpt", "epoch=4-step=900.ckpt"), [700, 900], [3, 4], ()),
    "steps win over epochs": (files("epoch=0-step=10.pt", "epoch=0-step=20.pt"), [10, 20], [0, 0], ()),
    "ep0-ba10": (files("ep0-ba10-rank0.pt", "ep1-ba20-rank0.pt"), [10, 20], [0, 1], ()),
    "model_0001.pt": (files("model_0001.pt", "model_0010.pt"), [1, 10], None, ("taken for the step",)),
    "one model_0001.pt": (files("model_0001.pt"), [1], None, ("taken for the step",)),
    "model_0001.pt that knows its epoch": (
        torch_files(**{"model_0001.pt": {"epoch": 1}, "model_0002.pt": {"epoch": 2}}), [1, 2], [1, 2], ("it holds",),
    ),
    "step1k and step10M": (files("step1k.pt", "step512.pt", "step10M.pt"), [512, 1000, 10**7], None, ()),
    "step2.5k": (files("step2.5k.pt"), [2500], None, ()),
    "tokens beside steps": (files("step1000-tokens4B.pt", "step2000-tokens8B.pt"), [1000, 2000], None, ()),
    "1000steps": (files("1000steps.pt", "2ksteps.pt"), [1000, 2000], None, ()),
    "model_3epochs": (files("model_3epochs.pt", "model_4epochs.pt"), [3, 4], [3, 4], ()),
    "files and folders of steps": (files("step1/a.pt", "step2.pt"), [1, 2], None, ()),
    "numbers alone": (files("0010.pt", "0002.pt"), [2, 10], None, ()),
    "iter-000100-ckpt.pth": (files("iter-000100-ckpt.pth", "iter-000200-ckpt.pth"), [100, 200], None, ()),
    "folders of steps": (files("checkpoint-500/model.safetensors", "checkpoint-1000/model.safetensors"),
                         [500, 1000], None, ()),
    "folders of epochs": (files("epoch_1/model.safetensors", "epoch_2/model.safetensors"), [1, 2], [1, 2], ()),
    "folders of epochs with steps in them": (
        files("epoch_0/step_10.pt", "epoch_0/step_20.pt", "epoch_1/step_30.pt"), [10, 20, 30], [0, 0, 1], (),
    ),
    "folders of epochs with more in them": (
        files("epoch_0/step_10.pt", "epoch_0/last.pt", "epoch_1/step_20.pt"), [10, 20], [0, 1], ("epoch_0: ", "last"),
    ),
    "a checkpoint with its optimizer's folder": (
        lambda root: files("model.safetensors", "global_step500/mp_rank_00_model_states.pt")(root / "checkpoint-500"),
        [500], None, (),
    ),
    "a model with folders that are none": (
        lambda root: (files("m/model.safetensors")(root) / "m/7").mkdir() or root / "m",
        [0], None, ("not known",),
    ),
    **{
        f"{name}, which was not written to its end": (
            files("checkpoint-5/model.safetensors", f"{name}/model.safetensors"), [5], None, ("to their end", name),
        )
        for name in ("tmp-checkpoint-40", "checkpoint-40.tmp", "checkpoint-40.incomplete", "checkpoint-5.partial",
                     "checkpoint-40-unfinished", "checkpoint-40_tmp", "checkpoint-40.part", "checkpoint-40.writing")
    },
    "a file that was not written to its end": (files("step5.pt", "step40.tmp.pt"), [5], None, ("step40.tmp",)),
    "one that is named itself": (inside(files("checkpoint-40.tmp/a.pt"), "checkpoint-40.tmp"), [40], None, ()),
    "the final model beside step folders": (
        files("checkpoint-5/model.safetensors", "model.safetensors"), [5], None, ("left aside", "model.safetensors"),
    ),
    "final beside step folders": (files("step5/a.pt", "step6/a.pt", "final/a.pt"), [5, 6], None, ("aside", "final")),
    "best and last beside steps": (
        files("epoch=1.ckpt", "best-epoch=1.ckpt", "last.ckpt"), [1], [1], ("best-epoch=1", "last"),
    ),
    "averages beside steps": (files("step5.pt", "step5-ema.pt"), [5], None, ("step5-ema",)),
    "only the best": (files("best-step=5.pt", "best-step=9.pt"), [5, 9], None, ()),
    "lightning": (lightning(0), [100, 200], [0, 1], ("lightning_logs/version_0/checkpoints",)),
    "lightning_logs": (inside(lightning(0), "lightning_logs"), [100, 200], [0, 1], ("version_0",)),
    "lightning's version": (inside(lightning(0, 1), "lightning_logs/version_1"), [100, 200], [0, 1], ("checkpoints",)),
    "lightning's last alone": (torch_files(**{"last.ckpt": {"global_step": 70, "epoch": 2}}), [70], [2], ()),
    "a run parent": (files("run/seed0/step10.pt", "run/seed0/step20.pt"), [10, 20], None, ("run/seed0",)),
    "a run parent with logs": (
        lambda root: (files("run/step10.pt")(root) / "wandb/x").mkdir(parents=True) or root, [10], None, ("in run",),
    ),
    "nanoGPT's ckpt.pt": (
        torch_files(**{"ckpt.pt": {"iter_num": 700, "best_val_loss": 1.5, "config": {"n_layer": 2}}}), [700], None, (),
    ),
    "nanoGPT's file itself": (
        inside(torch_files(**{"ckpt.pt": {"iter_num": 700}}), "ckpt.pt"), [700], None, (),
    ),
    "steps inside alone": (
        torch_files(**{"a.pt": {"step": 20}, "b.pt": {"step": 10}}), [10, 20], None, ("it holds",),
    ),
    "epochs inside alone": (torch_files(**{"a.pt": {"epoch": 2}, "b.pt": {"epoch": 1}}), [1, 2], [1, 2], ("it holds",)),
    "mmcv's meta": (torch_files(**{"a.pth": {"meta": {"epoch": 3, "iter": 90}}}), [90], [3], ()),
    "trainer_state.json": (lambda root: trainer_folder(root, state={"global_step": 40, "epoch": 2.0}), [40], [2], ()),
    "half an epoch": (lambda root: trainer_folder(root, state={"global_step": 4, "epoch": 2.5}), [4], None, ()),
    "a model without a step": (files("model.safetensors"), [0], None, ("not known",)),
    "a hub cache by steps": (cached("main", "step10", "step1k"), [10, 1000], None, ("main",)),
    "a hub cache of main": (cached("main"), [0], None, ("step of main is not known",)),
    "a hub cache without refs": (cached("main", refs=False), [0], None, ("not known",)),
    "a hub cache with a revision not there": (
        cached("main", "step10", "step1k", weights=("main", "step10")), [10], None, ("not in the cache", "step1k"),
    ),
    "a snapshot of a hub cache": (inside(cached("main", "step10"), "snapshots", "b" * 40), [10], None, ()),
    "the hub cache itself": (lambda root: cached("step10", "step1k")(root).parent, [10, 1000], None, ("models--",)),
}  # fmt: skip
# what it is, how it is made, words of the refusal
REFUSED = {
    "nothing": (lambda root: root, "holds no checkpoint"),
    "nothing that was written to its end": (
        files("checkpoint-40.tmp/a.pt"), "holds checkpoint-40.tmp alone, which were not .*name one .* as in .*40.tmp",
    ),
    "several runs": (files("seed0/step1.pt", "seed1/step1.pt"), "holds 2 runs: seed0, seed1; name one, as in "),
    "several versions": (lightning(0, 1), "holds 2 runs.*version_0.*version_1.*name one"),
    "best and last alone": (files("best.pt", "last.pt"), "several weights files .*best.pt.*name one"),
    "steps and epochs": (files("step10.pt", "epoch_1.pt"), "mixes steps .step10. and epochs .epoch_1.*move one"),
    "steps that begin anew": (
        files("epoch_0/step_1.pt", "epoch_1/step_1.pt"), "anew in every epoch.*name one epoch, as in .*epoch_0",
    ),
    "two names without a step": (files("a.pt", "b.pt"), "several weights files .a.pt, b.pt.*name one"),
    "steps inside that are the same": (torch_files(**{"a.pt": {"step": 1}, "b.pt": {"step": 1}}), "name one"),
    "steps inside that contradict": (torch_files(**{"a.pt": {"step": 1, "iter": 2}, "b.pt": {"step": 3}}), "name one"),
    "two numbers": (files("checkpoint_3_1000.pt", "checkpoint_4_1000.pt"), "several weights files.*name one"),
    "two seeds": (files("seed0-step1.pt", "seed1-step2.pt"), "mixes seed0, seed1, .*move each to a folder of its own"),
    "ranks": (files("ep0-ba10-rank0.pt", "ep0-ba10-rank1.pt"), "mixes rank0, rank1, .*move each"),
    "tokens alone": (files("tokens4B.pt", "tokens8B.pt"), "several weights files.*name one"),
    "a hub cache without weights": (cached("main", weights=()), "no revision with weights; download one"),
    "a hub cache without names": (
        cached("main", "step10", refs=False), "holds 2 revisions, none of them main or named by a step; name one",
    ),
}  # fmt: skip


@pytest.mark.parametrize("layout", FOUND)
def test_found(layout, tmp_path):
    build, steps, epochs, said = FOUND[layout]
    series = open_series(build(tmp_path), downloads=tmp_path / "downloads")
    assert series.steps == steps
    assert series.epochs == (epochs or [None] * len(steps))
    assert series.axis == ("epoch" if epochs == steps else "step")
    for word in said:
        assert word in "\n".join(series.notes)
    if not said:
        assert series.notes == ()
    for place in series.places:
        with place.open() as checkpoint:
            names = [name for name in checkpoint.names() if name.endswith("h.1.mlp.c_fc.weight")]
            assert torch.equal(checkpoint.read(names[0]), 2 * torch.eye(4))


# names, and the step and epoch that they speak of
NAMES = {
    "checkpoint-500": (500, None),
    "global_step20": (20, None),
    "epoch3step700": (700, 3),
    "epoch=01-val_loss=0.32": (None, 1),
    "checkpoint_epoch_7": (None, 7),
    "step1.5M": (1_500_000, None),
    "step1.5": (None, None),
    "step1.2345k": (None, None),
    "step1000-ckpt-2": (None, None),
    "step1kb": (None, None),
    "tokens4B": (None, None),
    "deep10": (None, None),
    "checkpoint_3_1000": (None, None),
    "step" + "9" * 16: (None, None),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_speak_of_one_moment_or_of_none(name):
    found = moment_in(name)
    assert (found.step, found.epoch) == NAMES[name]


@pytest.mark.parametrize("layout", REFUSED)
def test_refused(layout, tmp_path):
    build, sentence = REFUSED[layout]
    with pytest.raises(CheckpointError, match=sentence) as caught:
        open_series(build(tmp_path), downloads=tmp_path / "downloads")
    assert "\n" not in str(caught.value)


def test_the_same_step_twice_is_a_fault_of_that_step(tmp_path):
    series = open_series(files("step1.pt", "step2.pt", "step0002.pt")(tmp_path), downloads=tmp_path)
    assert series.steps == [1, 2]
    with pytest.raises(CheckpointError, match=r"step0002\.pt and step2\.pt claim the same step; keep one"):
        series.places[1].open()


def test_a_step_that_leads_nowhere_is_a_fault_of_that_step(tmp_path):
    files("step1/a.pt", "step2/a.pt")(tmp_path)
    (tmp_path / "step3").symlink_to(tmp_path / "gone")
    series = open_series(tmp_path, downloads=tmp_path)
    assert series.steps == [1, 2, 3]
    with pytest.raises(CheckpointError, match="step3 cannot be listed"):
        series.places[2].open()


def test_epochs_are_chosen_by_their_own_numbers(tmp_path):
    series = open_series(files("epoch_1.pt", "epoch_2.pt")(tmp_path), downloads=tmp_path)
    assert series.select("2").epochs == [2]
    with pytest.raises(CheckpointError, match="has no epoch 7; it has 1, 2"):
        series.select("7")


def test_the_cache_is_as_huggingface_hub_lays_it_out(tmp_path, monkeypatch):
    from huggingface_hub import scan_cache_dir, snapshot_download

    model = cached("main", "step10", "step1k")(tmp_path)
    (found,) = scan_cache_dir(model.parent).repos
    assert found.repo_id == "owner/tiny"
    assert set(found.refs) == set(COMMITS)
    assert scan_cache_dir(model.parent).warnings == []
    there = snapshot_download("owner/tiny", revision="step1k", cache_dir=model.parent, local_files_only=True)
    series = open_series(model, downloads=tmp_path)
    assert str(series.places[1].path) == there
    assert [place.name for place in series.places] == ["step10", "step1k"]


def test_offline_a_model_of_the_hub_comes_from_the_cache(tmp_path, monkeypatch):
    model = cached("main", "step10", "step1k")(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(model.parent))
    series = open_series("owner/tiny", downloads=tmp_path)
    assert series.source == "owner/tiny"
    assert series.steps == [10, 1000]
    with pytest.raises(CheckpointError, match=r"owner/other is not in the cache .* HF_HUB_OFFLINE"):
        open_series("owner/other", downloads=tmp_path)


def test_a_hub_that_cannot_be_reached_names_the_copy_in_the_cache(tmp_path, monkeypatch):
    from joma.scan.sources import hub

    def unreachable(self):
        raise CheckpointError(f"{self.repository}: the hub cannot be reached (ConnectError)")

    monkeypatch.setattr(hub.HubModel, "series", unreachable)
    monkeypatch.setenv("HF_HUB_CACHE", str(cached("main")(tmp_path).parent))
    with pytest.raises(CheckpointError, match="HF_HUB_OFFLINE=1 reads the copy in the cache"):
        open_series("owner/tiny", downloads=tmp_path)
    with pytest.raises(CheckpointError, match=r"reached \(ConnectError\)$"):
        open_series("owner/other", downloads=tmp_path)


def test_revisions_are_believed_up_to_their_limit(tmp_path, monkeypatch):
    model = cached("main", "step10", "step1k")(tmp_path)
    monkeypatch.setattr(places, "_MOST_REFS", 3)
    assert open_series(model, downloads=tmp_path).steps == [10, 1000]
    monkeypatch.setattr(places, "_MOST_REFS", 2)
    with pytest.raises(CheckpointError, match="refs holds more than 2 revisions"):
        open_series(model, downloads=tmp_path)


def test_a_pickle_is_not_run_to_learn_its_step(tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"model": WEIGHTS, "iter_num": 3, "x": Bomb()}, tmp_path / "ckpt.pt")
    series = open_series(tmp_path / "ckpt.pt", downloads=tmp_path)
    assert series.steps == [0]
    assert "not known" in series.notes[0]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("revisions", "steps", "epochs", "aside"), [
    (("main", "step10", "step1k", "step20-tokens1B"), [10, 20, 1000], [None] * 3, "main"),
    (("main", "epoch_1", "epoch_2"), [1, 2], [1, 2], "main"),
    (("stage1-step10", "stage1-step20", "stage2-ingredient1-step10"), [10, 20], [None] * 2,
     "stage2-ingredient1-step10"),
    (("step10", "epoch_1", "step20-final"), [10], [None], "epoch_1"),
    (("main", "v1.0"), [0], [None], None),
])  # fmt: skip
def test_revisions_of_the_hub(revisions, steps, epochs, aside, tmp_path, monkeypatch):
    from joma.scan.sources.hub import HubModel

    monkeypatch.setattr(HubModel, "_revisions", lambda self: dict.fromkeys(revisions, "a" * 40))
    series = open_series("owner/tiny", downloads=tmp_path)
    assert series.steps == steps
    assert series.epochs == epochs
    assert series.axis == ("epoch" if epochs == steps else "step")
    assert (aside in series.notes[0]) if aside else series.notes == ()


def test_so_many_folders_without_a_checkpoint_are_enough(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "_MOST_FOLDERS", 3)
    for name in ("a/b", "c"):
        (tmp_path / name).mkdir(parents=True)
    write(tmp_path / "c" / "run" / "step10.pt")
    with pytest.raises(CheckpointError, match="more than 3 folders hold no checkpoint; name the run itself"):
        open_series(tmp_path, downloads=tmp_path)
    monkeypatch.setattr(places, "_MOST_FOLDERS", 4)
    assert [place.step for place in open_series(tmp_path, downloads=tmp_path).places] == [10]


@pytest.mark.parametrize(
    ("name", "steps"),
    [("ckpt step {}.pt", [100, 200]), ("Step_{}.PT", [100, 200]), ("STEP{}.SAFETENSORS", [100, 200]),
     ("Step {}.Ckpt", [100, 200])],
)  # fmt: skip
def test_names_with_spaces_and_capitals(tmp_path, name, steps):
    """A series, one file of it, and what its tensors are."""
    for step in (100, 200):
        path = tmp_path / name.format(step)
        save_file(WEIGHTS, path) if path.suffix.lower() == ".safetensors" else torch.save(WEIGHTS, path)
    assert open_series(tmp_path, downloads=tmp_path).steps == steps
    (place,) = open_series(tmp_path / name.format(200), downloads=tmp_path).places
    assert place.step == 200
    with place.open() as checkpoint:
        assert sorted(checkpoint.names()) == sorted(WEIGHTS)
        assert torch.equal(checkpoint.read("h.1.mlp.c_fc.weight"), WEIGHTS["h.1.mlp.c_fc.weight"])
