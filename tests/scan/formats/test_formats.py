"""Layouts that people have: written by the libraries that write them, read right or refused in one sentence."""

import argparse
import pickle
import types
import warnings
from collections import OrderedDict

import numpy as np
import pytest
import torch
from format_files import must_hold, random, refusal, tensors_of
from safetensors.torch import save_file

from joma.scan import open_series, plan, sweep
from joma.scan.formats.checkpoint import Checkpoint
from joma.scan.formats.torch_file import TorchFile
from joma.scan.sources.folder import LocalFile, LocalFolder

# Parts of tensors


class Counting:
    """Bytes that know how many of them were read."""

    def __init__(self, source):
        self.source, self.name, self.size, self.read = source, source.name, source.size, 0

    def read_into(self, start, buffer):
        self.read += len(buffer)
        self.source.read_into(start, buffer)

    def prefetch(self, start, length):
        self.source.prefetch(start, length)

    def close(self):
        self.source.close()


def test_one_expert_of_many_is_read_alone(tmp_path):
    from joma.scan.formats.safetensors_file import SafetensorsFile
    from joma.scan.formats.tensor_file import LocalBytes

    experts = random(16, 64, 32)
    save_file({"experts": experts, "w": random(4, 4), "odd[1]": random(2, 2)}, tmp_path / "a.safetensors")
    source = Counting(LocalBytes(tmp_path / "a.safetensors"))
    with Checkpoint({"a": lambda: SafetensorsFile(source)}, None) as checkpoint:
        before = source.read
        assert torch.equal(checkpoint.read("experts[3]"), experts[3])
        assert source.read - before == 64 * 32 * 4
        assert checkpoint.stored("experts[3]").shape == (64, 32)
        assert checkpoint.file_of("experts[3]") == "a"
        checkpoint.prefetch("experts[3]")
        assert torch.equal(checkpoint.read("odd[1]"), random(2, 2))  # a name that only looks like a part
        assert "experts[3]" not in checkpoint.names()
        assert "is not part of experts" in refusal(lambda: checkpoint.read("experts[16]"))
        assert "is in no file" in refusal(lambda: checkpoint.read("nothing[1]"))


def test_a_tensor_in_two_files_is_not_chosen_by_chance(tmp_path):
    for part in (1, 2):
        save_file({"w": random(2, 3, seed=part)}, tmp_path / f"model-0000{part}-of-00002.safetensors")
    said = refusal(LocalFolder(tmp_path, 0).open)
    assert said == "w is both in model-00001-of-00002.safetensors and in model-00002-of-00002.safetensors"


