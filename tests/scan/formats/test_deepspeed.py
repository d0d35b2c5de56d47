"""Folders of DeepSpeed, GPT-NeoX and other programs that cut weights: joined right, or refused."""

import argparse
import sys
import types
from collections import OrderedDict

import pytest
import torch
from format_files import dcp_saved, must_hold, notes_of, random, refusal, tensors_of

from joma.scan.sources.folder import LocalFile, LocalFolder

UP = "layers.{}.mlp.dense_h_to_4h.weight"


def block(seed, hidden=8):
    shapes = {
        "attention.query_key_value.weight": (3 * hidden, hidden),
        "attention.query_key_value.bias": (3 * hidden,),
        "attention.dense.weight": (hidden, hidden),
        "attention.dense.bias": (hidden,),
        "mlp.dense_h_to_4h.weight": (4 * hidden, hidden),
        "mlp.dense_4h_to_h.weight": (hidden, 4 * hidden),
        "input_layernorm.weight": (hidden,),
    }
    return {name: random(*shape, seed=seed + at) for at, (name, shape) in enumerate(shapes.items())}


def cut(weights, parts):
    columns = ("attention.dense.weight", "dense_4h_to_h.weight")
    same = ("layernorm.weight", "attention.dense.bias")
    found = [{} for _ in range(parts)]
    for name, value in weights.items():
        pieces = [value] * parts if name.endswith(same) else value.chunk(parts, int(name.endswith(columns)))
        for rank, piece in enumerate(pieces):
            found[rank][name] = piece.clone()
    return found


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_deepspeed_model_states(tmp_path, parts):
    weights = {f"layers.{layer}.{name}": value for layer in range(2) for name, value in block(10 * layer).items()}
    weights["word_embeddings.weight"] = random(16, 8, seed=99)
    for rank, held in enumerate(cut(weights, parts)):
        content = {"module": held, "ds_version": "0.16.0", "global_steps": 7, "args": argparse.Namespace(x=1)}
        torch.save(content, tmp_path / f"mp_rank_{rank:02d}_model_states.pt")
    optimizer = {"optimizer_state_dict": {"exp_avg": random(5)}}
    torch.save(optimizer, tmp_path / "zero_pp_rank_0_mp_rank_00_optim_states.pt")  # of ZeRO stages 1 and 2: left aside
    must_hold(LocalFolder(tmp_path, 0), weights)
    with LocalFolder(tmp_path, 0).open() as checkpoint:
        assert all(torch.equal(checkpoint.read_rows(name, 1, 5), value[1:5]) for name, value in weights.items())
    said = notes_of(LocalFolder(tmp_path, 0))
    assert said == () if parts == 1 else f"joined from {parts} tensor-parallel files" in said[0]
    if parts == 1:
        file = LocalFile(tmp_path / "mp_rank_00_model_states.pt", 0)
        assert torch.equal(tensors_of(file)[f"module.{UP.format(1)}"], weights[UP.format(1)])
        return
    assert "name the folder" in refusal(LocalFile(tmp_path / "mp_rank_00_model_states.pt", 0).open)
    (tmp_path / "mp_rank_00_model_states.pt").unlink()
    assert "lacks part 0" in refusal(LocalFolder(tmp_path, 0).open)


def test_a_part_whose_rule_is_not_known_is_refused_and_the_others_are_read(tmp_path):
    for rank in range(2):
        held = {"strange.weight": random(4, 4, seed=rank), "mlp.dense_h_to_4h.weight": random(4, 4, seed=rank)}
        torch.save({"module": held}, tmp_path / f"mp_rank_{rank:02d}_model_states.pt")
    with LocalFolder(tmp_path, 0).open() as checkpoint:
        assert checkpoint.read("mlp.dense_h_to_4h.weight").shape == (8, 4)
        assert "how they join is not known; convert" in refusal(lambda: checkpoint.read("strange.weight"))
    torch.save({"module": {"mlp.dense_h_to_4h.weight": random(4, 5)}}, tmp_path / "mp_rank_01_model_states.pt")
    assert "do not fit together" in refusal(LocalFolder(tmp_path, 0).open)


def test_gate_and_up_in_one_tensor_are_joined_apart(tmp_path):
    """Each rank holds a piece of both; the halves of what is joined are the whole gate and the whole up projection."""
    gate, up, back = random(8, 6), random(8, 6, seed=1), random(6, 8, seed=2)
    for rank in range(2):
        rows = slice(4 * rank, 4 * rank + 4)
        held = {
            "mlp.linear_fc1.weight": torch.cat([gate[rows], up[rows]]),
            "mlp.linear_fc2.weight": back[:, rows].clone(),
        }
        torch.save({"module": held}, tmp_path / f"mp_rank_{rank:02d}_model_states.pt")
    must_hold(LocalFolder(tmp_path, 0), {"mlp.linear_fc1.weight": torch.cat([gate, up]), "mlp.linear_fc2.weight": back})


