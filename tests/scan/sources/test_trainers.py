"""What training programs write, from their public definitions: each is read, and what is read is what was saved.

The small generators below write the same files as the libraries do. Those of torchtune, OLMo, timm and diffusers were
compared once with what the libraries themselves write.
"""

import argparse
import io
import json
import shutil

import pytest
import torch
from checkpoint_series import scan
from format_files import dcp_saved, must_hold, notes_of, random, refusal, tensors_of
from safetensors.torch import save_file

from joma.host.errors import BadInput
from joma.runs import Run
from joma.scan import CheckpointError, open_series
from joma.scan.sources.folder import LocalFolder
from joma.scan.sources.series import mark_in, moment_in
from joma.scan.sweep.record import stored_scan


def found_in(path, **options):
    return open_series(path, downloads=path, **options)


def llama(seed=0, layers=2, width=8):
    """A Llama in the names of transformers."""
    shapes = {
        "self_attn.q_proj": (width, width), "self_attn.o_proj": (width, width),
        "mlp.gate_proj": (12, width), "mlp.up_proj": (12, width), "mlp.down_proj": (width, 12),
    }  # fmt: skip
    weights = {
        f"model.layers.{layer}.{name}.weight": random(*shape, seed=seed + 10 * layer + at)
        for layer in range(layers)
        for at, (name, shape) in enumerate(shapes.items())
    }
    return weights | {"model.embed_tokens.weight": random(16, width, seed=seed + 99)}


def shards(weights, count):
    names = list(weights)
    return [{name: weights[name] for name in names[at::count]} for at in range(count)]


# torchtune


def torchtune_files(folder, epochs=2, parts=2):
    """torchtune up to 0.3: the shards of every epoch side by side, in torch files, beside the state of the recipe."""
    folder.mkdir(parents=True)
    for epoch in range(epochs):
        for at, held in enumerate(shards(llama(seed=epoch), parts)):
            torch.save(held, folder / f"hf_model_{at + 1:04d}_{epoch}.pt")
        torch.save({"lora": random(2, 2)}, folder / f"adapter_{epoch}.pt")
    torch.save({"optimizer": {"state": {}}, "epochs_run": 1, "seed": 5}, folder / "recipe_state.pt")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return folder


def test_torchtune_with_shards_side_by_side(tmp_path):
    series = found_in(torchtune_files(tmp_path / "run"))
    assert (series.axis, series.steps) == ("epoch", [0, 1])
    for epoch, place in enumerate(series.places):
        must_hold(place, llama(seed=epoch))
    assert "adapter_0.pt, adapter_1.pt" in series.notes[0]
    assert series.places[0].identity() != series.places[1].identity()
    assert "cannot be run" in refusal(series.places[0].folder().__enter__)


def test_a_shard_that_is_missing_is_a_fault_of_its_epoch(tmp_path):
    folder = torchtune_files(tmp_path / "run", parts=3)
    (folder / "hf_model_0002_1.pt").unlink()
    status, found = scan(folder, out=tmp_path / "out")
    assert (status, found["steps"], found["axis"]) == (3, [0], "epoch")
    assert "hf_model_0002_1.pt is missing" in found["left_out"][0]["what"]


def test_torchtune_in_the_names_of_meta(tmp_path):
    for epoch in range(2):
        torch.save({"layers.0.feed_forward.w1.weight": random(4, 4, seed=epoch)}, tmp_path / f"meta_model_{epoch}.pt")
    torch.save({"epochs_run": 1}, tmp_path / "recipe_state.pt")
    series = found_in(tmp_path)
    assert (series.axis, series.steps) == ("epoch", [0, 1])
    must_hold(series.places[1], {"layers.0.feed_forward.w1.weight": random(4, 4, seed=1)})


def test_torchtune_with_folders(tmp_path):
    """torchtune since 0.4: a folder per epoch with shards and their index, the state of the recipe beside them."""
    for epoch in range(2):
        folder = tmp_path / f"epoch_{epoch}"
        folder.mkdir()
        places = {}
        for at, held in enumerate(shards(llama(seed=epoch), 2)):
            file = f"model-{at + 1:05d}-of-00002.safetensors"
            save_file(held, folder / file, metadata={"format": "pt"})
            places |= dict.fromkeys(held, file)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (tmp_path / "recipe_state").mkdir()
    torch.save({"epochs_run": 1}, tmp_path / "recipe_state" / "recipe_state.pt")
    series = found_in(tmp_path)
    assert (series.axis, series.steps) == ("epoch", [0, 1])
    must_hold(series.places[1], llama(seed=1))


# OLMo


