"""The safetensors reader against the format's own library, on whole files, damaged ones and lies."""

import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from joma.scan.errors import CheckpointError
from joma.scan.formats.safetensors_file import SafetensorsFile
from joma.scan.formats.tensor_file import LocalBytes

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
DTYPES += [torch.float8_e4m3fn, torch.complex64]


def opened(path):
    return SafetensorsFile(LocalBytes(path))


def raw(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.text(max_size=8).filter(lambda name: name != "__metadata__"),
        st.tuples(st.lists(st.integers(0, 4), max_size=3), st.sampled_from(DTYPES)),
        max_size=6,
    ),
    st.integers(0, 2**31),
)
def test_reads_what_the_library_wrote(tmp_path, described, seed):
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.randint(0, 2, shape, generator=generator).to(dtype) for name, (shape, dtype) in described.items()
    }
    save_file(tensors, tmp_path / "a.safetensors", metadata={"format": "pt"})
    file = opened(tmp_path / "a.safetensors")
    assert file.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (file.tensors[name].shape, file.tensors[name].dtype) == (tuple(tensor.shape), tensor.dtype)
        read = file.read(name)
        assert (read.shape, read.dtype, raw(read)) == (tensor.shape, tensor.dtype, raw(tensor))
    file.close()


def everything(path):
    try:
        file = opened(path)
        return {name: file.read(name) for name in file.tensors}
    except CheckpointError as error:
        return error


def small(folder):
    path = folder / "small.safetensors"
    save_file({"one": torch.arange(6.0).view(2, 3), "two": torch.ones(4, dtype=torch.int16)}, path)
    return path


@settings(max_examples=75, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_damage_gives_the_same_tensors_as_the_library_or_an_error(tmp_path, data):
    content = bytearray(small(tmp_path).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        kind = data.draw(st.sampled_from(["flip", "cut", "insert", "grow"]))
        at = data.draw(st.integers(0, max(len(content) - 1, 0)))
        if kind == "flip" and content:
            content[at] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "cut":
            del content[at:]
        elif kind == "insert":
            content[at:at] = data.draw(st.binary(min_size=1, max_size=4))
        else:
            content += data.draw(st.binary(min_size=1, max_size=16))
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(content)
    mine = everything(path)
    if isinstance(mine, CheckpointError):
        assert str(path) in str(mine)
        assert "\n" not in str(mine)
        return
    with safe_open(path, "pt") as library:  # what we accept, the library accepts too
        assert set(library.keys()) == set(mine)
        for name, tensor in mine.items():
            theirs = library.get_tensor(name)
            assert (theirs.shape, theirs.dtype, raw(theirs)) == (tensor.shape, tensor.dtype, raw(tensor))


def write(path, header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(shape, start, stop, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


LIES = {
    "more than the file": ({"a": entry([4], 0, 16)}, b"0" * 8, "cut off"),
    "shape and bytes differ": ({"a": entry([5], 0, 16)}, b"0" * 16, "needs 20"),
    "overlap": ({"a": entry([4], 0, 16), "b": entry([4], 8, 24)}, b"0" * 24, "comes next"),
    "gap": ({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, b"0" * 12, "comes next"),
    "bytes that nobody owns": ({"a": entry([1], 0, 4)}, b"0" * 8, "describes 4"),
    "backwards": ({"a": entry([1], 4, 0)}, b"0" * 4, "at bytes"),
    "bytes as text": ({"a": entry([1], "0", "4")}, b"0" * 4, "at bytes"),
    "negative size": ({"a": entry([-1], 0, 4)}, b"0" * 4, "gives it shape"),
    "enormous size": ({"a": entry([2**62, 2**62], 0, 4)}, b"0" * 4, "needs"),
    "size as text": ({"a": entry(["1"], 0, 4)}, b"0" * 4, "gives it shape"),
    "true is no size": ({"a": entry([True], 0, 4)}, b"0" * 4, "gives it shape"),
    "unknown format": ({"a": entry([1], 0, 4, "Q4")}, b"0" * 4, "unknown number format"),
    "no offsets": ({"a": {"dtype": "F32", "shape": [1]}}, b"0" * 4, "without dtype"),
    "a list": ([1, 2], b"", "no JSON object"),
    "no JSON": (b"{nonsense", b"", "no JSON"),
    "nothing but a length": (b"", b"", "no JSON"),
    "no text": (b'{"\xff": 1}', b"", "no JSON"),
    "a name twice": (b'{"a":{},"a":{}}', b"", "twice"),
    "bottomless": (b"[" * 100_000, b"", "no JSON"),
}


@pytest.mark.parametrize(("header", "data", "word"), LIES.values(), ids=LIES.keys())
def test_headers_that_lie_are_refused(tmp_path, header, data, word):
    path = write(tmp_path / "lie.safetensors", header, data)
    with pytest.raises(CheckpointError, match=word) as caught:
        opened(path)
    assert caught.value.file == str(path)
    if not (isinstance(header, bytes) and b'"a":{}' in header):
        with pytest.raises((SafetensorError, OverflowError)), safe_open(path, "pt"):
            pass


def test_an_empty_tensor_may_lie_anywhere_between_others(tmp_path):
    header = {"end": entry([0], 4, 4), "a": entry([1], 0, 4), "start": entry([2, 0], 0, 0)}
    assert [len(opened(write(tmp_path / "a.safetensors", header, b"0" * 4)).read(name)) for name in header] == [0, 1, 2]


def test_a_header_longer_than_the_first_read(tmp_path):
    tensors = {f"{'name' * 20}{i}": torch.full((1,), float(i)) for i in range(2000)}
    save_file(tensors, tmp_path / "a.safetensors")
    file = opened(tmp_path / "a.safetensors")
    assert all(torch.equal(file.read(name), tensor) for name, tensor in tensors.items())


def test_a_file_cut_after_it_was_opened(tmp_path):
    path = small(tmp_path)
    file = opened(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CheckpointError, match="ends at byte"):
        file.read("one"), file.read("two")


def test_what_is_no_file(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    for name, word in (("missing", "is missing"), (".", "not a plain file"), ("pipe", "not a plain file")):
        with pytest.raises(CheckpointError, match=word):
            opened(tmp_path / name)


def headed(path, header, data=b""):
    content = header.encode("utf-8", "surrogatepass")
    path.write_bytes(len(content).to_bytes(8, "little") + content + data)
    return path


ONE = '"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}'


@pytest.mark.parametrize(("header", "sentence"), [
    (f'{{"__metadata__": {{"a": 1}}, {ONE}}}', "metadata that are no strings"),
    (f'{{"__metadata__": [], {ONE}}}', "metadata that are no strings"),
    (f'{{"__metadata__": {{"a": NaN}}, {ONE}}}', "NaN is not a number"),
    (f" {{{ONE}}}", "no JSON object"),
    ('{"\\ud800": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}', "is no JSON"),
    (f'{{"w": {{"dtype": "F32", "shape": {[1] * 65}, "data_offsets": [0, 4]}}}}', "65 dimensions"),
    (f'{{"w": {{"dtype": "F32", "shape": {[10**18] * 100_000}, "data_offsets": [0, 4]}}}}', "100,000 dimensions"),
    (f'{{"w": {{"dtype": "F32", "shape": [{"9" * 5000}], "data_offsets": [0, 4]}}}}', "is no JSON"),
])  # fmt: skip
def test_headers_that_the_library_refuses_or_chokes_on(tmp_path, header, sentence):
    path = headed(tmp_path / "a.safetensors", header, bytes(4))
    with pytest.raises(CheckpointError, match=sentence):
        opened(path)