@pytest.mark.parametrize("zipped", [True, False])
def test_one_expert_in_a_torch_file(tmp_path, zipped):
    experts = random(4, 6, 5)
    turned = experts.permute(2, 1, 0)
    torch.save({"experts": experts, "turned": turned}, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    with LocalFile(tmp_path / "a.pt", 0).open() as checkpoint:
        assert torch.equal(checkpoint.read("experts[3]"), experts[3])
        assert torch.equal(checkpoint.read("turned[3]"), turned[3])
        assert torch.equal(checkpoint.read("experts[1:3]"), experts[1:3])


# torch.save


def everything_plain():
    return {
        "model": OrderedDict(w=random(5, 4), half=random(3, dtype=torch.bfloat16), turned=random(3, 4).T),
        "parameter": torch.nn.Parameter(random(2, 2)),
        "args": argparse.Namespace(lr=0.1, inner=argparse.Namespace(layers=2)),
        "loss": np.float64(2.5),
        "step": np.int64(7),
        "rng": np.random.default_rng(0).bit_generator.state["state"]["state"] % 2**60,
        "numpy_rng": np.random.RandomState(0).get_state(),
        "flag": np.bool_(True),
    }


@pytest.mark.parametrize("zipped", [True, False])
def test_options_and_numpy_beside_the_weights_are_stand_ins(tmp_path, zipped):
    torch.save(everything_plain(), tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    expected = {"model.w": random(5, 4), "model.half": random(3, dtype=torch.bfloat16), "model.turned": random(3, 4).T}
    must_hold(LocalFile(tmp_path / "a.pt", 0), {**expected, "parameter": random(2, 2)})
    file = TorchFile(tmp_path / "a.pt")
    assert (file.content["loss"], file.content["step"], file.content["flag"]) == (2.5, 7, True)
    assert type(file.content["args"]).__module__ == "joma.scan.formats.pickles"  # argparse was not asked
    assert file.content["args"].state["lr"] == 0.1
    file.close()


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("value", [argparse.ArgumentParser, np.dtype, types.SimpleNamespace(x=1), slice(1, 2)])
def test_any_other_object_is_refused_by_name(tmp_path, zipped, value):
    if value is np.dtype:
        value = np.ma.masked_array([1.0], [True])
    torch.save({"w": random(2, 2), "x": value}, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    said = refusal(LocalFile(tmp_path / "a.pt", 0).open)
    assert "pickled object ('" in said
    assert said.endswith("save the state dict alone, torch.save(model.state_dict(), FILE)")


def test_what_is_allowed_is_allowed_within_a_file_only(tmp_path, monkeypatch):
    torch.save(everything_plain(), tmp_path / "a.pt")
    monkeypatch.setattr(torch._weights_only_unpickler, "_marked_safe_globals_set", {types.SimpleNamespace})
    TorchFile(tmp_path / "a.pt").close()
    assert torch.serialization.get_safe_globals() == [types.SimpleNamespace]
    torch.save({"w": random(2, 2), "x": types.SimpleNamespace(y=1)}, tmp_path / "b.pt")
    assert "SimpleNamespace" in refusal(LocalFile(tmp_path / "b.pt", 0).open)
    assert torch.serialization.get_safe_globals() == [types.SimpleNamespace]
    monkeypatch.setattr(torch._weights_only_unpickler, "_marked_safe_globals_set", set())
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "a.pt", weights_only=True)


def test_files_are_opened_by_threads_at_the_same_time(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    torch.save(everything_plain(), tmp_path / "a.pt")
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: sorted(TorchFile(tmp_path / "a.pt").tensors), range(40)))
    assert found == [found[0]] * 40


def test_a_legacy_file_that_is_cut_or_turned_is_refused(tmp_path):
    path = tmp_path / "a.pt"
    torch.save({"w": random(20, 20), "v": random(3)}, path, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    for length in (15, 40, len(content) - 900, len(content) - 1):
        path.write_bytes(content[:length])
        assert str(path) in refusal(lambda: tensors_of(LocalFile(path, 0)))
    path.write_bytes(content.replace(b"little_endian", b"Little_endian"))
    must_hold(LocalFile(path, 0), {"w": random(20, 20), "v": random(3)})


def test_a_legacy_file_whose_storages_are_parts_of_others_is_refused(tmp_path):
    from torch.serialization import MAGIC_NUMBER, PROTOCOL_VERSION

    class Old(pickle.Pickler):
        def persistent_id(self, one):
            part = ("1", 0, 4)
            return (
                ("storage", torch.FloatStorage, "0", "cpu", 4, part) if isinstance(one, torch.UntypedStorage) else None
            )

    with (tmp_path / "a.pt").open("wb") as stream:
        for part in (MAGIC_NUMBER, PROTOCOL_VERSION, {"little_endian": True}):
            pickle.dump(part, stream, protocol=2)
        Old(stream, protocol=2).dump({"w": torch.zeros(4).untyped_storage()})
        pickle.dump(["0"], stream, protocol=2)
        stream.write((4).to_bytes(8, "little") + bytes(16))
    assert "parts of one another" in refusal(lambda: tensors_of(LocalFile(tmp_path / "a.pt", 0)))


def test_a_compiled_model_is_refused_in_a_sentence(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "a.pt")
    assert "TorchScript" in refusal(LocalFile(tmp_path / "a.pt", 0).open)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "a.gguf"])
def test_a_pointer_of_git_lfs_is_called_that(tmp_path, name):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 988097824\n"
    (tmp_path / name).write_bytes(pointer)
    for place in (LocalFolder(tmp_path, 0), LocalFile(tmp_path / name, 0)):
        assert "is a Git-LFS pointer, not the file itself: run 'git lfs pull'" in refusal(place.open)


# A whole scan


def test_a_series_of_packed_checkpoints_is_measured_right(tmp_path):
    import packed_weights as packed

    from joma.runs import Run

    exact = []
    for step in (0, 10, 20):
        folder = tmp_path / "run" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        parts, weight = packed.gptq(np.random.default_rng(step))
        save_file({f"model.layers.0.mlp.up_proj.{n}": v for n, v in parts.items()}, folder / "model.safetensors")
        values = np.linalg.svd(weight, compute_uv=False)
        exact.append((values**2).sum() / values[0] ** 2)
    settled = plan(open_series(tmp_path / "run", downloads=tmp_path))
    with Run.create(tmp_path / "scan.sqlite", study="scan", config=settled.config()) as run:
        found = sweep(settled, run)
    assert found.steps == [0, 10, 20]
    np.testing.assert_allclose(found.curves["stable_rank/mlp"].values[:, 0], exact, rtol=1e-3)
