"""The header of a GGUF file, byte by byte: the numbers are where it says, or it is refused. No package is needed."""

import struct

import pytest
import torch
from format_files import random, refusal

from joma.host import limits
from joma.scan.formats.gguf_file import GgufFile
from joma.scan.formats.tensor_file import LocalBytes

F32, F16, I16 = 0, 1, 25
UINT32, STRING, ARRAY = 4, 8, 9


def word(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def number(name, value, kind=UINT32, form="<I"):
    return word(name) + struct.pack("<I", kind) + struct.pack(form, value)


def described(name, shape, kind, offset):
    turned = struct.pack(f"<{len(shape)}Q", *reversed(shape))
    return word(name) + struct.pack("<I", len(shape)) + turned + struct.pack("<IQ", kind, offset)


def file_of(folder, keys=(), tensors=(), data=b"", *, alignment=32, version=3, said=None):
    count = (len(tensors), len(keys)) if said is None else said
    head = b"GGUF" + struct.pack("<IQQ", version, *count) + b"".join(keys) + b"".join(tensors)
    path = folder / "a.gguf"
    path.write_bytes(head + b"\xff" * (-len(head) % alignment) + data)
    return path, len(head)


KEYS = [
    number("general.quantization_version", 2),
    number("a.byte", 7, kind=0, form="<B"),
    number("a.double", 0.5, kind=12, form="<d"),
    word("words") + struct.pack("<IIQ", ARRAY, STRING, 2) + word("a") + word("é漢"),
    word("numbers") + struct.pack("<IIQ", ARRAY, 3, 3) + struct.pack("<3h", 1, 2, 3),
]


@pytest.mark.parametrize("alignment", [1, 8, 32])
def test_the_numbers_are_where_the_header_says(tmp_path, alignment):
    """For every length of the header, that which ends at a multiple included: then the numbers follow at once."""
    up, half, whole = random(3, 5), random(2, 4, dtype=torch.float16), torch.arange(6, dtype=torch.int16).view(3, 1, 2)
    apart = -(-60 // alignment) * alignment
    raw = [value.contiguous().view(torch.uint8).numpy().tobytes() for value in (up, half, whole)]
    data = raw[0].ljust(apart, b"\xee") + raw[1].ljust(apart, b"\xee") + raw[2]
    tensors = [
        described("up", (3, 5), F32, 0),
        described("half", (2, 4), F16, apart),
        described("whole", (3, 1, 2), I16, 2 * apart),
    ]
    own = [number("general.alignment", alignment)] if alignment != 32 else []
    rests = set()
    for length in range(alignment):
        keys = [*KEYS, word("padding") + struct.pack("<I", STRING) + word("x" * length), *own]
        path, head = file_of(tmp_path, keys, tensors, data, alignment=alignment)
        rests.add(head % alignment)
        file = GgufFile(LocalBytes(path))
        assert {name: (stored.shape, stored.dtype) for name, stored in file.tensors.items()} == {
            "up": ((3, 5), torch.float32), "half": ((2, 4), torch.float16), "whole": ((3, 1, 2), torch.int16)
        }  # fmt: skip
        for name, value in (("up", up), ("half", half), ("whole", whole)):
            assert torch.equal(file.read(name), value)
            assert torch.equal(file.read_rows(name, 1, 9), value[1:])
        assert file.notes == ()
        file.close()
    assert rests == set(range(alignment))


def test_what_a_header_cannot_mean_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "TENSORS", 3)

    def said(**parts):
        return refusal(lambda: GgufFile(LocalBytes(file_of(tmp_path, **parts)[0]))).removeprefix(f"{tmp_path}/a.gguf ")

    def of(*shape, offset=0, name="w"):
        return {"tensors": [described(name, shape, F32, offset)], "data": bytes(400)}

    def aligned(to):
        return {**of(2, 3), "keys": [number("general.alignment", to)]}

    for parts, sentence in (
        ({"version": 1}, "is no GGUF file of version 2 or 3 in little-endian order"),
        ({"said": (4, 0)}, "says that it holds 4 tensors or keys"),
        ({"said": (0, 4)}, "says that it holds 4 tensors or keys"),
        ({"said": (1, 0), "alignment": 1}, "is cut off in its header, or no GGUF file"),
        (of(), "gives 'w' 0 dimensions"),
        (of(1, 1, 1, 1, 1), "gives 'w' 5 dimensions"),
        (of(3, 0), "gives 'w' the shape (3, 0)"),
        (of(2**28, 2**28), "gives 'w' the shape (268435456, 268435456)"),
        (of(2, 3, offset=2**62), "gives 'w' the shape (2, 3)"),
        (of(20, 6), "is cut off: it has 496 bytes (w)"),
        ({"tensors": [described("w", (1,), F32, 0)] * 2}, "holds 'w' twice"),
        (aligned(0), "says that its numbers begin at multiples of 0"),
        (aligned(3), "says that its numbers begin at multiples of 3"),
        (aligned(24), "says that its numbers begin at multiples of 24"),
        ({"keys": [word("a") + struct.pack("<I", 13)]}, "has a header with a value of the unknown type 13"),
        ({"keys": [word("a") + struct.pack("<IIQ", ARRAY, ARRAY, 1)]}, "has a header with lists that no model has"),
        ({"keys": [word("a") + struct.pack("<IQ", STRING, 999)]}, "is cut off in its header"),
    ):  # fmt: skip
        assert said(**parts) == sentence
    for count in (1, 3):
        every = [described(str(at), (2, 3), F32, 32 * at) for at in range(count)]
        path, _ = file_of(tmp_path, KEYS[:3], every, bytes(32 * count))
        assert len(GgufFile(LocalBytes(path)).tensors) == count
