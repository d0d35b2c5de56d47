"""Shards of FSDP, written by torch's own DTensor over processes that one process stands for (torch's "fake" group)."""

import math
import shutil

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from joma.scan import scan
from joma.scan.errors import CheckpointError
from joma.scan.sources.folder import LocalFile, LocalFolder

W = torch.arange(15.0).view(5, 3)  # of two parts the second has fewer rows, of four the last has none
PLACEMENTS = {"rows": (W, Shard(0)), "columns": (W.T.contiguous(), Shard(1)), "same": (W[:2] * 7, Replicate())}


def part(whole, placement, at, count):
    """What process `at` of `count` holds, by the rule of torch.chunk; past its end nothing."""
    if not isinstance(placement, Shard):
        return whole.clone()
    parts = list(torch.chunk(whole, count, placement.dim))
    shape = [0 if dim == placement.dim else size for dim, size in enumerate(whole.shape)]
    return parts[at].clone() if at < len(parts) else whole.new_zeros(shape)


def write(folder, tensors=PLACEMENTS, world=2, replicas=1):
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(world):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
        try:
            ranks = torch.arange(world) if replicas == 1 else torch.arange(world).view(replicas, -1)
            mesh, count = DeviceMesh("cpu", ranks), world // replicas
            made = {"plain": torch.ones(3), "step": 7}
            for name, (whole, placement) in tensors.items():
                local = part(whole, placement, rank % count, count)
                placements = [placement] if replicas == 1 else [Replicate(), placement]
                made[name] = DTensor.from_local(
                    local, mesh, placements, shape=whole.shape, stride=whole.stride(), run_check=False
                )
            torch.save(made, folder / f"model_world_size_{world}_rank_{rank}.pt")
        finally:
            dist.destroy_process_group()
    return LocalFolder(folder, 0)


@pytest.mark.parametrize(("world", "replicas"), [(1, 1), (2, 1), (4, 1), (4, 2)])
def test_every_weight_is_whole_again(tmp_path, world, replicas):
    with write(tmp_path, world=world, replicas=replicas).open() as checkpoint:
        assert set(checkpoint.names()) == {*PLACEMENTS, "plain"}
        for name, (whole, _) in PLACEMENTS.items():
            assert checkpoint.stored(name).shape == tuple(whole.shape)
            assert torch.equal(checkpoint.read(name), whole)
        assert torch.equal(checkpoint.read("rows[1:4]"), W[1:4])
        assert torch.equal(checkpoint.read("plain"), torch.ones(3))
        notes = () if world == 1 else (f"every weight was joined from {world} shards of FSDP",)
        assert checkpoint.notes() == notes


def test_a_series_of_verl_without_a_merged_model(tmp_path):
    """global_step_10/actor has shards, the config lies in its folder huggingface, optimizers are no weights."""
    w = torch.randn(24, 8, generator=torch.Generator().manual_seed(0))
    for step in (10, 20):
        actor = tmp_path / f"global_step_{step}" / "actor"
        write(actor, {"model.layers.0.mlp.up_proj.weight": (w * step, Shard(0))})
        for name in ("optim", "extra_state"):
            torch.save({"x": 1}, actor / f"{name}_world_size_2_rank_0.pt")
        (actor / "huggingface").mkdir()
        (actor / "huggingface" / "config.json").write_text('{"model_type": "llama"}')
    found = scan(tmp_path, measures="spectral_norm")
    true = float(torch.linalg.matrix_norm(w.double(), 2))
    assert found.steps == [10, 20]
    assert found.model_type == "llama"
    assert found.curves["spectral_norm/mlp"].values[:, 0].tolist() == pytest.approx([10 * true, 20 * true], rel=1e-5)
    assert "the weights are those in actor" in found.notes


@pytest.mark.parametrize("missing", [0, 1])
def test_a_shard_that_is_missing(tmp_path, missing):
    place = write(tmp_path)
    (tmp_path / f"model_world_size_2_rank_{missing}.pt").unlink()
    with pytest.raises(CheckpointError, match="holds 1 of 2 shards of FSDP; all of them are needed"):
        place.open()


def test_shards_of_two_runs_in_one_folder(tmp_path):
    write(tmp_path)
    with pytest.raises(CheckpointError, match="holds shards for 2 and 4 processes at once"):
        write(tmp_path, world=4).open()


def test_a_shard_of_another_checkpoint_is_refused(tmp_path):
    write(tmp_path / "other", {**PLACEMENTS, "rows": (torch.ones(7, 3), Shard(0))})
    place = write(tmp_path / "this")
    shutil.copy(tmp_path / "other" / "model_world_size_2_rank_1.pt", tmp_path / "this")
    with pytest.raises(CheckpointError, match="do not agree on how rows is cut"):
        place.open()


def test_shards_that_do_not_make_up_the_whole(tmp_path):
    shutil.copy(write(tmp_path).path / "model_world_size_2_rank_0.pt", tmp_path / "model_world_size_2_rank_1.pt")
    with pytest.raises(CheckpointError, match=r"do not make up rows \(5, 3\)"):
        LocalFolder(tmp_path, 0).open()


def test_tensors_that_are_cut_in_other_ways(tmp_path):
    with pytest.raises(CheckpointError, match="cuts rows in a way that is not of FSDP alone"):
        write(tmp_path, {"rows": (W, Partial())}).open()


@pytest.mark.parametrize("name", ["model_world_size_2_rank_0.pt", "other.pt"])
def test_one_shard_alone_is_no_checkpoint(tmp_path, name):
    shutil.copy(write(tmp_path).path / "model_world_size_2_rank_0.pt", tmp_path / "other.pt")
    with pytest.raises(CheckpointError, match=r"name the folder|one process's part of tensors \(DTensor\)"):
        LocalFile(tmp_path / name, 0).open()


def test_a_file_of_one_process_holds_all(tmp_path):
    write(tmp_path, world=1)
    with LocalFile(tmp_path / "model_world_size_1_rank_0.pt", 0).open() as checkpoint:
        assert torch.equal(checkpoint.read("rows"), W)
        assert math.prod(checkpoint.stored("rows").shape) == W.numel()