@pytest.mark.parametrize("inside", ["global_step7", "pytorch_model_fsdp_0"])
def test_weights_in_a_folder_of_their_own_inside_a_checkpoint(tmp_path, inside):
    """As trainers of transformers and accelerate leave them, beside files that are no weights."""
    if inside == "global_step7":
        (tmp_path / inside).mkdir()
        torch.save({"module": {"w": random(3, 2)}}, tmp_path / inside / "mp_rank_00_model_states.pt")
    else:
        dcp_saved(tmp_path / inside, {"w": random(3, 2)})
        dcp_saved(tmp_path / "optimizer_0", {"state": random(3)})
    torch.save({"x": 1}, tmp_path / "scheduler.pt")
    (tmp_path / "trainer_state.json").write_text("{}")
    place = LocalFolder(tmp_path, 0)
    before = place.identity()
    must_hold(place, {"w": random(3, 2)})
    assert inside == "global_step7" or "__0_0.distcp" in before


def test_llama_as_it_was_first_published(tmp_path):
    weights = {"layers.0.attention.wq.weight": random(8, 8), "layers.0.attention.wo.weight": random(8, 8, seed=1)}
    weights |= {
        "layers.0.feed_forward.w1.weight": random(12, 8, seed=2),
        "layers.0.feed_forward.w2.weight": random(8, 12),
    }
    weights["norm.weight"] = random(8)
    for rank in range(2):
        held = {
            name: value.chunk(2, int(name.endswith(("wo.weight", "w2.weight"))))[rank]
            for name, value in weights.items()
        }
        held |= {"norm.weight": weights["norm.weight"]}
        torch.save({name: value.clone() for name, value in held.items()}, tmp_path / f"consolidated.{rank:02d}.pth")
    must_hold(LocalFolder(tmp_path, 0), weights)
    assert "name the folder" in refusal(LocalFile(tmp_path / "consolidated.01.pth", 0).open)
    (tmp_path / "consolidated.00.pth").unlink()
    assert "lacks part 0" in refusal(LocalFolder(tmp_path, 0).open)


def test_megatron_in_one_part_and_in_several(tmp_path):
    for rank in range(2):
        (tmp_path / f"mp_rank_{rank:02d}").mkdir()
        content = {"model": {"w": random(3, 2)}, "args": argparse.Namespace(x=1), "iteration": 7}
        torch.save(content, tmp_path / f"mp_rank_{rank:02d}" / "model_optim_rng.pt")
        if rank == 0:
            must_hold(LocalFolder(tmp_path, 0), {"model.w": random(3, 2)})
    assert "how they join is not known" in refusal(lambda: tensors_of(LocalFolder(tmp_path, 0)))


def test_model_states_without_weights_point_to_the_layers(tmp_path):
    torch.save({"module": None, "ds_version": "0.3"}, tmp_path / "mp_rank_00_model_states.pt")
    assert "layer_* files" in refusal(LocalFolder(tmp_path, 0).open)


@pytest.mark.parametrize("parts", [1, 2])
def test_neox_layers(tmp_path, parts):
    """The first and the last files of a pipeline are no blocks; blocks are counted from 0."""
    layers = {0: {"word_embeddings.weight": random(16, 8)}, 2: block(10), 3: block(20), 5: {"norm.weight": random(8)}}
    layers[6] = {"final_linear.weight": random(16, 8, seed=7)}
    for layer, weights in layers.items():
        ranks = [weights] * parts if layer == 5 else cut(weights, parts)
        for rank, held in enumerate(ranks):
            torch.save(held, tmp_path / f"layer_{layer:02d}-model_{rank:02d}-model_states.pt")
    torch.save({"module": None}, tmp_path / "mp_rank_00_model_states.pt")
    expected = {f"layers.{at}.{name}": value for at in (0, 1) for name, value in layers[at + 2].items()}
    expected["layer_00.word_embeddings.weight"] = random(16, 8)
    expected |= {"layer_05.norm.weight": random(8), "layer_06.final_linear.weight": random(16, 8, seed=7)}
    must_hold(LocalFolder(tmp_path, 0), expected)
    if parts == 2:
        (tmp_path / "layer_03-model_01-model_states.pt").unlink()
        assert "does not hold 2 parts of every layer" in refusal(LocalFolder(tmp_path, 0).open)