def olmo(width=8):
    """A layer in the names of OLMo's own code: the MLP has its up projection above its gate."""
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
    """timm's CheckpointSaver: weights beside the optimizer and the options of the script, in a torch file."""
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


def test_diffusers_in_shards(tmp_path):
    weights = pipeline(tmp_path)
    places = {}
    (tmp_path / "transformer" / "diffusion_pytorch_model.safetensors").unlink()
    for at, held in enumerate(shards(weights, 2)):
        file = f"diffusion_pytorch_model-{at + 1:05d}-of-00002.safetensors"
        save_file(held, tmp_path / "transformer" / file)
        places |= dict.fromkeys(held, file)
    index = tmp_path / "transformer" / "diffusion_pytorch_model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    must_hold(LocalFolder(tmp_path, 0), weights)


def verl(folder, *, merged=True):
    """verl: an actor and perhaps a critic, each in shards of FSDP; the model for transformers inside, if asked for."""
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
    verl(tmp_path / "global_step_10", merged=False)
    sentence = refusal(found_in(tmp_path / "global_step_10").places[0].open)
    assert "1 shard of FSDP as verl writes them; merge them with its tool" in sentence


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


# Megatron


def megatron(seed=0, width=8, wide=12):
    """Two layers of Megatron-Core with a gate, as one process would hold them."""
    found = {}
    for layer in range(2):
        at = f"decoder.layers.{layer}"
        found |= {
            f"{at}.self_attention.linear_qkv.weight": random(3 * width, width, seed=seed + layer),
            f"{at}.self_attention.linear_proj.weight": random(width, width, seed=seed + layer + 10),
            f"{at}.mlp.linear_fc1.weight": random(2 * wide, width, seed=seed + layer + 20),
            f"{at}.mlp.linear_fc2.weight": random(width, wide, seed=seed + layer + 30),
            f"{at}.mlp.linear_fc1.layer_norm_weight": random(width, seed=seed + layer + 40),
        }
    found["embedding.word_embeddings.weight"] = random(16, width, seed=seed + 50)
    found["output_layer.weight"] = random(16, width, seed=seed + 60)
    return found


def rank_of(name, value, rank, ranks):
    """What one rank of tensor parallelism holds: Megatron's column-parallel layers by rows, row-parallel by columns."""
    if name.endswith("linear_fc1.weight"):  # of the gate and of the up projection, each its share
        return torch.cat([half.chunk(ranks)[rank] for half in value.chunk(2)])
    if name.endswith(("linear_proj.weight", "linear_fc2.weight")):
        return value.chunk(ranks, 1)[rank].clone()
    return value if "layer_norm" in name else value.chunk(ranks)[rank].clone()


def megatron_folder(folder, ranks, weights, iteration):
    for rank in range(ranks):
        (folder / f"mp_rank_{rank:02d}").mkdir(parents=True)
        held = {name: rank_of(name, value, rank, ranks) for name, value in weights.items()}
        held["decoder.layers.0.self_attention.linear_qkv._extra_state"] = io.BytesIO(b"state of a kernel")
        content = {"model": held, "args": argparse.Namespace(tensor_model_parallel_size=ranks), "iteration": iteration}
        content |= {"checkpoint_version": 3.0, "optimizer": {"param_groups": []}}
        torch.save(content, folder / f"mp_rank_{rank:02d}" / "model_optim_rng.pt")


@pytest.mark.parametrize("ranks", [2, 4])
def test_megatron_with_tensor_parallelism(ranks, tmp_path):
    megatron_folder(tmp_path / "iter_0000100", ranks, megatron(), 100)
    megatron_folder(tmp_path / "iter_0000200", ranks, megatron(seed=1000), 200)
    series = found_in(tmp_path)
    assert series.steps == [100, 200]
    must_hold(series.places[0], megatron())
    assert notes_of(series.places[0]) == (f"every weight was joined from {ranks} tensor-parallel files (mp_rank_*/)",)
    before = series.places[0].identity()
    status, found = scan(tmp_path, "--strict", "--measures", "stable_rank,coherence", out=tmp_path / "out")
    assert status == 0
    assert found["coverage"]["mlp_gate"] == {"layers": 2, "of": 2}
    (tmp_path / "iter_0000100" / "mp_rank_01" / "model_optim_rng.pt").write_bytes(b"")
    assert series.places[0].identity() != before


def test_megatron_that_lacks_a_part_or_has_a_pipeline(tmp_path):
    megatron_folder(tmp_path / "a", 3, {"decoder.layers.0.mlp.linear_fc2.weight": random(8, 12)}, 1)
    shutil.rmtree(tmp_path / "a" / "mp_rank_01")
    assert "lacks part 1" in refusal(LocalFolder(tmp_path / "a", 0).open)
    for stage in range(2):
        (tmp_path / "b" / f"mp_rank_00_{stage:03d}").mkdir(parents=True)
        torch.save({"model": {}}, tmp_path / "b" / f"mp_rank_00_{stage:03d}" / "model_optim_rng.pt")
    assert "cut by more than tensor parallelism; convert it" in refusal(LocalFolder(tmp_path / "b", 0).open)


