"""Folders of torch.distributed.checkpoint: tensors from their chunks, and never a line of foreign code."""

import os
import pickle
import warnings

import pytest
import torch
from format_files import dcp_saved, must_hold, notes_of, random, refusal, tensors_of
from safetensors.torch import save_file

from joma.scan.sources.folder import LocalFile, LocalFolder

STATE = {"model": {"w": random(5, 7), "half": random(3, dtype=torch.bfloat16), "experts": random(3, 4, 5)}, "step": 7}
FLAT = {f"model.{name}": value for name, value in STATE["model"].items()}


def test_a_distributed_checkpoint(tmp_path):
    place = LocalFolder(dcp_saved(tmp_path / "a", STATE), 0)
    must_hold(place, FLAT)
    assert notes_of(place) == ("1 entry of the folder that is no tensor was left aside",)
    with place.open() as checkpoint:
        assert torch.equal(checkpoint.read("model.experts[1]"), FLAT["model.experts"][1])
    assert "name the folder" in refusal(LocalFile(tmp_path / "a" / "__0_0.distcp", 0).open)


def dcp_in_chunks(folder, tensors, chunks):
    """A folder as several ranks write it, from the library's own classes; its own reader is asked to agree."""
    import io

    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import filesystem, metadata

    folder.mkdir()
    described, stored = {}, {}
    contents = {}
    for name, value in tensors.items():
        boxes = []
        for rank, box in enumerate(chunks[name]):
            piece = value[box].clone()
            offsets = torch.Size(s.start for s in box)
            file = f"__{rank}_0.distcp"
            stream = io.BytesIO()
            torch.save(piece, stream)
            begin = len(contents.setdefault(file, b""))
            contents[file] += stream.getvalue()
            boxes.append(metadata.ChunkStorageMetadata(offsets, piece.shape))
            info = filesystem._StorageInfo(file, begin, len(stream.getvalue()))
            stored[metadata.MetadataIndex(name, offsets, rank)] = info
        properties = metadata.TensorProperties.create_from_tensor(value)
        described[name] = metadata.TensorStorageMetadata(properties, value.shape, boxes)
    for file, content in contents.items():
        (folder / file).write_bytes(content)
    found = metadata.Metadata(described, {}, stored, metadata.StorageMeta(folder), "1.0.0")
    (folder / ".metadata").write_bytes(pickle.dumps(found))
    loaded = {name: torch.zeros_like(value) for name, value in tensors.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(loaded, checkpoint_id=folder, no_dist=True)
    assert all(torch.equal(loaded[name], value) for name, value in tensors.items())
    return folder


def boxed(*ranges):
    return tuple(slice(*each) for each in ranges)


CHUNKS = {
    "rows": [boxed((0, 3), (0, 6)), boxed((3, 6), (0, 6)), boxed((6, 7), (0, 6))],
    "columns": [boxed((0, 4), (0, 2)), boxed((0, 4), (2, 5))],
    "both": [boxed((0, 2), (0, 3)), boxed((0, 2), (3, 4)), boxed((2, 5), (0, 3)), boxed((2, 5), (3, 4))],
    "experts": [boxed((0, 2), (0, 3), (0, 2)), boxed((2, 4), (0, 3), (0, 2))],
}
CHUNKED = {"rows": random(7, 6), "columns": random(4, 5), "both": random(5, 4), "experts": random(4, 3, 2)}


def test_a_distributed_checkpoint_of_several_ranks(tmp_path):
    place = LocalFolder(dcp_in_chunks(tmp_path / "a", CHUNKED, CHUNKS), 0)
    must_hold(place, CHUNKED)
    with place.open() as checkpoint:
        for expert in range(4):
            assert torch.equal(checkpoint.read(f"experts[{expert}]"), CHUNKED["experts"][expert])
    (tmp_path / "a" / "__2_0.distcp").unlink()
    assert "__2_0.distcp is missing" in refusal(place.open)


def changed_metadata(folder, change):
    found = pickle.loads((folder / ".metadata").read_bytes())
    change(found)
    (folder / ".metadata").write_bytes(pickle.dumps(found))


def lead_out(found):
    next(iter(found.storage_data.values())).relative_path = "../secret.distcp"


def too_large(found):
    found.state_dict_metadata["rows"].size = torch.Size([10**9, 10**6])


def too_large_with_its_chunks(found):
    entry = found.state_dict_metadata["rows"]
    entry.size = torch.Size([3 * 10**6, 10**6])
    for at, chunk in enumerate(entry.chunks):
        chunk.sizes, chunk.offsets = torch.Size([10**6, 10**6]), torch.Size([at * 10**6, 0])
    for index in found.storage_data:
        if index.fqn == "rows":
            object.__setattr__(index, "offset", torch.Size([index.index * 10**6, 0]))


def overlapping(found):
    found.state_dict_metadata["columns"].chunks[1].offsets = torch.Size([0, 1])
    for index in found.storage_data:
        if index.fqn == "columns" and index.index == 1:
            object.__setattr__(index, "offset", torch.Size([0, 1]))


def nowhere(found):
    found.storage_data = {}


def behind_the_end(found):
    for info in found.storage_data.values():
        info.offset = 10**12


def no_name(found):
    for info in found.storage_data.values():
        info.relative_path = "__0\0_0.distcp"


def packed_by_an_extension(found):
    for info in found.storage_data.values():
        info.transform_descriptors = ["stream.zstd"]


def no_chunks(found):
    found.state_dict_metadata["rows"].chunks = None


def chunks_that_are_none(found):
    found.state_dict_metadata["rows"].chunks[1] = 7


def no_format(found):
    found.state_dict_metadata["rows"].properties.dtype = None


@pytest.mark.parametrize(("change", "sentence"), [
    (no_chunks, "'rows' without a number format and chunks"),
    (chunks_that_are_none, "'rows' without a number format and chunks"),
    (no_format, "'rows' without a number format and chunks"),
    (lead_out, "which is not a file beside it"),
    (no_name, "which is not a file beside it"),
    (too_large, "do not make up its shape"),
    (too_large_with_its_chunks, "do not hold as many numbers"),
    (nowhere, "does not say where"),
    (behind_the_end, "should hold"),
    (packed_by_an_extension, "packed by an extension"),
])  # fmt: skip
def test_descriptions_that_lie_are_refused(tmp_path, change, sentence):
    folder = dcp_in_chunks(tmp_path / "a", CHUNKED, CHUNKS)
    changed_metadata(folder, change)
    said = refusal(lambda: tensors_of(LocalFolder(folder, 0)))
    assert sentence in said
    assert str(folder) in said


@pytest.mark.parametrize("content", [7, None, "w", [torch.ones(7, 6)], {"": torch.ones(7, 6)}, {"w": torch.ones(7, 6)}])
def test_a_chunk_that_is_no_tensor_is_refused(tmp_path, content):
    folder = dcp_in_chunks(tmp_path / "a", {"rows": random(7, 6)}, {"rows": [boxed((0, 7), (0, 6))]})
    torch.save(content, folder / "__0_0.distcp")

    def as_long_as_it_is(found):
        next(iter(found.storage_data.values())).length = (folder / "__0_0.distcp").stat().st_size

    changed_metadata(folder, as_long_as_it_is)
    said = refusal(lambda: tensors_of(LocalFolder(folder, 0)))
    assert "holds no tensor with numbers where one should be" in said


def test_chunks_that_overlap_leave_a_gap_that_is_noticed(tmp_path):
    from joma.scan.formats.tensor_file import check_finite

    folder = dcp_in_chunks(tmp_path / "a", CHUNKED, CHUNKS)
    changed_metadata(folder, overlapping)
    with LocalFolder(folder, 0).open() as checkpoint:
        assert "are NaN" in refusal(lambda: check_finite(checkpoint.read("columns"), "columns", None))


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def test_metadata_with_anything_else_in_it_is_refused_and_never_run(tmp_path):
    folder = dcp_saved(tmp_path / "a", STATE)
    changed_metadata(folder, lambda found: setattr(found, "planner_data", Bomb(tmp_path / "ran")))
    said = refusal(LocalFolder(folder, 0).open)
    assert "it names" in said
    assert "mkdir" in said
    assert not (tmp_path / "ran").exists()
    (folder / ".metadata").unlink()
    assert ".metadata is missing" in refusal(LocalFolder(folder, 0).open)


CLASS = b"c" + b"torch.distributed.checkpoint.metadata\n"


@pytest.mark.parametrize(("content", "sentence"), [
    (b"\x80\x02ctorch\nSize\n}U\x01xK\x01sb.", "is damaged"),  # an operation of old pickles
    (b"\x80\x02ctorch\nSize\n}X\x01\x00\x00\x00xK\x01sb.", "a state to what has none"),
    (b"\x80\x02" + CLASS + b"Metadata\n}X\x03\x00\x00\x00getK\x01sb.", "a state to what has none"),
    (b"\x80\x02" + CLASS + b"Metadata\n)\x81}X\x03\x00\x00\x00getK\x01sb.", "not a description"),
    (b"\x80\x02}))\x86K\x01s.", "keys that are no names"),
    (b"\x80\x05\x96" + (2**40).to_bytes(8, "little") + b".", "is damaged"),  # a bytearray of a terabyte
    (b"\x80\x02K\x01r" + b"\xff" * 4 + b".", "not a description"),  # a memo of four thousand million places
    (b"\x80\x02" + b"(" * 100_000 + b".", "is damaged"),
    (b"\x80\x02ctorch\nfloat32\n)R.", "is damaged"),
    (b"\x80\x02cbuiltins\neval\nX\x01\x00\x00\x001\x85R.", "it names 'builtins.eval'"),
])  # fmt: skip
def test_pickles_that_nobody_writes(tmp_path, content, sentence):
    folder = dcp_saved(tmp_path / "a", STATE)
    honest = (folder / ".metadata").read_bytes()
    (folder / ".metadata").write_bytes(content)
    assert sentence in refusal(LocalFolder(folder, 0).open)
    (folder / ".metadata").write_bytes(honest)
    must_hold(LocalFolder(folder, 0), FLAT)  # nothing was changed for those that come after


def test_shards_that_dcp_wrote_as_safetensors_are_not_taken_for_whole(tmp_path):
    for rank in (1, 2):
        save_file({"w": random(2, 3, seed=rank)}, tmp_path / f"shard-0000{rank}-model-00001-of-00001.safetensors")
    assert "several weights files" in refusal(LocalFolder(tmp_path, 0).open)


def test_descriptions_that_swell_are_refused_at_once(tmp_path):
    """Tuples that hold one another twice, 2^60 words in all; and tensors that share one list of chunks."""
    from joma.scan.formats.dcp import _Chunk, _Metadata, _Tensor, described
    from joma.scan.formats.pickles import Refused

    nested = ("w",)
    for _ in range(60):
        nested = (nested, nested)

    def swollen(found):
        for info in found.storage_data.values():
            info.transform_descriptors = nested

    folder = dcp_in_chunks(tmp_path / "a", CHUNKED, CHUNKS)
    changed_metadata(folder, swollen)
    assert "packed by an extension (tuple)" in refusal(LocalFolder(folder, 0).open)
    metadata, entry = _Metadata(), _Tensor()
    entry.state = {"chunks": [_Chunk()] * 3000}
    metadata.state = {"state_dict_metadata": {str(at): entry for at in range(3000)}, "storage_data": {}}
    with pytest.raises(Refused, match="more than 500,000 tensors or chunks"):
        described(metadata)
