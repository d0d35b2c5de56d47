"""The reader of torch.save files: right tensors or an error, and never a line of foreign code."""

import os
import pickle
import subprocess
import sys
import zipfile
from collections import OrderedDict

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from patience import PATIENCE

from joma.scan.errors import CheckpointError
from joma.scan.formats import torch_file
from joma.scan.formats.torch_file import TorchFile

STATE = OrderedDict(a=torch.arange(40.0).view(5, 8), b=torch.ones(3, dtype=torch.bfloat16), tied=torch.zeros(2))


def saved(folder, value, name="a.pt", **options):
    path = folder / name
    torch.save(value, path, **options)
    return path


def test_plain_and_nested_state_dicts(tmp_path):
    nested = {"model": STATE, "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}}, "step": 7, "names": ["x"]}
    file = TorchFile(saved(tmp_path, nested))
    assert list(file.tensors) == ["model.a", "model.b", "model.tied", "optimizer.state.0.exp_avg"]
    assert file.tensors["model.a"].shape == (5, 8)
    for name in STATE:
        assert torch.equal(file.read(f"model.{name}"), STATE[name])
    file.close()


def test_parameters_views_and_shared_storage(tmp_path):
    base = torch.arange(12.0)
    file = TorchFile(saved(tmp_path, {"p": torch.nn.Parameter(base), "part": base[2:4], "turned": base.view(3, 4).T}))
    assert torch.equal(file.read("part"), base[2:4])
    assert torch.equal(file.read("turned"), base.view(3, 4).T)
    assert not file.read("p").requires_grad


def test_a_dictionary_that_holds_itself(tmp_path):
    loop = {"w": torch.ones(2)}
    loop["again"] = loop
    assert "w" in TorchFile(saved(tmp_path, loop)).tensors


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickled_object_is_refused_and_never_run(tmp_path, zipped):
    path = saved(tmp_path, {"w": torch.ones(2), "x": Bomb(tmp_path / "ran")}, _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError) as caught:
        TorchFile(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    if zipped:
        assert "pickled object" in str(caught.value)
        assert "mkdir" in str(caught.value)
    assert not (tmp_path / "ran").exists()


def test_a_bare_pickle_is_refused_and_never_run(tmp_path):
    path = tmp_path / "bare.bin"
    path.write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    with pytest.raises(CheckpointError, match=r"bare\.bin"):
        TorchFile(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("value", [[torch.ones(2)], torch.ones(2), 3])
def test_what_is_no_state_dict(tmp_path, value):
    with pytest.raises(CheckpointError, match="not a state dict"):
        TorchFile(saved(tmp_path, value))


def everything(path):
    try:
        file = TorchFile(path)
        return {name: file.read(name).clone() for name in file.tensors}
    except CheckpointError as error:
        return error


@settings(max_examples=75, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_damage_gives_the_right_tensors_or_an_error(tmp_path, data):
    content = bytearray(saved(tmp_path, STATE).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            content[at] ^= 1 << data.draw(st.integers(0, 7))
        else:
            del content[at : at + data.draw(st.integers(1, 200))]
    path = tmp_path / "damaged.pt"
    path.write_bytes(content)
    read = everything(path)
    if isinstance(read, CheckpointError):
        assert str(path) in str(read)
        return
    assert read.keys() == STATE.keys()
    assert all(torch.equal(read[name], STATE[name]) for name in STATE)


def test_a_flipped_bit_in_a_tensor_is_noticed(tmp_path):
    path = saved(tmp_path, STATE)
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("a/data/0")
    content = bytearray(path.read_bytes())
    at = content.index(STATE["a"].numpy().tobytes(), info.header_offset)
    content[at + 5] ^= 1
    path.write_bytes(content)
    file = TorchFile(path)
    assert torch.equal(file.read("b"), STATE["b"])
    with pytest.raises(CheckpointError, match="checksum is wrong") as caught:
        file.read("a")
    assert caught.value.tensor == "a"


def test_files_saved_without_checksums_are_read(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        path = saved(tmp_path, STATE)
    finally:
        torch.serialization.set_crc32_options(True)
    assert torch.equal(TorchFile(path).read("a"), STATE["a"])


def rewritten(path, out, compression=zipfile.ZIP_STORED, pickle_bytes=0):
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w", compression) as new:
        for record in old.infolist():
            more = b"\0" * pickle_bytes if record.filename.endswith("/data.pkl") else b""
            new.writestr(record.filename, old.read(record) + more)
    return out


def test_what_torch_never_writes_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    path = saved(tmp_path, STATE)
    with pytest.raises(CheckpointError, match="is compressed"):
        TorchFile(rewritten(path, tmp_path / "packed.pt", zipfile.ZIP_DEFLATED))
    large = rewritten(path, tmp_path / "large.pt", pickle_bytes=5000)
    TorchFile(large).close()
    monkeypatch.setattr("joma.host.limits.PICKLE_BYTES", 5000)
    with pytest.raises(CheckpointError, match=r"its names and shapes take 5,\d\d\d bytes"):
        TorchFile(large)


def test_dictionaries_that_hold_one_another_twice_end(tmp_path, monkeypatch):
    monkeypatch.setattr("joma.host.limits.TENSORS", 5_000)
    inner = {"w": torch.ones(2)}
    for _ in range(60):
        inner = {"a": inner, "b": inner}
    with pytest.raises(CheckpointError, match="holds more than 5,000 entries"):
        TorchFile(saved(tmp_path, inner))


def test_a_matrix_without_numbers_of_its_own_is_refused(tmp_path):
    file = TorchFile(saved(tmp_path, {"w": torch.ones(1).expand(10**6, 10**6), "b": torch.ones(3)}))
    with pytest.raises(CheckpointError, match="does not hold as many numbers"):
        file.read("w")
    assert torch.equal(file.read("b"), torch.ones(3))
    file.close()


CUT = """
import os, sys, torch
from pathlib import Path
from joma.scan.formats import torch_file
from joma.scan.errors import CheckpointError
from joma.scan.formats.torch_file import TorchFile
path = Path(sys.argv[1])
torch.save({"w": torch.ones(1000, 1000), "rest": torch.arange(2_000_000.0)[5:1_500_000]}, path)
file = TorchFile(path)
kept = file.read("w")
os.truncate(path, 100_000)
assert kept.sum() == 1_000_000
for name in ("w", "rest"):
    try:
        file.read(name)
    except CheckpointError as error:
        print(error)
"""


@pytest.mark.long
def test_a_file_that_is_cut_while_it_is_open_is_a_fault_and_not_the_end_of_the_process(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CUT, tmp_path / "a.pt"], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr  # -7 would be SIGBUS
    assert done.stdout.count("before the data it should hold") == 2


def test_part_of_a_large_storage_is_read_alone_and_checked_whole(tmp_path):
    path = saved(tmp_path, {"part": torch.arange(100.0)[10:20], "rest": torch.ones(3)})
    assert torch.equal(TorchFile(path).read("part"), torch.arange(10.0, 20.0))
    content = bytearray(path.read_bytes())
    content[content.index(torch.tensor([98.0, 99.0]).numpy().tobytes())] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="checksum is wrong"):
        TorchFile(path).read("part")


def test_numbers_in_another_byte_order_are_refused(tmp_path, monkeypatch):
    path = saved(tmp_path, {"w": torch.ones(3)})
    monkeypatch.setattr(sys, "byteorder", {"little": "big", "big": "little"}[sys.byteorder])
    with pytest.raises(CheckpointError, match="another byte order"):
        TorchFile(path)


def test_tensors_without_numbers_and_numbers_turned_round(tmp_path):
    turned = torch.complex(torch.ones(2), torch.arange(2.0)).conj().imag  # a view that says: with the sign turned
    file = TorchFile(saved(tmp_path, {"none": torch.empty(3, device="meta"), "turned": turned, "void": torch.empty(0)}))
    assert list(file.tensors) == ["turned", "void"]
    assert file.read("turned").tolist() == [0.0, -1.0]
    assert file.read("void").shape == (0,)


class Described:
    """A tensor of four numbers whose shape is a lie."""

    def __init__(self, *description):
        self.description = description

    def __reduce__(self):
        storage = torch.zeros(4)._typed_storage()
        return torch._utils._rebuild_tensor_v2, (storage, *self.description, False, OrderedDict())


@pytest.mark.parametrize("description", [
    (0, (1,) * 100_000, (1,) * 100_000),
    (10**9, (2,), (1,)),
    (-3, (2,), (1,)),
    (3, (2,), (1,)),
    (0, (100, 100), (100, 1)),
    (0, (2, 2), (2,)),
    (0, (2**62, 2**62), (0, 0)),
    (0, (10**6, 10**6), (0, 0)),
])  # fmt: skip
def test_shapes_that_the_file_does_not_hold(tmp_path, description):
    path = saved(tmp_path, {"w": Described(*description)})
    with pytest.raises(CheckpointError, match=r"a\.pt"):
        TorchFile(path).read("w")


@pytest.mark.parametrize("inside", [True, False])
def test_whether_torch_shows_its_insides_or_not(tmp_path, monkeypatch, inside):
    if not inside:
        monkeypatch.setattr(torch_file, "_INSIDES", ("_load", "of another version"))
    path = saved(tmp_path, {"w": torch.eye(2)})
    assert torch.equal(TorchFile(path).read("w"), torch.eye(2))
    with pytest.raises(CheckpointError, match="pickled object"):
        TorchFile(saved(tmp_path, {"x": Bomb(tmp_path / "ran")}))
    assert not (tmp_path / "ran").exists()


def test_a_long_name_is_refused_without_a_search_of_it(tmp_path, monkeypatch):
    """torch.load searches its own message for two words, in a time that grows with the square of the name."""
    if all(hasattr(torch.serialization, name) for name in torch_file._INSIDES):
        monkeypatch.setattr(torch, "load", lambda *_, **options: pytest.fail("torch.load was called"))
    path = saved(tmp_path, {"w": torch.eye(2)})
    with zipfile.ZipFile(path) as archive:
        records = {record.filename: archive.read(record) for record in archive.infolist()}
    description = next(name for name in records if name.endswith("data.pkl"))
    records[description] = b"\x80\x02c" + b"m" * 300_000 + b"\n" + b"n" * 300_000 + b"\n."
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, content in records.items():
            archive.writestr(name, content)
    with pytest.raises(CheckpointError, match="pickled object") as caught:
        TorchFile(path)
    assert len(str(caught.value)) < 500


class Swollen:
    def __reduce__(self):
        return (bytearray, (10**14,))  # more than any machine has: made, it is a MemoryError


def test_a_bytearray_is_never_made(tmp_path):
    torch.save({"w": torch.ones(2), "b": Swollen()}, tmp_path / "a.pt")
    file = TorchFile(tmp_path / "a.pt")
    assert list(file.tensors) == ["w"]
    assert not isinstance(file.content["b"], bytearray)
    torch.save(bytearray(3), tmp_path / "b.pt")
    assert torch.load(tmp_path / "b.pt", weights_only=True) == bytearray(3)  # as before, for everybody else


def test_names_that_swell_are_refused(tmp_path):
    """118 kB of names become gigabytes where many tensors lie below one long name."""
    below = {str(at): torch.ones(1) for at in range(700)}
    torch.save({"x" * 100_000: below}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="its names have more than 67,108,864 letters"):
        TorchFile(tmp_path / "a.pt")