def test_megatron_core_with_all_layers_in_one_tensor(tmp_path):
    """The format torch_dist: a distributed checkpoint of torch, with all layers in tensors of one more dimension."""
    weights = megatron()
    stacked = {}
    for name in weights:
        if ".layers.0." in name:
            both = [weights[name], weights[name.replace(".0.", ".1.")]]
            stacked[name.replace(".layers.0.", ".layers.")] = torch.stack(both)
        elif ".layers." not in name:
            stacked[name] = weights[name]
    state = stacked | {"optimizer.state.exp_avg.decoder.layers.mlp.linear_fc1.weight": random(2, 24, 8)}
    folder = dcp_saved(tmp_path / "iter_0000100", state)
    torch.save({"iteration": 100, "args": argparse.Namespace(x=1)}, folder / "common.pt")
    (folder / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    (place,) = found_in(tmp_path).places
    found = tensors_of(place)
    assert {name: found.pop(name) for name in list(found) if name.startswith("optimizer")}
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], value) for name, value in weights.items())
    with place.open() as checkpoint:
        name = "decoder.layers.1.mlp.linear_fc1.weight"
        assert torch.equal(checkpoint.read_rows(name, 3, 7), weights[name][3:7])
        assert torch.equal(checkpoint.read(f"{name}[2:4]"), weights[name][2:4])
        assert "10 tensors were read from tensors that hold all layers (Megatron-Core)" in checkpoint.notes()
    status, found = scan(tmp_path, "--strict", out=tmp_path / "out")
    assert status == 0
    assert [row["layer"] for row in found["curves"]["stable_rank/mlp"]["rows"]] == [0, 1]


def test_experts_of_all_layers_in_one_tensor(tmp_path):
    up, down = random(2, 3, 24, 8), random(2, 3, 8, 12, seed=1)
    at = "decoder.layers.mlp.experts.experts"
    folder = dcp_saved(tmp_path / "a", {f"{at}.linear_fc1.weight": up, f"{at}.linear_fc2.weight": down})
    found = tensors_of(LocalFolder(folder, 0))
    assert torch.equal(found["decoder.layers.1.mlp.experts.linear_fc1.weight"], up[1])
    _, scanned = scan(folder, out=tmp_path / "out")
    rows = [(row["layer"], row["expert"]) for row in scanned["curves"]["stable_rank/mlp_experts_gate"]["rows"]]
    assert rows == [(layer, expert) for layer in range(2) for expert in range(3)]


def test_what_is_no_stack_beside_stacks_keeps_its_name(tmp_path):
    at = "decoder.layers"
    state = {f"{at}.mlp.linear_fc1.weight": random(2, 4, 4), f"{at}.rotary.inv_freq": random(5)}
    found = tensors_of(LocalFolder(dcp_saved(tmp_path / "a", state), 0))
    assert torch.equal(found["decoder.layers.rotary.inv_freq"], random(5))
    assert set(found) == {f"{at}.rotary.inv_freq", *(f"{at}.{layer}.mlp.linear_fc1.weight" for layer in range(2))}


def test_layers_that_do_not_agree_on_their_number(tmp_path):
    at = "decoder.layers"
    state = {f"{at}.mlp.linear_fc1.weight": random(2, 4, 4), f"{at}.self_attention.linear_qkv.weight": random(3, 4, 4)}
    assert "does not hold all layers of one model" in refusal(LocalFolder(dcp_saved(tmp_path / "a", state), 0).open)


# Llama as it was published


@pytest.mark.parametrize("by", ["columns", "rows"])
def test_embeddings_of_llama_are_joined_by_what_its_norm_says(by, tmp_path):
    """Llama 1 and 2 cut their embeddings by columns (fairscale's ParallelEmbedding), Llama 3 by rows."""
    whole = random(16, 8)
    for rank in range(2):
        held = {"tok_embeddings.weight": whole.chunk(2, int(by == "columns"))[rank].clone(), "norm.weight": random(8)}
        held["layers.0.feed_forward.w1.weight"] = random(12, 8, seed=1).chunk(2)[rank].clone()
        held["layers.0.feed_forward.w2.weight"] = random(8, 12, seed=2).chunk(2, 1)[rank].clone()
        torch.save(held, tmp_path / f"consolidated.{rank:02d}.pth")
    assert torch.equal(tensors_of(LocalFolder(tmp_path, 0))["tok_embeddings.weight"], whole)
    status, found = scan(tmp_path, "--measures", "stable_rank,coherence", out=tmp_path / "out")
    assert (status, "coherence/embedding" in found["curves"]) == (0, True)


