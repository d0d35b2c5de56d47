"""What is fuzzed of safetensors and torch.save: files of tensors, alone."""

from __future__ import annotations

import io
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from mutations import spoiled_archive, spoiled_header
from safetensors.torch import save
from target import Target, written

from joma.scan.errors import CheckpointError

# safetensors


def _safetensors_seeds(_: Path) -> list[bytes]:
    plain = {"a": torch.arange(6.0).view(2, 3), "b.weight": torch.ones(2, dtype=torch.bfloat16)}
    return [save(plain), save({"x": torch.zeros(0), "y": torch.ones(1, dtype=torch.int64)}, {"format": "pt"}), save({})]


def _read_safetensors(content: bytes, folder: Path) -> None:
    from safetensors import safe_open

    from joma.scan.formats.safetensors_file import SafetensorsFile
    from joma.scan.formats.tensor_file import LocalBytes

    path = written(content, folder, "a.safetensors")
    with closing(SafetensorsFile(LocalBytes(path))) as file:
        with safe_open(path, "pt") as judge:  # what the format's own library refuses must not be accepted
            assert sorted(judge.keys()) == sorted(file.tensors)
        for name, stored in file.tensors.items():
            if stored.dtype is not None:
                assert file.read(name).shape == stored.shape


# torch.save


def _torch_seeds(_: Path) -> list[bytes]:
    base = torch.arange(12.0)
    values: list[Any] = [
        {"a": base, "part": base[2:4], "turned": base.view(3, 4).T, "half": torch.ones(3, dtype=torch.bfloat16)},
        {"model": {"w": torch.nn.Parameter(torch.eye(3))}, "step": 7, "names": ["x", (1, 2.5)], "none": None},
        {"optimizer": {"state": {0: {"exp_avg": torch.zeros(2, 2)}}}},
    ]
    found = []
    for value in values:
        stream = io.BytesIO()
        torch.save(value, stream)
        found.append(stream.getvalue())
    return found


def _read_torch(content: bytes, folder: Path) -> None:
    from joma.scan.formats.torch_file import TorchFile

    with closing(TorchFile(written(content, folder, "a.pt"))) as file:
        for name, stored in file.tensors.items():
            assert file.read(name).shape == stored.shape


TENSORS: dict[str, Target] = {
    "safetensors": Target(_safetensors_seeds, spoiled_header, _read_safetensors, (CheckpointError,)),
    "torch": Target(_torch_seeds, spoiled_archive, _read_torch, (CheckpointError,)),
}
