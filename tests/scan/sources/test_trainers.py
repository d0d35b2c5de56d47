"""What OLMo, timm, diffusers, verl and DeepSpeed under Lightning write, from their public definitions.

The small generators below write the same files as the libraries do. Those of OLMo, timm and diffusers were compared
once with what the libraries themselves write. Each is read, and what is read is what was saved.
"""

import argparse
import shutil

import pytest
import torch
from checkpoint_series import scan
from format_files import must_hold, notes_of, random, tensors_of
from safetensors.torch import save_file
from trainer_files import found_in, llama

from joma.scan import CheckpointError

# OLMo


def olmo(width=8):
    return {
        "transformer.blocks.0.att_proj.weight": random(3 * width, width),
        "transformer.blocks.0.attn_out.weight": random(width, width, seed=1),
        "transformer.blocks.0.ff_proj.weight": random(24, width, seed=2),
        "transformer.blocks.0.ff_out.weight": random(width, 12, seed=3),
        "transformer.wte.weight": random(16, width, seed=4),
    }


def olmo_unsharded(folder):
    folder.mkdir(parents=True)
    torch.save(olmo(), folder / "model.pt")
    torch.save({"state": {"transformer.blocks.0.ff_proj.weight": {"exp_avg": random(24, 8)}}}, folder / "optim.pt")
    torch.save({"epoch": 0, "global_step": 100}, folder / "train.pt")
    (folder / "config.yaml").write_text("model: {}\n")
    return folder


def test_olmo_unsharded(tmp_path):
    olmo_unsharded(tmp_path / "step100-unsharded")
    olmo_unsharded(tmp_path / "step200-unsharded")
    series = found_in(tmp_path)
    assert series.steps == [100, 200]
    must_hold(series.places[0], olmo())
    must_hold(found_in(tmp_path / "step100-unsharded").places[0], olmo())
    status, found = scan(tmp_path, "--strict", "--keep-suspicious", out=tmp_path / "out")
    assert status == 0
    groups = {"mlp", "mlp_gate", "mlp_down", "attention_qkv", "attention_o"}
    assert {name.partition("/")[2] for name in found["curves"]} == groups


def test_the_gate_of_olmo_is_the_second_half(tmp_path):
    """Its SwiGLU is `x, gate = x.chunk(2); silu(gate) * x`."""
    torch.save(olmo(), tmp_path / "step1.pt")
    _, found = scan(tmp_path / "step1.pt", out=tmp_path / "out")
    halves = olmo()["transformer.blocks.0.ff_proj.weight"].double().chunk(2)
    for group, half in zip(("mlp", "mlp_gate"), halves, strict=True):
        singular = torch.linalg.svdvals(half)
        expected = float((singular**2).sum() / singular[0] ** 2)
        assert found["curves"][f"stable_rank/{group}"]["values"][0][0][0] == pytest.approx(expected, rel=1e-4)


# timm


def timm_file(path, epoch):
    weights = {"blocks.0.mlp.fc1.weight": random(8, 4, seed=epoch), "blocks.0.mlp.fc2.weight": random(4, 8)}
    options = argparse.Namespace(model="vit_tiny_patch16_224", lr=0.1)
    content = {
        "epoch": epoch,
        "arch": "vit_tiny",
        "state_dict": weights,
        "optimizer": {"state": {}, "param_groups": []},
    }
    torch.save(content | {"version": 2, "args": options, "metric": 7.5}, path)


def test_timm(tmp_path):
    for epoch in (0, 1, 10):
        timm_file(tmp_path / f"checkpoint-{epoch}.pth.tar", epoch)
    shutil.copy(tmp_path / "checkpoint-10.pth.tar", tmp_path / "last.pth.tar")
    shutil.copy(tmp_path / "checkpoint-1.pth.tar", tmp_path / "model_best.pth.tar")
    series = found_in(tmp_path)
    assert (series.axis, series.steps) == ("epoch", [0, 1, 10])
    assert all(name in series.notes[0] for name in ("last", "model_best"))
    assert torch.equal(tensors_of(series.places[1])["state_dict.blocks.0.mlp.fc1.weight"], random(8, 4, seed=1))
    one = found_in(tmp_path / "last.pth.tar")
    assert (one.axis, one.steps) == ("epoch", [10])
    _, found = scan(tmp_path, "--measures", "stable_rank", out=tmp_path / "out")
    assert found["steps"] == [0, 1, 10]


# Weights a level or two down


