"""Opening the weights of a local checkpoint, whatever they are stored as."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from joma.scan.checkpoint import (
    ADAPTER,
    ENDINGS,
    NO_WEIGHTS,
    Checkpoint,
    Weights,
    choose_weights,
    parsed_json,
    parts_of_one,
)
from joma.scan.errors import CheckpointError
from joma.scan.formats.dcp import METADATA, DcpFolder
from joma.scan.formats.deepspeed import ZeroFile, consolidated, layer_states, model_states
from joma.scan.formats.gguf_file import GgufFile
from joma.scan.formats.merged import MergedFile
from joma.scan.formats.safetensors_file import SafetensorsFile
from joma.scan.formats.tensor_file import LocalBytes, TensorFile, small_file
from joma.scan.formats.torch_file import TorchFile

_INSIDE = re.compile(r"global_step\d+|pytorch_model_fsdp_\d+|dist_checkpoint")
ALONE = Path()
"""For `base`: an adapter is read without the base that its settings name."""


def opener(path: Path) -> Callable[[], TensorFile]:
    """How a local file of tensors is opened: the ending decides the format."""
    return lambda: opened_file(path)


def opened_file(path: Path) -> TensorFile:
    """A local file of tensors."""
    if path.suffix == ".safetensors":
        return SafetensorsFile(LocalBytes(path))
    return GgufFile(LocalBytes(path)) if path.suffix == ".gguf" else TorchFile(path)


def open_file(path: Path) -> Checkpoint:
    """A checkpoint that is one file. What config.json beside it says of packed weights is believed."""
    together = parts_of_one([path.name])
    siblings = parts_of_one([each.name for each in path.parent.iterdir()]) if together else None
    if together and (together[0] in ("zero", "dcp", "layers") or (siblings and len(siblings[1]) > 1)):
        raise CheckpointError(
            f"{path} is one part of a checkpoint in several files; name the folder {path.parent}", file=path.name
        )
    adapter = _json(path.parent / ADAPTER) if path.name.startswith("adapter_model.") else None
    return Checkpoint({path.name: opener(path)}, None, config=_config(path.parent), adapter=adapter)


def open_folder(path: Path, weights: Weights, base: Path | None = None) -> Checkpoint:
    """The checkpoint in a folder whose `weights` are known; every file of it is opened.

    base: the folder of the model that an adapter belongs to. None: the one that its settings name, if it is a local
    folder. ALONE: none.
    """
    checkpoint = _alone(path, weights)
    try:
        checkpoint.open_all()
        found = _base_of(path, base) if weights.kind == "adapter" else None
        return checkpoint if found is None else _merged(path, checkpoint, found)
    except BaseException:
        checkpoint.close()
        raise


def weights_folder(path: Path) -> Path:
    """A folder itself, or the one inside that holds its weights, as trainers put those of DeepSpeed and FSDP apart."""
    entries = _listed(path)
    if any(
        entry.name.endswith((*ENDINGS, ".index.json")) and not NO_WEIGHTS.fullmatch(entry.name) for entry in entries
    ):
        return path
    ranks = [entry for entry in entries if entry.name.startswith("mp_rank_") and entry.is_dir()]
    if len(ranks) > 1:
        raise CheckpointError(
            f"{path} is a checkpoint of Megatron-LM in {len(ranks)} parts; convert it to one part with its tools "
            "(tools/checkpoint/convert.py) or to transformers",
            file=ranks[0].name,
        )
    if ranks:
        return ranks[0]
    inside = [entry for entry in entries if _INSIDE.fullmatch(entry.name) and entry.is_dir()]
    inside = [entry for entry in inside if parts_of_one([each.name for each in _listed(entry)])]
    return inside[0] if len(inside) == 1 else path


def _alone(path: Path, weights: Weights) -> Checkpoint:
    if weights.kind in ("", "adapter"):
        adapter = _json(path / ADAPTER) if weights.kind else None
        files = {file: opener(path / file) for file in weights.files}
        return Checkpoint(files, weights.index, config=_config(path), adapter=adapter)
    return Checkpoint({weights.files[0]: lambda: _together(path, weights)}, None, config=_config(path))


def _together(path: Path, weights: Weights) -> TensorFile:
    def torch_file(name: str) -> TorchFile:
        return TorchFile(path / name)

    if weights.kind == "layers":
        return layer_states(weights.files, torch_file, str(path))
    if weights.kind == "ranks":
        return model_states(weights.files, torch_file, str(path))
    if weights.kind == "consolidated":
        return consolidated(weights.files, torch_file, str(path))
    if weights.kind == "zero":
        return ZeroFile(weights.files, torch_file, str(path))
    folder = DcpFolder(str(path), small_file(path / METADATA), lambda name: LocalBytes(path / name))
    try:
        folder.open_all()
    except BaseException:
        folder.close()
        raise
    return folder


def _base_of(path: Path, given: Path | None) -> Path | None:
    """The folder of an adapter's base, if it is on this machine."""
    if given is not None:
        return None if given == ALONE else given
    named = (_json(path / ADAPTER) or {}).get("base_model_name_or_path")
    if not isinstance(named, str) or not named or "\0" in named or len(named) > 4096:
        return None
    try:
        found = Path(named).expanduser()
        if found.is_dir():
            _weights_in(found)
            return found
    except (OSError, RuntimeError, CheckpointError):  # something else that happens to have this name
        pass
    return None


def _merged(path: Path, adapter: Checkpoint, base: Path) -> Checkpoint:
    weights = _weights_in(base)
    if weights.kind == "adapter":
        raise CheckpointError(f"{base} is an adapter itself, and no base for {path}", file=ADAPTER)
    below = open_folder(base, weights)
    try:
        merged = MergedFile(below, adapter, _json(path / ADAPTER) or {}, f"{path.name} on {base}")
        return Checkpoint({weights_name(path): lambda: merged}, None)
    except BaseException:
        below.close()
        raise


def _weights_in(folder: Path) -> Weights:
    names = [entry.name for entry in _listed(folder) if entry.is_file()]
    return choose_weights(names, lambda name: small_file(folder / name), str(folder))


def weights_name(path: Path) -> str:
    """What messages call an adapter that is read with its base."""
    return f"{path.name} (with its base)"


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be listed: {error.strerror}", file=str(folder)) from error


def _config(folder: Path) -> dict[str, Any]:
    """What config.json says; older GPTQ models have their settings in a file of their own."""
    found = _json(folder / "config.json") or {}
    own = None if "quantization_config" in found else _json(folder / "quantize_config.json")
    return found if own is None else {**found, "quantization_config": {"quant_method": "gptq", **own}}


def _json(path: Path) -> dict[str, Any] | None:
    try:
        present = path.is_file()
    except OSError:  # its folder may not be entered: opening the weights will say so
        return None
    return parsed_json(small_file(path), str(path)) if present else None
