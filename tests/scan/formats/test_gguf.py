"""GGUF files: what llama.cpp writes, dequantised."""

import sys

import numpy as np
import pytest
import torch
from format_files import notes_of, random, refusal, tensors_of

from joma.scan.formats import gguf_file
from joma.scan.formats.gguf_file import GgufFile
from joma.scan.formats.tensor_file import LocalBytes
from joma.scan.sources.folder import LocalFile, LocalFolder


def gguf_file_of(path, tensors, architecture="llama", alignment=None):
    """tensors: (array, type) by name; the library quantises and writes them."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(2)
    if alignment:
        writer.add_custom_alignment(alignment)
    writer.add_token_list(["a", "b", "é漢"])
    writer.add_array("numbers", [1, 2, 3])
    for name, (value, kind) in tensors.items():
        kind = gguf.GGMLQuantizationType[kind]
        packed = gguf.quants.quantize(value, kind) if kind.name not in ("F32", "F16") else value
        packed = packed.astype(np.float16) if kind.name == "F16" else packed
        writer.add_tensor(name, packed, raw_dtype=None if kind.name in ("F32", "F16") else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def q8_0(value):
    blocks = value.reshape(-1, 32).astype(np.float32)
    scale = np.abs(blocks).max(1, keepdims=True) / np.float32(127)
    rounded = np.round(blocks / np.where(scale == 0, 1, scale))
    return (rounded.astype(np.float64) * scale.astype(np.float16).astype(np.float64)).reshape(value.shape)


GGUF_UP = "blk.0.ffn_up.weight"


def test_gguf_by_its_definition(tmp_path):
    value = random(48, 64).numpy()
    tensors = {
        GGUF_UP: (value, "Q8_0"),
        "blk.0.ffn_gate.weight": (value, "F32"),
        "output_norm.weight": (value[0], "F32"),
    }
    tensors["token_embd.weight"] = (value, "F16")
    place = LocalFile(gguf_file_of(tmp_path / "a.gguf", tensors), 0)
    found = tensors_of(place)
    np.testing.assert_allclose(found[GGUF_UP].numpy(), q8_0(value), rtol=1e-6, atol=1e-8)
    np.testing.assert_array_equal(found["blk.0.ffn_gate.weight"].numpy(), value)
    np.testing.assert_array_equal(found["token_embd.weight"].numpy(), value.astype(np.float16))
    np.testing.assert_array_equal(found["output_norm.weight"].numpy(), value[0])
    assert notes_of(place) == ("1 tensor was dequantised from Q8_0 (GGUF)",)


@pytest.mark.parametrize("alignment", [8, 256])
def test_gguf_with_an_alignment_of_its_own(tmp_path, alignment):
    value = random(3, 5).numpy()
    tensors = {GGUF_UP: (value, "F32"), "output_norm.weight": (value[0], "F32")}
    found = tensors_of(LocalFile(gguf_file_of(tmp_path / "a.gguf", tensors, alignment=alignment), 0))
    np.testing.assert_array_equal(found[GGUF_UP].numpy(), value)
    np.testing.assert_array_equal(found["output_norm.weight"].numpy(), value[0])


@pytest.mark.parametrize("kind", ["BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0"])
def test_gguf_types_that_the_library_can_write(tmp_path, kind):
    gguf = pytest.importorskip("gguf")
    experts = random(3, 4, 256).numpy()
    place = LocalFile(gguf_file_of(tmp_path / "a.gguf", {"blk.0.ffn_up_exps.weight": (experts, kind)}), 0)
    wanted = gguf.GGMLQuantizationType[kind]
    exact = gguf.quants.dequantize(gguf.quants.quantize(experts, wanted), wanted)
    with place.open() as checkpoint:
        assert checkpoint.stored("blk.0.ffn_up_exps.weight").shape == (3, 4, 256)
        np.testing.assert_array_equal(checkpoint.read("blk.0.ffn_up_exps.weight").float().numpy(), exact)
        np.testing.assert_array_equal(checkpoint.read("blk.0.ffn_up_exps.weight[2]").float().numpy(), exact[2])


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ4_NL", "IQ2_XXS", "IQ3_S"])
def test_gguf_types_that_only_llama_cpp_writes(tmp_path, kind):
    """Any bytes are a block: the file is written with random ones, and the library's reader says what they mean."""
    gguf = pytest.importorskip("gguf")
    wanted = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[wanted]
    raw = np.random.default_rng(0).integers(0, 120, (6, 512 // block * size)).astype(np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_tensor(GGUF_UP, raw, raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    theirs = gguf.GGUFReader(tmp_path / "a.gguf").tensors[0]
    exact = gguf.quants.dequantize(theirs.data, theirs.tensor_type)
    found = tensors_of(LocalFile(tmp_path / "a.gguf", 0))[GGUF_UP]
    np.testing.assert_array_equal(found.numpy(), exact)
    assert found.shape == (6, 512)


def test_gguf_rows_that_are_dequantised_a_few_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_file, "_AT_ONCE", 2 * 64)
    value = random(7, 64, seed=3).numpy()
    with LocalFile(
        gguf_file_of(tmp_path / "a.gguf", {"x": (value, "F32"), GGUF_UP: (value, "Q8_0")}), 0
    ).open() as found:
        np.testing.assert_allclose(found.read(GGUF_UP).numpy(), q8_0(value), rtol=1e-6, atol=1e-8)
        rows = GgufFile(LocalBytes(tmp_path / "a.gguf")).read_rows(GGUF_UP, 1, 6)
    np.testing.assert_allclose(rows.numpy(), q8_0(value)[1:6], rtol=1e-6, atol=1e-8)


def test_a_gguf_in_several_files_and_several_of_them(tmp_path):
    for part in (1, 2):
        tensors = {f"blk.{part}.ffn_up.weight": (random(2, 32, seed=part).numpy(), "F32")}
        gguf_file_of(tmp_path / f"a-0000{part}-of-00002.gguf", tensors)
    found = tensors_of(LocalFolder(tmp_path, 0))
    assert {name: torch.equal(value, random(2, 32, seed=int(name[4]))) for name, value in found.items()} == {
        "blk.1.ffn_up.weight": True,
        "blk.2.ffn_up.weight": True,
    }
    gguf_file_of(tmp_path / "b-Q8_0.gguf", {GGUF_UP: (random(2, 32).numpy(), "Q8_0")})
    assert "several weights files" in refusal(LocalFolder(tmp_path, 0).open)


def test_gguf_without_the_package(tmp_path, monkeypatch):
    quantised = gguf_file_of(tmp_path / "a.gguf", {GGUF_UP: (random(2, 32).numpy(), "Q8_0")})
    plain = gguf_file_of(tmp_path / "b.gguf", {GGUF_UP: (random(2, 32).numpy(), "F16")})
    for name in ("gguf", "gguf.constants", "gguf.quants"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "needs the package gguf: pip install -e '.[gguf]'" in refusal(LocalFile(quantised, 0).open)
    assert torch.equal(tensors_of(LocalFile(plain, 0))[GGUF_UP], random(2, 32).half())