def test_a_measure_that_cannot_be_had_costs_only_itself(tmp_path):
    for rank in range(2):
        held = {"tok_embeddings.weight": random(16, 4), "layers.0.feed_forward.w1.weight": random(6, 8, seed=1)}
        held["layers.0.feed_forward.w2.weight"] = random(8, 6, seed=2)
        torch.save(held, tmp_path / f"consolidated.{rank:02d}.pth")
    status, found = scan(tmp_path, "--measures", "stable_rank,coherence", out=tmp_path / "out")
    assert status == 3
    assert {"stable_rank/mlp", "stable_rank/mlp_down"} == set(found["curves"])
    assert [(fault["measure"], fault["tensor"]) for fault in found["left_out"]] == [
        ("coherence/embedding", "tok_embeddings.weight")
    ]
    assert "how they join is not known" in found["left_out"][0]["what"]


# Moments


def named(folder, *names):
    for name in names:
        (folder / name).mkdir(parents=True)
        save_file(llama(), folder / name / "model.safetensors")
    return folder


def test_epochs_with_fractions(tmp_path):
    series = found_in(named(tmp_path, "epoch_0.5", "epoch_1", "epoch_1.25"))
    assert (series.axis, series.steps, series.epochs) == ("milliepoch", [500, 1000, 1250], [None, 1, None])
    assert series.notes == ("epochs have fractions here, so they are counted in parts of 1,000: milliepochs",)
    status, found = scan(tmp_path, "--keep-suspicious", out=tmp_path / "out")
    assert (status, found["axis"], found["steps"]) == (0, "milliepoch", [500, 1000, 1250])
    assert moment_in("epoch_3.2024").epoch is None
    assert moment_in("epoch=0.5-step=70").step == 70


@pytest.mark.parametrize(
    ("axis", "names", "steps"),
    [
        ("tokens", ["tokens_100M", "1.5B_tokens", "tokens=4B"], [100_000_000, 1_500_000_000, 4_000_000_000]),
        ("tokens", ["step9-tokens1B", "step3-tokens2B"], [10**9, 2 * 10**9]),
        ("date", ["2026-05-02", "20260501", "run_2026-05-01T12-30-00"], [1777593600, 1777638600, 1777680000]),
    ],
)
def test_folders_by_tokens_and_by_date(axis, names, steps, tmp_path):
    folder = named(tmp_path / "run", *names, "final")
    series = found_in(folder, axis=axis)
    assert (series.axis, series.steps) == (axis, steps)
    assert "final" in series.notes[0]
    status, found = scan(folder, "--axis", axis, "--keep-suspicious", "--steps", f"{steps[0]}:", out=tmp_path / "out")
    assert (status, found["axis"], found["steps"]) == (0, axis, steps)
    with Run.open(found["run"]) as run:
        assert (stored_scan(run).axis, stored_scan(run).steps) == (axis, steps)


def test_two_axes_of_one_folder_do_not_share_a_run(tmp_path):
    folder = named(tmp_path / "run", "step9-tokens1B", "step3-tokens2T")
    by_step = scan(folder, "--keep-suspicious", out=tmp_path / "out")[1]
    by_tokens = scan(folder, "--keep-suspicious", "--axis", "tokens", out=tmp_path / "out")[1]
    assert (by_step["steps"], by_tokens["steps"]) == ([3, 9], [10**9, 2 * 10**12])
    assert by_step["run"] != by_tokens["run"]


def test_an_axis_that_the_names_do_not_speak_of(tmp_path):
    folder = named(tmp_path, "step1", "step2")
    for axis, sentence in (("tokens", "no checkpoint that is named by tokens"), ("epoch", "is ordered by step"),
                           ("pages", "axis must be one of step, epoch, tokens, date")):  # fmt: skip
        with pytest.raises(BadInput, match=sentence) as caught:
            found_in(folder, axis=axis)
        assert caught.value.argument == "axis"
    assert found_in(folder, axis="step").steps == [1, 2]
    with pytest.raises(BadInput, match="is for folders on this machine"):
        open_series("owner/name", downloads=tmp_path, axis="date")


@pytest.mark.parametrize(
    "name", ["2026-13-01", "2026-05-011", "tokens", "12tokens34", "tokens1.5", "1B_tokens-2B_tokens"]
)
def test_names_without_one_mark(name):
    assert mark_in(name, "tokens") is None
    assert mark_in(name, "date") is None
