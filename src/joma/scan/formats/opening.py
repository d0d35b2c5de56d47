"""Opening the weights of a local checkpoint, whatever they are stored as; an adapter with its base, W + s B A."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from joma.host.words import counted
from joma.scan.errors import CheckpointError
from joma.scan.formats.adapter import CONFIG, Factors, factors_of, plain_name
from joma.scan.formats.checkpoint import (
    ENDINGS,
    NO_WEIGHTS,
    TOGETHER,
    Checkpoint,
    Weights,
    choose_weights,
    ends_in,
    parts_of_one,
)
from joma.scan.formats.dcp import METADATA, DcpFolder
from joma.scan.formats.deepspeed import ZeroFile, layer_states, rank_states
from joma.scan.formats.fsdp import fsdp_states
from joma.scan.formats.gguf_file import GgufFile
from joma.scan.formats.safetensors_file import SafetensorsFile
from joma.scan.formats.tensor_file import LocalBytes, Stored, TensorFile, closed_on_error, parsed_json, small_file
from joma.scan.formats.torch_file import TorchFile

# Folders in which trainers put weights: DeepSpeed, FSDP, OLMo-core; verl; diffusers; DeepSpeed under Lightning.
_INSIDE = re.compile(
    r"global_step\d+|pytorch_model_fsdp_\d+|dist_checkpoint|model_and_optim|actor|huggingface|transformer|unet|checkpoint"
)
_LEVELS = 3  # folders inside one another that are looked into
_WHOLE = re.compile(r"model_world_size_1_rank_0\.pt")  # of one process: it holds all
ALONE = Path()  # for `base`: an adapter is read without the base that its settings name
_CHANGES_ITS_BASE = ("pissa", "olora", "corda", "loftq")  # the adapter then belongs to a base that was changed first


def opened_file(path: Path) -> TensorFile:
    """A local file of tensors: the ending decides the format."""
    ending = path.suffix.lower()
    if ending == ".safetensors":
        return SafetensorsFile(LocalBytes(path))
    return GgufFile(LocalBytes(path)) if ending == ".gguf" else TorchFile(path)


def open_file(path: Path) -> Checkpoint:
    """A checkpoint that is one file. What config.json beside it says of packed weights is believed."""
    together = None if _WHOLE.fullmatch(path.name) else parts_of_one([path.name])
    siblings = parts_of_one([each.name for each in path.parent.iterdir()]) if together else None
    if together and (together[0] in ("zero", "dcp", "layers", "fsdp") or (siblings and len(siblings[1]) > 1)):
        what = f"{path} is one part of a checkpoint in several files; name the folder {path.parent}"
        raise CheckpointError(what, file=path.name)
    adapter = _json(path.parent / CONFIG) if path.name.startswith("adapter_model.") else None
    return Checkpoint({path.name: partial(opened_file, path)}, None, config=_config(path.parent), adapter=adapter)


def open_folder(path: Path, weights: Weights, base: Path | None = None) -> Checkpoint:
    """The checkpoint in a folder whose `weights` are known; every file of it is opened."""
    together = weights.kind not in ("", "adapter")
    adapter = _json(path / CONFIG) if weights.kind == "adapter" else None
    files: dict[str, Callable[[], TensorFile]] = {file: partial(opened_file, path / file) for file in weights.files}
    if together:
        files = {weights.files[0]: partial(_together, path, weights)}
    checkpoint = Checkpoint(files, None if together else weights.index, config=_config(path), adapter=adapter)
    with closed_on_error(checkpoint):
        checkpoint.open_all()
        found = _base_of(path, base) if weights.kind == "adapter" else None
        return checkpoint if found is None else _merged(path, checkpoint, found)


def weights_folder(path: Path) -> Path:
    """A folder itself, or the one inside that holds its weights, as many trainers put them a level or two down."""
    for _ in range(_LEVELS):
        if _has_weights(path) or len(rank_files(path)) > 1:
            return path
        entries = listed(path)
        ranks = [entry for entry in entries if entry.name.startswith("mp_rank_") and entry.is_dir()]
        inside = ranks or [e for e in entries if _INSIDE.fullmatch(e.name) and e.is_dir() and _leads_to_weights(e)]
        if len(inside) != 1:
            break
        path = inside[0]
    return path


def rank_files(path: Path) -> list[Path]:
    """The files of weights in folders `mp_rank_00`, `mp_rank_01`, ... of Megatron-LM, one for each part."""
    ranks = [entry for entry in listed(path) if entry.name.startswith("mp_rank_") and entry.is_dir()]
    found = [
        file for rank in ranks for file in listed(rank) if TOGETHER["megatron"].fullmatch(f"{rank.name}/{file.name}")
    ]
    if len(ranks) > 1 and len(found) != len(ranks):
        how = "convert it to one part with its tools (tools/checkpoint/convert.py) or to transformers"
        what = (
            f"{path} is a checkpoint of Megatron-LM in {len(ranks)} parts, cut by more than tensor parallelism; {how}"
        )
        raise CheckpointError(what, file=ranks[0].name)
    return found


def _has_weights(path: Path) -> bool:
    weights = [entry.name for entry in listed(path) if ends_in(entry.name, (*ENDINGS, ".index.json"))]
    return not all(map(NO_WEIGHTS.fullmatch, weights))


def _leads_to_weights(path: Path, levels: int = _LEVELS) -> bool:
    if _has_weights(path) or parts_of_one([entry.name for entry in listed(path)]):
        return True
    inside = [entry for entry in listed(path) if _INSIDE.fullmatch(entry.name) and entry.is_dir()]
    return levels > 1 and any(_leads_to_weights(entry, levels - 1) for entry in inside)


_JOINED: dict[str, Callable[[Sequence[str], Callable[[str], TorchFile], str], TensorFile]] = {
    "layers": layer_states, "ranks": rank_states, "consolidated": rank_states, "megatron": rank_states,
    "zero": ZeroFile, "fsdp": fsdp_states,
}  # fmt: skip


def _together(path: Path, weights: Weights) -> TensorFile:
    if weights.kind != "dcp":
        shards = weights.kind == "fsdp"
        return _JOINED[weights.kind](weights.files, lambda name: TorchFile(path / name, shards=shards), str(path))
    folder = DcpFolder(str(path), small_file(path / METADATA), lambda name: LocalBytes(path / name))
    with closed_on_error(folder):
        folder.open_all()
    return folder


def _base_of(path: Path, given: Path | None) -> Path | None:
    if given is not None:
        return None if given == ALONE else given
    named = (_json(path / CONFIG) or {}).get("base_model_name_or_path")
    if not isinstance(named, str) or not named or "\0" in named or len(named) > 4096:
        return None
    with suppress(OSError, RuntimeError, CheckpointError):  # something else that happens to have this name
        found = Path(named).expanduser()
        if found.is_dir():
            _weights_in(found)
            return found
    return None


def _merged(path: Path, adapter: Checkpoint, base: Path) -> Checkpoint:
    weights = _weights_in(base)
    if weights.kind == "adapter":
        raise CheckpointError(f"{base} is an adapter itself, and no base for {path}", file=CONFIG)
    below = open_folder(base, weights)
    with closed_on_error(below):
        merged = MergedFile(below, adapter, _json(path / CONFIG) or {}, f"{path.name} on {base}")
        return Checkpoint({f"{path.name} (with its base)": lambda: merged}, None)


def _weights_in(folder: Path) -> Weights:
    names = [entry.name for entry in listed(folder) if entry.is_file()]
    return choose_weights(names, lambda name: small_file(folder / name), str(folder))


def listed(folder: Path) -> list[Path]:
    """What a folder holds, by name; a sentence where that cannot be told."""
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


class MergedFile(TensorFile):
    """The tensors of a base; those that an adapter changes come out changed, in float32."""

    def __init__(self, base: Checkpoint, adapter: Checkpoint, settings: Mapping[str, Any], name: str) -> None:
        """base, adapter: their checkpoints, which are closed with this. settings: what adapter_config.json says."""
        self.name = name
        self._base, self._adapter = base, adapter
        start = settings.get("init_lora_weights")
        if isinstance(start, str) and start.lower().startswith(_CHANGES_ITS_BASE):
            how = f"began as {start[:40]!a}, which changes the base first: merge it with peft and scan the result"
            raise CheckpointError(f"{CONFIG} says that the adapter {how}", file=CONFIG)
        self._turned = settings.get("fan_in_fan_out") is True
        stored, known = adapter.stored_names(), base.names()
        self._factors = {_target(each.target, known, each.down): each for each in factors_of(stored, settings)}
        full = {plain_name(each): each for each in stored if ".lora_" not in each}
        self._replaced = {_target(plain, known, each): each for plain, each in full.items()}
        self.tensors = {}
        for each in known:
            stored_as = adapter.look(self._replaced[each]) if each in self._replaced else base.stored(each)
            self.tensors[each] = Stored(stored_as.shape, torch.float32) if each in self._factors else stored_as
        if not self._factors:
            raise self.wrong("has no factors lora_A and lora_B, so there is nothing to merge")
        merged = f"{counted(len(self._factors), 'weight')} of the base came out with the adapter merged into"
        own = f"{counted(len(self._replaced), 'tensor')} of the adapter took the place of the base's"
        them = "it" if len(self._factors) == 1 else "them"
        self.notes = (*base.notes(), f"{merged} {them}", *([own] if self._replaced else []))

    def read(self, tensor: str) -> Tensor:
        own = self._replaced.get(tensor)
        weight = self._base.read(tensor) if own is None else self._adapter.take(own)
        return self._merged(tensor, weight.float(), self._factors[tensor]) if tensor in self._factors else weight

    def read_rows(self, tensor: str, start: int, stop: int) -> Tensor:
        if tensor in self._replaced or tensor in self._factors:
            return self.read(tensor)[start:stop]
        return self._base.read_rows(tensor, start, stop)

    def prefetch(self, tensor: str) -> None:
        if tensor not in self._replaced:
            self._base.prefetch(tensor)

    def close(self) -> None:
        self._base.close()
        self._adapter.close()

    def _merged(self, tensor: str, weight: Tensor, factors: Factors) -> Tensor:
        down, up = factors.taken(self._adapter)
        if factors.embedding or self._turned:  # an embedding, or a layer that keeps its weight as (inputs, outputs)
            down, up = up.T, down.T
        if weight.shape != (up.shape[0], down.shape[1]):
            has, adds = f"has shape {tuple(weight.shape)} in the base", f"{up.shape[0]} x {down.shape[1]}"
            raise CheckpointError(f"{tensor} {has}, and the adapter adds a matrix of {adds}", tensor=tensor)
        weight = weight.addmm(up.float(), down.float())
        if factors.magnitude is None:
            return weight
        # DoRA: every output has the length that was learned for it.
        length = self._adapter.take(factors.magnitude).float().reshape(-1)
        dim = 0 if self._turned else 1
        if len(length) != weight.shape[1 - dim]:
            raise CheckpointError(f"{factors.magnitude} has {len(length)} lengths for {weight.shape[1 - dim]} outputs")
        lengths: Tensor = torch.linalg.vector_norm(weight, dim=dim)
        return weight * (length / lengths).unsqueeze(dim)


def _target(name: str, known: Collection[str], source: str) -> str:
    """The tensor of the base that an adapter means; either may have words before the name that the other has not."""
    if name in known:
        return name
    fitting = [each for each in known if name.endswith(f".{each}") or each.endswith(f".{name}")]
    if len(fitting) != 1:
        what = "has no such tensor" if not fitting else f"has {len(fitting)} that it may mean"
        why = f"{source} changes {name}, and the base {what}: it belongs to another base"
        raise CheckpointError(why, tensor=source)
    return fitting[0]
