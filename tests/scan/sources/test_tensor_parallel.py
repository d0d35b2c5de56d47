"""What Megatron and Meta write in several parts, from their public definitions: joined, it is what was cut."""

import argparse
import io
import shutil

import pytest
import torch
from checkpoint_series import scan
from format_files import dcp_saved, must_hold, notes_of, random, refusal, tensors_of
from trainer_files import found_in

from joma.host import limits
from joma.scan.sources.folder import LocalFolder

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
            f"{at}.mlp.linear_fc1.bias": random(2 * wide, seed=seed + layer + 70),
            f"{at}.mlp.linear_fc2.bias": random(width, seed=seed + layer + 80),
        }
    found["embedding.word_embeddings.weight"] = random(16, width, seed=seed + 50)
    found["output_layer.weight"] = random(16, width, seed=seed + 60)
    return found


def rank_of(name, value, rank, ranks):
    if "linear_fc1" in name and "layer_norm" not in name:  # of the gate and of the up projection, each its share
        return torch.cat([half.chunk(ranks)[rank] for half in value.chunk(2)])
    if name.endswith(("linear_proj.weight", "linear_fc2.weight")):
        return value.chunk(ranks, 1)[rank].clone()
    return value if "layer_norm" in name or name.endswith("linear_fc2.bias") else value.chunk(ranks)[rank].clone()


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


def test_a_weight_that_some_parts_lack(tmp_path):
    megatron_folder(tmp_path, 3, megatron(wide=24, width=12), 1)
    file = tmp_path / "mp_rank_02" / "model_optim_rng.pt"
    content = torch.load(file, weights_only=False)
    del content["model"]["decoder.layers.1.mlp.linear_fc2.weight"]
    torch.save(content, file)
    sentence = refusal(LocalFolder(tmp_path, 0).open)
    assert "decoder.layers.1.mlp.linear_fc2.weight is in only some of the 3 tensor-parallel files" in sentence


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
    other = {f"{of}.exp_avg.decoder.layers.mlp.linear_fc1.weight" for of in ("optimizer.state", "chained_0.optimizer")}
    state = stacked | dict.fromkeys(other, random(2, 24, 8))
    folder = dcp_saved(tmp_path / "iter_0000100", state)
    torch.save({"iteration": 100, "args": argparse.Namespace(x=1)}, folder / "common.pt")
    (folder / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    (place,) = found_in(tmp_path).places
    found = tensors_of(place)
    assert {name for name in found if ".exp_avg." in name} == other
    found = {name: value for name, value in found.items() if name not in other}
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], value) for name, value in weights.items())
    with place.open() as checkpoint:
        name = "decoder.layers.1.mlp.linear_fc1.weight"
        assert torch.equal(checkpoint.read_rows(name, 3, 7), weights[name][3:7])
        assert torch.equal(checkpoint.read(f"{name}[2:4]"), weights[name][2:4])
        assert "14 tensors were read from tensors that hold all layers (Megatron-Core)" in checkpoint.notes()
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


@pytest.mark.parametrize(("limit", "most"), [("LAYERS", 4), ("TENSORS", 9)])
def test_more_layers_in_one_tensor_than_are_believed(limit, most, tmp_path, monkeypatch):
    """A few bytes can describe a tensor of 10^9 layers without a number in each."""
    at = "decoder.layers"
    state = {f"{at}.mlp.linear_fc{one}.weight": random(5, 4, 4) for one in (1, 2)}
    folder = LocalFolder(dcp_saved(tmp_path / "a", state), 0)
    assert len(tensors_of(folder)) == 10
    monkeypatch.setattr(limits, limit, most)
    assert "does not hold all layers of one model" in refusal(folder.open)


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
