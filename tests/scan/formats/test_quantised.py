"""Quantised weights in safetensors: dequantised right, said so, or refused in one sentence."""

import json

import numpy as np
import packed_weights as packed
import pytest
import torch
from safetensors.torch import save_file

from joma.scan.errors import CheckpointError
from joma.scan.sources.folder import LocalFolder

LAYER = "model.layers.0.mlp.up_proj"


def folder_of(folder, parts, settings=None, stem=f"{LAYER}."):
    tensors = {f"{stem}{name}": value.contiguous() for name, value in parts.items()}
    save_file({**tensors, "norm.weight": torch.ones(4)}, folder / "model.safetensors")
    config = {"model_type": "llama"} | ({"quantization_config": settings} if settings else {})
    (folder / "config.json").write_text(json.dumps(config))
    return LocalFolder(folder, 0)


def must_be(place, weight, said, name=f"{LAYER}.weight"):
    with place.open() as checkpoint:
        assert checkpoint.names() == ["norm.weight", name] or sorted(checkpoint.names()) == sorted(
            ["norm.weight", name]
        )
        stored, value = checkpoint.stored(name), checkpoint.read(name)
        assert (stored.shape, stored.dtype) == (tuple(weight.shape), torch.float32)
        np.testing.assert_allclose(value.double().numpy(), weight, rtol=3e-7, atol=1e-7)
        assert value.dtype is torch.float32
        assert checkpoint.notes() == ((f"1 tensor was {said}",) if said else ())
        assert checkpoint.file_of(name) == "model.safetensors"
        part = checkpoint.read(f"{name}[2:5]")
        assert torch.equal(part, value[2:5])
        assert torch.equal(checkpoint.read(f"{name}[1:6:2]"), value[1:6:2])


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("second", [False, True])
def test_gptq(tmp_path, bits, second):
    parts, weight = packed.gptq(np.random.default_rng(bits), bits=bits, second=second, shuffled=second)
    settings = {"quant_method": "gptq", "bits": bits, "checkpoint_format": "gptq_v2" if second else "gptq"}
    must_be(folder_of(tmp_path, parts, settings), weight, f"dequantised from GPTQ with {bits} bits")


def test_gptq_without_order_without_config_and_with_settings_in_a_file_of_their_own(tmp_path):
    parts, weight = packed.gptq(np.random.default_rng(0), order=False)
    guessed = "dequantised from GPTQ with 4 bits, zero points as in its first format"
    must_be(folder_of(tmp_path, parts), weight, guessed)
    parts, weight = packed.gptq(np.random.default_rng(0), second=True)
    place = folder_of(tmp_path, parts)
    (tmp_path / "quantize_config.json").write_text(json.dumps({"bits": 4, "checkpoint_format": "gptq_v2"}))
    must_be(place, weight, "dequantised from GPTQ with 4 bits")


@pytest.mark.parametrize("name", ["group_size", "q_group_size"])
def test_gptq_without_order_whose_last_group_has_fewer_inputs(tmp_path, name):
    """192 inputs in groups of 128 are 128 and 64, and not twice 96."""
    parts, weight = packed.gptq(np.random.default_rng(0), inputs=192, group=128, order=False)
    settings = {"quant_method": "gptq", "bits": 4, name: 128}
    must_be(folder_of(tmp_path, parts, settings), weight, "dequantised from GPTQ with 4 bits")


def test_gptq_in_one_group(tmp_path):
    parts, weight = packed.gptq(np.random.default_rng(0), inputs=192, group=192, order=False)
    for settings in ({"group_size": -1}, {"group_size": 192}, {}):
        must_be(
            folder_of(tmp_path, parts, {"quant_method": "gptq"} | settings), weight, "dequantised from GPTQ with 4 bits"
        )


