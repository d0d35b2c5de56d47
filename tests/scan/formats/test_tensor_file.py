"""Under all formats: bytes that are asked for ahead, parts of files, what can be measured; without a model."""

import io
import json
import os
from contextlib import closing

import pytest
import torch
from format_files import dcp_saved, random, refusal
from safetensors.torch import save_file

from joma.scan.formats.dcp import DcpFolder
from joma.scan.formats.safetensors_file import SafetensorsFile
from joma.scan.formats.tensor_file import BytesPart, LocalBytes, Stored, Stream, check_matrix
from joma.scan.formats.torch_file import TorchFile


class Asked(LocalBytes):
    """A file that notes which bytes it is asked for: (first, how many)."""

    def __init__(self, path):
        super().__init__(path)
        self.asked = []

    def prefetch(self, start, length):
        self.asked.append((start, length))
        super().prefetch(start, length)

    def taken(self):
        taken, self.asked = self.asked, []
        return taken


BASE = torch.arange(24.0)
TENSORS = {"a": BASE, "part": BASE.view(4, 6)[1:3], "half": random(3, 5, dtype=torch.bfloat16), "empty": torch.ones(0)}


@pytest.mark.parametrize("kind", ["safetensors", "zip", "legacy"])
def test_what_is_asked_for_ahead_is_what_is_then_read(tmp_path, kind):
    path = tmp_path / "a"
    if kind == "safetensors":
        save_file({name: value.clone() for name, value in TENSORS.items()}, path)
        file = SafetensorsFile(source := Asked(path))
    else:
        torch.save(TENSORS, path, _use_new_zipfile_serialization=kind == "zip")
        file = TorchFile(source := Asked(path))
    places = {}
    for name, value in TENSORS.items():
        source.taken()
        file.prefetch(name)
        (ahead,) = source.taken()
        assert torch.equal(file.read(name), value)
        read = source.taken()
        size = value.numel() * value.element_size()
        assert ahead[1] == size
        if size:
            assert ahead in read
        places[name] = ahead
    if kind != "safetensors":  # there a view lies within what it is a view of
        assert places["part"][0] == places["a"][0] + 6 * 4


def test_a_folder_that_was_closed_opens_its_files_anew(tmp_path):
    folder = dcp_saved(tmp_path / "a", {"w": random(3, 4), "v": random(5, seed=2)})
    opened = []

    def open_file(name):
        opened.append(Asked(folder / name))
        return opened[-1]

    file = DcpFolder("a", (folder / ".metadata").read_bytes(), open_file)
    chunks = {name: [(chunk.start, chunk.length) for chunk in file._chunks[name]] for name in ("w", "v")}
    for name in ("w", "v"):
        file.prefetch(name)
    assert opened[0].taken() == [*chunks["w"], *chunks["v"]]
    for _ in range(2):
        assert torch.equal(file.read("w"), random(3, 4))
        assert torch.equal(file.read("v"), random(5, seed=2))
        file.close()
        assert all(one._descriptor == -1 for one in opened)
    assert len(opened) == 2


def test_a_header_must_fit_into_its_file(tmp_path):
    path = tmp_path / "a.safetensors"
    text = json.dumps({}).encode()
    for said, sentence in (
        (2, None),
        (3, "says that its header has 3 bytes, but the file has 10: it is cut off or no safetensors file"),
        (17, "says that its header has 17 bytes, but the file has 10: it is cut off or no safetensors file"),
    ):
        path.write_bytes(said.to_bytes(8, "little") + text)
        if sentence is None:
            assert SafetensorsFile(LocalBytes(path)).tensors == {}
        else:
            assert refusal(lambda: SafetensorsFile(LocalBytes(path))) == f"{path} {sentence}"
    path.write_bytes(b"1234567")
    assert refusal(lambda: SafetensorsFile(LocalBytes(path))).endswith("has 7 bytes, too few for a safetensors file")


def test_matrices_of_four_number_formats_can_be_measured():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        check_matrix(Stored((2, 3), dtype), "w", "a.pt")
    only = "only matrices of floating numbers can be measured"
    scales = ", and quantised ones with the scales that belong to them"
    for stored, sentence in (
        (Stored((6,), torch.float32), f"w is torch.float32 (6,); {only}"),
        (Stored((2, 3, 1), torch.float32), f"w is torch.float32 (2, 3, 1); {only}"),
        (Stored((2, 0), torch.float32), f"w is torch.float32 (2, 0); {only}"),
        (Stored((2, 3), torch.int32), f"w is torch.int32 (2, 3); {only}"),
        (Stored((2, 3), torch.int8), f"w is torch.int8 (2, 3); {only}{scales}"),
        (Stored((2, 3), torch.float8_e4m3fn), f"w is torch.float8_e4m3fn (2, 3); {only}{scales}"),
        (Stored((2, 3), None), f"w is None (2, 3); {only}{scales}"),
    ):
        assert refusal(lambda stored=stored: check_matrix(stored, "w", "a.pt")) == sentence


def test_a_part_of_a_file_is_a_file(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(bytes(range(100)))
    whole = Asked(path)
    part = BytesPart(whole, 10, 30)
    assert part.size == 30
    buffer = bytearray(5)
    part.read_into(25, memoryview(buffer))
    assert bytes(buffer) == bytes(range(35, 40))
    part.prefetch(3, 4)
    assert whole.taken() == [(35, 5), (13, 4)]
    assert refusal(lambda: part.read_into(26, memoryview(buffer))) == f"{path} ends before the data it should hold"
    assert BytesPart(whole, 70, 30).size == 30
    end = f"{path} ends at byte 100, before byte 101 that it should hold"
    assert refusal(lambda: BytesPart(whole, 71, 30)) == end
    stream = io.BufferedReader(Stream(part))
    assert (stream.seek(-4, io.SEEK_END), stream.read()) == (26, bytes(range(36, 40)))
    assert (stream.seek(2), stream.read(3), stream.seek(1, io.SEEK_CUR), stream.read(1)) == (
        2,
        b"\x0c\r\x0e",
        6,
        b"\x10",
    )


def test_reads_that_give_less_than_was_asked_for_add_up(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(bytes(range(40)))
    whole = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, buffers, at: whole(file, [buffers[0][:7]], at))
    with closing(LocalBytes(tmp_path / "a")) as file:
        file.read_into(5, memoryview(found := bytearray(30)))
    assert found == bytes(range(5, 35))
