"""Arrays and configs come back as they went in, or are refused in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joma.runs import Run, RunError, plain_config
from joma.runs.values import DTYPES, Packed, checksum_of, pack, unpack, unpack_all

arrays = st.sampled_from(sorted(DTYPES)).flatmap(
    lambda dtype: hnp.arrays(np.dtype(dtype), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
)


@settings(max_examples=50, deadline=None)
@given(arrays)
def test_every_array_comes_back_bit_for_bit(array: np.ndarray) -> None:
    back = unpack(pack(array, "x", 3), "x", 3)
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert back.tobytes() == array.tobytes()  # bytes: NaNs count as well
    assert back.flags.writeable


@settings(max_examples=12, deadline=None)
@given(st.lists(arrays, min_size=1, max_size=4))
def test_every_array_comes_back_from_a_file(tmp_path_factory: pytest.TempPathFactory, values: list[np.ndarray]) -> None:
    path = tmp_path_factory.mktemp("runs") / "a.joma"
    with Run.create(path, study="demo", config={}) as run:
        for step, array in enumerate(values):
            run.append("x", step, array)
    with Run.open(path) as run:
        for step, array in enumerate(values):
            back = run.at("x", step)
            assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_memory_layout_does_not_matter() -> None:
    array = np.arange(24.0).reshape(2, 3, 4)
    for view in (array.T, array[:, ::-1], array[..., 1], np.asfortranarray(array), array.astype(">f8")):
        assert np.array_equal(unpack(pack(view, "x", 0), "x", 0), view)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.float64, torch.complex64]
)
def test_tensors_keep_their_dtype(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[0, 1, 1]]).to(dtype)
    back = unpack(pack(tensor, "x", 0), "x", 0)
    assert torch.equal(torch.from_numpy(back), tensor)


def test_tensors_with_a_past() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    assert unpack(pack(parameter, "x", 0), "x", 0).tolist() == [1, 1]
    conjugate = torch.tensor([1 + 2j]).conj()
    assert unpack(pack(conjugate, "x", 0), "x", 0).tolist() == [1 - 2j]
    assert unpack(pack(conjugate.imag, "x", 0), "x", 0).tolist() == [-2]


def test_bfloat16_becomes_float32_exactly() -> None:
    tensor = torch.randn(100, generator=torch.Generator().manual_seed(0)).bfloat16()
    back = unpack(pack(tensor, "x", 0), "x", 0)
    assert back.dtype == np.float32
    assert torch.equal(torch.from_numpy(back).bfloat16(), tensor)


@pytest.mark.parametrize(
    "value",
    ["text", b"bytes", None, {"a": 1}, object(), [[1], [1, 2]], 2**70, np.datetime64("2020")]
    + [torch.zeros(2, 2).to_sparse(), torch.zeros(2, dtype=torch.float8_e4m3fn), torch.zeros(2, device="meta")],
    ids=lambda value: str(type(value).__name__),
)
def test_what_is_no_array_of_numbers_is_refused(value: object) -> None:
    with pytest.raises(RunError, match="'x' must"):
        pack(value, "x", 0)


def test_a_mask_is_not_dropped_silently() -> None:
    with pytest.raises(RunError, match="mask would be lost"):
        pack(np.ma.masked_equal([1, 2], 2), "x", 0)


def test_a_changed_byte_is_noticed() -> None:
    good = pack(np.arange(3.0), "x", 5)
    changed = bytes([good.data[0] ^ 1]) + good.data[1:]
    for bad in (good._replace(data=changed), good._replace(dtype="int64"), good._replace(shape="3,1")):
        with pytest.raises(RunError, match="step 5 of 'x' is damaged"):
            unpack(bad, "x", 5)
    with pytest.raises(RunError, match="damaged"):
        unpack(good, "x", 6)


def test_plain_config() -> None:
    config = {"a": (1, (2.5, None)), "b": Path("p/q"), "c": {"d": [True]}, "e": np.float64(0.5)}
    assert plain_config(config) == {"a": [1, [2.5, None]], "b": "p/q", "c": {"d": [True]}, "e": 0.5}
    assert plain_config(plain_config(config)) == plain_config(config)


class Color(Enum):
    RED = 1


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"lr": float("nan")}, r"config\['lr'\] must be finite, got nan; write None"),
        ({"lr": [1.0, float("inf")]}, r"config\['lr'\]\[1\] must be finite"),
        ({"x": np.zeros(2)}, r"config\['x'\] must be of .* got ndarray"),
        ({"x": np.int64(2)}, r"got int64"),
        ({"x": Color.RED}, "got Color"),
        ({"x": {1, 2}}, "got set"),
        ({"x": {1: 2}}, r"config\['x'\] must have strings as keys, got 1"),
        ([1, 2], "config must be a mapping .* got list"),
    ],
)
def test_what_json_cannot_carry_is_refused(config: Mapping[str, object], sentence: str) -> None:
    with pytest.raises(RunError, match=sentence):
        plain_config(config)


def test_many_rows_at_once_are_as_one_by_one():
    arrays = [np.arange(6, dtype=np.int16).reshape(2, 3) * step for step in range(4)]
    rows = [(step, *pack(array, "x", step)) for step, array in enumerate(arrays)]
    together = unpack_all(rows, "x")
    assert together.dtype == np.int16
    assert np.array_equal(together, np.stack([unpack(Packed(*row[1:]), "x", row[0]) for row in rows]))
    assert unpack_all([*rows, (4, *pack(1.0, "x", 4))], "x") is None  # of another kind
    assert unpack_all([(0, *pack(2.5, "x", 0))], "x").tolist() == [2.5]


@pytest.mark.parametrize(
    ("place", "value"), [(0, 9), (3, 1), (4, b"short"), (4, "text"), (4, None), (4, bytes(12)), (3, None)]
)
def test_one_damaged_row_among_many_is_named(place, value):
    rows = [(step, *pack(np.arange(6, dtype=np.int16), "x", step)) for step in range(4)]
    rows[2] = (*rows[2][:place], value, *rows[2][place + 1 :])
    with pytest.raises(RunError, match=rf"step {rows[2][0]} of 'x' is damaged"):
        unpack_all(rows, "x")


def test_rows_whose_lengths_only_agree_in_sum_are_damaged():
    """With right checksums: whoever made the file knew how."""
    data = [bytes(8), bytes(16), bytes(24)]
    rows = [(n, "int16", "8", checksum_of("x", n, "int16", "8", data=one), one) for n, one in enumerate(data)]
    with pytest.raises(RunError, match="step 0 of 'x' is damaged"):
        unpack_all(rows, "x")
    for dtype, shape in (("object", ""), ("float64", "-1"), ("float64", ",".join("1" * 100)), ("float64", "9" * 5000)):
        several = [(n, dtype, shape, checksum_of("x", n, dtype, shape, data=bytes(8)), bytes(8)) for n in (3, 5)]
        # Arrays of 100 dimensions are refused by NumPy, when all rows have been looked at.
        with pytest.raises(RunError, match=f"step {5 if ',' in shape else 3} of 'x' is damaged"):
            unpack_all(several, "x")
