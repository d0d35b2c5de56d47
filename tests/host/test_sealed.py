"""Tensor files that notice when a single bit has changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from joma.host.sealed import DamagedError, load_sealed, save_sealed

TENSORS = {
    "weights": torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),
    "counts": torch.arange(12, dtype=torch.int32).reshape(3, 4),
    "half": torch.arange(7, dtype=torch.bfloat16),
    "step": torch.tensor(3),
    "empty": torch.zeros(0, 4),
    "mask": torch.tensor([True, False]),
}


def equal(found: dict[str, torch.Tensor], written: dict[str, torch.Tensor] = TENSORS) -> bool:
    return found.keys() == written.keys() and all(
        torch.equal(found[name], value) and found[name].dtype == value.dtype for name, value in written.items()
    )


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    save_sealed(tmp_path / "a", TENSORS, {"identity": "Dürer"})
    tensors, about = load_sealed(tmp_path / "a")
    assert equal(tensors)
    assert about == {"identity": "Dürer"}


def test_any_flipped_bit_is_noticed(tmp_path: Path) -> None:
    """One bit of every byte: of the header with its names, shapes and strings, and of all numbers."""
    few, about = {"w": TENSORS["weights"][0].clone(), "on": TENSORS["mask"]}, {"identity": "x"}
    save_sealed(tmp_path / "a", few, about)
    content, unnoticed = (tmp_path / "a").read_bytes(), []
    for place in range(len(content)):
        spoiled = bytearray(content)
        spoiled[place] ^= 1 << place % 8
        (tmp_path / "b").write_bytes(spoiled)
        try:
            tensors, found = load_sealed(tmp_path / "b")
        except DamagedError:
            continue
        assert equal(tensors, few), place
        assert found == about, place
        unnoticed.append(content[place])
    assert set(unnoticed) <= set(b" ")  # one blank of the header may become another


def swap(header: dict[str, Any], one: str, other: str, *fields: str) -> None:
    for field in fields:
        header[one][field], header[other][field] = header[other][field], header[one][field]


SPOILED: dict[str, Callable[[dict[str, Any]], object]] = {
    "a string": lambda header: header["__metadata__"].update(step="4"),
    "the name of a string": lambda header: header["__metadata__"].update(steps=header["__metadata__"].pop("step")),
    "a string more": lambda header: header["__metadata__"].update(more="x"),
    "a string less": lambda header: header["__metadata__"].pop("step"),
    "the seal": lambda header: header["__metadata__"].update(crc32="0"),
    "no seal": lambda header: header["__metadata__"].pop("crc32"),
    "a type": lambda header: header["weights"].update(dtype="U32"),
    "a shape": lambda header: header["weights"].update(shape=[4, 3]),
    "a name": lambda header: header.update(other=header.pop("weights")),
    "values of another": lambda header: swap(header, "weights", "counts", "data_offsets"),
    "names that changed places": lambda header: swap(header, "weights", "counts", "data_offsets", "dtype"),
}


@pytest.mark.parametrize("what", SPOILED)
def test_a_header_that_speaks_well_of_other_things_is_not_believed(tmp_path: Path, what: str) -> None:
    """Each is a sound safetensors file, of which only the checksum can tell that it is not the one that was written."""
    save_sealed(tmp_path / "a", TENSORS, {"step": "3"})
    content = (tmp_path / "a").read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    SPOILED[what](header)
    text = json.dumps(header).encode()
    (tmp_path / "a").write_bytes(len(text).to_bytes(8, "little") + text + content[end:])
    with safe_open(tmp_path / "a", "pt") as file:
        assert len(list(file.keys())) == len(TENSORS)
    with pytest.raises(DamagedError, match="not those that were written"):
        load_sealed(tmp_path / "a")


@pytest.mark.parametrize("size", [0, 5, 100, -1])
def test_a_cut_file_is_damaged(tmp_path: Path, size: int) -> None:
    save_sealed(tmp_path / "a", TENSORS)
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:size])
    with pytest.raises(DamagedError, match="is damaged"):
        load_sealed(tmp_path / "a")


def test_a_file_without_a_seal_is_not_believed(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "a")
    with pytest.raises(DamagedError, match="not those that were written"):
        load_sealed(tmp_path / "a")


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_sealed(tmp_path / "a")


def test_one_number_that_is_spread(tmp_path):
    spread = {"x": torch.tensor(3, dtype=torch.int32).expand(1), "y": torch.tensor(2.0)}
    save_sealed(tmp_path / "a", spread)
    assert all(torch.equal(load_sealed(tmp_path / "a")[0][name], spread[name]) for name in spread)
