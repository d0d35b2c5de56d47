"""Small files that swell as they are read: refused, or read as if they did not, within a stated memory and time."""

from __future__ import annotations

import json
import pickle
import resource
import sys
from pathlib import Path
from typing import Any

from chaos import memory
from chaos.score import Score, Setting, plain
from chaos.work import curves, joma

MEGABYTES, SECONDS = 500, 20
"""What a scan of one of them may take beyond what joma itself has, and the seconds of processor for all of it."""
SMALL = 500_000
"""Bytes that none of the files has: an honest file of this size is read with a fraction of the limits."""


def disturb(setting: Setting) -> Score:
    score = Score("swelling")
    places = setting.place("files")
    setting.warm.done("chaos.swelling:make", places)
    for number in range(setting.rounds):
        for kind in SWELLING:
            _scanned(setting, score, places / kind, setting.place(f"{kind}-{number}"))
    return score


def _scanned(setting: Setting, score: Score, path: Path, out: Path) -> None:
    size = sum(file.stat().st_size for file in path.iterdir())
    assert size < SMALL, f"{path.name} has {size} bytes"
    child = setting.warm.start("chaos.swelling:command", path, out)
    status, said = child.wait(), child.said().strip() or child.printed()
    score.disturbances += 1
    if status == 0 and path.name == "bytearray":  # the weights beside it are honest
        score.count("read as if it did not swell")
        found = curves(out / "curves.json")
        if not found or not found["curves"]:
            score.lose("the weights beside a bytearray that swells")
    elif status == 1 and SWELLING[path.name][1] in f"{child.said()} {child.printed()}".replace("\n", " "):
        score.count("refused")
    else:
        score.err(f"{path.name}: status {status}; it said {said[-300:]!r}")
    if not plain(child.said()):
        score.wonder(f"{path.name}: status {status}; it said {child.said()[-300:]!r}")


def command(path: str, out: str) -> int:
    """A scan that is ended by the system where it takes more."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))
    memory._limited("RLIMIT_DATA", MEGABYTES)
    return joma("scan", path, "--out", out, "--json", f"{out}/curves.json", "--no-page")


def make(folder: str) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "scan" / "formats"))
    for kind, (maker, _) in SWELLING.items():
        place = Path(folder) / kind
        place.mkdir()
        maker(place)


def _shared_tuples(place: Path) -> None:
    """A .metadata with tuples that hold one another twice: 2^60 words."""
    from format_files import dcp_saved

    def swell(found: Any) -> None:
        nested: Any = ("w",)
        for _ in range(60):
            nested = (nested, nested)
        for info in found.storage_data.values():
            info.transform_descriptors = nested

    _changed(dcp_saved(place, _state()), swell)


def _shared_chunks(place: Path) -> None:
    """3,000 tensors that share one list of 3,000 chunks, each of which is where it is said to be."""
    from format_files import dcp_saved
    from torch.distributed.checkpoint.metadata import MetadataIndex

    def swell(found: Any) -> None:
        (entry,), (info,) = found.state_dict_metadata.values(), found.storage_data.values()
        rows, width = entry.size
        names = [f"h.{at}.mlp.c_fc.weight" for at in range(3000)]
        entry.size, entry.chunks = type(entry.size)((3000 * rows, width)), entry.chunks * 3000
        found.state_dict_metadata = dict.fromkeys(names, entry)
        found.storage_data = {MetadataIndex(name, entry.chunks[0].offsets): info for name in names}

    _changed(dcp_saved(place, _state()), swell)


def _changed(folder: Path, change: Any) -> None:
    found = pickle.loads((folder / ".metadata").read_bytes())
    change(found)
    (folder / ".metadata").write_bytes(pickle.dumps(found))


def _pattern(place: Path) -> None:
    """An adapter with a pattern that has 2^38 ways to fit the name of its module."""
    import torch
    from safetensors.torch import save_file

    module = f"base_model.model.h.0.mlp.{'a' * 38}b"
    save_file(
        {f"{module}.lora_A.weight": torch.ones(2, 4), f"{module}.lora_B.weight": torch.ones(4, 2)},
        place / "adapter_model.safetensors",
    )
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 1, "alpha_pattern": {r"h.0.mlp." + "(.|a)" * 38: 2}}
    (place / "adapter_config.json").write_text(json.dumps(settings))


class Swollen:
    """Unpickled as it stands, three gigabytes."""

    def __reduce__(self) -> tuple[type, tuple[int]]:
        return bytearray, (3 * 10**9,)


def _bytearray(place: Path) -> None:
    import torch

    torch.save(_state() | {"b": Swollen()}, place / "pytorch_model.bin")


def _names(place: Path) -> None:
    """Many tensors below one long name: each of their names is as long."""
    import torch

    one = torch.ones(1)
    torch.save({"x" * 200_000: {str(at): one for at in range(3000)}}, place / "pytorch_model.bin")


def _state() -> dict[str, Any]:
    import torch

    return {"h.0.mlp.c_fc.weight": torch.randn(4, 16, generator=torch.Generator().manual_seed(0))}


SWELLING = {
    "bytearray": (_bytearray, "pickled object"),
    "names": (_names, "its names have more than"),
    "pattern": (_pattern, "could take for ever"),
    "shared-chunks": (_shared_chunks, "tensors or chunks"),
    "shared-tuples": (_shared_tuples, "packed by an extension"),
}
"""How each is made, and what is said of it."""