def test_gptq_of_more_inputs_than_are_unpacked_at_a_time(tmp_path):
    parts, weight = packed.gptq(np.random.default_rng(0), inputs=2112, outputs=8, group=64)
    must_be(folder_of(tmp_path, parts, {"quant_method": "gptq"}), weight, "dequantised from GPTQ with 4 bits")


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("second", [False, True])
def test_symmetric_gptq_without_zero_points(tmp_path, bits, second):
    parts, _ = packed.gptq(np.random.default_rng(bits), bits=bits, shuffled=True)
    # Written out number by number: the middle of the integers stands for zero.
    words, scales, order = (parts[of].numpy() for of in ("qweight", "scales", "g_idx"))
    each = 32 // bits
    values = np.array([[int(word) >> bits * (at % each) & 2**bits - 1 for word in words[at // each].view(np.uint32)]
                       for at in range(len(order))])  # fmt: skip
    weight = (values.T - 2 ** (bits - 1)) * scales[order].T.astype(np.float64)
    del parts["qzeros"]
    form = "gptq_v2" if second else "gptq"
    settings = {"quant_method": "gptq", "bits": bits, "sym": True, "checkpoint_format": form}
    said = f"dequantised from GPTQ with {bits} bits, symmetric, without zero points"
    must_be(folder_of(tmp_path, parts, settings), weight, said)
    for unknown in ({"bits": bits, "sym": False}, {"sym": True}):
        with pytest.raises(CheckpointError, match="it has no qzeros beside it"):
            folder_of(tmp_path, parts, {"quant_method": "gptq", **unknown}).open().read(f"{LAYER}.weight")


@pytest.mark.parametrize("divides", [True, False])
@pytest.mark.parametrize("shape", [(6, 32), (6, 40), (6, 4, 32)])
def test_nvfp4(tmp_path, divides, shape):
    parts, weight = packed.nvfp4(np.random.default_rng(7), shape, divides=divides)
    method = "compressed-tensors" if divides else "modelopt"
    must_be(folder_of(tmp_path, parts, {"quant_method": method}), weight, "dequantised from NVFP4")


def test_nvfp4_whose_scales_do_not_fit(tmp_path):
    parts, _ = packed.nvfp4(np.random.default_rng(7), (6, 64))
    for name, spoiled in (("weight_scale", parts["weight_scale"][:, :3]), ("weight_scale", torch.ones(6, 4)),
                          ("weight_scale_2", torch.ones(2))):  # fmt: skip
        with pytest.raises(CheckpointError, match="cannot be dequantised: its scales"):
            folder_of(tmp_path, {**parts, name: spoiled}).open().read(f"{LAYER}.weight")


@pytest.mark.parametrize("told", [True, False])
def test_awq(tmp_path, told):
    parts, weight = packed.awq(np.random.default_rng(1))
    settings = {"quant_method": "awq", "bits": 4, "version": "gemm"} if told else None
    must_be(folder_of(tmp_path, parts, settings), weight, "dequantised from AWQ with 4 bits")


def test_int8_of_bitsandbytes(tmp_path):
    parts, weight = packed.int8_by_row(np.random.default_rng(2))
    must_be(folder_of(tmp_path, parts), weight, "dequantised from int8 (bitsandbytes)")


@pytest.mark.parametrize(("kind", "nested"), [("nf4", False), ("nf4", True), ("fp4", False)])
def test_four_bits_of_bitsandbytes(tmp_path, kind, nested):
    parts, weight = packed.four_bit(np.random.default_rng(3), kind, nested=nested)
    must_be(folder_of(tmp_path, parts), weight, f"dequantised from {kind.upper()} (bitsandbytes)")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("blocks", [None, 0, (128, 128), (64, 32)])
def test_fp8(tmp_path, dtype, blocks):
    parts, weight = packed.fp8(np.random.default_rng(4), blocks=blocks, dtype=dtype)
    settings = {"quant_method": "fp8", "weight_block_size": list(blocks) if blocks else None}
    must_be(folder_of(tmp_path, parts, settings), weight, f"dequantised from {str(dtype)[6:]}")


def test_blocks_of_128_are_known_without_a_config(tmp_path):
    parts, weight = packed.fp8(np.random.default_rng(4), blocks=(128, 128), ending="weight_scale")
    must_be(folder_of(tmp_path, parts), weight, "dequantised from float8_e4m3fn")


def test_int8_with_scales_by_row(tmp_path):
    rng = np.random.default_rng(5)
    values, scale = rng.integers(-127, 128, (6, 10)).astype(np.int8), rng.uniform(0.1, 1, (6, 1)).astype(np.float32)
    parts = {"weight": torch.from_numpy(values), "weight_scale": torch.from_numpy(scale)}
    must_be(folder_of(tmp_path, parts), values * scale.astype(np.float64), "dequantised from int8")
    zero = rng.integers(-20, 20, (6, 1))
    parts["weight_zero_point"] = torch.from_numpy(zero.astype(np.int8))
    must_be(folder_of(tmp_path, parts), (values - zero) * scale.astype(np.float64), "dequantised from int8")


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zero", [False, True])
def test_compressed_tensors(tmp_path, bits, zero):
    parts, weight = packed.compressed(np.random.default_rng(6), bits=bits, zero=zero)
    settings = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    said = f"dequantised from compressed-tensors with {bits} bits"
    must_be(folder_of(tmp_path, parts, settings), weight, said)
    parts, weight = packed.compressed(np.random.default_rng(6), bits=bits, zero=zero, shuffled=True)
    must_be(folder_of(tmp_path, parts, settings), weight, said)


def test_mxfp4_as_transformers_reads_it(tmp_path):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    parts, weight = packed.mxfp4(np.random.default_rng(7))
    theirs = convert_moe_packed_tensors(parts["_blocks"], parts["_scales"], dtype=torch.float32)
    np.testing.assert_array_equal(theirs.numpy(), weight)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    place = folder_of(tmp_path, parts, {"quant_method": "mxfp4"}, stem=name)
    with place.open() as checkpoint:
        assert checkpoint.stored(name).shape == weight.shape
        np.testing.assert_array_equal(checkpoint.read(name).numpy(), weight)
        np.testing.assert_array_equal(checkpoint.read(f"{name}[1]").numpy(), weight[1])
        np.testing.assert_array_equal(checkpoint.read(f"{name}[1,:,0::2]").numpy(), weight[1, :, ::2])
        assert checkpoint.notes() == ("1 tensor was dequantised from MXFP4",)


def test_plain_weights_beside_scales_stay_as_they_are(tmp_path):
    weight = torch.randn(4, 6)
    with folder_of(tmp_path, {"weight": weight, "weight_scale": torch.ones(4, 1)}).open() as checkpoint:
        assert torch.equal(checkpoint.read(f"{LAYER}.weight"), weight)
        assert checkpoint.notes() == ()


def test_integers_beside_a_scale_that_are_no_weight_stay_as_they_are(tmp_path):
    table = torch.arange(24, dtype=torch.int8).view(4, 6)
    with folder_of(tmp_path, {"table": table, "table_scale": torch.full((4, 1), 2.0)}).open() as checkpoint:
        assert torch.equal(checkpoint.read(f"{LAYER}.table"), table)
        assert checkpoint.notes() == ()


def test_methods_that_cannot_be_undone_are_refused_by_name(tmp_path):
    place = folder_of(tmp_path, {"W_q": torch.zeros(4, 4, dtype=torch.uint8)}, {"quant_method": "hqq"})
    with pytest.raises(CheckpointError, match=r"quantised with 'hqq'.*save it in floating numbers"):
        place.open()


def spoiled(parts, name, value):
    return {**parts, name: value}


RNG = np.random.default_rng(8)
GPTQ, INT8, NF4, FP8, COMPRESSED, MX = (
    make(RNG)[0]
    for make in (packed.gptq, packed.int8_by_row, packed.four_bit, packed.fp8, packed.compressed, packed.mxfp4)
)
UNEVEN = packed.gptq(RNG, inputs=192, group=128, order=False)[0]
STATE = "weight.quant_state.bitsandbytes__nf4"


def state_of_shape(*shape):
    text = json.dumps({"quant_type": "nf4", "blocksize": 64, "shape": list(shape)})
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


@pytest.mark.parametrize(("parts", "settings", "sentence"), [
    ({"qweight": GPTQ["qweight"]}, {}, "it has no scales beside it"),
    (spoiled(GPTQ, "scales", torch.ones(4, 31)), {}, "fit neither GPTQ nor AWQ"),
    (spoiled(GPTQ, "qzeros", torch.zeros(4, 5, dtype=torch.int32)), {}, "fit neither GPTQ nor AWQ"),  # 5 bits
    (spoiled(GPTQ, "scales", torch.ones(4)), {}, "its scales are torch.float32"),
    (spoiled(GPTQ, "g_idx", torch.full((64,), 9, dtype=torch.int32)), {}, "groups that are not among its 4"),
    (spoiled(GPTQ, "g_idx", torch.full((3,), 9, dtype=torch.int32)), {}, "do not hold its inputs"),
    (UNEVEN, {}, "2 groups of 192 inputs may be cut in several ways, and its config.json does not say which"),
    (UNEVEN, {"quant_method": "gptq", "group_size": 64}, "group_size 64 in its config.json does not say which"),
    (UNEVEN, {"quant_method": "gptq", "group_size": "128"}, "group_size '128' in its config.json does not"),
    (GPTQ, {"quant_method": "gptq", "checkpoint_format": "marlin"}, "layout for one kind of GPU"),
    (spoiled(INT8, "weight_format", torch.tensor(2, dtype=torch.uint8)), {}, "in the order of one kind of GPU"),
    (spoiled(INT8, "SCB", torch.ones(3)), {}, "it has 32 rows and 3 scales"),
    (spoiled(NF4, STATE, torch.zeros(5, dtype=torch.uint8)), {}, "does not say what its shape"),
    (spoiled(NF4, STATE, state_of_shape()), {}, "does not say what its shape"),
    (spoiled(NF4, STATE, state_of_shape(4, 4, 4, 3, 2)), {}, "does not say what its shape"),
    (spoiled(NF4, "weight.absmax", torch.ones(2)), {}, "2 scales do not fit 384 numbers"),
    (spoiled(NF4, "weight", torch.zeros(7, 1, dtype=torch.uint8)), {}, "it has 7 bytes"),
    (spoiled(FP8, "weight_scale_inv", torch.ones(7, 3)), {}, "do not fit"),
    (spoiled(FP8, "weight_scale_inv", torch.ones(2, 2, 2)), {}, "its scales have shape"),
    (spoiled(COMPRESSED, "weight_packed", torch.zeros(16, 8, dtype=torch.uint8)), {}, "not a pack-quantized"),
    (spoiled(COMPRESSED, "weight_packed", torch.zeros(16, 0, dtype=torch.int32)), {}, "not a pack-quantized"),
    (spoiled(COMPRESSED, "weight_packed", torch.zeros(128, dtype=torch.int32)), {}, "not a pack-quantized"),
    (spoiled(COMPRESSED, "weight_shape", torch.tensor(16)), {}, "not a pack-quantized"),
    (spoiled(COMPRESSED, "weight_shape", torch.tensor([16, 999])), {}, "do not hold 999 numbers"),
])  # fmt: skip
def test_parts_that_do_not_fit_are_refused_in_a_sentence(tmp_path, parts, settings, sentence):
    with folder_of(tmp_path, parts, settings).open() as checkpoint:
        with pytest.raises(CheckpointError, match=sentence) as caught:
            checkpoint.stored(f"{LAYER}.weight"), checkpoint.read(f"{LAYER}.weight")
        assert "\n" not in str(caught.value)
        assert LAYER in str(caught.value)
        assert isinstance(checkpoint.notes(), tuple)  # they do not fail where reading does
