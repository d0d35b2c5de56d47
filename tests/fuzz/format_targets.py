"""What is fuzzed of the formats of checkpoints beyond safetensors and torch.save: each with honest files around it."""

from __future__ import annotations

import io
import json
import warnings
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from mutations import spoiled, spoiled_archive, spoiled_header, spoiled_json
from safetensors.torch import load, save, save_file
from target import Target

from joma.scan import open_series
from joma.scan.errors import CheckpointError
from joma.scan.formats.opening import ALONE
from joma.scan.sources.folder import LocalFile, LocalFolder


def _read_all(place: Any) -> None:
    """Everything that a scan does with a checkpoint. One tensor may be refused: the others are read first."""
    refused: CheckpointError | None = None
    with place.open() as checkpoint:
        checkpoint.notes()
        for name in checkpoint.names():
            try:
                stored, value = checkpoint.stored(name), checkpoint.read(name)
            except CheckpointError as error:
                refused = error
                continue
            assert tuple(value.shape) == stored.shape
            if value.ndim == 3 and len(value):
                assert checkpoint.read(f"{name}[0]").shape == value.shape[1:]
    if refused is not None:
        raise refused


_SHAPES = (
    (),
    (0,),
    (1,),
    (3,),
    (16,),
    (64, 1),
    (8, 0),
    (1, 8),
    (8, 8),
    (2, 4, 1),
    (2, 4, 1, 16),
    (7, 300),
    (1, 1, 1, 1),
)
_TYPES = (
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.float32,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.bool,
)


def _spoiled_parts(content: bytes, random: Random, pool: list[bytes]) -> bytes:
    """Mostly an honest file with other tensors in it: of other shapes and types, other numbers, or fewer of them."""
    try:
        tensors = load(content)
    except Exception:
        return spoiled_header(content, random, pool)
    if random.random() < 0.2 or not tensors:
        return spoiled_header(content, random, pool)
    for _ in range(random.choice((1, 1, 2))):
        name = random.choice(sorted(tensors))
        kind = random.randrange(5)
        if "quant_state" in name:
            text = spoiled_json(bytes(tensors[name].to(torch.uint8).flatten().tolist()), random, [b"{}"])
            tensors[name] = torch.frombuffer(bytearray(text or b" "), dtype=torch.uint8)
        elif kind == 0 and len(tensors) > 1:
            del tensors[name]
        elif kind == 1:
            tensors[name] = torch.full(random.choice(_SHAPES), random.choice((0, 1, 3, 100))).to(random.choice(_TYPES))
        elif kind == 2:
            tensors[name] = tensors[name].to(random.choice(_TYPES))
        elif kind == 3 and tensors[name].ndim:
            tensors[name] = tensors[name][: random.randrange(len(tensors[name]) + 1)].contiguous()
        else:
            raw = tensors[name].reshape(-1).view(torch.uint8)
            for _ in range(min(len(raw), 3)):
                raw[random.randrange(len(raw))] = random.randrange(256)
    return save(tensors)


def _in_file(name: str) -> Any:
    def read(content: bytes, folder: Path) -> None:
        path = folder / name
        path.write_bytes(content)
        _read_all(LocalFile(path, 0))

    return read


def _saved(value: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream, **options)
    return stream.getvalue()


# torch.save as it was before torch 1.6


def _legacy_seeds(_: Path) -> list[bytes]:
    base = torch.arange(12.0)
    values = [{"a": base, "part": base[2:4], "half": torch.ones(3, dtype=torch.bfloat16), "n": np.float64(2.0)}, {}]
    return [_saved(value, _use_new_zipfile_serialization=False) for value in values]


# torch.distributed.checkpoint


@cache
def _dcp_folder(folder: Path) -> Path:
    import torch.distributed.checkpoint as dcp

    place = folder / "dcp"
    state = {"model": {"w": torch.arange(20.0).view(4, 5), "e": torch.ones(2, 3, 4)}, "step": 7}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=place, no_dist=True)
    return place


def _dcp(file: str) -> Target:
    def seeds(folder: Path) -> list[bytes]:
        return [(_dcp_folder(folder) / file).read_bytes()]

    def read(content: bytes, folder: Path) -> None:
        path = _dcp_folder(folder) / file
        honest = path.read_bytes()
        path.write_bytes(content)
        try:
            _read_all(LocalFolder(path.parent, 0))
        finally:
            path.write_bytes(honest)

    return Target(seeds, spoiled, read, (CheckpointError,))


# DeepSpeed


def _zero_seeds(_: Path) -> list[bytes]:
    shapes = [{"a.weight": torch.Size([2, 3]), "b.weight": torch.Size([5])}]
    return [_saved({"module": {}, "param_shapes": shapes}), _saved({"param_shapes": shapes[0], "buffer_names": []})]


