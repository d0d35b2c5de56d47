"""Tensor files that notice when a single bit has changed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from joma.host.sealed import DamagedError, load_sealed, save_sealed

TENSORS = {
    "weights": torch.randn(40, 50, generator=torch.Generator().manual_seed(0)),
    "half": torch.arange(7, dtype=torch.bfloat16),
    "step": torch.tensor(3),
    "empty": torch.zeros(0, 4),
    "mask": torch.tensor([True, False]),
}


def equal(found: dict[str, torch.Tensor]) -> bool:
    return found.keys() == TENSORS.keys() and all(
        torch.equal(found[name], value) and found[name].dtype == value.dtype for name, value in TENSORS.items()
    )


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    save_sealed(tmp_path / "a", TENSORS, {"identity": "Dürer"})
    tensors, about = load_sealed(tmp_path / "a")
    assert equal(tensors)
    assert about == {"identity": "Dürer"}


def test_any_flipped_bit_is_noticed(tmp_path: Path) -> None:
    save_sealed(tmp_path / "a", TENSORS, {"identity": "x"})
    content, chance = (tmp_path / "a").read_bytes(), random.Random(0)
    for _ in range(400):
        spoiled, place = bytearray(content), chance.randrange(len(content))
        spoiled[place] ^= 1 << chance.randrange(8)
        (tmp_path / "b").write_bytes(spoiled)
        try:
            tensors, about = load_sealed(tmp_path / "b")
        except DamagedError:
            continue
        assert equal(tensors), place  # what changed was a blank in the header, say
        assert about == {"identity": "x"}, place


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