def pipeline(folder, part="transformer"):
    """diffusers: a folder per part of a pipeline. The names of a block are those of its transformers and UNets."""
    weights = {
        "transformer_blocks.0.attn1.to_q.weight": random(8, 8),
        "transformer_blocks.0.attn1.to_out.0.weight": random(8, 8, seed=1),
        "transformer_blocks.0.attn2.to_k.weight": random(8, 6, seed=2),
        "transformer_blocks.0.ff.net.0.proj.weight": random(32, 8, seed=3),
        "transformer_blocks.0.ff.net.2.weight": random(8, 16, seed=4),
    }
    for name, held in ((part, weights), ("vae", {"encoder.conv_in.weight": random(4, 3, 3, 3)})):
        (folder / name).mkdir(parents=True)
        save_file(held, folder / name / "diffusion_pytorch_model.safetensors")
        (folder / name / "config.json").write_text('{"_class_name": "Thing"}')
    (folder / "text_encoder").mkdir()
    save_file({"text.weight": random(3, 3)}, folder / "text_encoder" / "model.safetensors")
    (folder / "model_index.json").write_text("{}")
    return weights


@pytest.mark.parametrize("part", ["transformer", "unet"])
def test_diffusers(part, tmp_path):
    weights = pipeline(tmp_path / "pipe", part)
    (place,) = found_in(tmp_path / "pipe").places
    must_hold(place, weights)
    assert notes_of(place) == (f"the weights are those in {part}",)
    status, found = scan(tmp_path / "pipe", "--strict", out=tmp_path / "out")
    assert status == 0
    groups = {"attention_q", "attention_o", "cross_attention_k", "mlp_gate_up", "mlp_down"}
    assert {name.partition("/")[2] for name in found["curves"]} == groups
    pipeline(tmp_path / "steps" / "checkpoint-10", part)
    torch.save({}, tmp_path / "steps" / "checkpoint-10" / "optimizer.bin")
    pipeline(tmp_path / "steps" / "checkpoint-20", part)
    series = found_in(tmp_path / "steps")
    assert series.steps == [10, 20]
    must_hold(series.places[0], weights)


def verl(folder, *, merged=True):
    (folder / "actor" / "huggingface").mkdir(parents=True)
    (folder / "actor" / "huggingface" / "config.json").write_text('{"model_type": "llama"}')
    torch.save({"x": random(2)}, folder / "actor" / "model_world_size_1_rank_0.pt")
    torch.save({"x": random(2)}, folder / "actor" / "optim_world_size_1_rank_0.pt")
    torch.save({"x": random(2)}, folder / "actor" / "extra_state_world_size_1_rank_0.pt")
    torch.save({"x": 1}, folder / "data.json.unused")
    if merged:
        save_file(llama(), folder / "actor" / "huggingface" / "model.safetensors")


def test_verl(tmp_path):
    verl(tmp_path / "global_step_10")
    verl(tmp_path / "global_step_20")
    series = found_in(tmp_path)
    assert series.steps == [10, 20]
    must_hold(series.places[1], llama())
    assert notes_of(series.places[1]) == ("the weights are those in actor/huggingface",)
    assert series.places[1].config() == {"model_type": "llama"}
    with series.places[1].folder() as folder:
        assert folder == tmp_path / "global_step_20" / "actor" / "huggingface"
    must_hold(found_in(tmp_path / "global_step_10").places[0], llama())


def test_verl_without_a_merged_model(tmp_path):
    """Shards of several processes: tests/scan/formats/test_fsdp.py."""
    verl(tmp_path / "global_step_10", merged=False)
    must_hold(found_in(tmp_path / "global_step_10").places[0], {"x": random(2)})


def test_deepspeed_under_lightning(tmp_path):
    for step in (10, 20):
        inside = tmp_path / f"epoch=0-step={step}.ckpt" / "checkpoint"
        inside.mkdir(parents=True)
        torch.save({"module": {"w": random(3, 2, seed=step)}}, inside / "mp_rank_00_model_states.pt")
        torch.save({"optimizer_state_dict": {}}, inside / "zero_pp_rank_0_mp_rank_00_optim_states.pt")
        (inside.parent / "latest").write_text("checkpoint")
    series = found_in(tmp_path)
    assert (series.steps, series.epochs) == ([10, 20], [0, 0])
    must_hold(series.places[1], {"w": random(3, 2, seed=20)})


def test_a_folder_of_that_name_with_a_series_in_it_is_a_series(tmp_path):
    (tmp_path / "checkpoint").mkdir()
    for step in (1, 2):
        save_file(llama(), tmp_path / "checkpoint" / f"step{step}.safetensors")
    assert found_in(tmp_path).steps == [1, 2]


def test_two_models_inside_are_not_guessed_between(tmp_path):
    pipeline(tmp_path, "transformer")
    shutil.copytree(tmp_path / "transformer", tmp_path / "unet")
    with pytest.raises(CheckpointError, match="holds"):
        found_in(tmp_path)