def _read_zero(content: bytes, folder: Path) -> None:
    place = folder / "zero"
    place.mkdir(exist_ok=True)
    for rank in range(2):
        state, path = (
            {"fp32_flat_groups": [torch.arange(6.0)]},
            place / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt",
        )
        if not path.exists():
            torch.save({"optimizer_state_dict": state}, path)
        (place / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt").write_bytes(content)
    _read_all(LocalFolder(place, 0))


def _layer_seeds(_: Path) -> list[bytes]:
    return [_saved({"mlp.dense_h_to_4h.weight": torch.ones(4, 3), "norm.weight": torch.ones(3)}), _saved({})]


def _read_layer(content: bytes, folder: Path) -> None:
    place = folder / "layers"
    place.mkdir(exist_ok=True)
    (place / "layer_02-model_00-model_states.pt").write_bytes(_layer_seeds(folder)[0])
    (place / "layer_02-model_01-model_states.pt").write_bytes(content)
    _read_all(LocalFolder(place, 0))


# GGUF


def _gguf_seeds(folder: Path) -> list[bytes]:
    import gguf

    found = []
    for kind in ("F32", "Q8_0", "Q4_0"):
        path = folder / "seed.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_token_list(["a", "b"])
        writer.add_array("numbers", [1, 2])
        wanted, value = gguf.GGMLQuantizationType[kind], np.arange(192, dtype=np.float32).reshape(2, 3, 32)
        packed = value if kind == "F32" else gguf.quants.quantize(value, wanted)
        writer.add_tensor("blk.0.ffn_up_exps.weight", packed, raw_dtype=None if kind == "F32" else wanted)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        found.append(path.read_bytes())
    return found


# quantised weights


def _quantised_seeds(_: Path) -> list[bytes]:
    words, scales = torch.arange(64, dtype=torch.int32).view(8, 8), torch.ones(2, 8)
    gptq = {"a.qweight": words, "a.qzeros": words[:2, :1].clone(), "a.scales": scales}
    gptq["a.g_idx"] = torch.arange(64, dtype=torch.int32) // 32
    awq = {"a.qweight": words[:, :1].clone(), "a.qzeros": words[:2, :1].clone(), "a.scales": scales}
    int8 = {"a.weight": torch.ones(4, 3, dtype=torch.int8), "a.SCB": torch.ones(4)}
    state = {"quant_type": "nf4", "blocksize": 64, "shape": [4, 32], "nested_blocksize": 256, "nested_offset": 0.5}
    text = torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)
    nf4 = {
        "a.weight": torch.ones(64, 1, dtype=torch.uint8),
        "a.weight.absmax": torch.ones(2, dtype=torch.uint8),
        "a.weight.quant_map": torch.arange(16.0),
        "a.weight.nested_absmax": torch.ones(1),
        "a.weight.nested_quant_map": torch.arange(256.0),
        "a.weight.quant_state.bitsandbytes__nf4": text,
    }
    fp8 = {"a.weight": torch.ones(4, 4).to(torch.float8_e4m3fn), "a.weight_scale_inv": torch.ones(2, 2)}
    packed = {
        "a.weight_packed": words[:, :1].clone(),
        "a.weight_scale": torch.ones(8, 2),
        "a.weight_shape": torch.tensor([8, 8]),
        "a.weight_zero_point": torch.ones(1, 2, dtype=torch.int32),
        "a.weight_g_idx": torch.arange(8) // 4,
    }
    mx = {"e_blocks": torch.ones(2, 4, 1, 16, dtype=torch.uint8), "e_scales": torch.ones(2, 4, 1, dtype=torch.uint8)}
    return [save(one) for one in (gptq, awq, int8, nf4, fp8, packed, mx)]


# adapters


def _adapter_seeds(_: Path) -> list[bytes]:
    settings = {
        "peft_type": "LORA",
        "r": 2,
        "lora_alpha": 4,
        "base_model_name_or_path": "base",
        "alpha_pattern": {"a": 3},
    }
    return [
        json.dumps(settings).encode(),
        json.dumps({**settings, "use_rslora": True, "fan_in_fan_out": True}).encode(),
    ]


def _read_adapter(content: bytes, folder: Path) -> None:
    place, base = folder / "adapter", folder / "base"
    if not place.exists():
        place.mkdir()
        base.mkdir()
        factors = {
            "base_model.model.a.lora_A.weight": torch.ones(2, 3),
            "base_model.model.a.lora_B.weight": torch.ones(4, 2),
        }
        save_file(factors, place / "adapter_model.safetensors")
        save_file({"a.weight": torch.ones(4, 3)}, base / "model.safetensors")
    (place / "adapter_config.json").write_bytes(content)
    _read_all(LocalFolder(place, 0, base=ALONE))
    _read_all(LocalFolder(place, 0, base=base))


def _factor_seeds(_: Path) -> list[bytes]:
    prefix = "base_model.model.a"
    plain = {f"{prefix}.lora_A.weight": torch.ones(2, 3), f"{prefix}.lora_B.weight": torch.ones(4, 2)}
    dora = {**plain, f"{prefix}.lora_magnitude_vector": torch.ones(4), "base_model.model.b.weight": torch.ones(2, 2)}
    return [save(plain), save(dora)]


