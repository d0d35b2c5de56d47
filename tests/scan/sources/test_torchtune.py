"""What torchtune writes, from its public definition: compared once with what the library itself writes."""

import torch
from checkpoint_series import scan
from format_files import must_hold, random, refusal
from trainer_files import found_in, llama, shards


def torchtune_files(folder, epochs=2, parts=2):
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