def fake_deepspeed(monkeypatch):
    """The two classes that DeepSpeed pickles into its states, as the module that would define them."""
    module = types.ModuleType("deepspeed.runtime.fp16.loss_scaler")
    scaler = type("LossScaler", (), {"__module__": module.__name__})
    module.LossScaler = scaler
    for name in ("deepspeed", "deepspeed.runtime", "deepspeed.runtime.fp16"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    made = scaler()
    made.cur_scale = 65536.0
    return made


def sliced(value, ranks):
    numbers = value.reshape(-1)
    length = -(-len(numbers) // ranks)
    return torch.cat([numbers, torch.zeros(length * ranks - len(numbers))]).split(length)


def save_zero3(folder, weights, ranks, scaler=None, groups=1, frozen=None):
    """As DeepSpeed lays them out: a slice of every weight per rank, filled up, one after the other in flat groups."""
    names = list(weights)
    cutoff = -(-len(names) // groups)
    grouped = [names[at : at + cutoff] for at in range(0, len(names), cutoff)]
    for rank in range(ranks):
        flat = []
        for group in grouped:
            slices = [sliced(weights[name], ranks)[rank] for name in group]
            flat.append(torch.cat(slices))
        state = {"zero_stage": 3, "partition_count": ranks, "loss_scaler": scaler, "fp32_flat_groups": flat}
        beginning = f"zero_pp_rank_{rank}_mp_rank_00"
        torch.save({"optimizer_state_dict": state, "ds_version": "0.16"}, folder / f"bf16_{beginning}_optim_states.pt")
        shapes = [OrderedDict((name, weights[name].shape) for name in group) for group in grouped]
        empty = {name: torch.empty(0) for name in weights}
        content = {"module": empty, "param_shapes": shapes, "buffer_names": []}
        held = {name: sliced(value, ranks)[rank].clone() for name, value in (frozen or {}).items()}
        waiting = {name: value.shape for name, value in (frozen or {}).items()}
        content |= {"frozen_param_shapes": waiting or None, "frozen_param_fragments": held or None}
        torch.save(content, folder / f"{beginning}_model_states.pt")


@pytest.mark.parametrize(("ranks", "groups"), [(1, 1), (2, 1), (3, 2)])
def test_zero_stage_3(tmp_path, monkeypatch, ranks, groups):
    scaler = fake_deepspeed(monkeypatch)
    weights = {f"model.layers.{at}.mlp.up_proj.weight": random(5, 3 + at, seed=at) for at in range(4)}
    weights["model.norm.weight"] = random(7)
    frozen = {"model.embed_tokens.weight": random(7, 3, seed=9)}
    save_zero3(tmp_path, weights, ranks, scaler, groups, frozen)
    for name in list(sys.modules):
        if name.startswith("deepspeed"):
            monkeypatch.delitem(sys.modules, name)
    must_hold(LocalFolder(tmp_path, 0), weights | frozen)
    assert "32-bit ones of the optimizer" in notes_of(LocalFolder(tmp_path, 0))[0]
    assert not any(name.startswith("deepspeed") for name in sys.modules)


def test_zero_stage_3_that_is_not_whole_names_the_converter(tmp_path):
    weights = {"a.weight": random(4, 4), "b.weight": random(3, 3)}
    save_zero3(tmp_path, weights, 2)
    model = tmp_path / "zero_pp_rank_0_mp_rank_00_model_states.pt"
    content = torch.load(model)
    torch.save({**content, "frozen_param_shapes": {"c": torch.Size([2])}}, model)
    assert "lacks its slice of c" in refusal(LocalFolder(tmp_path, 0).open)
    for rank in (0, 1):  # one number too few in the slices of both
        path = tmp_path / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt"
        short = {"frozen_param_shapes": {"c": torch.Size([3])}, "frozen_param_fragments": {"c": torch.ones(1)}}
        torch.save({**torch.load(path), **short}, path)
    assert "the slices of c do not fill its shape (3,)" in refusal(LocalFolder(tmp_path, 0).open)
    content["param_shapes"][0]["b.weight"] = torch.Size([30, 3])
    torch.save(content, model)
    said = refusal(LocalFolder(tmp_path, 0).open)
    assert "hold 13 numbers, and param_shapes describes 53" in said
    assert "zero_to_fp32.py" in said
    other = tmp_path / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    torch.save({"optimizer_state_dict": {"x": types.SimpleNamespace(y=1)}}, other)
    (tmp_path / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    said = refusal(LocalFolder(tmp_path, 0).open)
    assert "types.SimpleNamespace" in said
    assert "zero_to_fp32.py" in said
    other.unlink()
    assert "2 files of the model and 1 of the optimizer" in refusal(LocalFolder(tmp_path, 0).open)
    assert "name the folder" in refusal(LocalFile(model, 0).open)