def _read_factors(content: bytes, folder: Path) -> None:
    _read_adapter(_adapter_seeds(folder)[0], folder)
    path = folder / "adapter" / "adapter_model.safetensors"
    honest = path.read_bytes()
    path.write_bytes(content)
    try:
        _read_all(LocalFolder(path.parent, 0, base=folder / "base"))
    finally:
        path.write_bytes(honest)


# weights in two parts, layers in one tensor


def _normed_seeds(_: Path) -> list[bytes]:
    new = {
        "a.parametrizations.weight.original0": torch.ones(4, 1),
        "a.parametrizations.weight.original1": torch.ones(4, 3),
    }
    old = {"a.weight_g": torch.ones(1, 3), "a.weight_v": torch.ones(4, 3), "a.bias": torch.ones(4)}
    return [save(new), save(old)]


def _stacked_seeds(_: Path) -> list[bytes]:
    stacked = {
        "decoder.layers.mlp.linear_fc1.weight": torch.ones(2, 8, 3),
        "decoder.layers.mlp.linear_fc2.weight": torch.ones(2, 3, 4),
        "decoder.layers.self_attention.linear_qkv.weight": torch.ones(2, 9, 3),
        "decoder.layers.input_layernorm.weight": torch.ones(2, 3),
    }
    experts = {"decoder.layers.mlp.experts.experts.linear_fc1.weight": torch.ones(2, 3, 4, 3)}
    return [save(stacked), save(experts)]


# folders of training programs


def _rank_seeds(_: Path) -> list[bytes]:
    held = {"decoder.layers.0.mlp.linear_fc1.weight": torch.ones(4, 3), "norm.weight": torch.ones(3)}
    return [_saved({"model": held, "iteration": 7, "stream": io.BytesIO(b"state")}), _saved({"model": {}})]


def _read_rank(content: bytes, folder: Path) -> None:
    place = folder / "megatron"
    for rank, held in enumerate((_rank_seeds(folder)[0], content)):
        (place / f"mp_rank_{rank:02d}").mkdir(parents=True, exist_ok=True)
        (place / f"mp_rank_{rank:02d}" / "model_optim_rng.pt").write_bytes(held)
    _read_all(LocalFolder(place, 0))


def _published_seeds(_: Path) -> list[bytes]:
    held = {
        "tok_embeddings.weight": torch.ones(8, 2),
        "norm.weight": torch.ones(4),
        "layers.0.attention.wo.weight": torch.ones(4, 2),
    }
    return [_saved(held)]


def _read_published(content: bytes, folder: Path) -> None:
    place = folder / "published"
    place.mkdir(exist_ok=True)
    (place / "consolidated.00.pth").write_bytes(_published_seeds(folder)[0])
    (place / "consolidated.01.pth").write_bytes(content)
    _read_all(LocalFolder(place, 0))


def _tuned_seeds(_: Path) -> list[bytes]:
    return [_saved({"model.layers.0.mlp.up_proj.weight": torch.ones(4, 3)}), _saved({"state_dict": {}, "epoch": 3})]


def _read_tuned(content: bytes, folder: Path) -> None:
    """A shard of torchtune beside an honest one, and the same bytes as timm would name them."""
    place = folder / "tuned"
    place.mkdir(exist_ok=True)
    (place / "hf_model_0001_0.pt").write_bytes(_saved({"model.norm.weight": torch.ones(3)}))
    (place / "hf_model_0002_0.pt").write_bytes(content)
    for found in open_series(place, downloads=folder).places:
        _read_all(found)
    path = folder / "checkpoint-3.pth.tar"
    path.write_bytes(content)
    open_series(path, downloads=folder)
    _read_all(LocalFile(path, 3))


FORMATS: dict[str, Target] = {
    "normed": Target(_normed_seeds, _spoiled_parts, _in_file("a.safetensors"), (CheckpointError,)),
    "stacked": Target(_stacked_seeds, _spoiled_parts, _in_file("a.safetensors"), (CheckpointError,)),
    "megatron": Target(_rank_seeds, spoiled_archive, _read_rank, (CheckpointError,)),
    "published": Target(_published_seeds, spoiled_archive, _read_published, (CheckpointError,)),
    "tuned": Target(_tuned_seeds, spoiled_archive, _read_tuned, (CheckpointError,)),
    "legacy": Target(_legacy_seeds, spoiled, _in_file("a.pt"), (CheckpointError,)),
    "dcp": _dcp(".metadata"),
    "distcp": _dcp("__0_0.distcp"),
    "zero": Target(_zero_seeds, spoiled_archive, _read_zero, (CheckpointError,)),
    "layers": Target(_layer_seeds, spoiled_archive, _read_layer, (CheckpointError,)),
    "gguf": Target(_gguf_seeds, spoiled, _in_file("a.gguf"), (CheckpointError,)),
    "quantised": Target(_quantised_seeds, _spoiled_parts, _in_file("a.safetensors"), (CheckpointError,)),
    "adapter": Target(_adapter_seeds, spoiled_json, _read_adapter, (CheckpointError,)),
    "factors": Target(_factor_seeds, _spoiled_parts, _read_factors, (CheckpointError,)),
}
